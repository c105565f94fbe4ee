//! The webhook server: the API server asks here before another scheduler's pod is bound, and for the load of replicas; people and Prometheus look in.
//!
//! It speaks TLS with a certificate of its own, made at every start, under a path that nobody can guess. The API server learns both from
//! the ValidatingWebhookConfiguration that [`manifests`](crate::manifests()) has, which the holder of the Lease keeps up to date.
//! Where the webhook server does not answer, bindings are made unasked.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_http::{
    Answer, Body, Certificate, Limits, Method, Request, Server, StatusCode, bind, is_same_secret, new_secret,
    read_body, typed,
};
use bedplate_kubernetes::k8s_openapi::ByteString;
use bedplate_kubernetes::k8s_openapi::api::admissionregistration::v1::{
    ValidatingWebhook, ValidatingWebhookConfiguration,
};
use bedplate_kubernetes::k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{
    APIService, APIServiceSpec,
};
use bedplate_kubernetes::kube::api::{Patch, PatchParams};
use bedplate_kubernetes::kube::{self, Api, Client};
use bedplate_pods::{AskedBinding, Judged};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::BinderError;
use crate::figures::Figures;
use crate::manifests::HOOK;
use crate::manifests::METRICS_SERVICE;
use crate::run::News;
use crate::scaling;

/// How often, and how many times, a binding is judged again whose pod has not been heard of.
const AGAIN: Duration = Duration::from_millis(100);
const TRIES: u32 = 20;
/// How often the configuration is looked at: whoever applies the manifests anew may have taken the certificate out.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// The socket and what it proves itself with.
pub(crate) struct WebhookServer {
    listener: TcpListener,
    certificate: Certificate,
    /// For which the certificate was made.
    names: BTreeSet<String>,
    secret: Arc<str>,
}

/// Whose webhook server it is, and what it answers beside judging bindings.
pub(crate) struct WebhookServerOptions {
    pub(crate) client: Client,
    /// The scheduler's, and where its Service is.
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// Whether it tells autoscalers the load of replicas.
    pub(crate) tells_load: bool,
}

impl WebhookServer {
    /// Listens. The names are those by which the API server calls it; without a configuration, the usual ones.
    pub(crate) async fn open(
        address: SocketAddr,
        options: &WebhookServerOptions,
    ) -> Result<Self, BinderError> {
        let failed = |why: String| BinderError::Listen { address, why };
        let listener = bind(address).map_err(|error| failed(error.to_string()))?;
        let WebhookServerOptions { name, namespace, .. } = options;
        let service = format!("{name}-scheduler.{namespace}.svc");
        let mut names = BTreeSet::from(["localhost".to_owned(), "127.0.0.1".to_owned(), service]);
        if !address.ip().is_unspecified() {
            names.insert(address.ip().to_string());
        }
        names.extend(Callers::new(options).names().await);
        let certificate =
            Certificate::make(names.iter().cloned().collect()).map_err(|error| failed(error.to_string()))?;
        Ok(Self { listener, certificate, names, secret: new_secret().into() })
    }

    /// Answers, and keeps those who call told while we lead.
    pub(crate) async fn keep(
        self,
        options: WebhookServerOptions,
        news: UnboundedSender<News>,
        shown: Arc<Shown>,
    ) {
        let Ok(acceptor) = self.certificate.acceptor() else { return };
        let server = Server::new(Limits::default()).encrypted(acceptor);
        let callers = Callers::new(&options);
        let path = format!("/bindings/{}", self.secret);
        let bundle = pem::encode(&pem::Pem::new("CERTIFICATE", self.certificate.certificate.clone()));
        let writes = async {
            loop {
                let leads = shown.leads.load(Ordering::Relaxed);
                if leads {
                    if let Err(error) = callers.tell(&bundle, &path).await {
                        let _ = news.send(News::Refused { what: WRITES_HOOK, why: error });
                    }
                    let strange = callers.names().await.into_iter().filter(|name| !self.names.contains(name));
                    strange.for_each(|name| drop(news.send(News::CalledByOtherName { name })));
                }
                tokio::time::sleep(if leads { LOOK_AGAIN } else { AGAIN }).await;
            }
        };
        let visitor = Visitor {
            client: options.client.clone(),
            tells_load: options.tells_load,
            news: news.clone(),
            shown: shown.clone(),
            secret: self.secret.clone(),
            limits: server.limits().clone(),
        };
        let answers = server.accept(&self.listener, move |request: Request| {
            let visitor = visitor.clone();
            async move { visitor.answer(request).await }
        });
        tokio::join!(answers, writes);
    }
}

/// What is said where the configuration cannot be kept.
const WRITES_HOOK: &str = "get and patch the webhook configuration, so bindings of others are made unasked";

