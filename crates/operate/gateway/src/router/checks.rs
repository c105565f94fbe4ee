//! Asking a replica, again and again, whether it is in order.
//!
//! One that passes and computes nothing is found by its requests: where none of them goes on for a while, nor the tokens that it counts
//! itself, it must answer a request of ours.

use std::sync::Arc;
use std::time::Duration;

use bedplate_http::client::{self, Call, ClientError};
use bedplate_http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::member::{ReplicaHealth, RouterMember};
use super::options::Checks;

/// Where servers tell whether they take requests: ours first, then what others have.
const PATHS: [&str; 3] = ["/ready", "/health", "/v1/models"];
const MODELS: &str = "/v1/models";
/// A list of models is not larger.
const MOST_LIST: usize = 1 << 20;
const MOST_METRICS: usize = 8 << 20;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Checks a replica until it is retired. One that starts is asked more often.
pub(super) async fn watch(member: Arc<RouterMember>, checks: Checks, key: Option<HeaderValue>) {
    let mut path = 0;
    let mut first_pause = FIRST_PAUSE;
    while member.replica_health() != ReplicaHealth::Retired {
        let checked = timeout(checks.timeout, check(&member, &mut path, key.as_ref())).await;
        match checked.unwrap_or(Err(ClientError::Silent { seconds: checks.timeout.as_secs() })) {
            Ok(models) if member.is_hung() => {
                if answers(&member, &checks, models.as_deref(), key.as_ref()).await {
                    member.recovers();
                    continue;
                }
            }
            Ok(models) => {
                look_after_work(&member, &checks, models.as_deref(), key.as_ref()).await;
                if !member.is_hung() && member.passes(models) {
                    learn_room(&member, &checks, key.as_ref()).await;
                    info!(replica = %member.url, "replica {} is in service", member.url);
                }
            }
            Err(error) => {
                member.counts.failed_checks.add(1);
                if member.fails(&error) {
                    warn!(replica = %member.url, "replica {} is out of service: it {error}", member.url);
                }
            }
        }
        let pause =
            if member.replica_health() == ReplicaHealth::Starting { first_pause } else { checks.interval };
        first_pause = (first_pause * 2).min(checks.interval);
        tokio::select! {
            () = sleep(pause.min(checks.interval)) => {}
            () = member.becomes(&[ReplicaHealth::Retired]) => {}
        }
    }
}

/// Takes a replica out of service whose requests stand still, though it passes its checks.
async fn look_after_work(
    member: &RouterMember,
    checks: &Checks,
    models: Option<&[Value]>,
    key: Option<&HeaderValue>,
) {
    if !member.stands_still(checks.hang) {
        return;
    }
    let counted = metrics(member, checks, key).await.as_deref().and_then(computed_tokens);
    if counted.is_some_and(|tokens| member.has_computed(tokens)) || answers(member, checks, models, key).await
    {
        return member.goes_on();
    }
    if member.hangs() {
        let seconds = checks.hang.as_secs();
        warn!(
            replica = %member.url,
            "replica {} is out of service: it passes its checks, but for {seconds} s none of its requests went on, and it answers none", member.url
        );
    }
}

/// Whether it answers a request for one token.
async fn answers(
    member: &RouterMember,
    checks: &Checks,
    models: Option<&[Value]>,
    key: Option<&HeaderValue>,
) -> bool {
    let model = models.and_then(|models| models.first()).map_or(Value::Null, |model| model["id"].clone());
    let body = json!({ "model": model, "prompt": "a", "max_tokens": 1 }).to_string();
    let ask = async {
        let call = Call::post(&member.url.path("/v1/completions"), key, body);
        let mut reply = client::call(&member.url.authority(), call).await?;
        let status = reply.status;
        reply.whole(MOST_LIST).await.map(|_| status)
    };
    match timeout(checks.hang, ask).await {
        // What it does not know, it has read at least. What is busy may be so for ever.
        Ok(Ok(status)) => !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS,
        _ => false,
    }
}

