//! Log-probabilities in the two shapes that OpenAI has for them.

use bedplate_data::Tokenizer;
use serde_json::{Map, Value, json};

use crate::choice::TokenShown;

/// For chats: a list of tokens, each with its bytes and the most likely ones beside it.
pub(super) fn of_chat(tokenizer: &Tokenizer, tokens: &[TokenShown], top: usize) -> Value {
    let one = |token: u32, logprob: f32| json!({ "token": text(tokenizer, token), "logprob": finite(logprob), "bytes": tokenizer.token_bytes(token) });
    let entry = |shown: &TokenShown| {
        let mut entry = one(shown.token, shown.logprobs.of_token);
        let top_tokens = shown.logprobs.top.iter().take(top);
        entry["top_logprobs"] = top_tokens.map(|(token, logprob)| one(*token, *logprob)).collect();
        entry
    };
    json!({ "content": tokens.iter().map(entry).collect::<Vec<Value>>(), "refusal": null })
}

/// For completions: parallel lists, and where each token's text begins.
pub(super) fn of_completion(
    tokenizer: &Tokenizer,
    tokens: &[TokenShown],
    top: usize,
    offset: &mut usize,
) -> Value {
    let mut lists = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for shown in tokens {
        let spelled = text(tokenizer, shown.token);
        let top_tokens: Map<String, Value> = shown
            .logprobs
            .top
            .iter()
            .take(top)
            .map(|(token, logprob)| (text(tokenizer, *token), finite(*logprob)))
            .collect();
        lists.3.push(*offset);
        *offset += spelled.chars().count();
        lists.0.push(Value::String(spelled));
        lists.1.push(finite(shown.logprobs.of_token));
        lists.2.push(Value::Object(top_tokens));
    }
    json!({ "tokens": lists.0, "token_logprobs": lists.1, "top_logprobs": lists.2, "text_offset": lists.3 })
}

fn text(tokenizer: &Tokenizer, token: u32) -> String {
    String::from_utf8_lossy(&tokenizer.token_bytes(token)).into_owned()
}

/// JSON has no infinity; this is what OpenAI writes for it.
fn finite(logprob: f32) -> Value {
    json!(logprob.max(-9999.0))
}
