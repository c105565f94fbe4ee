//! A step of the engine that answers on a host.
//!
//! Packed weights are read once for all rows of a step: a product takes as long as reading its matrix, or as long as its arithmetic, whichever is
//! more. Keys and values of sequences that decode are read; those of prompts are multiplied in blocks. Rates are those of the host's catalog
//! file, as for training; nothing is fitted.

use bedplate_catalog::MeasuredRates;
use bedplate_transformer::{Attention, Dense, Mlp, Transformer};
use bedplate_units::{Bytes, Seconds};

/// What a step computes, as the request scheduler counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HostStep {
    /// Tokens of prompts, and sequences that decode.
    pub prompt_tokens: f64,
    pub decodes: f64,
    /// Pairs of a prompt's token and a token that it sees.
    pub pairs: f64,
    /// Tokens that the sequences that decode have in their cache, all together.
    pub context: f64,
    /// Rows after which a token is sampled.
    pub sampled: f64,
}

/// How a model is held for answering.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostFormats {
    /// Bits of a number of a matrix, its share of a scale included; the table and the head may have more.
    pub weight_bits: f64,
    pub head_bits: f64,
    /// Bytes of an activation, and of a key's or value's number.
    pub activation_bytes: f64,
}

/// The time of a step. None where the catalog has no rates that it needs.
pub fn serve_on_host(
    model: &Transformer,
    rates: &MeasuredRates,
    formats: &HostFormats,
    step: &HostStep,
) -> Option<Seconds> {
    let of_format = if formats.activation_bytes > 2.0 { rates.fp32 } else { rates.bf16.or(rates.fp32) }?;
    let host = Serving { rates, products: of_format.products.get(), formats };
    let rows = step.prompt_tokens + step.decodes;
    let mut seconds = 0.0;
    for run in &model.runs {
        let Attention::GroupedQuery(attention) = run.layer.attention else { return None };
        let (queries, keys) = (attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim);
        let hidden = model.hidden as f64;
        let mut layer = host.product(rows, hidden, (queries + 2 * keys) as f64, 1.0);
        layer += host.product(rows, queries as f64, hidden, 1.0);
        layer += host.mlp(&run.layer.mlp, rows, hidden);
        let kv = 2.0 * keys as f64 * formats.activation_bytes * step.context;
        layer += kv / rates.copy.get() + 4.0 * queries as f64 * step.pairs / of_format.attention.get();
        // Norms, rotation and activation pass over the rows, from cache.
        let passed = rows * formats.activation_bytes * (6.0 * hidden + 3.0 * queries as f64);
        layer += passed / of_format.stream_in_cache.get() + OPERATORS * rates.operator.get();
        seconds += layer * run.count as f64;
    }
    let bits = formats.head_bits;
    seconds += host.product_of(step.sampled, model.hidden as f64, model.vocab as f64, 1.0, bits);
    Some(Seconds::new(seconds))
}

/// Operators of a layer besides its products.
const OPERATORS: f64 = 6.0;

struct Serving<'a> {
    rates: &'a MeasuredRates,
    products: f64,
    formats: &'a HostFormats,
}

