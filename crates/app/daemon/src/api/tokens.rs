//! Tokens: lists, new ones, revoked ones.

use bedplate_diag::Reason;
use bedplate_gangs::Span;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Answer};
use super::call::ApiCall;
use super::error::ApiError;
use crate::tokens::{AccessRole, WantedToken};

const LONGEST_NAME: usize = 64;

/// `GET /v1/tokens`
pub(crate) async fn list(call: ApiCall) -> Result<Answer, ApiError> {
    let view = |token: bedplate_journal::Token| {
        json!({
            "id": token.id,
            "user": token.token.user,
            "role": token.token.role,
            "label": token.token.label,
            "created_ms": token.token.created.0,
            "expires_ms": token.token.expires.map(|time| time.0),
            "is_one_time": token.token.is_one_time,
            "used_ms": token.used.map(|time| time.0),
        })
    };
    let tokens: Vec<Value> = call.app.tokens.list().into_iter().map(view).collect();
    Ok(answer::ok(&json!({ "tokens": tokens })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Make {
    /// The node for an agent's token; any one node when empty.
    #[serde(default)]
    user: String,
    role: AccessRole,
    expires_s: Option<u64>,
    #[serde(default)]
    label: String,
}

/// `POST /v1/tokens`
pub(crate) async fn make(mut call: ApiCall) -> Result<Answer, ApiError> {
    let Make { user, role, expires_s, label } = call.take_json().await?;
    check_name(&user, role)?;
    let label: String = label.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect();
    let expires = expires_s.map(|seconds| Span(seconds.saturating_mul(1000).min(Span::FOREVER.0)));
    let wanted = WantedToken { user: user.clone(), role, label, expires };
    let made = call.app.tokens.make(wanted).await?;
    let shown = json!({ "id": made.id, "token": made.secret, "user": user, "role": role });
    Ok(answer::json(StatusCode::CREATED, &shown))
}

fn check_name(user: &str, role: AccessRole) -> Result<(), ApiError> {
    let is_missing = user.is_empty() && role != AccessRole::Agent;
    let is_plain = |c: char| c.is_alphanumeric() || "-_.@+".contains(c);
    if is_missing || user.chars().count() > LONGEST_NAME || !user.chars().all(is_plain) {
        let why = format!("`user` has 1 to {LONGEST_NAME} letters, digits and `-_.@+`");
        return Err(ApiError::Malformed { what: "the body", why });
    }
    Ok(())
}

/// `DELETE /v1/tokens/{id}`
pub(crate) async fn revoke(call: ApiCall) -> Result<Answer, ApiError> {
    let name = call.parameters[0].clone();
    let missing = |name: String| ApiError::NotThere { what: "token", name };
    let Ok(id) = name.parse() else {
        return Err(missing(name));
    };
    if call.app.tokens.is_last_admin(id) {
        let why = "it is the last token of an administrator: make another one with `bedplate token add --role admin` first";
        return Err(ApiError::Refused { why: Reason::new("last_admin_token", why) });
    }
    match call.app.tokens.revoke(id).await? {
        true => Ok(answer::ok(&json!({ "id": id }))),
        false => Err(missing(name)),
    }
}
