//! Nodes: looking at them, draining, resuming, breaking.

use bedplate_control::wire::{Chaos, ToAgent};
use bedplate_control::{ClientOrder, NodeView};
use bedplate_diag::Reason;
use bedplate_journal::NoteSubject;
use serde::Deserialize;
use serde_json::json;

use super::answer::{self, Answer};
use super::call::ApiCall;
use super::error::ApiError;

/// `GET /v1/nodes`
pub(crate) async fn list(call: ApiCall) -> Result<Answer, ApiError> {
    let nodes = call.app.control.ask(|control, now| control.nodes(now)).await?;
    Ok(answer::ok(&json!({ "nodes": nodes })))
}

/// `GET /v1/nodes/{name}`
pub(crate) async fn show(call: ApiCall) -> Result<Answer, ApiError> {
    const NOTES: u32 = 200;
    let view = find(&call).await?;
    let name = view.name.clone();
    let notes = call.app.readers.ask(move |reader| reader.notes(NoteSubject::Node(&name), NOTES)).await?;
    let mut shown = json!(view);
    shown["notes"] = json!(notes);
    Ok(answer::ok(&shown))
}

async fn find(call: &ApiCall) -> Result<NodeView, ApiError> {
    let name = call.parameters[0].clone();
    let wanted = name.clone();
    let found = call.app.control.ask(move |control, now| control.node_of(&wanted, now));
    found.await?.ok_or(ApiError::NotThere { what: "node", name })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    #[serde(default)]
    reason: Option<String>,
}

/// `POST /v1/nodes/{name}/drain`
pub(crate) async fn drain(mut call: ApiCall) -> Result<Answer, ApiError> {
    const LONGEST_REASON: usize = 500;
    let Drain { reason } = call.take_json().await?;
    let reason: String = reason.as_deref().unwrap_or("drained").chars().take(LONGEST_REASON).collect();
    let node = call.parameters[0].clone();
    order(call, ClientOrder::Drain { node, reason }).await
}

/// `POST /v1/nodes/{name}/resume`
pub(crate) async fn resume(call: ApiCall) -> Result<Answer, ApiError> {
    let node = call.parameters[0].clone();
    order(call, ClientOrder::Resume { node }).await
}

async fn order(call: ApiCall, order: ClientOrder) -> Result<Answer, ApiError> {
    let by = call.identity().user.clone();
    call.app.control.change(move |control, now| control.order(order, &by, now)).await??;
    let view = find(&call).await?;
    Ok(answer::ok(&view))
}

/// `POST /v1/nodes/{name}/chaos`
pub(crate) async fn chaos(mut call: ApiCall) -> Result<Answer, ApiError> {
    let chaos: Chaos = call.take_json().await?;
    let view = find(&call).await?;
    let name = view.name.clone();
    let link = call.app.control.ask(move |control, _| control.link_of(&name)).await?;
    let Some(link) = link else {
        let why =
            Reason::new("not_linked", format!("node {} is not linked", view.name)).with("node", view.name);
        return Err(ApiError::Refused { why });
    };
    call.app.links.send(link, ToAgent::Chaos(chaos));
    Ok(answer::ok(&json!({ "node": view.name })))
}
