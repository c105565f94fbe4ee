//! Log-probabilities in the two shapes that OpenAI has for them.

use bedplate_data::Tokenizer;
use serde_json::{Map, Value, json};

use crate::choice::TokenShown;

/// For chats: a list of tokens, each with its bytes and the most likely ones beside it.
pub(super) fn of_chat(tokenizer: &Tokenizer, tokens: &[TokenShown], top: usize) -> Value {
    let one = |token: u32, logprob: f32| json!({ "token": text(tokenizer, token), "logprob": finite(logprob), "bytes": tokenizer.token_bytes(token) });
    let entry = |shown: &TokenShown| {
        let mut entry = one(shown.token, shown.logprobs.of_token);
        entry["top_logprobs"] = likely(shown, top).map(|(token, logprob)| one(token, logprob)).collect();
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
        let top_tokens: Map<String, Value> =
            likely(shown, top).map(|(token, logprob)| (text(tokenizer, token), finite(logprob))).collect();
        lists.3.push(*offset);
        *offset += spelled.chars().count();
        lists.0.push(Value::String(spelled));
        lists.1.push(finite(shown.logprobs.of_token));
        lists.2.push(Value::Object(top_tokens));
    }
    json!({ "tokens": lists.0, "token_logprobs": lists.1, "top_logprobs": lists.2, "text_offset": lists.3 })
}

/// The most likely tokens, and the sampled one where it is none of them: evaluations look it up there.
fn likely(shown: &TokenShown, top: usize) -> impl Iterator<Item = (u32, f32)> {
    let most = &shown.logprobs.top[..top.min(shown.logprobs.top.len())];
    let is_missing = top > 0 && most.iter().all(|(token, _)| *token != shown.token);
    most.iter().copied().chain(is_missing.then_some((shown.token, shown.logprobs.of_token)))
}

fn text(tokenizer: &Tokenizer, token: u32) -> String {
    String::from_utf8_lossy(&tokenizer.token_bytes(token)).into_owned()
}

/// JSON has no infinity; this is what OpenAI writes for it.
fn finite(logprob: f32) -> Value {
    json!(logprob.max(-9999.0))
}

#[cfg(test)]
mod tests {
    use bedplate_data::{TrainingOptions, train_tokenizer};
    use bedplate_serve::Logprobs;

    use super::*;

    #[test]
    fn the_sampled_token_is_always_among_the_most_likely_ones() {
        let tokenizer =
            train_tokenizer([], &TrainingOptions { vocabulary: 259, ..TrainingOptions::default() }).unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|text| tokenizer.encode(text).unwrap()[0]);
        let logprobs = Logprobs { of_token: -7.0, top: vec![(a, -0.1), (b, -0.2)] };
        let shown = [TokenShown { token: c, logprobs }];
        let chat = of_chat(&tokenizer, &shown, 2);
        let names: Vec<&str> = chat["content"][0]["top_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["token"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
        let completion = of_completion(&tokenizer, &shown, 1, &mut 0);
        assert_eq!(completion["top_logprobs"][0], json!({ "a": -0.1_f32, "c": -7.0 }));
        assert_eq!(of_chat(&tokenizer, &shown, 0)["content"][0]["top_logprobs"], json!([]));
    }
}