/// What the loop shows to whoever looks in.
#[derive(Default)]
pub(crate) struct Shown {
    pub(crate) leads: AtomicBool,
    pub(crate) figures: Figures,
}

#[derive(Clone)]
struct Visitor {
    client: Client,
    tells_load: bool,
    news: UnboundedSender<News>,
    shown: Arc<Shown>,
    secret: Arc<str>,
    limits: Limits,
}

impl Visitor {
    async fn answer(&self, request: Request) -> Answer {
        let path = request.uri().path().to_owned();
        let leads = self.shown.leads.load(Ordering::Relaxed);
        match (request.method(), path.as_str()) {
            (&Method::GET, "/healthz") => text(StatusCode::OK, "lives\n"),
            (&Method::GET, "/ready") if leads => text(StatusCode::OK, "holds the Lease and schedules\n"),
            (&Method::GET, "/ready") => text(StatusCode::SERVICE_UNAVAILABLE, "another holds the Lease\n"),
            (&Method::GET, "/metrics") => typed(
                StatusCode::OK,
                "text/plain; version=0.0.4; charset=utf-8",
                Body::whole(self.shown.figures.exposition(leads)),
            ),
            (&Method::GET, path) if self.tells_load && path.starts_with("/apis/") => {
                let answer = scaling::answer(&self.client, path, request.uri().query()).await;
                answer.unwrap_or_else(|| text(StatusCode::NOT_FOUND, "there is nothing here\n"))
            }
            (&Method::POST, path) if is_same_secret(shown_secret(path), self.secret.as_bytes()) => {
                self.judge(request).await
            }
            _ => text(StatusCode::NOT_FOUND, "there is nothing here\n"),
        }
    }

    async fn judge(&self, request: Request) -> Answer {
        let (parts, mut body) = request.into_parts();
        let body = match read_body(&parts.headers, &mut body, &self.limits).await {
            Ok(body) => body,
            Err(error) => return text(error.status(), &format!("{error}\n")),
        };
        let Some(review) = serde_json::from_slice::<Value>(&body).ok().and_then(|review| Review::of(&review))
        else {
            return text(StatusCode::BAD_REQUEST, "this is no AdmissionReview of a binding\n");
        };
        let judged = if review.is_tried_only { Some(Judged::Fits) } else { self.ask(&review.asked).await };
        // Without an answer the API server goes on as if nobody had been asked.
        let Some(judged) = judged else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "another holds the Lease\n");
        };
        self.shown.figures.judged(&judged);
        bedplate_http::json(StatusCode::OK, &review.answer(&judged))
    }

    /// Nothing where we do not lead.
    async fn ask(&self, asked: &AskedBinding) -> Option<Judged> {
        for _ in 0..TRIES {
            let (answer, told) = oneshot::channel();
            self.news.send(News::Asked { asked: asked.clone(), answer }).ok()?;
            match told.await.ok()? {
                Judged::Unknown => tokio::time::sleep(AGAIN).await,
                judged => return Some(judged),
            }
        }
        Some(Judged::Unknown)
    }
}

/// A binding that the API server asks about.
#[derive(Debug, PartialEq, Eq)]
struct Review {
    uid: String,
    asked: AskedBinding,
    is_tried_only: bool,
}

impl Review {
    fn of(review: &Value) -> Option<Self> {
        let request = &review["request"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let object = &request["object"];
        Some(Self {
            uid: text(&request["uid"])?,
            is_tried_only: request["dryRun"] == true,
            asked: AskedBinding {
                namespace: text(&request["namespace"])?,
                pod: text(&request["name"])
                    .filter(|name| !name.is_empty())
                    .or_else(|| text(&object["metadata"]["name"]))?,
                uid: text(&object["metadata"]["uid"]).filter(|uid| !uid.is_empty()),
                node: text(&object["target"]["name"])?,
            },
        })
    }

    /// What has not been heard of is let through, as if we were not there.
    fn answer(&self, judged: &Judged) -> Value {
        let mut response = json!({"uid": self.uid, "allowed": !matches!(judged, Judged::Refused(_))});
        if let Judged::Refused(why) = judged {
            response["status"] = json!({"code": 409, "reason": "Conflict", "message": why});
        }
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }
}

/// The objects by which the API server knows where to call, and whom to trust there.
struct Callers {
    hooks: Api<ValidatingWebhookConfiguration>,
    services: Option<Api<APIService>>,
    /// Of the webhook configuration, and of the Service.
    name: String,
}

impl Callers {
    fn new(options: &WebhookServerOptions) -> Self {
        let WebhookServerOptions { client, name, tells_load, .. } = options;
        Self {
            hooks: Api::all(client.clone()),
            services: tells_load.then(|| Api::all(client.clone())),
            name: format!("{name}-scheduler"),
        }
    }