impl Serving<'_> {
    fn product(&self, rows: f64, inputs: f64, outputs: f64, matrices: f64) -> f64 {
        self.product_of(rows, inputs, outputs, matrices, self.formats.weight_bits)
    }

    /// `rows` rows by `matrices` matrices, each row by one of them.
    fn product_of(&self, rows: f64, inputs: f64, outputs: f64, matrices: f64, bits: f64) -> f64 {
        if rows == 0.0 {
            return 0.0;
        }
        let weights = Bytes::new(matrices * inputs * outputs * bits / 8.0);
        // A copy reads and writes; what is only read comes as fast.
        let reading = weights.get() / self.rates.copy.get();
        let computing = 2.0 * rows * inputs * outputs / self.products;
        self.rates.operator.get() + reading.max(computing)
    }

    fn mlp(&self, mlp: &Mlp, rows: f64, hidden: f64) -> f64 {
        let dense = |dense: &Dense, rows: f64, copies: f64| {
            let width = dense.width as f64;
            let up = if dense.is_gated { 2.0 * width } else { width };
            self.product(rows, hidden, up, copies) + self.product(rows, width, hidden, copies)
        };
        match mlp {
            Mlp::Dense(of) => dense(of, rows, 1.0),
            Mlp::Absent => 0.0,
            Mlp::Mixture(mixture) => {
                let (experts, chosen) = (mixture.experts as f64, mixture.per_token as f64);
                // Experts that some row visits, where rows choose by chance.
                let visited = experts * (1.0 - (1.0 - chosen / experts).powf(rows));
                let shared = mixture.shared.as_ref().map_or(0.0, |shared| dense(shared, rows, 1.0));
                dense(&mixture.expert, rows * chosen, visited)
                    + shared
                    + self.product(rows, hidden, experts, 1.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_catalog::FormatRates;
    use bedplate_units::{Bandwidth, FlopRate};

    fn rates() -> MeasuredRates {
        let bf16 = FormatRates {
            products: FlopRate::new(1e12),
            input_gradients: FlopRate::new(1e12),
            weight_gradients: FlopRate::new(1e12),
            half_size: 16.0,
            attention: FlopRate::new(5e11),
            attention_backward: FlopRate::new(5e11),
            half_keys: 32.0,
            stream: Bandwidth::gb_per_s(20.0),
            stream_in_cache: Bandwidth::gb_per_s(80.0),
        };
        MeasuredRates {
            threads: 2,
            fp32: None,
            bf16: Some(bf16),
            copy: Bandwidth::gb_per_s(30.0),
            cache: Bytes::mb(10.0),
            losses: Bandwidth::gb_per_s(4.0),
            optimizer: Bandwidth::gb_per_s(25.0),
            operator: Seconds::ZERO,
        }
    }

    const BF16: HostFormats = HostFormats { weight_bits: 16.0, head_bits: 16.0, activation_bytes: 2.0 };

    fn seconds(formats: &HostFormats, step: &HostStep) -> f64 {
        let model = bedplate_transformer::builtin("llama-3.2-1b").expect("it is built in");
        serve_on_host(&model, &rates(), formats, step).expect("bf16 was measured").get()
    }

    fn decode(sequences: f64) -> HostStep {
        HostStep { decodes: sequences, sampled: sequences, context: 100.0 * sequences, ..HostStep::default() }
    }

    #[test]
    fn one_token_takes_the_time_to_read_the_weights_and_few_bits_take_less() {
        let model = bedplate_transformer::builtin("llama-3.2-1b").expect("it is built in");
        let reading = model.parameters().total as f64 * 2.0 / 30e9;
        let alone = seconds(&BF16, &decode(1.0));
        assert!((alone / reading - 1.0).abs() < 0.02, "{alone} s, reading takes {reading} s");
        let int4 = HostFormats { weight_bits: 4.5, head_bits: 8.5, ..BF16 };
        assert!(seconds(&int4, &decode(1.0)) < 0.45 * alone);
    }

    #[test]
    fn sequences_share_the_reading_until_arithmetic_takes_longer() {
        let alone = seconds(&BF16, &decode(1.0));
        assert!(seconds(&BF16, &decode(8.0)) < 1.05 * alone);
        let prompt =
            HostStep { prompt_tokens: 1000.0, pairs: 500_000.0, sampled: 1.0, ..HostStep::default() };
        let model = bedplate_transformer::builtin("llama-3.2-1b").expect("it is built in");
        let layers = (model.parameters().total - model.vocab * model.hidden) as f64;
        let arithmetic = 2.0 * 1000.0 * layers / 1e12;
        let took = seconds(&BF16, &prompt);
        assert!(took > arithmetic && took < 1.3 * arithmetic, "{took} s, arithmetic alone {arithmetic} s");
    }
}
