//! From a request to its answer: route, token, role, limits, handler.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use bedplate_diag::{Diagnostic, render_json};
use bedplate_http::{ClientPeer, Request, Server, bearer};
use bedplate_journal::Writer;
use bedplate_topology::Cluster;
use hyper::header::{ALLOW, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Method, StatusCode};
use tokio::sync::{Semaphore, watch};

use super::answer::{self, Answer};
use super::call::ApiCall;
use super::error::ApiError;
use super::query::{self, Query};
use super::routes::{ROUTES, Route};
use crate::background::Background;
use crate::clock::Clock;
use crate::control_thread::ControlThread;
use crate::diagnosing::Diagnosing;
use crate::hub::Hub;
use crate::limits::{Client, Clients};
use crate::links::AgentLinks;
use crate::metrics::DaemonMetrics;
use crate::options::DaemonOptions;
use crate::readers::Readers;
use crate::submission_keys::SubmissionKeys;
use crate::tokens::{AccessRole, Identity, TokenStore};
use crate::work_queue::on_behalf_of;

/// All that handlers need.
pub(crate) struct App {
    pub(crate) options: DaemonOptions,
    pub(crate) cluster: Cluster,
    pub(crate) clock: Arc<Clock>,
    pub(crate) control: ControlThread,
    pub(crate) writer: Arc<Writer>,
    pub(crate) readers: Readers,
    pub(crate) keys: Arc<SubmissionKeys>,
    pub(crate) links: Arc<AgentLinks>,
    pub(crate) diagnosing: Diagnosing,
    pub(crate) hub: Arc<Hub>,
    pub(crate) tokens: Arc<TokenStore>,
    pub(crate) metrics: Arc<DaemonMetrics>,
    pub(crate) server: Server,
    pub(crate) clients: Arc<Clients>,
    pub(crate) at_once: Arc<Semaphore>,
    pub(crate) background: Background,
    /// Reads of files that jobs left on this machine.
    pub(crate) left_behind: Arc<Semaphore>,
    pub(crate) shutdown: watch::Sender<Option<Shutdown>>,
}

impl App {
    /// Returns once the daemon is about to end and no job holds it up any more.
    pub(crate) async fn ends(&self) {
        let mut told = self.shutdown.subscribe();
        // The sender is in this very value.
        let _ = told.wait_for(|how| *how == Some(Shutdown::LeaveJobs)).await;
    }
}

/// Whether jobs end with the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shutdown {
    StopJobs,
    LeaveJobs,
}

/// Answers a request, whatever happens to its handler.
pub(crate) async fn answer(app: Arc<App>, request: Request) -> Answer {
    let began = Instant::now();
    let peer = request
        .extensions()
        .get::<ClientPeer>()
        .map_or(Ipv4Addr::UNSPECIFIED.into(), |ClientPeer(address)| *address);
    let path = request.uri().path().to_owned();
    let found = find(request.method(), &path);
    let (method_name, path_name) =
        found.as_ref().map_or(("", "unknown"), |(route, _)| (route.method, route.path));
    let metrics = app.metrics.clone();
    let answered = match found {
        Ok((route, parameters)) => handle(app, peer, request, route, parameters).await,
        Err(error) => Err(error),
    };
    let answer = answered.unwrap_or_else(|error| refusal(&error));
    metrics.answered(method_name, path_name, answer.status().as_u16(), began.elapsed());
    answer
}

