//! From a generation to its answer: whole, or as a stream of events.

use std::sync::Arc;
use std::time::Duration;

use bedplate_host::clock;
use bedplate_host::panics::caught_async;
use bedplate_http::header::{CACHE_CONTROL, HeaderValue};
use bedplate_http::{Answer, Body, StatusCode, json, typed};
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::account::Account;
use crate::choice::{Delta, TokenShown};
use crate::gateway::{Gateway, Visitor};
use crate::generation::{Generation, Streaming};
use crate::refusal::ApiError;
use crate::responding;
use crate::running::{ChoiceStep, RunningChoices, Sources};
use crate::wire::{ChoiceShape, Form, Head, ShownEcho, Usage, Whole};

/// Events that may wait for a client that reads slowly; the engine does not wait for it.
const MOST_WAITING: usize = 64;

pub(crate) async fn answer(
    gateway: &Arc<Gateway>,
    generation: Generation,
    form: Form,
    visitor: Visitor,
) -> Result<Answer, ApiError> {
    let sources = Sources::start(&generation, visitor.tenant)?;
    let metrics = gateway.metrics_of(&generation.model);
    let account = Account::open(&generation, visitor.tenant, visitor.arrived, metrics, gateway.trace.clone());
    let created = clock::unix_time().as_secs();
    let head = Head { id: form.id(&visitor.id), created, model: generation.name.clone() };
    match generation.streaming {
        None => whole(&generation, form, &head, sources, account).await,
        Some(streaming) => {
            let (events, receiver) = mpsc::channel(MOST_WAITING);
            let limit = gateway.options.bounds.request;
            let deadline = Instant::now() + limit;
            let stall = gateway.server.limits().stall;
            let events = ClientEvents { events, deadline, limit, stall };
            tokio::spawn(async move {
                let telling = stream(&generation, form, &head, streaming, sources, account, &events);
                if let Err(what) = caught_async(telling).await {
                    // The client may have gone.
                    let _ = events.send(&ApiError::bug(&what).to_json()).await;
                }
            });
            let mut answer =
                typed(StatusCode::OK, "text/event-stream; charset=utf-8", Body::stream(receiver));
            answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            Ok(answer)
        }
    }
}

async fn whole(
    generation: &Generation,
    form: Form,
    head: &Head,
    sources: Sources,
    account: Account,
) -> Result<Answer, ApiError> {
    let mut running = RunningChoices::new(generation, sources, account);
    let mut deltas: Vec<Delta> = running.choices.iter().map(|_| Delta::default()).collect();
    while let Some(ChoiceStep { choice, delta }) = running.next().await? {
        deltas[choice].extend(delta);
    }
    let usage = usage(generation, &running);
    let body = match form {
        Form::Response => responding::whole(head, generation, &deltas.pop().unwrap_or_default(), usage),
        Form::Choices(shape) => shape.whole(head, generation, &best(generation, &running, deltas), usage),
    };
    Ok(json(StatusCode::OK, &body))
}

/// The choices that are shown, of each prompt the best ones first where there are more.
fn best(generation: &Generation, running: &RunningChoices<'_>, deltas: Vec<Delta>) -> Vec<Whole> {
    let samples = usize::from(generation.continuation.samples);
    let shown = usize::from(generation.shown);
    let mut all: Vec<Option<Delta>> = deltas.into_iter().map(Some).collect();
    let mut choices = Vec::new();
    for prompt in 0..generation.prompts.len() {
        let mut order: Vec<usize> = (prompt * samples..(prompt + 1) * samples).collect();
        if shown < samples {
            order.sort_by(|one, other| {
                running.choices[*other].score().total_cmp(&running.choices[*one].score())
            });
        }
        for at in order.into_iter().take(shown) {
            let delta = all[at].take().unwrap_or_default();
            let index = choices.len();
            let scores = generation.prompt_logprobs.map(|_| running.prompts[prompt].clone());
            let scores = scores.map(|scores| (prompt, scores));
            choices.push(Whole { index, echo: echo(generation, running, prompt), scores, delta });
        }
    }
    choices
}

