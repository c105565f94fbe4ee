//! Asking a replica, again and again, whether it is in order.

use std::sync::Arc;
use std::time::Duration;

use bedplate_http::client::{self, Call, ClientError};
use bedplate_http::{HeaderValue, StatusCode};
use serde_json::Value;
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
            Ok(models) => {
                if member.passes(models) {
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

/// Asks how much a replica can remember, which our engine and vLLM tell among their metrics; others are taken to have plenty.
async fn learn_room(member: &RouterMember, checks: &Checks, key: Option<&HeaderValue>) {
    let ask = async {
        let mut reply =
            client::call(&member.url.authority(), Call::get(&member.url.path("/metrics"), key)).await?;
        reply.whole(MOST_METRICS).await
    };
    if let Ok(Ok(text)) = timeout(checks.timeout, ask).await
        && let Some(tokens) = cache_tokens(&String::from_utf8_lossy(&text))
    {
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
