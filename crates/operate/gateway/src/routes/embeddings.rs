//! `POST /v1/embeddings`

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bedplate_batching::TenantId;
use bedplate_http::{Answer, StatusCode, json};
use bedplate_serve::{Ask, SampleEvent, Wants};
use serde_json::{Value, json};
use std::sync::Arc;

use super::completions::{self, InputLimits};
use crate::fields::{self, Fields};
use crate::gateway::Gateway;
use crate::model::ServedModel;
use crate::refusal::ApiError;
use crate::sampling;

/// What a request wants vectors of.
pub(crate) struct Embeddings {
    model: Arc<ServedModel>,
    name: String,
    adapter: Option<String>,
    inputs: Vec<Vec<u32>>,
    is_base64: bool,
}

pub(crate) fn read(gateway: &Gateway, fields: &Fields<'_>) -> Result<Embeddings, ApiError> {
    let (model, name, adapter) = gateway.model(fields)?;
    let bounds = &gateway.options.bounds;
    let is_base64 = match fields.text("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("`encoding_format` is `{other}`; it may be float or base64");
            return Err(ApiError::field("encoding_format", message));
        }
    };
    let hidden = i64::from(model.about().hidden);
    if let Some(dimensions) = fields.get("dimensions")
        && fields::whole(dimensions, "dimensions", &(1..=i64::MAX))? != hidden
    {
        return Err(ApiError::field(
            "dimensions",
            format!("`dimensions` must be {hidden}: this model's vectors have no other length"),
        ));
    }
    let tokens = model.about().context_limit as usize;
    let kept = sampling::kept_tokens(fields, &model)?;
    let limits = InputLimits { is_marked: true, texts: bounds.prompts, tokens, kept };
    let inputs = completions::inputs(&model, fields.required("input")?, "input", limits)?;
    Ok(Embeddings { model, name, adapter, inputs, is_base64 })
}

pub(crate) async fn answer(embeddings: Embeddings, tenant: TenantId) -> Result<Answer, ApiError> {
    let Embeddings { model, name, adapter, inputs, is_base64 } = embeddings;
    let tokens: usize = inputs.iter().map(Vec::len).sum();
    let ask = |prompt| {
        model.ask(Ask { prompt, wants: Wants::Embedding, tenant, priority: 0, adapter: adapter.clone() })
    };
    // All are asked before the first is awaited, so that they run together.
    let answers = inputs.into_iter().map(ask).collect::<Result<Vec<_>, _>>()?;
    let mut data = Vec::new();
    for (index, answer) in answers.into_iter().enumerate() {
        let vector = vector(answer).await?;
        let shown = if is_base64 { Value::String(base64_of(&vector)) } else { json!(vector) };
        data.push(json!({ "object": "embedding", "index": index, "embedding": shown }));
    }
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    Ok(json(StatusCode::OK, &json!({ "object": "list", "data": data, "model": name, "usage": usage })))
}

/// The little-endian bytes of the numbers in base64, as OpenAI's client asks for them.
fn base64_of(numbers: &[f32]) -> String {
    STANDARD.encode(numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
}

async fn vector(mut answer: bedplate_serve::Answer) -> Result<Vec<f32>, ApiError> {
    loop {
        match answer.next().await {
            Some(SampleEvent::Embedding(vector)) => return Ok(vector),
            Some(SampleEvent::Failed(reason)) => return Err(ApiError::Failed { reason }),
            Some(_) => {}
            None => return Err(ApiError::Failed { reason: "the engine broke the answer off".into() }),
        }
    }
}
