//! How many requests replicas have under way, as the external metric that HorizontalPodAutoscalers ask for.
//!
//! The API server passes the questions of its autoscaler on to the [webhook server](crate::webhook_server). An answer is made on the spot: the pods that the
//! question selects are asked for their metrics, whichever of the known engines they run. Replicas that do not answer count as the
//! others do on average, so that one that hangs neither stops scaling nor shrinks the rest.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bedplate_document::kubernetes::is_dns_label;
use bedplate_http::client::{self, Call};
use bedplate_http::{Answer, StatusCode, decoded, json};
use bedplate_kubernetes::k8s_openapi::api::core::v1::Pod;
use bedplate_kubernetes::k8s_openapi::jiff::Timestamp;
use bedplate_kubernetes::kube::api::ListParams;
use bedplate_kubernetes::kube::{Api, Client};
use futures_util::StreamExt;
use futures_util::stream::iter;
use serde_json::{Value, json};
use tokio::time::timeout;

/// The path of the group and version.
const ROOT: &str = "/apis/external.metrics.k8s.io/v1beta1";
/// The one metric that there is.
pub(crate) const METRIC: &str = "bedplate_requests_under_way";
/// What engines call it: requests that run, and those that wait.
const OF_ENGINES: [&str; 4] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
];
/// How long a replica may take to tell, how much it may tell, and how many are asked at once.
const PATIENCE: Duration = Duration::from_secs(2);
const MOST_TOLD: usize = 4 << 20;
const AT_ONCE: usize = 32;
const LONGEST_SELECTOR: usize = 2048;
/// How long an answer may take, and of how many replicas.
const LONGEST: Duration = Duration::from_secs(10);
const MOST_REPLICAS: u32 = 2000;

/// The answer to a question under [`ROOT`]; nothing for any other path.
pub(crate) async fn answer(client: &Client, path: &str, query: Option<&str>) -> Option<Answer> {
    let rest = path.strip_prefix(ROOT)?;
    if rest.is_empty() || rest == "/" {
        return Some(json(StatusCode::OK, &list_of_metrics()));
    }
    let mut parts = rest.strip_prefix("/namespaces/")?.split('/');
    let (namespace, metric) = (parts.next()?, parts.next()?);
    if parts.next().is_some() || decoded(metric, 256)? != METRIC {
        let why = format!("there is no external metric `{metric}`; there is {METRIC}");
        return Some(failed(StatusCode::NOT_FOUND, &why));
    }
    let selector = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("labelSelector="));
    let selector = selector.and_then(|text| decoded(&text.replace('+', " "), LONGEST_SELECTOR));
    let Some(selector) = selector.filter(|selector| !selector.is_empty()) else {
        return Some(failed(StatusCode::BAD_REQUEST, "the metric needs a selector of the replicas' pods"));
    };
    // A name of a namespace needs no encoding, and becomes part of a path.
    if !is_dns_label(namespace) {
        return Some(failed(StatusCode::BAD_REQUEST, "this is not the name of a namespace"));
    }
    Some(match timeout(LONGEST, under_way(client, namespace, &selector)).await {
        Ok(Ok(requests)) => json(StatusCode::OK, &value(requests)),
        Ok(Err(why)) => failed(StatusCode::SERVICE_UNAVAILABLE, &why),
        Err(_) => failed(StatusCode::SERVICE_UNAVAILABLE, "the replicas could not be asked in time"),
    })
}

/// Requests under way in all replicas that the selector names.
async fn under_way(client: &Client, namespace: &str, selector: &str) -> Result<f64, String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let listed = pods
        .list(&ListParams::default().labels(selector).limit(MOST_REPLICAS))
        .await
        .map_err(|error| error.to_string())?;
    let ready: Vec<(IpAddr, u16)> =
        listed.items.iter().filter(|pod| is_ready(pod)).filter_map(address).collect();
    let count = ready.len();
    let told: Vec<Option<f64>> = iter(ready).map(ask).buffer_unordered(AT_ONCE).collect().await;
    estimated(&told).ok_or_else(|| format!("none of {count} ready pods with `{selector}` tells its requests"))
}

