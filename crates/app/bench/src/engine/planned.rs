//! What the plan says about this host, from its catalog file, beside what the engine reached.

use bedplate_catalog::MeasuredRates;
use bedplate_local::host::host_entry;
use bedplate_network::Architecture;
use bedplate_perf::{HostFormats, HostStep, serve_on_host};
use bedplate_serve::EngineMemory;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, Context};
use bedplate_transformer::Transformer;
use serde_json::{Value, json};

use super::load::{self, Speed};

/// A model on this host.
pub(super) struct Planned {
    model: Transformer,
    rates: MeasuredRates,
    formats: HostFormats,
}

impl Planned {
    /// None where this host has not been measured, or by as many threads.
    pub(super) fn new(architecture: &Architecture, memory: &EngineMemory, context: &Context) -> Option<Self> {
        let rates =
            host_entry(context.load_catalog().ok().as_ref())?.measured.filter(|_| !memory.is_on_gpu)?;
        let bits = |format: &str| match format {
            "f32" => 32.0,
            "int8" => 8.5,
            "int4" => 4.5,
            _ => 16.0,
        };
        let formats = HostFormats {
            weight_bits: bits(memory.weight_format),
            head_bits: bits(memory.weight_format).max(8.5),
            activation_bytes: if memory.activations == "f32" { 4.0 } else { 2.0 },
        };
        let model = architecture.transformer.clone();
        (rates.threads as usize == memory.threads).then_some(Self { model, rates, formats })
    }

    /// What is measured, and the tokens per second that are planned for it and were reached.
    fn rows(&self, speed: &Speed) -> Vec<(String, f64, f64)> {
        let seconds = |step: &HostStep| {
            serve_on_host(&self.model, &self.rates, &self.formats, step).map_or(f64::NAN, |time| time.get())
        };
        let mut rows = Vec::new();
        for (sequences, reached) in &speed.decodes {
            let count = f64::from(*sequences);
            let context = count * f64::from(speed.prompt + load::TOKENS / 2);
            let step = HostStep { decodes: count, sampled: count, context, ..HostStep::default() };
            rows.push((format!("{sequences} sequences"), count / seconds(&step), *reached));
        }
        // A prompt goes in chunks, each of which sees what came before.
        let (chunk, all) = (512.0, 1024.0);
        let chunks = [0.0, chunk].map(|before| HostStep {
            prompt_tokens: chunk,
            pairs: chunk * (before + chunk / 2.0),
            sampled: f64::from(u8::from(before > 0.0)),
            ..HostStep::default()
        });
        rows.push(("a prompt of 1024".into(), all / chunks.iter().map(seconds).sum::<f64>(), speed.prefill));
        rows
    }

    pub(super) fn show(&self, speed: &Speed, console: &mut Console) -> Result<(), CliError> {
        let columns = [
            Column::left("by this host's catalog file", 0),
            Column::right("planned tokens/s", 0),
            Column::right("reached", 0),
            Column::right("error", 0),
        ];
        let mut table = Table::new(columns.into());
        for (what, planned, reached) in self.rows(speed) {
            let error = format!("{:+.0} %", 100.0 * (planned / reached - 1.0));
            table.row(vec![what, format!("{planned:.1}"), format!("{reached:.1}"), error]);
        }
        console.line("")?;
        console.table(&table)
    }

    pub(super) fn json(&self, speed: &Speed) -> Value {
        let row = |(what, planned, reached): (String, f64, f64)| json!({ "what": what, "planned_tokens_per_s": planned, "tokens_per_s": reached });
        self.rows(speed).into_iter().map(row).collect()
    }
}
