//! The rates of a host, moved to what training runs reached on it.
//!
//! `bedplate bench machine` measures operators alone; a run has them all in turn, beside whatever else the host does. Each
//! part of a step is priced by rates of its own, so the ratio of its measured to its predicted time moves those rates and
//! no others. A few runs move them only as far as they agree: the measured rates are the prior.

use bedplate_breakdown::{Breakdown, Measured, Part};
use bedplate_catalog::{Accelerator, CollectiveCurve, FormatRates};
use bedplate_layout::ComputePrecision;
use bedplate_perf::{HostRun, predict_on_host};
use bedplate_transformer::Transformer;
use bedplate_units::Seconds;
use bedplate_units::statistics::median;

/// A run of `bedplate train` on this host: what was run, and where the time of its usual step went.
#[derive(Debug, Clone)]
pub struct HostCase {
    pub id: String,
    pub model: Transformer,
    pub run: HostRun,
    pub measured: Breakdown<Measured>,
}

/// By how much longer one part took than predicted, over all runs that have it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostFactor {
    pub part: Part,
    /// The number format that it holds for; `None`: for all.
    pub format: Option<ComputePrecision>,
    pub factor: f64,
    pub runs: usize,
}

/// A fit, and the median error of step times before, after, and of each run by a fit to the others.
#[derive(Debug, Clone)]
pub struct HostFit {
    pub host: Accelerator,
    pub factors: Vec<HostFactor>,
    pub error_before: f64,
    pub error_after: f64,
    /// `None` with a single run.
    pub error_held_out: Option<f64>,
}

/// What one run weighs against the prior: runs scatter by 5 %, and rates of operators are off by 10 %.
const PRIOR_RUNS: f64 = 0.25;

/// Parts below this share of a step say more about the clock than about the host.
const LEAST_SHARE: f64 = 0.01;

/// Rounds of a fit: a rate moves its part almost but not quite in proportion.
const ROUNDS: usize = 3;

/// Rates that agree with the runs. Runs that cannot be priced are passed over; without any, the rates stay.
pub fn fit_host(cases: &[HostCase], start: &Accelerator) -> HostFit {
    let factors = factors(cases, start);
    let host = slowed(start, &factors);
    let held_out = (cases.len() > 1).then(|| {
        let errors = (0..cases.len()).filter_map(|index| {
            let others: Vec<HostCase> = [&cases[..index], &cases[index + 1..]].concat();
            error(&cases[index], &slowed(start, &self::factors(&others, start)))
        });
        median(&errors.collect::<Vec<f64>>())
    });
    let all =
        |host: &Accelerator| median(&cases.iter().filter_map(|case| error(case, host)).collect::<Vec<f64>>());
    HostFit { error_before: all(start), error_after: all(&host), error_held_out: held_out, factors, host }
}

/// Found in rounds: what is still missing after the last one is added to what was moved, and drawn towards 1 as a whole.
fn factors(cases: &[HostCase], start: &Accelerator) -> Vec<HostFactor> {
    let mut factors: Vec<HostFactor> = kinds().map(Kind::unmoved).collect();
    for _ in 0..ROUNDS {
        let host = slowed(start, &factors);
        for (factor, kind) in factors.iter_mut().zip(kinds()) {
            *factor = kind.refined(factor, cases, &host);
        }
    }
    factors.retain(|factor| factor.runs > 0);
    factors
}

fn slowed(start: &Accelerator, factors: &[HostFactor]) -> Accelerator {
    let mut host = start.clone();
    factors.iter().for_each(|factor| slow_down(&mut host, factor));
    host
}

/// Error of a predicted step time, as a share of the measured one.
fn error(case: &HostCase, host: &Accelerator) -> Option<f64> {
    let predicted = predict_on_host(&case.model, host, &case.run).ok()?.seconds();
    Some((predicted.get() / case.measured.total().get() - 1.0).abs())
}

/// A part whose rates move together.
#[derive(Debug, Clone, Copy)]
struct Kind {
    part: Part,
    format: Option<ComputePrecision>,
}

fn kinds() -> impl Iterator<Item = Kind> {
    let formats = [ComputePrecision::Fp32, ComputePrecision::Bf16];
    let by_format = formats
        .into_iter()
        .flat_map(|format| [Part::Compute, Part::Memory].map(|part| Kind { part, format: Some(format) }));
    by_format.chain([Part::Optimizer, Part::ScaleUp].map(|part| Kind { part, format: None }))
}

impl Kind {
    fn unmoved(self) -> HostFactor {
        HostFactor { part: self.part, format: self.format, factor: 1.0, runs: 0 }
    }

    /// The median of the runs that have this part, drawn towards 1 where they are few.
    fn refined(self, moved: &HostFactor, cases: &[HostCase], host: &Accelerator) -> HostFactor {
        let is_mine = |case: &&HostCase| self.format.is_none_or(|format| case.run.precision == format);
        let missing: Vec<f64> =
            cases.iter().filter(is_mine).filter_map(|case| self.log_ratio(case, host)).collect();
        let runs = missing.len();
        if runs == 0 {
            return *moved;
        }
        let weight = runs as f64 / (runs as f64 + PRIOR_RUNS);
        let factor = (weight * (moved.factor.ln() + median(&missing))).exp();
        HostFactor { factor, runs, ..*moved }
    }

    fn log_ratio(self, case: &HostCase, host: &Accelerator) -> Option<f64> {
        let predicted = predict_on_host(&case.model, host, &case.run).ok()?;
        if predicted.time.share(self.part) < LEAST_SHARE || case.measured.share(self.part) < LEAST_SHARE {
            return None;
        }
        let seconds = |busy: Seconds| Some(busy.get()).filter(|seconds| *seconds > 0.0);
        let span =
            |of: Part| predicted.time.parts().find(|(part, _)| *part == of).map(|(_, span)| span.exposed);
        let measured =
            case.measured.parts().find(|(part, _)| *part == self.part).map(|(_, span)| span.exposed);
        Some((seconds(measured?)? / seconds(span(self.part)?)?).ln())
    }
}

/// Moves the rates behind a part so that it takes `factor` times as long.
fn slow_down(host: &mut Accelerator, by: &HostFactor) {
    let factor = by.factor;
    if by.part == Part::ScaleUp {
        host.collectives.iter_mut().for_each(|times| times.curve = slower(&times.curve, factor));
    }
    let Some(rates) = host.measured.as_mut() else { return };
    let format = match by.format {
        Some(ComputePrecision::Fp32) => rates.fp32.as_mut(),
        Some(_) => rates.bf16.as_mut(),
        None => None,
    };
    match (by.part, format) {
        (Part::Compute, Some(format)) => compute_slower(format, factor),
        (Part::Memory, Some(format)) => {
            format.stream = format.stream / factor;
            format.stream_in_cache = format.stream_in_cache / factor;
        }
        (Part::Optimizer, _) => rates.optimizer = rates.optimizer / factor,
        _ => {}
    }
}

fn compute_slower(format: &mut FormatRates, factor: f64) {
    format.products = format.products / factor;
    format.input_gradients = format.input_gradients / factor;
    format.weight_gradients = format.weight_gradients / factor;
    format.attention = format.attention / factor;
    format.attention_backward = format.attention_backward / factor;
}

fn slower(curve: &CollectiveCurve, factor: f64) -> CollectiveCurve {
    let (sizes, times): (Vec<_>, Vec<_>) = curve.points().map(|(size, time)| (size, time * factor)).unzip();
    CollectiveCurve::new(&sizes, &times).unwrap_or(*curve)
}
