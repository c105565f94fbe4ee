//! Small configurations with every switch on and off, against transformers and PyTorch.
//!
//! Each line of `oracle/small_configs.jsonl` holds a configuration and what the oracle found: unique
//! parameters (transformers 5.22.2, meta device), those that are active per token, router correction
//! biases (buffers there), and forward FLOPs per token of 24 tokens by PyTorch's counter over eager
//! attention, which multiplies the full square. Rotary tables are taken off; null where the counter does
//! not apply: transformers sends every token of Llama 4 through every expert.

use bedplate_diag::Source;
use bedplate_transformer::{AttentionFlops, FlopsConvention, from_config};
use serde_json::Value;

const SEQUENCE: u64 = 24;

#[test]
fn parameters_and_flops_are_what_the_oracle_counts() {
    for line in include_str!("oracle/small_configs.jsonl").lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let config = row["config"].to_string();
        let model = from_config(Source::new("small.json", &config)).unwrap();
        let parameters = model.parameters();
        let buffers = row["buffers"].as_u64().unwrap();
        let counted = (row["total"].as_u64().unwrap() + buffers, row["active"].as_u64().unwrap() + buffers);
        assert_eq!((parameters.total, parameters.active), counted, "{config}");

        let convention = FlopsConvention { attention: AttentionFlops::Full, ..Default::default() };
        let forward = model.flops_per_token(SEQUENCE, convention).forward.total();
        if let Some(flops) = row["flops"].as_f64() {
            assert_eq!(forward.get(), flops, "{config}");
        }
    }
}
