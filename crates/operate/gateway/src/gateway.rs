//! The gateway: models, limits and counters that requests share, and the way from a request to its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use bedplate_batching::TenantId;
use bedplate_host::clock;
use bedplate_host::panics::message;
use bedplate_http::header::{HeaderName, HeaderValue};
use bedplate_http::{Answer, HeaderMap, Request, Server, read_body};
use bedplate_random::mix;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;

use crate::admission::{Owner, ReadingTurns, Share, Shares, is_large, room_for_body};
use crate::answering;
use crate::cross_origin::CrossOrigin;
use crate::error::GatewayError;
use crate::fields::{self, Fields};
use crate::keys::ApiKeys;
use crate::metrics::{GatewayMetrics, ModelMetrics};
use crate::model::ServedModel;
use crate::options::GatewayOptions;
use crate::presence::Presence;
use crate::refusal::ApiError;
use crate::routes::{self, RouteAction, chat, completions, embeddings, responses, status, tokens};
use crate::trace::Trace;
use crate::wire::{ChoiceShape, Form};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Bodies that are being read have at most so many bytes together: what is made of them has up to sixteen times as many.
const MOST_BODY_BYTES: u64 = 256 << 20;
/// Large bodies that are read at once.
const LARGE_AT_ONCE: usize = 2;

/// Everything that handlers need.
pub(crate) struct Gateway {
    pub(crate) options: GatewayOptions,
    pub(crate) models: Vec<(Arc<ServedModel>, Arc<ModelMetrics>)>,
    pub(crate) metrics: GatewayMetrics,
    pub(crate) trace: Option<Arc<Trace>>,
    pub(crate) server: Server,
    keys: ApiKeys,
    cross_origin: CrossOrigin,
    /// Of requests under way.
    slots: Arc<Shares>,
    /// Bytes of bodies that are being read.
    bodies: Arc<Shares>,
    /// Reading prompts and grammars: small bodies, and large ones apart, so that nobody waits for those.
    reading: [Arc<ReadingTurns>; 2],
    is_draining: AtomicBool,
    seed: u64,
    ids: AtomicU64,
}

impl Gateway {
    pub(crate) fn new(
        models: Vec<ServedModel>,
        options: GatewayOptions,
        server: Server,
    ) -> Result<Self, GatewayError> {
        let mut names: Vec<String> = models.iter().flat_map(ServedModel::names).map(str::to_owned).collect();
        names.sort();
        if let Some(same) = names.windows(2).find(|two| two[0] == two[1]) {
            return Err(GatewayError::SameName { name: same[0].clone() });
        }
        let trace = options.trace.as_deref().map(Trace::open).transpose()?.map(Arc::new);
        let now = clock::unix_time().as_nanos() as u64;
        let keys = ApiKeys::load(&options.keys, options.key_file.as_deref())?;
        let requests = options.bounds.requests as u64;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let with_metrics = |model| (Arc::new(model), Arc::new(ModelMetrics::new()));
        Ok(Self {
            cross_origin: CrossOrigin::new(&options.origins),
            slots: Shares::with_room_for_others(requests),
            bodies: Shares::new(MOST_BODY_BYTES.max(4 * options.bounds.body_bytes as u64)),
            reading: [ReadingTurns::new(cores), ReadingTurns::new(LARGE_AT_ONCE)],
            models: models.into_iter().map(with_metrics).collect(),
            metrics: GatewayMetrics::default(),
            trace,
            server,
            keys,
            is_draining: AtomicBool::new(false),
            seed: mix(now ^ u64::from(std::process::id())),
            ids: AtomicU64::new(0),
            options,
        })
    }

    pub(crate) fn models(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        self.models.iter().map(|(model, _)| model)
    }

    pub(crate) fn metrics_of(&self, wanted: &Arc<ServedModel>) -> Arc<ModelMetrics> {
        let found = self.models.iter().find(|(model, _)| Arc::ptr_eq(model, wanted));
        found.map_or_else(|| Arc::new(ModelMetrics::new()), |(_, metrics)| metrics.clone())
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Takes no more requests and lets the models finish what they have.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
        self.models().for_each(|model| model.drain());
    }

