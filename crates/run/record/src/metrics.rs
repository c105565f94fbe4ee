//! The state of a run as Prometheus metrics: set by the training thread, read by the endpoint.
//!
//! Every number is one atomic, so that neither side waits. A reader may see numbers of two neighbouring steps.

use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_breakdown::{Breakdown, Part};

use crate::{EvaluationRecord, Exposition, StepRecord};

/// A number that is unknown until it is set.
#[derive(Debug)]
struct Number(AtomicU64);

impl Default for Number {
    fn default() -> Self {
        Self(AtomicU64::new(UNKNOWN))
    }
}

/// A NaN that no arithmetic produces.
const UNKNOWN: u64 = u64::MAX;

impl Number {
    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Only the training thread adds, so no update is lost between reading and writing.
    fn add(&self, value: f64) {
        self.set(self.get().unwrap_or(0.0) + value);
    }

    fn get(&self) -> Option<f64> {
        let bits = self.0.load(Ordering::Relaxed);
        (bits != UNKNOWN).then_some(f64::from_bits(bits))
    }
}

/// All metrics of a run, in base units.
#[derive(Debug, Default)]
pub struct Metrics {
    steps: Number,
    tokens: Number,
    loss: Number,
    gradient_norm: Number,
    learning_rate: Number,
    tokens_per_second: Number,
    mfu: Number,
    memory: Number,
    step_seconds: Number,
    exposed: [Number; Part::ALL.len()],
    hidden: [Number; Part::ALL.len()],
    predicted: [Number; Part::ALL.len()],
    evaluation_loss: Number,
    perplexity: Number,
}

impl Metrics {
    pub fn set_step(&self, record: &StepRecord) {
        self.steps.set(record.step as f64);
        self.tokens.set(record.tokens as f64);
        self.loss.set(record.loss);
        self.gradient_norm.set(record.gradient_norm);
        self.learning_rate.set(record.learning_rate);
        self.tokens_per_second.set(record.tokens_per_second);
        record.mfu.iter().for_each(|mfu| self.mfu.set(*mfu));
        self.memory.set(record.memory.get());
        self.step_seconds.set(record.seconds);
        for (part, span) in record.breakdown.parts() {
            self.exposed[part as usize].add(span.exposed.get());
            self.hidden[part as usize].add(span.hidden.get());
        }
        record.predicted.iter().for_each(|predicted| self.set_predicted(predicted));
    }

    fn set_predicted<Origin>(&self, predicted: &Breakdown<Origin>) {
        for (part, span) in predicted.parts() {
            self.predicted[part as usize].set(span.exposed.get());
        }
    }

    pub fn set_evaluation(&self, record: &EvaluationRecord) {
        if let (Some(loss), Some(perplexity)) = (record.loss, record.perplexity) {
            self.evaluation_loss.set(loss);
            self.perplexity.set(perplexity);
        }
    }

    /// The text that Prometheus reads. Unknown metrics are left out.
    pub fn text(&self) -> String {
        let mut text = Text::default();
        text.one("steps_total", "counter", "Number of the last step.", &self.steps);
        text.one("tokens_total", "counter", "Tokens trained on.", &self.tokens);
        text.one("loss", "gauge", "Mean loss of the last step in nats per token.", &self.loss);
        text.one("gradient_norm", "gauge", "Norm of the gradient before clipping.", &self.gradient_norm);
        text.one("learning_rate", "gauge", "Learning rate of the last step.", &self.learning_rate);
        text.one("tokens_per_second", "gauge", "Tokens trained on per second.", &self.tokens_per_second);
        text.one("mfu_ratio", "gauge", "Model FLOPs utilisation, from 0 to 1.", &self.mfu);
        text.one("memory_bytes", "gauge", "Memory that the process holds.", &self.memory);
        text.one("step_seconds", "gauge", "Duration of the last step.", &self.step_seconds);
        text.by_part("exposed_seconds_total", "counter", "Exposed time of a part.", &self.exposed);
        text.by_part(
            "hidden_seconds_total",
            "counter",
            "Time of a part hidden behind other work.",
            &self.hidden,
        );
        text.by_part("predicted_seconds", "gauge", "Predicted time of a part in a step.", &self.predicted);
        text.one("evaluation_loss", "gauge", "Loss of the last evaluation.", &self.evaluation_loss);
        text.one("evaluation_perplexity", "gauge", "Perplexity of the last evaluation.", &self.perplexity);
        text.0.into_string()
    }
}

#[derive(Default)]
struct Text(Exposition);

impl Text {
    fn one(&mut self, name: &str, kind: &str, help: &str, number: &Number) {
        if let Some(value) = number.get() {
            let name = format!("bedplate_train_{name}");
            self.0.head(&name, kind, help);
            self.0.sample(&name, "", value);
        }
    }

    fn by_part(&mut self, name: &str, kind: &str, help: &str, numbers: &[Number; Part::ALL.len()]) {
        let name = format!("bedplate_train_{name}");
        let known =
            Part::ALL.into_iter().zip(numbers).filter_map(|(part, number)| Some((part, number.get()?)));
        for (index, (part, value)) in known.enumerate() {
            if index == 0 {
                self.0.head(&name, kind, help);
            }
            self.0.sample(&name, &format!("part=\"{part}\""), value);
        }
    }
}

#[cfg(test)]
mod tests;
