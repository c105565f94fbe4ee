//! Log-probabilities in the two shapes that OpenAI has for them, and in the one that vLLM has for prompts.

use bedplate_data::Tokenizer;
use bedplate_serve::Logprobs;
use serde_json::{Map, Value, json};

use super::Whole;
use crate::choice::TokenShown;
use crate::generation::{Generation, LogprobsShown};

/// For chats: a list of tokens, each with its bytes and the most likely ones beside it.
pub(super) fn of_chat(tokenizer: &Tokenizer, tokens: &[TokenShown], shown: LogprobsShown) -> Value {
    let one = |token: u32, logprob: f32| {
        let name = if shown.names_ids { id(token) } else { lossy(tokenizer, token) };
        json!({ "token": name, "logprob": finite(logprob), "bytes": tokenizer.token_bytes(token) })
    };
    let entry = |of: &TokenShown| {
        let logprobs = of.logprobs.as_ref()?;
        let mut entry = one(of.token, logprobs.of_token);
        let top = likely(of.token, logprobs, shown.top).map(|(token, logprob)| one(token, logprob));
        entry["top_logprobs"] = top.collect();
        Some(entry)
    };
    json!({ "content": tokens.iter().filter_map(entry).collect::<Vec<Value>>(), "refusal": null })
}

/// For completions: parallel lists, and where each token's text begins. Nothing is before the first token of a prompt, and so it has
/// no log-probability.
pub(super) fn of_completion<'a>(
    tokenizer: &Tokenizer,
    tokens: impl Iterator<Item = &'a TokenShown>,
    shown: LogprobsShown,
) -> Value {
    let name = |token: u32| if shown.names_ids { id(token) } else { spelled(tokenizer, token) };
    let mut lists = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for of in tokens {
        lists.0.push(name(of.token));
        lists.1.push(of.logprobs.as_ref().map_or(Value::Null, |logprobs| finite(logprobs.of_token)));
        lists.2.push(of.logprobs.as_ref().map_or(Value::Null, |logprobs| {
            let mut top = Map::new();
            for (token, logprob) in likely(of.token, logprobs, shown.top) {
                top.entry(name(token)).or_insert_with(|| finite(logprob));
            }
            Value::Object(top)
        }));
        lists.3.push(of.offset);
    }
    json!({ "tokens": lists.0, "token_logprobs": lists.1, "top_logprobs": lists.2, "text_offset": lists.3 })
}

/// `prompt_logprobs`: for each token of the prompt an object of tokens by their numbers, that token's own among them.
pub(super) fn of_prompt(generation: &Generation, whole: &Whole) -> Option<Value> {
    let (top, (prompt, scores)) = (generation.prompt_logprobs?, whole.scores.as_ref()?);
    let tokenizer = generation.model.tokenizer();
    let entry = |token: u32, logprob: f32, above: usize| {
        let entry = json!({ "logprob": finite(logprob), "rank": above + 1, "decoded_token": lossy(tokenizer, token) });
        (token.to_string(), entry)
    };
    let one = |(token, of): (&u32, &Logprobs)| {
        let top = of.top.iter().take(usize::from(top)).enumerate();
        let mut listed: Map<String, Value> =
            top.map(|(at, (token, logprob))| entry(*token, *logprob, at)).collect();
        listed.extend([entry(*token, of.of_token, of.above as usize)]);
        Value::Object(listed)
    };
    let behind_first = generation.prompts[*prompt].iter().skip(1);
    Some(std::iter::once(Value::Null).chain(behind_first.zip(scores).map(one)).collect())
}

/// The most likely tokens, and the one that is there where it is none of them: evaluations look it up there.
fn likely(token: u32, logprobs: &Logprobs, top: u8) -> impl Iterator<Item = (u32, f32)> {
    let most = &logprobs.top[..usize::from(top).min(logprobs.top.len())];
    let is_missing = top > 0 && most.iter().all(|(other, _)| *other != token);
    most.iter().copied().chain(is_missing.then_some((token, logprobs.of_token)))
}

fn id(token: u32) -> String {
    format!("token_id:{token}")
}

fn lossy(tokenizer: &Tokenizer, token: u32) -> String {
    String::from_utf8_lossy(&tokenizer.token_bytes(token)).into_owned()
}

/// The text of a token; where it is a part of a character its bytes, as OpenAI writes them, so that no two have one name.
fn spelled(tokenizer: &Tokenizer, token: u32) -> String {
    let bytes = tokenizer.token_bytes(token);
    String::from_utf8(bytes).unwrap_or_else(|error| {
        error.as_bytes().iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}"))
    })
}

/// JSON has no infinity; this is what OpenAI writes for it.
fn finite(logprob: f32) -> Value {
    json!(logprob.max(-9999.0))
}

#[cfg(test)]
mod tests {
    use bedplate_data::{TrainingOptions, train_tokenizer};

    use super::*;

    #[test]
    fn the_sampled_token_is_always_among_the_most_likely_ones() {
        let tokenizer =
            train_tokenizer([], &TrainingOptions { vocabulary: 259, ..TrainingOptions::default() }).unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|text| tokenizer.encode(text).unwrap()[0]);
        let logprobs = Logprobs { of_token: -7.0, above: 2, top: vec![(a, -0.1), (b, -0.2)] };
        let tokens = [TokenShown { token: c, offset: 0, logprobs: Some(logprobs) }];
        let shown = |top| LogprobsShown { top, names_ids: false };
        let chat = of_chat(&tokenizer, &tokens, shown(2));
        let names: Vec<&str> = chat["content"][0]["top_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["token"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
        let completion = of_completion(&tokenizer, tokens.iter(), shown(1));
        assert_eq!(completion["top_logprobs"][0], json!({ "a": -0.1_f32, "c": -7.0 }));
        assert_eq!(of_chat(&tokenizer, &tokens, shown(0))["content"][0]["top_logprobs"], json!([]));
        let ids = of_completion(&tokenizer, tokens.iter(), LogprobsShown { top: 0, names_ids: true });
        assert_eq!(ids["tokens"], json!([format!("token_id:{c}")]));
    }

    #[test]
    fn parts_of_characters_have_names_of_their_own() {
        let tokenizer =
            train_tokenizer([], &TrainingOptions { vocabulary: 259, ..TrainingOptions::default() }).unwrap();
        let parts: Vec<String> =
            tokenizer.encode("é").unwrap().iter().map(|token| spelled(&tokenizer, *token)).collect();
        assert_eq!(parts, ["bytes:\\xc3", "bytes:\\xa9"]);
    }
}
