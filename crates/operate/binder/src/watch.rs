//! Watches of nodes and pods: everything that happens, in order, into one channel.

use std::pin::pin;

use bedplate_kubernetes::k8s_openapi::api::core::v1::{Node, Pod};
use bedplate_kubernetes::kube::runtime::watcher::{self, Event};
use bedplate_kubernetes::kube::runtime::{WatchStreamExt, watcher as watch};
use bedplate_kubernetes::kube::{self, Api, Client};
use futures_util::StreamExt;
use tokio::sync::mpsc::UnboundedSender;

use crate::run::News;

/// The server ends a watch after this many seconds and it is begun anew, so that a link that has fallen silent is noticed soon.
const LASTS: u32 = 30;

/// Watches until the receiver is gone. A watch that ends or expires is begun anew with a list.
pub(crate) async fn nodes(client: Client, news: UnboundedSender<News>) {
    let stream = watch(Api::<Node>::all(client), watcher::Config::default().timeout(LASTS)).default_backoff();
    let mut stream = pin!(stream);
    while let Some(event) = stream.next().await {
        let told = match event {
            Ok(event) => News::Node(Box::new(event)),
            Err(error) => News::WatchFailed { what: "nodes", why: cause(&error) },
        };
        if news.send(told).is_err() {
            return;
        }
    }
}

/// Pods that have ended stay in the list: a gang counts those that succeeded.
pub(crate) async fn pods(client: Client, news: UnboundedSender<News>) {
    let stream = watch(Api::<Pod>::all(client), watcher::Config::default().timeout(LASTS)).default_backoff();
    let mut stream = pin!(stream);
    while let Some(event) = stream.next().await {
        let told = match event {
            Ok(event) => News::Pod(Box::new(event)),
            Err(error) => News::WatchFailed { what: "pods", why: cause(&error) },
        };
        if news.send(told).is_err() {
            return;
        }
    }
}

fn cause(error: &watcher::Error) -> kube::Error {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => copied(error),
        watcher::Error::WatchError(status) => kube::Error::Api(status.clone()),
        other => kube::Error::Service(other.to_string().into()),
    }
}

/// An answer of the server keeps its status; anything else its words.
fn copied(error: &kube::Error) -> kube::Error {
    match error {
        kube::Error::Api(status) => kube::Error::Api(status.clone()),
        other => kube::Error::Service(other.to_string().into()),
    }
}

/// Whether the event begins or ends a list.
pub(crate) fn is_whole<K>(event: &Event<K>) -> Option<bool> {
    match event {
        Event::Init => Some(false),
        Event::InitDone => Some(true),
        _ => None,
    }
}
