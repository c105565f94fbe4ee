//! What was read last, by collector, and the text that Prometheus gets of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bedplate_finding::OpenFinding;
use bedplate_record::Exposition;

use crate::foreign::Families;
use crate::metrics::Metric;
use crate::metrics::gpu as gpu_metric;
use crate::metrics::own as metric;
use crate::series::{MetricSeries, Naming, SeriesBatch};
use crate::watch::XidCount;

/// A collector that has said nothing for this long, and for five intervals, hangs: what it said before is not shown as if it were now.
const STALE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Board {
    naming: Naming,
    stale_after: Duration,
    slots: Mutex<BTreeMap<&'static str, Slot>>,
    foreign: Mutex<Foreign>,
    gpu_labels: Mutex<BTreeMap<u32, Arc<str>>>,
}

#[derive(Debug, Default)]
struct Foreign {
    families: Arc<Families>,
    /// Labels of each target, and whether it answered.
    targets: Vec<(String, bool)>,
}

/// The newest readings of a collector.
#[derive(Debug)]
struct Slot {
    series: Arc<Vec<MetricSeries>>,
    at: Instant,
    seconds: f64,
    errors: u64,
    is_up: bool,
}

impl Board {
    pub(crate) fn new(naming: Naming, interval: Duration) -> Self {
        Self {
            naming,
            stale_after: STALE.max(interval * 5),
            slots: Mutex::default(),
            foreign: Mutex::default(),
            gpu_labels: Mutex::default(),
        }
    }

    /// Takes what a collector read; series of one metric are brought together.
    pub(crate) fn post(&self, collector: &'static str, batch: SeriesBatch, is_up: bool, took: Duration) {
        let SeriesBatch(mut series) = batch;
        series.sort_by_key(|series| std::ptr::from_ref(series.metric) as usize);
        if collector == "gpu" {
            self.remember_labels(&series);
        }
        let mut slots = locked(&self.slots);
        let slot = slots.entry(collector).or_insert_with(|| Slot {
            series: Arc::default(),
            at: Instant::now(),
            seconds: 0.0,
            errors: 0,
            is_up,
        });
        slot.series = Arc::new(series);
        slot.at = Instant::now();
        slot.seconds += took.as_secs_f64();
        slot.errors += u64::from(!is_up);
        slot.is_up = is_up;
    }

    /// XIDs are counted for a GPU that may not answer any more.
    fn remember_labels(&self, series: &[MetricSeries]) {
        let mut labels = locked(&self.gpu_labels);
        for one in series.iter().filter(|one| std::ptr::eq(one.metric, &raw const gpu_metric::GPU_LOST)) {
            if let crate::series::Spot::Gpu(index) = one.spot {
                labels.insert(index, Arc::clone(&one.labels));
            }
        }
    }

    pub(crate) fn post_foreign(&self, families: Families, targets: Vec<(String, bool)>) {
        *locked(&self.foreign) = Foreign { families: Arc::new(families), targets };
    }

    /// The text of everything that is known now.
    pub(crate) fn text(
        &self,
        xids: &[XidCount],
        findings: &[OpenFinding],
        counted: &[(String, u64)],
    ) -> String {
        let mut text = Exposition::with_room(128 << 10);
        let now = Instant::now();
        let mut own = OwnFigures::default();
        let slots: Vec<Arc<Vec<MetricSeries>>> = {
            let slots = locked(&self.slots);
            let fresh = |slot: &&Slot| now.duration_since(slot.at) < self.stale_after;
            slots.iter().for_each(|(name, slot)| own.add(name, slot, fresh(&slot)));
            slots.values().filter(fresh).map(|slot| Arc::clone(&slot.series)).collect()
        };
        slots.iter().for_each(|series| write_series(series, &mut text));
        self.write_xids(xids, &mut text);
        self.write_findings(findings, counted, &mut text);
        own.write(&self.naming, &mut text);
        self.write_foreign(&mut text);
        text.into_string()
    }

