//! The catalog file that describes this host by its measured rates.

use std::fmt::Write;

use bedplate_catalog::{FormatRates, MeasuredRates};
use bedplate_units::{Bandwidth, FlopRate};

/// What the machine is, apart from its rates.
pub(super) struct Facts {
    /// Of its accelerator and of its instance.
    pub(super) name: &'static str,
    pub(super) title: String,
    pub(super) vendor: String,
    pub(super) memory_mib: u64,
    /// Cores of the processor, or multiprocessors of the GPU.
    pub(super) units: u32,
    pub(super) host_memory_mib: u64,
    pub(super) cores: u32,
    /// As `2026-11-15`.
    pub(super) date: String,
    pub(super) instructions: String,
    /// Peak FLOP/s.
    pub(super) limit_fp32: FlopRate,
    pub(super) limit_bf16: FlopRate,
}

pub(super) fn text(facts: &Facts, rates: &MeasuredRates) -> String {
    let (name, threads, date) = (facts.name, rates.threads, &facts.date);
    let mut text = format!(
        "# This {name}, as `bedplate bench machine` measured it on {date} with {threads} threads ({}).\n\
         # bedplate plan train --catalog FILE --cluster {name}:1 --model ...\n\n\
         [sources.bench-machine]\ntitle = \"bedplate bench machine on this host\"\nkind = \"measured\"\n\
         date = \"{date}\"\n\n",
        facts.instructions
    );
    let mut accelerator = Lines(&mut text);
    accelerator.head("[[accelerator]]");
    accelerator.text("name", name);
    accelerator.text("title", &facts.title);
    accelerator.text("vendor", &facts.vendor);
    accelerator.text("generation", "host");
    accelerator.text("source", "bench-machine");
    accelerator.text("memory", &format!("{} MiB", facts.memory_mib));
    accelerator.text("memory_bandwidth", &bandwidth(rates.copy));
    accelerator.text("fp32", &flop_rate(facts.limit_fp32));
    accelerator.text("bf16", &flop_rate(facts.limit_bf16));
    accelerator.number("multiprocessors", f64::from(facts.units));
    accelerator.head("\n[accelerator.measured]");
    accelerator.number("threads", f64::from(threads));
    accelerator.text("copy", &bandwidth(rates.copy));
    accelerator.text("cache", &format!("{:.1} MB", rates.cache.get() / 1e6));
    accelerator.text("losses", &bandwidth(rates.losses));
    accelerator.text("optimizer", &bandwidth(rates.optimizer));
    accelerator.text("operator", &format!("{:.2} us", rates.operator.get() * 1e6));
    for (name, rates) in rates.by_format() {
        if let Some(rates) = rates {
            accelerator.format(name, &rates);
        }
    }
    accelerator.head("\n[[instance]]");
    accelerator.text("name", name);
    accelerator.text("provider", "on-premise");
    accelerator.text("source", "bench-machine");
    accelerator.text("accelerator", name);
    accelerator.number("accelerators", 1.0);
    accelerator.number("vcpus", f64::from(facts.cores));
    accelerator.text("host_memory", &format!("{} MiB", facts.host_memory_mib));
    text
}

fn flop_rate(rate: FlopRate) -> String {
    format!("{:.2} GFLOP/s", rate.get() / 1e9)
}

fn bandwidth(rate: Bandwidth) -> String {
    format!("{:.2} GB/s", rate.get() / 1e9)
}

/// The lines of a file; writing to a string cannot fail.
struct Lines<'a>(&'a mut String);

impl Lines<'_> {
    fn head(&mut self, line: &str) {
        let _ = writeln!(self.0, "{line}");
    }

    fn text(&mut self, key: &str, value: &str) {
        let plain: String = value.chars().filter(|c| !c.is_control() && !"\"\\".contains(*c)).collect();
        let _ = writeln!(self.0, "{key} = \"{plain}\"");
    }

    fn number(&mut self, key: &str, value: f64) {
        let _ = writeln!(self.0, "{key} = {value}");
    }

    fn format(&mut self, name: &str, rates: &FormatRates) {
        self.head(&format!("\n[accelerator.measured.{name}]"));
        for (key, rate) in rates.flop_rates() {
            self.text(key, &flop_rate(rate));
        }
        for (key, rate) in rates.bandwidths() {
            self.text(key, &bandwidth(rate));
        }
        self.number("half_size", (rates.half_size * 10.0).round() / 10.0);
        self.number("half_keys", (rates.half_keys * 10.0).round() / 10.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_catalog::Catalog;
    use bedplate_diag::{Source, render_text};
    use bedplate_local::host::NAME;
    use bedplate_units::{Bytes, Seconds};

    #[test]
    fn the_catalog_reads_what_was_measured() {
        let format = FormatRates {
            products: FlopRate::new(300e9),
            input_gradients: FlopRate::new(290e9),
            weight_gradients: FlopRate::new(280e9),
            half_size: 16.04,
            attention: FlopRate::new(150e9),
            attention_backward: FlopRate::new(120e9),
            half_keys: 0.0,
            stream: Bandwidth::gb_per_s(20.0),
            stream_in_cache: Bandwidth::gb_per_s(60.0),
        };
        let rates = MeasuredRates {
            threads: 2,
            fp32: Some(format),
            bf16: None,
            copy: Bandwidth::gb_per_s(30.0),
            cache: Bytes::mb(32.0),
            losses: Bandwidth::gb_per_s(3.0),
            optimizer: Bandwidth::gb_per_s(25.0),
            operator: Seconds::us(4.0),
        };
        let facts = Facts {
            name: NAME,
            title: "A \"processor\" \\ of ours".to_owned(),
            vendor: "us".to_owned(),
            memory_mib: 16_000,
            units: 2,
            host_memory_mib: 16_000,
            cores: 2,
            date: "2026-11-15".to_owned(),
            instructions: "AVX2".to_owned(),
            limit_fp32: FlopRate::new(400e9),
            limit_bf16: FlopRate::new(400e9),
        };
        let text = text(&facts, &rates);
        let catalog = Catalog::with_overlays(&[Source::new("host.toml", &text)])
            .unwrap_or_else(|error| panic!("{}", render_text(&error)));
        let host = catalog.accelerator(NAME).expect("it is in the file");
        assert_eq!(host.title, "A processor  of ours");
        let expected = MeasuredRates { fp32: Some(FormatRates { half_size: 16.0, ..format }), ..rates };
        assert_eq!(host.measured, Some(expected));
        assert_eq!(catalog.accelerator_of(catalog.instance(NAME).expect("so is the machine")).name, NAME);
    }
}