    /// The model that a request names, the name, and the adapter if it is one's.
    pub(crate) fn model(
        &self,
        fields: &Fields<'_>,
    ) -> Result<(Arc<ServedModel>, String, Option<String>), ApiError> {
        let name = fields::text(fields.required("model")?, "model")?;
        let found = self.models().find(|model| model.names().any(|known| known == name));
        let Some(model) = found else {
            return Err(ApiError::NoSuchModel { model: name.to_owned(), served: self.served() });
        };
        let is_adapter = model.about().adapters.iter().any(|adapter| adapter == name);
        Ok((model.clone(), name.to_owned(), is_adapter.then(|| name.to_owned())))
    }

    /// The same where a server of one model need not be told.
    pub(crate) fn model_or_only(
        &self,
        fields: &Fields<'_>,
    ) -> Result<(Arc<ServedModel>, String, Option<String>), ApiError> {
        match (&self.models[..], fields.get("model")) {
            ([(only, _)], None) => Ok((only.clone(), only.name().to_owned(), None)),
            _ => self.model(fields),
        }
    }

    /// The names of all models and adapters.
    pub(crate) fn served(&self) -> Vec<String> {
        self.models().flat_map(|model| model.names()).map(str::to_owned).collect()
    }

    /// A text that no other request of this server has.
    pub(crate) fn unique(&self) -> String {
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}{:08x}", mix(self.seed ^ number), number as u32)
    }

    /// A slot for a request that has been read.
    fn enter(&self, owner: Owner) -> Result<Share, ApiError> {
        if self.is_draining() {
            return Err(ApiError::Draining);
        }
        let limit = self.options.bounds.requests;
        self.slots.take(owner, 1).ok_or(ApiError::TooMany { limit })
    }
}

/// Answers a request, whatever happens to its handler.
pub(crate) async fn answer(gateway: Arc<Gateway>, request: Request) -> Answer {
    let id = request_id(request.headers()).unwrap_or_else(|| gateway.unique());
    let origin = request.headers().get("origin").cloned();
    if let Some(answer) = gateway.cross_origin.preflight(&request) {
        return answer;
    }
    let (path, handled) = route(&gateway, request, &id).await;
    let mut answer = handled.unwrap_or_else(ApiError::into_answer);
    gateway.metrics.answered(path, answer.status().as_u16());
    gateway.cross_origin.permit(origin.as_ref(), answer.headers_mut());
    if let Ok(id) = HeaderValue::from_str(&id) {
        answer.headers_mut().insert(REQUEST_ID, id);
    }
    answer
}

/// A client's own name for its request, where it can be repeated.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let is_fine = (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    is_fine.then(|| id.to_owned())
}

async fn route(
    gateway: &Arc<Gateway>,
    request: Request,
    id: &str,
) -> (&'static str, Result<Answer, ApiError>) {
    let path = request.uri().path().to_owned();
    let found = match routes::find(request.method(), &path) {
        Ok(found) => found,
        Err(allowed) => {
            let path: String = path.chars().take(200).collect();
            let method = request.method().to_string();
            let error = allowed.map_or(ApiError::NoSuchPath { path: path.clone() }, |allowed| {
                ApiError::WrongMethod { method, path, allowed }
            });
            return ("unknown", Err(error));
        }
    };
    let tenant = match found.needs_key {
        true => gateway.keys.identify(request.headers()),
        false => Ok(TenantId::default()),
    };
    let name = found.name.map(str::to_owned);
    let handled = match tenant {
        Ok(tenant) => handle(gateway, request, found.action, name, tenant, id).await,
        Err(error) => Err(error),
    };
    (found.path, handled)
}