async fn metrics(member: &RouterMember, checks: &Checks, key: Option<&HeaderValue>) -> Option<String> {
    let ask = async {
        let mut reply =
            client::call(&member.url.authority(), Call::get(&member.url.path("/metrics"), key)).await?;
        reply.whole(MOST_METRICS).await
    };
    let text = timeout(checks.timeout, ask).await.ok()?.ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The sum of all counters of tokens, whatever server has them.
fn computed_tokens(metrics: &str) -> Option<f64> {
    let counted = metrics.lines().filter_map(|line| {
        let (sample, value) = line.rsplit_once(' ')?;
        let name = sample.split('{').next()?;
        (name.contains("token") && name.ends_with("_total")).then(|| value.parse::<f64>().ok()).flatten()
    });
    counted.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

/// Asks how much a replica can remember, which our engine and vLLM tell among their metrics; others are taken to have plenty.
async fn learn_room(member: &RouterMember, checks: &Checks, key: Option<&HeaderValue>) {
    if let Some(tokens) = metrics(member, checks, key).await.as_deref().and_then(cache_tokens) {
        member.remembers(tokens);
    }
}

/// Tokens of the cache for keys and values, from the labels of `vllm:cache_config_info`.
fn cache_tokens(metrics: &str) -> Option<u32> {
    let line = metrics.lines().find(|line| line.starts_with("vllm:cache_config_info{"))?;
    let label = |name: &str| line.split_once(&format!("{name}=\""))?.1.split_once('"')?.0.parse::<u32>().ok();
    let tokens = label("block_size")?.checked_mul(label("num_gpu_blocks")?)?;
    (tokens > 0).then_some(tokens)
}

/// Whether it takes requests, and for which models, if it tells.
async fn check(
    member: &RouterMember,
    path: &mut usize,
    key: Option<&HeaderValue>,
) -> Result<Option<Vec<Value>>, ClientError> {
    while PATHS[*path] != MODELS {
        let reply =
            client::call(&member.url.authority(), Call::get(&member.url.path(PATHS[*path]), key)).await?;
        match reply.status {
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => *path += 1,
            status if status.is_success() => break,
            status => return Err(refused(status)),
        }
    }
    let mut reply = client::call(&member.url.authority(), Call::get(&member.url.path(MODELS), key)).await?;
    let needs_no_list = PATHS[*path] != MODELS;
    match reply.status {
        status if status.is_success() => Ok(models(&reply.whole(MOST_LIST).await?)),
        // It is there and wants a key that only clients have.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(None),
        _ if needs_no_list => Ok(None),
        status => Err(refused(status)),
    }
}

fn refused(status: StatusCode) -> ClientError {
    ClientError::Broken { why: format!("a check was answered with status {}", status.as_u16()) }
}

fn models(body: &[u8]) -> Option<Vec<Value>> {
    let list: Value = serde_json::from_slice(body).ok()?;
    Some(list.get("data")?.as_array()?.iter().filter(|entry| entry["id"].is_string()).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_tokens_are_added_up() {
        let text = "# HELP vllm:prompt_tokens_total x\nvllm:prompt_tokens_total{model_name=\"m\"} 12.0\nvllm:generation_tokens_total{a=\"b c\"} 30\nvllm:request_success_total 7\n";
        assert_eq!((computed_tokens(text), computed_tokens("up 1\n")), (Some(42.0), None));
    }

    #[test]
    fn the_size_of_a_cache_is_read_from_the_labels_of_a_metric() {
        let line = "vllm:cache_config_info{model_name=\"m\",block_size=\"16\",num_gpu_blocks=\"651\"} 1";
        assert_eq!(cache_tokens(&format!("# HELP x\n{line}\n")), Some(10_416));
        for text in [
            "",
            "vllm:cache_config_info{block_size=\"16\"} 1",
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1",
        ] {
            assert_eq!(cache_tokens(text), None, "{text}");
        }
    }
}
