//! The content of prompts: made up, but the same where requests have something in common.

use bedplate_random::{Random, key};
use bedplate_replay::requests::{Planned, Prefix};
use serde_json::{Value, json};

use crate::plan::{Api, Plan};

/// The tokens of the prompt of a request, by its number.
pub(crate) fn tokens(plan: &Plan, number: usize) -> Vec<u32> {
    let planned = &plan.requests[number];
    let count = planned.prompt_tokens as usize;
    let mut tokens = Vec::with_capacity(count);
    let own = [plan.seed, 1, number as u64];
    match &planned.prefix {
        Prefix::Unknown => {}
        Prefix::Conversation { group, group_tokens, .. } => {
            let common = (*group_tokens as usize).min(count);
            draw(plan, &[plan.seed, 2, *group], common, &mut tokens);
        }
        Prefix::Hashes { block_tokens, hashes } => {
            for hash in hashes {
                let left = count - tokens.len();
                draw(plan, &[plan.seed, 3, *hash], left.min(*block_tokens as usize), &mut tokens);
            }
        }
    }
    draw(plan, &own, count - tokens.len(), &mut tokens);
    tokens
}

fn draw(plan: &Plan, seed: &[u64], count: usize, tokens: &mut Vec<u32>) {
    let (low, end) = plan.tokens;
    let mut random = Random::new(key(seed));
    tokens.extend((0..count).map(|_| random.whole(low, end.max(low + 1) - 1)));
}

/// The body of a request.
pub(crate) fn body(plan: &Plan, number: usize, model: &str) -> Value {
    let planned: &Planned = &plan.requests[number];
    let tokens = tokens(plan, number);
    let mut body = json!({
        "model": model, "temperature": plan.temperature, "n": planned.samples, "stream": true,
        "stream_options": { "include_usage": true },
    });
    match plan.api {
        Api::Completions => body["prompt"] = json!(tokens),
        Api::Chat => {
            let words: Vec<String> = tokens.iter().map(|token| spelled(*token)).collect();
            body["messages"] = json!([{ "role": "user", "content": words.join(" ") }]);
        }
    }
    let length = if plan.api == Api::Chat { "max_completion_tokens" } else { "max_tokens" };
    body[length] = json!(planned.output_tokens);
    if plan.has_exact_lengths {
        body["ignore_eos"] = json!(true);
        body["min_tokens"] = json!(planned.output_tokens);
    }
    body
}

/// A word for a number, of the shape of a common one.
fn spelled(token: u32) -> String {
    const BEGINNINGS: [&str; 16] =
        ["ba", "co", "de", "fi", "ga", "ho", "ju", "ki", "la", "mo", "ne", "pa", "ro", "si", "ta", "we"];
    const ENDS: [&str; 16] =
        ["n", "st", "d", "r", "ll", "t", "ck", "m", "ng", "s", "sh", "p", "rd", "nt", "ve", "ke"];
    format!("{}{}", BEGINNINGS[(token % 16) as usize], ENDS[(token / 16 % 16) as usize])
}
