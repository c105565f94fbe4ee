//! Error bars: 80 % intervals around a prediction, from rows held out of the fit.
//!
//! Residuals of similar rows, each predicted without its publication, give empirical quantiles; they are
//! skewed and have heavy tails, so no Gaussian is assumed. How wide they are depends on the kind of row and on the generation of
//! the chip. A publication counts by the square root of its rows, because its residuals are correlated. [`ErrorBars::coverage`] checks the bars on held-out publications.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_diag::Source;
use bedplate_document::{DocumentError, Table};
use bedplate_layout::{Layout, Sharding};
use bedplate_perf::Generation;
use bedplate_transformer::Transformer;

use crate::Case;

/// Rows with similar errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Similar {
    Dense,
    /// Dense with sharded weights: FSDP, ZeRO-3.
    DenseSharded,
    Mixture,
}

impl Similar {
    pub const ALL: [(&'static str, Similar); 3] =
        [("dense", Similar::Dense), ("dense-sharded", Similar::DenseSharded), ("mixture", Similar::Mixture)];

    pub fn of(model: &Transformer, layout: &Layout) -> Self {
        let is_sharded = matches!(layout.sharding, Sharding::Weights | Sharding::WeightsWithin(_));
        match (model.is_mixture(), is_sharded) {
            (true, _) => Similar::Mixture,
            (false, true) => Similar::DenseSharded,
            (false, false) => Similar::Dense,
        }
    }

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// The 80 % interval of measured throughput, as factors of the predicted one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// The share of rows between the two quantiles, such that bars made without a publication hold four in five of its rows.
/// Residuals of one publication are correlated, so it is not four fifths: dense ones are too narrow for another publication;
/// bars of mixtures and of sharded weights are stretched by a few small publications that are predicted badly.
fn share(similar: Similar) -> f64 {
    match similar {
        Similar::Mixture => 0.76,
        Similar::Dense => 0.84,
        Similar::DenseSharded => 0.64,
    }
}

/// Chips with similar errors, by the names of their tables.
const GENERATIONS: [(&str, Generation); 4] = [
    ("ampere", Generation::Ampere),
    ("hopper", Generation::Hopper),
    ("blackwell", Generation::Blackwell),
    ("blackwell-ultra", Generation::BlackwellUltra),
];

/// The place of a generation in that list; chips without training rows have the bars of the newest ones.
fn place(generation: Generation) -> usize {
    GENERATIONS.iter().position(|(_, known)| *known == generation).unwrap_or(GENERATIONS.len() - 1)
}

/// Intervals by kind of row and generation of chips.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorBars {
    intervals: [[Interval; GENERATIONS.len()]; Similar::ALL.len()],
}

impl ErrorBars {
    /// The bars that belong to the checked-in constants.
    pub fn builtin() -> Self {
        let text = include_str!("../../../../data/training/intervals.toml");
        Self::read(Source::new("data/training/intervals.toml", text))
            .expect("the embedded intervals are valid: checked by a test")
    }

    pub fn read(source: Source<'_>) -> Result<Self, DocumentError> {
        let file = Table::parse(source)?.titled("the intervals");
        let mut intervals = [[Interval { low: 1.0, high: 1.0 }; GENERATIONS.len()]; Similar::ALL.len()];
        for (name, similar) in Similar::ALL {
            let missing = |what: &'static str| file.bad_value(what, "this table is missing");
            let kind = file.table(name)?.ok_or_else(|| missing(name))?;
            for (chip, generation) in GENERATIONS {
                let table = kind.table(chip)?.ok_or_else(|| missing(chip))?;
                intervals[similar as usize][place(generation)] =
                    Interval { low: table.required("low")?, high: table.required("high")? };
                table.finish()?;
            }
            kind.finish()?;
        }
        file.finish()?;
        Ok(Self { intervals })
    }

    pub fn to_toml(&self) -> String {
        let tables = Similar::ALL.iter().flat_map(|(name, similar)| {
            GENERATIONS.map(|(chip, generation)| {
                let Interval { low, high } = self.interval(*similar, generation);
                format!("[{name}.{chip}]\nlow = {low:.4}\nhigh = {high:.4}\n")
            })
        });
        tables.collect::<Vec<_>>().join("\n")
    }

    pub fn interval(&self, similar: Similar, generation: Generation) -> Interval {
        self.intervals[similar as usize][place(generation)]
    }

    /// Bars from the signed errors of held-out rows.
    pub fn from_holdout(cases: &[Case], errors: &[f64]) -> Self {
        let scales = Scales::without("", cases, errors);
        let of = |similar| GENERATIONS.map(|(_, generation)| scales.interval(similar, generation));
        Self { intervals: Similar::ALL.map(|(_, similar)| of(similar)) }
    }

    /// The share of rows within bars made without their own publication.
    pub fn coverage(cases: &[Case], errors: &[f64]) -> f64 {
        let held = Self::held(cases, errors);
        held.iter().filter(|is_held| **is_held).count() as f64 / cases.len().max(1) as f64
    }

    /// For each row, whether bars made without its publication hold it.
    pub fn held(cases: &[Case], errors: &[f64]) -> Vec<bool> {
        let sources: BTreeSet<&str> = cases.iter().map(|case| case.source.as_str()).collect();
        let without = |source: &'_ str| (source.to_owned(), Scales::without(source, cases, errors));
        let scales: BTreeMap<String, Scales> = sources.into_iter().map(without).collect();
        let is_held = |(case, error): (&Case, &f64)| {
            let similar = Similar::of(&case.model, &case.layout);
            let interval = scales[&case.source].interval(similar, case.hardware.generation);
            (interval.low..=interval.high).contains(&(1.0 / (1.0 + error)))
        };
        cases.iter().zip(errors).map(is_held).collect()
    }
}

/// How large errors are by kind of row and by generation of chips, and what they look like in these units.
///
/// An error is a product of the two scales and a number whose quantiles depend on the kind alone: new chips and
/// new software are predicted worse than old ones, whatever is trained.
struct Scales {
    kinds: [f64; Similar::ALL.len()],
    chips: [f64; GENERATIONS.len()],
    /// Logarithms of truth over prediction in units of the scales, by kind, sorted and with weights.
    errors: [Vec<(f64, f64)>; Similar::ALL.len()],
}

/// One row: its kind, its generation, the logarithm of truth over prediction, and its weight.
struct Residual {
    kind: usize,
    chip: usize,
    log: f64,
    weight: f64,
}

impl Scales {
    fn without(source: &str, cases: &[Case], errors: &[f64]) -> Self {
        let others = || cases.iter().zip(errors).filter(|(case, _)| case.source != source);
        let mut rows: BTreeMap<&str, f64> = BTreeMap::new();
        for (case, _) in others() {
            *rows.entry(&case.source).or_default() += 1.0;
        }
        let residual = |(case, error): (&Case, &f64)| Residual {
            kind: Similar::of(&case.model, &case.layout) as usize,
            chip: place(case.hardware.generation),
            log: -error.ln_1p(),
            weight: rows[case.source.as_str()].powf(-0.5),
        };
        let residuals: Vec<Residual> = others().map(residual).collect();
        let whole = scale(residuals.iter().map(|each| (each.log.abs(), each.weight)), None);
        let kinds = std::array::from_fn(|kind| {
            let same = residuals.iter().filter(|each| each.kind == kind);
            scale(same.map(|each| (each.log.abs(), each.weight)), Some(whole))
        });
        let chips = std::array::from_fn(|chip| {
            let same = residuals.iter().filter(|each| each.chip == chip);
            scale(same.map(|each| (each.log.abs() / kinds[each.kind], each.weight)), Some(1.0))
        });
        let errors = std::array::from_fn(|kind| {
            let same = residuals.iter().filter(|each| each.kind == kind);
            let mut units: Vec<(f64, f64)> =
                same.map(|each| (each.log / (kinds[kind] * chips[each.chip]), each.weight)).collect();
            units.sort_by(|a, b| a.0.total_cmp(&b.0));
            units
        });
        Self { kinds, chips, errors }
    }

    fn interval(&self, similar: Similar, generation: Generation) -> Interval {
        let kind = similar as usize;
        let unit = self.kinds[kind] * self.chips[place(generation)];
        let at = |share: f64| (unit * weighted_quantile(&self.errors[kind], share)).exp();
        let share = share(similar);
        Interval { low: at((1.0 - share) / 2.0), high: at((1.0 + share) / 2.0) }
    }
}

/// The weighted median of sizes, drawn towards `usual` where there are few rows.
fn scale(sizes: impl Iterator<Item = (f64, f64)>, usual: Option<f64>) -> f64 {
    const FEW: f64 = 20.0;
    let mut sizes: Vec<(f64, f64)> = sizes.collect();
    sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rows = sizes.len() as f64;
    let median = weighted_quantile(&sizes, 0.5);
    match usual {
        Some(usual) => ((rows * median + FEW * usual) / (rows + FEW)).max(1e-6),
        None => median.max(1e-6),
    }
}

/// The weighted quantile of sorted `(value, weight)` pairs; 0 for none.
fn weighted_quantile(sorted: &[(f64, f64)], share: f64) -> f64 {
    let whole: f64 = sorted.iter().map(|(_, weight)| weight).sum();
    let mut below = 0.0;
    for (value, weight) in sorted {
        below += weight;
        if below >= share * whole {
            return *value;
        }
    }
    sorted.last().map_or(0.0, |(value, _)| *value)
}