    fn write_xids(&self, xids: &[XidCount], text: &mut Exposition) {
        let labels = locked(&self.gpu_labels);
        let of = |gpu: Option<u32>| match gpu {
            Some(index) => {
                let unknown = || self.naming.labels(&[("gpu", &index.to_string())]);
                labels.get(&index).cloned().unwrap_or_else(unknown)
            }
            None => self.naming.labels(&[]),
        };
        if !labels.is_empty() || !xids.is_empty() {
            // The last code of each GPU, and 0 where there was none: the form that dashboards know.
            head(&gpu_metric::XID_ERRORS, text);
            for (index, labels) in labels.iter() {
                let mut last = xids.iter().filter(|count| count.gpu == Some(*index));
                let last = last.clone().max_by_key(|count| count.last_ms).or(last.next());
                let code = last.map_or(0, |count| count.xid);
                text.sample(gpu_metric::XID_ERRORS.name, labels, f64::from(code));
            }
        }
        if !xids.is_empty() {
            head(&gpu_metric::XID_ERRORS_COUNT, text);
            for count in xids {
                let labels = format!("{},xid=\"{}\"", of(count.gpu), count.xid);
                text.sample(gpu_metric::XID_ERRORS_COUNT.name, &labels, count.count as f64);
            }
        }
    }

    fn write_findings(&self, findings: &[OpenFinding], counted: &[(String, u64)], text: &mut Exposition) {
        if !findings.is_empty() {
            head(&metric::FINDING, text);
        }
        for open in findings {
            text.sample(metric::FINDING.name, &self.finding_labels(open), 1.0);
        }
        if !counted.is_empty() {
            head(&metric::FINDINGS_TOTAL, text);
        }
        for (rule, count) in counted {
            text.sample(metric::FINDINGS_TOTAL.name, &self.naming.labels(&[("rule", rule)]), *count as f64);
        }
    }

    fn finding_labels(&self, open: &OpenFinding) -> Arc<str> {
        let finding = &open.finding;
        self.naming.labels(&[
            ("rule", &finding.rule),
            ("severity", &finding.severity.to_string()),
            ("layer", &finding.layer.to_string()),
            ("action", finding.action.name()),
            ("subject", &finding.subject.to_string()),
        ])
    }

    fn write_foreign(&self, text: &mut Exposition) {
        let foreign = locked(&self.foreign);
        if !foreign.targets.is_empty() {
            head(&metric::TARGET_UP, text);
        }
        for (labels, is_up) in &foreign.targets {
            text.sample(metric::TARGET_UP.name, labels, f64::from(u8::from(*is_up)));
        }
        foreign.families.write(text);
    }
}

#[derive(Default)]
struct OwnFigures(Vec<(&'static str, bool, f64, u64)>);

impl OwnFigures {
    fn add(&mut self, name: &'static str, slot: &Slot, is_fresh: bool) {
        self.0.push((name, slot.is_up && is_fresh, slot.seconds, slot.errors));
    }

    fn write(&self, naming: &Naming, text: &mut Exposition) {
        let labels: Vec<Arc<str>> =
            self.0.iter().map(|(name, ..)| naming.labels(&[("collector", name)])).collect();
        let mut all = |metric: &'static Metric, of: fn(&(&'static str, bool, f64, u64)) -> f64| {
            head(metric, text);
            for (slot, labels) in self.0.iter().zip(&labels) {
                text.sample(metric.name, labels, of(slot));
            }
        };
        all(&metric::COLLECTOR_UP, |slot| f64::from(u8::from(slot.1)));
        all(&metric::COLLECTOR_SECONDS, |slot| slot.2);
        all(&metric::COLLECTOR_ERRORS, |slot| slot.3 as f64);
    }
}

fn write_series(series: &[MetricSeries], text: &mut Exposition) {
    let mut last: Option<&'static Metric> = None;
    for one in series {
        if !last.is_some_and(|last| std::ptr::eq(last, one.metric)) {
            head(one.metric, text);
        }
        last = Some(one.metric);
        text.sample(one.metric.name, &one.labels, one.value);
    }
}

fn head(metric: &Metric, text: &mut Exposition) {
    text.head(metric.name, metric.kind.name(), metric.help);
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