/// The prompt in front of its choices, with log-probabilities where they are shown.
fn echo(generation: &Generation, running: &RunningChoices<'_>, prompt: usize) -> ShownEcho {
    let Some(echo) = generation.echoes.as_ref().map(|echoes| &echoes[prompt]) else {
        return ShownEcho::default();
    };
    let mut scores = running.prompts[prompt].iter();
    let shown = |(at, (token, offset)): (usize, (&u32, &usize))| {
        let logprobs = if at == 0 { None } else { scores.next().cloned() };
        TokenShown { token: *token, offset: *offset, logprobs }
    };
    let tokens = match generation.logprobs {
        Some(_) => generation.prompts[prompt].iter().zip(&echo.offsets).enumerate().map(shown).collect(),
        None => Vec::new(),
    };
    ShownEcho { text: echo.text.clone(), tokens }
}

pub(crate) fn usage(generation: &Generation, running: &RunningChoices<'_>) -> Usage {
    Usage {
        prompt: generation.prompt_tokens(),
        completion: running.completion_tokens(),
        cached: running.account.cached_tokens(),
    }
}

/// Server-sent events to a client.
pub(crate) struct ClientEvents {
    events: mpsc::Sender<Bytes>,
    deadline: Instant,
    /// From the beginning to the deadline.
    limit: Duration,
    /// How long the client may leave all events that wait unread.
    stall: Duration,
}

/// The client has gone, or might as well have.
pub(crate) struct Gone;

impl ClientEvents {
    async fn send(&self, value: &Value) -> Result<(), Gone> {
        self.send_text(&value.to_string()).await
    }

    async fn send_text(&self, text: &str) -> Result<(), Gone> {
        self.send_bytes(Bytes::from(format!("data: {text}\n\n"))).await
    }

    /// An event with a type of its own.
    pub(crate) async fn send_named(&self, kind: &str, value: &Value) -> Result<(), Gone> {
        self.send_bytes(Bytes::from(format!("event: {kind}\ndata: {value}\n\n"))).await
    }

    async fn send_bytes(&self, event: Bytes) -> Result<(), Gone> {
        self.events.send_timeout(event, self.stall).await.map_err(|_| Gone)
    }

    /// The next step, an error, or the news that the client has gone, which ends the answer.
    pub(crate) async fn next(
        &self,
        running: &mut RunningChoices<'_>,
    ) -> Result<Result<Option<ChoiceStep>, ApiError>, Gone> {
        tokio::select! {
            step = timeout_at(self.deadline, running.next()) => {
                Ok(step.unwrap_or(Err(ApiError::TookTooLong { seconds: self.limit.as_secs() })))
            }
            () = self.events.closed() => Err(Gone),
        }
    }
}

async fn stream(
    generation: &Generation,
    form: Form,
    head: &Head,
    streaming: Streaming,
    sources: Sources,
    account: Account,
    events: &ClientEvents,
) {
    let running = RunningChoices::new(generation, sources, account);
    // A client that has gone needs no more; what it asked for ends with `running`.
    let _ = match form {
        Form::Response => responding::tell(generation, head, running, events).await,
        Form::Choices(shape) => tell(generation, shape, head, streaming, running, events).await,
    };
}

async fn tell(
    generation: &Generation,
    shape: ChoiceShape,
    head: &Head,
    streaming: Streaming,
    mut running: RunningChoices<'_>,
    events: &ClientEvents,
) -> Result<(), Gone> {
    let samples = usize::from(generation.continuation.samples);
    // Where each choice's text or calls have got to; none for those that have not begun.
    let mut places: Vec<Option<usize>> = vec![None; running.choices.len()];
    loop {
        let ChoiceStep { choice, delta } = match events.next(&mut running).await? {
            Ok(Some(step)) => step,
            Ok(None) => break,
            Err(error) => {
                events.send(&error.to_json()).await?;
                return events.send_text("[DONE]").await;
            }
        };
        let whole = Whole { index: choice, delta, ..Whole::default() };
        let place = match &mut places[choice] {
            Some(place) => place,
            begun => {
                let first = Whole {
                    index: choice,
                    echo: echo(generation, &running, choice / samples),
                    ..Whole::default()
                };
                if let Some(beginning) = shape.beginning(head, generation, &first) {
                    events.send(&beginning).await?;
                }
                begun.insert(0)
            }
        };
        let mut chunk = shape.addition(head, generation, &whole, place);
        if streaming.shows_usage_always {
            chunk["usage"] = usage(generation, &running).to_json();
        } else if streaming.shows_usage {
            chunk["usage"] = Value::Null;
        }
        events.send(&chunk).await?;
    }
    if streaming.shows_usage {
        events.send(&shape.usage(head, usage(generation, &running))).await?;
    }
    // Books the request before the client knows that it has ended.
    drop(running);
    events.send_text("[DONE]").await
}
