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
pub(crate) enum RouteAction {
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
    TokenizerInfo,
}

/// Method, path, and whether a key is needed.
const ROUTES: [(Method, &str, RouteAction, bool); 17] = [
    (Method::GET, "/", RouteAction::Page, false),
    (Method::GET, "/health", RouteAction::Health, false),
    (Method::GET, "/ping", RouteAction::Health, false),
    (Method::GET, "/ready", RouteAction::Ready, false),
    (Method::GET, "/metrics", RouteAction::Metrics, false),
    (Method::GET, "/version", RouteAction::Version, false),
    (Method::GET, "/v1/models", RouteAction::Models, true),
    (Method::POST, "/v1/chat/completions", RouteAction::Chat, true),
    (Method::POST, "/v1/completions", RouteAction::Completions, true),
    (Method::POST, "/v1/responses", RouteAction::Responses, true),
    (Method::POST, "/v1/embeddings", RouteAction::Embeddings, true),
    (Method::POST, "/tokenize", RouteAction::Tokenize, true),
    (Method::POST, "/detokenize", RouteAction::Detokenize, true),
    (Method::GET, "/tokenizer_info", RouteAction::TokenizerInfo, true),
    (Method::POST, "/v1/tokenize", RouteAction::Tokenize, true),
    (Method::POST, "/v1/detokenize", RouteAction::Detokenize, true),
    (Method::GET, "/models", RouteAction::Models, true),
];
const ONE_MODEL: &str = "/v1/models/";

pub(crate) struct Found<'a> {
    pub(crate) action: RouteAction,
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
        let found = Found {
            action: RouteAction::Models,
            needs_key: true,
            path: "/v1/models/{model}",
            name: Some(name),
        };
        return if same == Method::GET { Ok(found) } else { Err(Some("GET")) };
    }
    let mut known = ROUTES.iter().filter(|(_, known, _, _)| *known == path).peekable();
    let allowed = known.peek().map(|(method, ..)| if method == Method::GET { "GET" } else { "POST" });
    let found = known.find(|(wanted, ..)| wanted == same);
    let of = |(_, path, action, needs_key): &(Method, &'static str, RouteAction, bool)| Found {
        action: *action,
        needs_key: *needs_key,
        path,
        name: None,
    };
    found.map(of).ok_or(allowed)
}