async fn handle(
    gateway: &Arc<Gateway>,
    request: Request,
    action: RouteAction,
    name: Option<String>,
    tenant: TenantId,
    id: &str,
) -> Result<Answer, ApiError> {
    match action {
        RouteAction::Page => return Ok(status::page()),
        RouteAction::Health => return status::health(gateway),
        RouteAction::Ready => return status::ready(gateway),
        RouteAction::Metrics => return Ok(status::metrics(gateway)),
        RouteAction::Version => return Ok(status::version()),
        RouteAction::Models => return status::models(gateway, name.as_deref()),
        RouteAction::TokenizerInfo => return tokens::info(gateway),
        _ => {}
    }
    let arrived = Instant::now();
    if gateway.is_draining() {
        return Err(ApiError::Draining);
    }
    let owner = Owner::of(&gateway.keys, tenant, &request);
    let (head, mut body) = request.into_parts();
    let limits = gateway.server.limits();
    let room = gateway.bodies.take(owner, room_for_body(&head.headers, limits)).ok_or(ApiError::Crowded)?;
    let bytes = read_body(&head.headers, &mut body, limits).await?;
    let body = TakenBody { bytes, _room: room };
    let task = Aborting(tokio::spawn(work(
        gateway.clone(),
        action,
        body,
        Visitor { tenant, owner, arrived, id: id.to_owned() },
    )));
    let limit = gateway.options.bounds.request;
    timeout(limit, task).await.map_err(|_| ApiError::TookTooLong { seconds: limit.as_secs() })?
}

/// A body, and the bytes that were set aside for it.
struct TakenBody {
    bytes: bytes::Bytes,
    _room: Share,
}

/// Who asks, and since when.
pub(crate) struct Visitor {
    pub(crate) tenant: TenantId,
    owner: Owner,
    pub(crate) arrived: Instant,
    pub(crate) id: String,
}

/// A request that generates. Reading it may take long, for large prompts and schemas, so that is done on a thread that may be kept busy,
/// in turns between clients, and before the request has a slot.
async fn work(
    gateway: Arc<Gateway>,
    action: RouteAction,
    body: TakenBody,
    visitor: Visitor,
) -> Result<Answer, ApiError> {
    let reader = gateway.clone();
    let turn = gateway.reading[usize::from(is_large(&body.bytes))].wait(visitor.owner).await;
    // Given up together with this task, when the client goes.
    let client = Presence::default();
    let held = client.held();
    let read = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        read(&reader, action, &body.bytes, &client)
    });
    let read = read.await.unwrap_or_else(|error| Err(panicked(error)))?;
    drop(held);
    if let Read::Done(answer) = read {
        return Ok(answer);
    }
    let slot = gateway.enter(visitor.owner)?;
    let mut answer = match read {
        Read::Done(answer) => answer,
        Read::Generation(generation, form) => answering::answer(&gateway, *generation, form, visitor).await?,
        Read::Embeddings(embeddings) => embeddings::answer(embeddings, visitor.tenant).await?,
    };
    answer.body_mut().hold(slot);
    Ok(answer)
}

enum Read {
    Done(Answer),
    Generation(Box<crate::generation::Generation>, Form),
    Embeddings(embeddings::Embeddings),
}

fn read(gateway: &Gateway, action: RouteAction, body: &[u8], client: &Presence) -> Result<Read, ApiError> {
    let body = fields::parse(body)?;
    let fields = Fields::of_body(&body, client)?;
    let generation = |generation, form| Read::Generation(Box::new(generation), form);
    match action {
        RouteAction::Chat => Ok(generation(chat::read(gateway, &fields)?, Form::Choices(ChoiceShape::Chat))),
        RouteAction::Completions => {
            Ok(generation(completions::read(gateway, &fields)?, Form::Choices(ChoiceShape::Completion)))
        }
        RouteAction::Responses => Ok(generation(responses::read(gateway, &fields)?, Form::Response)),
        RouteAction::Embeddings => embeddings::read(gateway, &fields).map(Read::Embeddings),
        RouteAction::Detokenize => tokens::detokenize(gateway, &fields).map(Read::Done),
        _ => tokens::tokenize(gateway, &fields).map(Read::Done),
    }
}

fn panicked(error: JoinError) -> ApiError {
    match error.try_into_panic() {
        Ok(panic) => ApiError::bug(message(panic.as_ref())),
        Err(_) => ApiError::Failed { reason: "it was given up".into() },
    }
}

/// A task that ends with the request: a client that goes away ends it.
struct Aborting(JoinHandle<Result<Answer, ApiError>>);

impl Future for Aborting {
    type Output = Result<Answer, ApiError>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        std::pin::Pin::new(&mut self.0)
            .poll(context)
            .map(|ended| ended.unwrap_or_else(|error| Err(panicked(error))))
    }
}

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.abort();
    }
}