    /// The hosts under which the API server calls.
    async fn names(&self) -> Vec<String> {
        let of_service = |name: &str, namespace: &str| format!("{name}.{namespace}.svc");
        let hook = self.hook().await.ok().flatten().map(|hook| hook.client_config);
        let by_hook = hook.and_then(|call| match (call.service, call.url) {
            (Some(service), _) => Some(of_service(&service.name, &service.namespace)),
            (None, url) => host_of(&url?).map(str::to_owned),
        });
        let service = self.source().await.ok().flatten().and_then(|source| source.service);
        let by_service = service.and_then(|service| Some(of_service(&service.name?, &service.namespace?)));
        by_hook.into_iter().chain(by_service).collect()
    }

    /// Writes the certificate and the path where they are different. Who is not there does not call, and that is all.
    async fn tell(&self, bundle: &str, path: &str) -> kube::Result<()> {
        let bundle = ByteString(bundle.as_bytes().to_vec());
        if let Some(hook) = self.hook().await? {
            let mut call = hook.client_config.clone();
            call.ca_bundle = Some(bundle.clone());
            if let Some(service) = &mut call.service {
                service.path = Some(path.to_owned());
            }
            call.url = call.url.map(|url| format!("{}{path}", root_of(&url)));
            if call != hook.client_config {
                let patch = Patch::Strategic(json!({"webhooks": [{"name": HOOK, "clientConfig": call}]}));
                self.hooks.patch(&self.name, &PatchParams::default(), &patch).await?;
            }
        }
        if let (Some(services), Some(source)) = (&self.services, self.source().await?)
            && source.ca_bundle.as_ref() != Some(&bundle)
        {
            let patch = Patch::Merge(json!({"spec": {"caBundle": bundle}}));
            services.patch(METRICS_SERVICE, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    async fn hook(&self) -> kube::Result<Option<ValidatingWebhook>> {
        let hooks = self.hooks.get_opt(&self.name).await?.and_then(|configuration| configuration.webhooks);
        Ok(hooks.into_iter().flatten().find(|hook| hook.name == HOOK))
    }

    /// Where external metrics come from, if that is us: another adapter may have been there before.
    async fn source(&self) -> kube::Result<Option<APIServiceSpec>> {
        let Some(services) = &self.services else { return Ok(None) };
        let source = services.get_opt(METRICS_SERVICE).await?.and_then(|known| known.spec);
        let is_ours = |source: &APIServiceSpec| {
            source.service.as_ref().and_then(|service| service.name.as_deref()) == Some(&self.name)
        };
        Ok(source.filter(is_ours))
    }
}

/// A URL up to its path.
fn root_of(url: &str) -> &str {
    let after = url.find("://").map_or(0, |at| at + 3);
    url[after..].find('/').map_or(url, |at| &url[..after + at])
}

fn host_of(url: &str) -> Option<&str> {
    let authority = root_of(url).split_once("://")?.1;
    match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(host, _)| host),
        None => authority.split(':').next(),
    }
}

fn shown_secret(path: &str) -> &[u8] {
    path.strip_prefix("/bindings/").unwrap_or_default().as_bytes()
}

fn text(status: StatusCode, words: &str) -> Answer {
    typed(status, "text/plain; charset=utf-8", Body::whole(words.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_come_apart() {
        for (url, root, host) in [
            ("https://10.0.0.1:8443/bindings/x", "https://10.0.0.1:8443", Some("10.0.0.1")),
            ("https://gpu.example.com", "https://gpu.example.com", Some("gpu.example.com")),
            ("https://[::1]:8443/", "https://[::1]:8443", Some("::1")),
            ("nothing", "nothing", None),
        ] {
            assert_eq!((root_of(url), host_of(url)), (root, host), "{url}");
        }
    }

    #[test]
    fn a_review_of_a_binding_is_read_and_answered() {
        let review = json!({"request": {
            "uid": "7", "namespace": "default", "name": "pod-0",
            "object": {"metadata": {"name": "pod-0", "uid": "u1"}, "target": {"kind": "Node", "name": "n3"}},
        }});
        let review = Review::of(&review).expect("it is one");
        let node = "n3".to_owned();
        let asked = AskedBinding {
            namespace: "default".to_owned(),
            pod: "pod-0".to_owned(),
            uid: Some("u1".to_owned()),
            node,
        };
        assert_eq!(review, Review { uid: "7".to_owned(), asked, is_tried_only: false });
        let answer = review.answer(&Judged::Refused("n3 is full".to_owned()));
        assert_eq!(
            answer["response"],
            json!({
                "uid": "7", "allowed": false, "status": {"code": 409, "reason": "Conflict", "message": "n3 is full"},
            })
        );
        assert_eq!(review.answer(&Judged::Unknown)["response"]["allowed"], true);
        assert_eq!(Review::of(&json!({"request": {"uid": "7"}})), None);
    }
}
