//! How far measured latencies and throughputs are from predictions: 80 % intervals, and the confidence in a limit.
//!
//! The errors of a source, a model on a GPU, are those of its rows predicted by constants fitted without it. A prediction for a
//! deployment gets the errors of similar sources: the same kind of model on the same family of chips if there are enough of them,
//! otherwise all. A source counts by the square root of its rows, because they share their flaws. Quantiles of
//! few sources are too narrow for another one, so all are widened by the factor with which sources that are held out in turn
//! have four in five rows inside; no factor is chosen by hand, and none has seen the source that it is used for.

use std::collections::BTreeMap;

use bedplate_diag::Source;
use bedplate_document::{DocumentError, Table};
use bedplate_perf::Generation;
use bedplate_perf::serving::Deployment;
use bedplate_units::statistics::quantile;

use super::{LogErrors, ServingCase};
use crate::Interval;

/// What is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Time to first token.
    FirstToken,
    InterToken,
    /// Tokens per second of a constant number of users.
    Throughput,
    /// The seconds of a request: the inverse of that, by Little's law.
    EndToEnd,
}

impl Measure {
    /// Those that are measured.
    pub const ALL: [(&'static str, Measure); 3] =
        [("ttft", Measure::FirstToken), ("itl", Measure::InterToken), ("throughput", Measure::Throughput)];

    /// The logarithm of measured over predicted.
    pub fn of(self, errors: &LogErrors) -> f64 {
        match self {
            Measure::FirstToken => -errors.first_token,
            Measure::InterToken => -errors.inter_token,
            Measure::Throughput => -errors.throughput,
            Measure::EndToEnd => errors.throughput,
        }
    }
}

/// Chips with similar errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Chips {
    Hopper,
    /// With Blackwell Ultra: they share their constants.
    Blackwell,
}

impl Chips {
    const ALL: [(&'static str, Chips); 2] = [("hopper", Chips::Hopper), ("blackwell", Chips::Blackwell)];

    fn of(generation: Generation) -> Option<Self> {
        match generation {
            Generation::Hopper => Some(Chips::Hopper),
            Generation::Blackwell | Generation::BlackwellUltra => Some(Chips::Blackwell),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// What errors depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Likeness {
    pub chips: Chips,
    pub is_mixture: bool,
    /// Whether prompts and decodes have pools of their own.
    pub is_pooled: bool,
}

impl Likeness {
    /// `None` for chips of which no family was measured.
    pub fn of(deployment: &Deployment, is_pooled: bool) -> Option<Self> {
        Some(Self {
            chips: Chips::of(deployment.hardware.generation)?,
            is_mixture: deployment.model.transformer.is_mixture(),
            is_pooled,
        })
    }

    /// As in `dense, hopper` or `mixture, blackwell, pools`.
    pub fn name(&self) -> String {
        let model = if self.is_mixture { "mixture" } else { "dense" };
        let pools = if self.is_pooled { ", pools" } else { "" };
        format!("{model}, {}{pools}", self.chips.name())
    }
}

/// The errors of one source, each measure at [`LEVELS`] levels.
#[derive(Debug, Clone, PartialEq)]
struct SourceErrors {
    /// A model on a GPU.
    name: String,
    accelerator: String,
    like: Likeness,
    rows: u32,
    /// Sorted logarithms of measured over predicted, by measure, at the middles of equal shares of the rows.
    points: [Vec<f64>; 3],
}

/// Points that are kept of a source's errors.
const LEVELS: usize = 20;
/// Sources that must be alike; of fewer the errors could be too small by chance.
const ENOUGH: usize = 3;
/// The share of rows that an interval should hold.
const HELD: f64 = 0.8;

/// The errors of all sources.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingErrors {
    sources: Vec<SourceErrors>,
    near: f64,
    /// By measure: by what distances from the median are multiplied.
    widening: [f64; 3],
}

impl ServingErrors {
    /// The errors that belong to the built-in constants.
    pub fn builtin() -> Self {
        let text = include_str!("../../../../../data/serving/intervals.toml");
        Self::read(Source::new("data/serving/intervals.toml", text))
            .expect("the embedded errors are valid: checked by a test")
    }

    fn new(sources: Vec<SourceErrors>, near: f64) -> Self {
        let widening = Measure::ALL.map(|(_, measure)| widening(&sources, measure));
        Self { sources, near, widening }
    }

    /// From rows with their errors by constants that have not seen their source.
    pub fn from_held_out(rows: &[(&ServingCase, LogErrors)]) -> Self {
        let mut groups: BTreeMap<(String, Likeness), Vec<&(&ServingCase, LogErrors)>> = BTreeMap::new();
        for row in rows {
            if let Some(like) = row.0.likeness() {
                groups.entry((row.0.source(), like)).or_default().push(row);
            }
        }
        let sources = groups.into_iter().map(|((name, like), rows)| {
            let points = Measure::ALL.map(|(_, measure)| {
                let errors: Vec<f64> = rows.iter().map(|(_, errors)| measure.of(errors)).collect();
                let middle = |level: usize| (level as f64 + 0.5) / LEVELS as f64;
                (0..LEVELS).map(|level| rounded(quantile(&errors, middle(level)))).collect()
            });
            let accelerator = rows[0].0.accelerator.to_ascii_lowercase();
            SourceErrors { name, accelerator, like, rows: rows.len() as u32, points }
        });
        Self::new(sources.collect(), rounded(near(rows)))
    }

    /// The errors of all other sources, as if this one had never been measured.
    pub fn without(&self, source: &str) -> Self {
        let others = self.sources.iter().filter(|each| each.name != source);
        Self::new(others.cloned().collect(), self.near)
    }

    /// The errors of sources like this one; `None` where nothing is known.
    pub fn spread(&self, like: Likeness) -> Option<Spread> {
        let widened = |measure: Measure| -> Vec<(f64, f64)> {
            let factor = self.widening[measure as usize];
            let points = pooled(self.sources.iter().collect(), like, measure);
            let median = level(&points, 0.5);
            points.iter().map(|(log, weight)| (median + factor * (log - median), *weight)).collect()
        };
        let [first, inter, throughput] = Measure::ALL.map(|(_, measure)| widened(measure));
        let end_to_end = throughput.iter().rev().map(|(log, weight)| (-log, *weight)).collect();
        (!first.is_empty()).then_some(Spread { points: [first, inter, throughput, end_to_end] })
    }

    /// Whether a chip has measured rows.
    pub fn has_measured(&self, accelerator: &str) -> bool {
        self.sources.iter().any(|source| source.accelerator.eq_ignore_ascii_case(accelerator))
    }

    /// By how much predictions of two deployments of one source for the same load differ wrongly, in the median: what differs by
    /// less is a near tie.
    pub fn near(&self) -> f64 {
        self.near
    }

    pub fn read(source: Source<'_>) -> Result<Self, DocumentError> {
        let file = Table::parse(source)?.titled("the serving errors");
        let near = file.required("near")?;
        let mut sources = Vec::new();
        for table in file.tables("source")? {
            let mut points: [Vec<f64>; 3] = Default::default();
            for (name, measure) in Measure::ALL {
                let list: Vec<f64> = table.required(name)?;
                if list.is_empty() || !list.is_sorted() {
                    return Err(table.bad_value(name, "errors must be in rising order"));
                }
                points[measure as usize] = list;
            }
            let kinds = [("dense", false), ("mixture", true)];
            let pools = [("one", false), ("two", true)];
            sources.push(SourceErrors {
                name: table.required("name")?,
                accelerator: table.required("accelerator")?,
                like: Likeness {
                    chips: table.choice("chips", &Chips::ALL)?,
                    is_mixture: table.choice("model", &kinds)?,
                    is_pooled: table.choice("pools", &pools)?,
                },
                rows: table.required("rows")?,
                points,
            });
            table.finish()?;
        }
        file.finish()?;
        Ok(Self::new(sources, near))
    }

    pub fn to_toml(&self) -> String {
        let mut text = format!("near = {:?}\n", self.near);
        for SourceErrors { name, accelerator, like, rows, points } in &self.sources {
            let chips = like.chips.name();
            let model = if like.is_mixture { "mixture" } else { "dense" };
            let pools = if like.is_pooled { "two" } else { "one" };
            text.push_str(&format!(
                "\n[[source]]\nname = \"{name}\"\naccelerator = \"{accelerator}\"\nchips = \"{chips}\"\n\
                 model = \"{model}\"\npools = \"{pools}\"\nrows = {rows}\n"
            ));
            for (name, measure) in Measure::ALL {
                let list: Vec<String> =
                    points[measure as usize].iter().map(|point| format!("{point:?}")).collect();
                text.push_str(&format!("{name} = [{}]\n", list.join(", ")));
            }
        }
        text
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Logarithms of measured over predicted of the sources most like this one, sorted, with weights.
fn pooled(sources: Vec<&SourceErrors>, like: Likeness, measure: Measure) -> Vec<(f64, f64)> {
    let that = |is_like: &dyn Fn(&Likeness) -> bool| -> Vec<&SourceErrors> {
        sources.iter().filter(|source| is_like(&source.like)).copied().collect()
    };
    let mut chosen = that(&|other| *other == like);
    if chosen.len() < ENOUGH {
        chosen = that(&|other| other.is_pooled == like.is_pooled);
    }
    if chosen.is_empty() {
        chosen = sources;
    }
    let mut points: Vec<(f64, f64)> = Vec::new();
    for source in chosen {
        let list = &source.points[measure as usize];
        let weight = f64::from(source.rows).sqrt() / list.len() as f64;
        points.extend(list.iter().map(|log| (*log, weight)));
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// The factor with which the quantiles of all other sources hold [`HELD`] of the rows of each source, over all of them.
fn widening(sources: &[SourceErrors], measure: Measure) -> f64 {
    let mut needed: Vec<(f64, f64)> = Vec::new();
    for source in sources {
        let others = sources.iter().filter(|other| other.name != source.name).collect();
        let points = pooled(others, source.like, measure);
        if points.is_empty() {
            continue;
        }
        let [low, median, high] =
            [(1.0 - HELD) / 2.0, 0.5, (1.0 + HELD) / 2.0].map(|share| level(&points, share));
        let list = &source.points[measure as usize];
        for log in list {
            // The factor at which the interval reaches this error.
            let side = if *log < median { median - low } else { high - median };
            let factor = (log - median).abs() / side.max(1e-6);
            needed.push((factor, f64::from(source.rows) / list.len() as f64));
        }
    }
    needed.sort_by(|a, b| a.0.total_cmp(&b.0));
    if needed.is_empty() { 1.0 } else { level(&needed, HELD) }
}

/// The value below which a share of the weight of sorted pairs lies, between two of them by proportion; 0 for none.
fn level(sorted: &[(f64, f64)], share: f64) -> f64 {
    let whole: f64 = sorted.iter().map(|(_, weight)| weight).sum();
    let wanted = share * whole;
    let mut below = 0.0;
    let mut last: Option<(f64, f64)> = None;
    for (value, weight) in sorted {
        let middle = below + weight / 2.0;
        if middle >= wanted {
            let Some((before, at)) = last else { return *value };
            return before + (value - before) * (wanted - at) / (middle - at).max(f64::MIN_POSITIVE);
        }
        last = Some((*value, middle));
        below += weight;
    }
    last.map_or(0.0, |(value, _)| value)
}

/// Errors of sources like a deployment.
#[derive(Debug, Clone, PartialEq)]
pub struct Spread {
    /// By measure: sorted logarithms of measured over predicted, with weights.
    points: [Vec<(f64, f64)>; 4],
}

impl Spread {
    /// The 80 % interval of measured over predicted.
    pub fn interval(&self, measure: Measure) -> Interval {
        let points = &self.points[measure as usize];
        Interval {
            low: level(points, (1.0 - HELD) / 2.0).exp(),
            high: level(points, (1.0 + HELD) / 2.0).exp(),
        }
    }

    /// The share of errors with which what is measured is at most `factor` times what is predicted.
    pub fn share_within(&self, measure: Measure, factor: f64) -> f64 {
        let points = &self.points[measure as usize];
        let whole: f64 = points.iter().map(|(_, weight)| weight).sum();
        let within = points.iter().take_while(|(log, _)| log.exp() <= factor);
        let within: f64 = within.map(|(_, weight)| weight).sum();
        within / whole
    }
}

/// Differences of errors between deployments of one source under the same load, in the median over all sources.
fn near(rows: &[(&ServingCase, LogErrors)]) -> f64 {
    let mut loads: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    for (case, errors) in rows {
        let load = &case.load;
        let key = format!(
            "{}|{} {} {} {}",
            case.source(),
            case.deployment.engine.name(),
            load.input.longest,
            load.output.longest,
            load.concurrency
        );
        loads.entry(key).or_default().push((case.site_key(), errors.throughput));
    }
    let mut differences: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (key, deployments) in loads {
        let source = key.split('|').next().unwrap_or_default().to_owned();
        for (index, (one, error)) in deployments.iter().enumerate() {
            let others = deployments[index + 1..].iter().filter(|(other, _)| other != one);
            let pairs = others.map(|(_, other)| (error - other).abs());
            differences.entry(source.clone()).or_default().extend(pairs);
        }
    }
    let mut all: Vec<(f64, f64)> = Vec::new();
    for pairs in differences.values().filter(|pairs| !pairs.is_empty()) {
        let weight = (pairs.len() as f64).powf(-0.5);
        all.extend(pairs.iter().map(|difference| (*difference, weight)));
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    level(&all, 0.5).exp_m1()
}

impl ServingCase {
    /// The name of the model on its GPU, under which the row is held out of a fit.
    pub fn source(&self) -> String {
        self.group().to_ascii_lowercase()
    }

    pub fn likeness(&self) -> Option<Likeness> {
        Likeness::of(&self.deployment, self.pools.is_some())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(name: &str, like: Likeness, rows: u32, points: Vec<f64>) -> SourceErrors {
        let points = [points.clone(), points.clone(), points];
        SourceErrors { name: name.into(), accelerator: "h100".into(), like, rows, points }
    }

    fn like(chips: Chips, is_mixture: bool) -> Likeness {
        Likeness { chips, is_mixture, is_pooled: false }
    }

    /// Sources with the same errors, spread evenly between two logarithms.
    fn even(low: f64, high: f64) -> ServingErrors {
        let point = |level: u32| low + (high - low) * (f64::from(level) + 0.5) / 20.0;
        let points: Vec<f64> = (0..20).map(point).collect();
        let named =
            |index: u32| source(&format!("model {index}"), like(Chips::Hopper, false), 25, points.clone());
        ServingErrors::new((0..6).map(named).collect(), 0.1)
    }

    #[test]
    fn sources_alike_have_the_interval_of_each() {
        let spread = even(-0.5, 0.5).spread(like(Chips::Hopper, false)).expect("there are errors");
        let interval = spread.interval(Measure::InterToken);
        assert!(
            (interval.low.ln() + 0.4).abs() < 0.02 && (interval.high.ln() - 0.4).abs() < 0.02,
            "{interval:?}"
        );
        let end_to_end = spread.interval(Measure::EndToEnd);
        let throughput = spread.interval(Measure::Throughput);
        assert!((end_to_end.low * throughput.high - 1.0).abs() < 1e-9);
    }

    #[test]
    fn few_sources_alike_borrow_from_others() {
        let mut errors = even(-0.1, 0.1);
        errors.sources.push(source("rare", like(Chips::Blackwell, false), 9, vec![1.0, 2.0]));
        let errors = ServingErrors::new(errors.sources, 0.1);
        let spread = errors.without("rare").spread(like(Chips::Blackwell, false)).expect("there are errors");
        assert!(spread.interval(Measure::FirstToken).high < 1.2);
        assert!(errors.without("rare").spread(like(Chips::Blackwell, true)).is_some());
    }

    #[test]
    fn sources_that_differ_more_than_their_rows_make_intervals_wider() {
        let of = |index: u32| {
            let middle = f64::from(index) - 2.5;
            let points = vec![0.2 * middle - 0.01, 0.2 * middle, 0.2 * middle + 0.01];
            source(&format!("model {index}"), like(Chips::Hopper, false), 25, points)
        };
        let errors = ServingErrors::new((0..6).map(of).collect(), 0.1);
        assert!(errors.widening[0] > 1.0, "{:?}", errors.widening);
    }

    #[test]
    fn the_embedded_errors_are_written_as_they_are_read() {
        let builtin = ServingErrors::builtin();
        let text = builtin.to_toml();
        let again = ServingErrors::read(Source::new("again.toml", &text)).expect("it is what was written");
        assert_eq!(again, builtin);
        assert!(builtin.has_measured("H200") && !builtin.has_measured("trainium2"));
        assert!((0.01..0.3).contains(&builtin.near()), "{}", builtin.near());
    }

    proptest! {
        #[test]
        fn a_longer_limit_is_never_less_certain(low in -1.0f64..0.0, wide in 0.01f64..2.0, limit in 0.1f64..5.0, more in 0.0f64..5.0) {
            let spread = even(low, low + wide).spread(like(Chips::Hopper, false)).expect("there are errors");
            for measure in [Measure::FirstToken, Measure::InterToken, Measure::Throughput, Measure::EndToEnd] {
                let (short, long) = (spread.share_within(measure, limit), spread.share_within(measure, limit + more));
                prop_assert!((0.0..=1.0).contains(&short) && short <= long);
                let interval = spread.interval(measure);
                prop_assert!(interval.low <= interval.high);
            }
        }
    }
}
