//! A model that is served: its replicas, its tokenizer, its template, its names.

use bedplate_data::{ChatTemplate, Tokenizer};
use bedplate_host::clock;
use bedplate_serve::{About, Answer, Ask, EngineState, Grammar, Refusal, Replica, Sampling};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::calls::CallStyle;
use crate::error::GatewayError;
use crate::guide::{Guide, Language, Unguided};
use crate::presence::Presence;
use crate::refusal::ApiError;

/// A model with the replicas that answer for it.
pub struct ServedModel {
    name: String,
    aliases: Vec<String>,
    replicas: Vec<Arc<dyn Replica>>,
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    call_style: CallStyle,
    sampling: Sampling,
    guide: OnceLock<Result<Guide, String>>,
    turn: AtomicUsize,
    /// Seconds since 1970.
    pub(crate) created: u64,
}

impl ServedModel {
    /// A model under a name. Its chat template and the way it calls tools are those of its tokenizer.
    pub fn new(
        name: impl Into<String>,
        replicas: Vec<Arc<dyn Replica>>,
        tokenizer: Arc<Tokenizer>,
    ) -> Result<Self, GatewayError> {
        let name = name.into();
        if replicas.is_empty() {
            return Err(GatewayError::NoReplica { name });
        }
        let source = ChatTemplate::source_of(&tokenizer);
        let template = source.as_ref().map(|_| ChatTemplate::of(&tokenizer)).transpose()?;
        let source = tokenizer.tool_template().or(source);
        Ok(Self {
            name,
            aliases: Vec::new(),
            replicas,
            template,
            call_style: CallStyle::of_template(source.as_deref().unwrap_or_default()),
            tokenizer,
            sampling: Sampling::default(),
            guide: OnceLock::new(),
            turn: AtomicUsize::new(0),
            created: clock::unix_time().as_secs(),
        })
    }

    /// Other names that requests may use, such as the name that a program has built in.
    pub fn with_aliases(mut self, aliases: Vec<String>) -> Self {
        self.aliases = aliases;
        self
    }

    /// Settings of samples for requests that leave them out.
    pub fn with_sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    pub(crate) fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its names, and those of its adapters.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.aliases).chain(&self.about().adapters).map(String::as_str)
    }

    pub(crate) fn about(&self) -> &About {
        self.replicas[0].about()
    }

    pub(crate) fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    pub(crate) fn call_style(&self) -> CallStyle {
        self.call_style
    }

    pub(crate) fn template(&self) -> Result<&ChatTemplate, ApiError> {
        self.template.as_ref().ok_or_else(|| ApiError::Invalid {
            message: format!("the model `{}` has no chat template; use /v1/completions", self.name),
            param: Some("model".into()),
            code: None,
        })
    }

    /// The tokens of a text, counted before all of a text that is too long is encoded.
    pub(crate) fn encode(
        &self,
        text: &str,
        is_marked: bool,
        most: usize,
        param: &str,
    ) -> Result<Vec<u32>, ApiError> {
        let encoded = self.tokenizer.encode_within(text, is_marked, most);
        encoded
            .map_err(|error| ApiError::field(param, error.to_string()))?
            .ok_or_else(|| too_long(most, param))
    }

    /// A compiled language for this model's tokens. May take a while.
    pub(crate) fn compile(
        &self,
        language: Language,
        param: &str,
        client: &Presence,
    ) -> Result<Arc<dyn Grammar>, ApiError> {
        let guide = self.guide.get_or_init(|| Guide::new(&self.tokenizer, self.about()));
        let guide = guide.as_ref().map_err(|reason| ApiError::Failed { reason: reason.clone() })?;
        guide.compile(language, client).map_err(|unguided| match unguided {
            Unguided::Refused(reason) => {
                ApiError::field(param, format!("`{param}` cannot be followed: {reason}"))
            }
            Unguided::Busy => ApiError::Crowded,
            Unguided::Abandoned => ApiError::Failed { reason: "its client has gone".into() },
        })
    }

    /// Asks the replica with the fewest requests; one that is full or has stopped is passed over.
    pub(crate) fn ask(&self, ask: Ask) -> Result<Answer, Refusal> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.replicas.len();
        let mut order: Vec<usize> = (0..count).map(|at| (turn + at) % count).collect();
        if count > 1 {
            order.sort_by_key(|at| self.replicas[*at].state().requests);
        }
        let mut refused = Refusal::Draining;
        for at in order {
            match self.replicas[at].ask(ask.clone()) {
                Err(refusal @ (Refusal::Full { .. } | Refusal::Draining | Refusal::Stopped { .. })) => {
                    refused = refusal
                }
                decided => return decided,
            }
        }
        Err(refused)
    }

    /// Whether no replica runs any more.
    pub(crate) fn has_stopped(&self) -> bool {
        self.replicas.iter().all(|replica| replica.state().stopped.is_some())
    }

    pub(crate) fn states(&self) -> Vec<EngineState> {
        self.replicas.iter().map(|replica| replica.state()).collect()
    }

    pub(crate) fn drain(&self) {
        self.replicas.iter().for_each(|replica| replica.drain());
    }
}

/// A prompt that the model cannot take, whatever it is asked to answer.
pub(crate) fn too_long(limit: usize, param: &str) -> ApiError {
    let message =
        format!("this model's maximum context length is {limit} tokens, but the prompt has more; shorten it");
    ApiError::coded(param, "context_length_exceeded", message)
}