async fn handle(
    app: Arc<App>,
    peer: IpAddr,
    mut request: Request,
    route: &'static Route,
    parameters: Vec<String>,
) -> Result<Answer, ApiError> {
    let permit = app.at_once.clone().try_acquire_owned().map_err(|_| ApiError::Busy)?;
    let identity = authorize(&app, peer, request.headers(), route)?;
    let client = match &identity {
        Some(identity) if identity.role == AccessRole::Agent => Client::Agent(identity.token),
        Some(identity) => Client::User(identity.user.as_str().into()),
        None => Client::Address(peer),
    };
    let under_way = app.clients.enter(client, Instant::now())?;
    let names: Vec<&'static str> = route.query.iter().map(|parameter| parameter.name).collect();
    let query = Query::parse(request.uri().query().unwrap_or(""), &names)?;
    let upgrade = route.is_upgrade().then(|| hyper::upgrade::on(&mut request));
    let (head, body) = request.into_parts();
    let metrics = app.metrics.clone();
    let user = identity.as_ref().map_or_else(|| peer.to_string(), |identity| identity.user.clone());
    let call = ApiCall { app, identity, parameters, query, headers: head.headers, body, upgrade };
    // On a task of its own: its panic is its own, and a client that hangs up does not leave a change half made.
    let handled = tokio::spawn(async move { on_behalf_of(&user, (route.handler)(call)).await }).await;
    let mut answer = handled.unwrap_or_else(|_| {
        metrics.panics.add(1);
        Err(ApiError::Panicked)
    })?;
    answer.body_mut().hold((permit, under_way));
    Ok(answer)
}

fn find(method: &Method, path: &str) -> Result<(&'static Route, Vec<String>), ApiError> {
    let mut allowed = Vec::new();
    let mut is_badly_named = false;
    for route in ROUTES {
        match route.parameters(path) {
            Some(_) if route.method != method.as_str() => allowed.push(route.method),
            Some(Some(parameters)) => return Ok((route, parameters)),
            Some(None) => is_badly_named = true,
            None => {}
        }
    }
    let path: String = path.chars().take(200).collect();
    if is_badly_named {
        return Err(ApiError::Malformed { what: "the path", why: "a part of it is not a name".into() });
    }
    match allowed.is_empty() {
        true => Err(ApiError::NoSuchPath { path }),
        false => Err(ApiError::WrongMethod { method: method.to_string(), path, allowed: allowed.join(", ") }),
    }
}

/// Who asks, if they may.
fn authorize(
    app: &App,
    peer: IpAddr,
    headers: &HeaderMap,
    route: &Route,
) -> Result<Option<Identity>, ApiError> {
    let Some(needed) = route.role else {
        return Ok(None);
    };
    let Some(identity) = bearer(headers).and_then(|secret| app.tokens.identify(secret)) else {
        // Guessing is slowed down; those with a good token do not notice.
        drop(app.clients.enter(Client::Refused(peer), Instant::now())?);
        return Err(ApiError::Unauthorized);
    };
    if !identity.role.may(needed) {
        return Err(ApiError::Forbidden {
            method: route.method.into(),
            path: route.path.into(),
            needed: needed.name(),
            role: identity.role.name(),
        });
    }
    Ok(Some(identity))
}

fn refusal(error: &ApiError) -> Answer {
    let mut answer = answer::json(error.status(), &render_json(error));
    let headers = answer.headers_mut();
    match error {
        ApiError::Unauthorized => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        ApiError::WrongMethod { allowed, .. } => {
            if let Ok(allowed) = HeaderValue::from_str(allowed) {
                headers.insert(ALLOW, allowed);
            }
        }
        error if error.page().class == bedplate_diag::Class::Transient => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    if error.status() == StatusCode::PAYLOAD_TOO_LARGE || error.status() == StatusCode::REQUEST_TIMEOUT {
        // The rest of the body is not read.
        headers.insert(hyper::header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

impl Route {
    /// Nothing when the path is another one; no values when a part cannot be a name.
    pub(crate) fn parameters(&self, path: &str) -> Option<Option<Vec<String>>> {
        let (mut wanted, mut found) = (self.path.split('/'), path.split('/'));
        let mut values = Some(Vec::new());
        loop {
            match (wanted.next(), found.next()) {
                (None, None) => return Some(values),
                (Some(wanted), Some(found)) if wanted.starts_with('{') => {
                    let value = query::segment(found);
                    values = values.zip(value).map(|(mut values, value)| {
                        values.push(value);
                        values
                    });
                }
                (Some(wanted), Some(found)) if wanted == found => {}
                _ => return None,
            }
        }
    }
}