/// The sum, with those that did not answer counted as the others on average; nothing where nobody answered: what is not known must not make
/// replicas fewer.
fn estimated(told: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = told.iter().copied().flatten().collect();
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    (!known.is_empty()).then_some(mean * told.len() as f64)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_ready = conditions.is_some_and(|conditions| {
        conditions.iter().any(|each| each.type_ == "Ready" && each.status == "True")
    });
    is_ready && pod.metadata.deletion_timestamp.is_none()
}

/// Where a pod answers HTTP: at the port named `http`, or at its first.
fn address(pod: &Pod) -> Option<(IpAddr, u16)> {
    let ports =
        || pod.spec.iter().flat_map(|spec| &spec.containers).flat_map(|each| each.ports.iter().flatten());
    let port = ports().find(|port| port.name.as_deref() == Some("http")).or_else(|| ports().next())?;
    let ip = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    Some((ip, u16::try_from(port.container_port).ok()?))
}

/// What one replica tells.
async fn ask((ip, port): (IpAddr, u16)) -> Option<f64> {
    let asked = async {
        let server = SocketAddr::from((ip, port)).to_string();
        let mut reply = client::call(&server, Call::get("/metrics", None)).await.ok()?;
        let body = reply.whole(MOST_TOLD).await.ok()?;
        (reply.status == StatusCode::OK).then_some(body)
    };
    let body = timeout(PATIENCE, asked).await.ok()??;
    requests_in(&String::from_utf8_lossy(&body))
}

/// The requests that an engine's metrics tell; nothing where it has none of the names.
fn requests_in(metrics: &str) -> Option<f64> {
    let mut sum = None;
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let after = line.rfind('}').map_or(name.len(), |at| at + 1);
        let value = line.get(after..).and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        if let (true, Some(value)) = (OF_ENGINES.contains(&name), value.filter(|value| value.is_finite())) {
            *sum.get_or_insert(0.0) += value.max(0.0);
        }
    }
    sum
}

fn list_of_metrics() -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "external.metrics.k8s.io/v1beta1",
        "resources": [{"name": METRIC, "singularName": "", "namespaced": true, "kind": "ExternalMetricValueList", "verbs": ["get"]}],
    })
}

fn value(requests: f64) -> Value {
    json!({
        "kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": {},
        "items": [{
            "metricName": METRIC, "metricLabels": {}, "timestamp": Timestamp::now().to_string(),
            "value": format!("{}m", (requests * 1000.0).round()),
        }],
    })
}

/// A failure as the API server's clients read it.
fn failed(status: StatusCode, why: &str) -> Answer {
    let code = status.as_u16();
    json(
        status,
        &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": why, "code": code}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_in_the_metrics_of_engines() {
        for (metrics, requests) in [
            (
                "vllm:num_requests_running{model_name=\"a b\"} 3.0\nvllm:num_requests_waiting{model_name=\"a b\"} 4\n",
                Some(7.0),
            ),
            (
                "# HELP sglang:num_running_reqs n\nsglang:num_running_reqs 2\nsglang:num_queue_reqs 1 1700000000\n",
                Some(3.0),
            ),
            ("vllm:num_requests_running NaN\nvllm:num_requests_running_total 5\n", None),
            ("vllm:num_requests_running{", None),
            ("", None),
        ] {
            assert_eq!(requests_in(metrics), requests, "{metrics}");
        }
    }

    #[test]
    fn replicas_that_do_not_answer_count_as_the_others() {
        assert_eq!(estimated(&[]), None, "no replica is ready, and that says nothing of requests");
        assert_eq!(estimated(&[Some(4.0), None, Some(8.0)]), Some(18.0));
        assert_eq!(estimated(&[None]), None);
    }
}
