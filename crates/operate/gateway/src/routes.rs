//! The paths of the API.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod messages;
pub(crate) mod responses;
pub(crate) mod status;
pub(crate) mod tokens;

use bedplate_http::Method;

/// What answers a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Page,
    Health,
    Ready,
    Metrics,
    Version,
    Models,
    Chat,
    Completions,
    Responses,
    Embeddings,
    Tokenize,
    Detokenize,
}

/// Method, path, and whether a key is needed.
const ROUTES: [(Method, &str, Action, bool); 16] = [
    (Method::GET, "/", Action::Page, false),
    (Method::GET, "/health", Action::Health, false),
    (Method::GET, "/ping", Action::Health, false),
    (Method::GET, "/ready", Action::Ready, false),
    (Method::GET, "/metrics", Action::Metrics, false),
    (Method::GET, "/version", Action::Version, false),
    (Method::GET, "/v1/models", Action::Models, true),
    (Method::POST, "/v1/chat/completions", Action::Chat, true),
    (Method::POST, "/v1/completions", Action::Completions, true),
    (Method::POST, "/v1/responses", Action::Responses, true),
    (Method::POST, "/v1/embeddings", Action::Embeddings, true),
    (Method::POST, "/tokenize", Action::Tokenize, true),
    (Method::POST, "/detokenize", Action::Detokenize, true),
    (Method::POST, "/v1/tokenize", Action::Tokenize, true),
    (Method::POST, "/v1/detokenize", Action::Detokenize, true),
    (Method::GET, "/models", Action::Models, true),
];
const ONE_MODEL: &str = "/v1/models/";

pub(crate) struct Found<'a> {
    pub(crate) action: Action,
    pub(crate) needs_key: bool,
    /// The path as the metrics call it.
    pub(crate) path: &'static str,
    /// What follows `/v1/models/`.
    pub(crate) name: Option<&'a str>,
}

/// The route of a path, or the method that it takes instead.
pub(crate) fn find<'a>(method: &Method, path: &'a str) -> Result<Found<'a>, Option<&'static str>> {
    let same = if method == Method::HEAD { &Method::GET } else { method };
    if let Some(name) = path.strip_prefix(ONE_MODEL).filter(|name| !name.is_empty()) {
        let found =
            Found { action: Action::Models, needs_key: true, path: "/v1/models/{model}", name: Some(name) };
        return if same == Method::GET { Ok(found) } else { Err(Some("GET")) };
    }
    let mut known = ROUTES.iter().filter(|(_, known, _, _)| *known == path).peekable();
    let allowed = known.peek().map(|(method, ..)| if method == Method::GET { "GET" } else { "POST" });
    let found = known.find(|(wanted, ..)| wanted == same);
    let of = |(_, path, action, needs_key): &(Method, &'static str, Action, bool)| Found {
        action: *action,
        needs_key: *needs_key,
        path,
        name: None,
    };
    found.map(of).ok_or(allowed)
}
