//! A connection to an API server, for callers that block and for those that do not.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::runtime::{Builder, Runtime};

use crate::KubernetesError;

/// How long an answer may take; watches and logs that are followed are not bound by it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where an API server is and who we are there. The default is what `kubectl` would use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesPlace {
    /// Instead of `$KUBECONFIG`, `~/.kube/config`, or the service account of the pod that we run in.
    pub kubeconfig: Option<PathBuf>,
    /// Instead of the kubeconfig's current context.
    pub context: Option<String>,
    /// Instead of the context's namespace.
    pub namespace: Option<String>,
}

/// An API server that has been told who we are. Its runtime drives what is asked over it.
pub struct ApiConnection {
    client: Client,
    runtime: Runtime,
    server: String,
    namespace: String,
}

impl ApiConnection {
    /// Reads the kubeconfig; nothing is sent yet.
    pub fn open(place: &KubernetesPlace) -> Result<Self, KubernetesError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("kubernetes")
            .enable_all()
            .build()
            .map_err(KubernetesError::Threads)?;
        let mut config = runtime.block_on(configuration(place))?;
        config.connect_timeout = Some(PATIENCE);
        if let Some(namespace) = &place.namespace {
            config.default_namespace.clone_from(namespace);
        }
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = config.default_namespace.clone();
        // One choice of cryptography for the whole program; a second choice is the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let made = {
            let _inside = runtime.enter();
            Client::try_from(config)
        };
        let client = made.map_err(|source| KubernetesError::Kubeconfig { why: complete(&source) })?;
        Ok(Self { client, runtime, server, namespace })
    }

    /// For calls that do not block.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub fn server(&self) -> &str {
        &self.server
    }

    /// Where jobs go that name no namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Waits for an answer, as long as an answer may take.
    pub fn ask<T>(&self, answer: impl Future<Output = kube::Result<T>>) -> Result<T, KubernetesError> {
        self.wait(async { tokio::time::timeout(PATIENCE, answer).await })
            .map_err(|_| KubernetesError::Silent { server: self.server.clone(), after: PATIENCE })?
            .map_err(|source| KubernetesError::of(source, &self.server))
    }

    /// Waits for something that may take as long as it likes.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

async fn configuration(place: &KubernetesPlace) -> Result<Config, KubernetesError> {
    let options = KubeConfigOptions { context: place.context.clone(), ..KubeConfigOptions::default() };
    let unreadable =
        |source: kube::config::KubeconfigError| KubernetesError::Kubeconfig { why: complete(&source) };
    match &place.kubeconfig {
        Some(path) => {
            let text = Kubeconfig::read_from(path).map_err(unreadable)?;
            Config::from_custom_kubeconfig(text, &options).await.map_err(unreadable)
        }
        None if place.context.is_none() => {
            Config::infer().await.map_err(|source| KubernetesError::Kubeconfig { why: complete(&source) })
        }
        None => Config::from_kubeconfig(&options).await.map_err(unreadable),
    }
}

/// An error with what caused it, in one line.
pub(crate) fn complete(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
