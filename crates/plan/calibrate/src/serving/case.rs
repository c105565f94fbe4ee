//! A measured serving row as an input to the model.

use bedplate_diag::shown;
use std::collections::BTreeMap;

use bedplate_catalog::Catalog;
use bedplate_perf::serving::{
    ClosedLoop, Deployment, KvRoom, Latency, LengthSpread, Parallel, Pools, Prefixes, Replica, ServedModel,
    ServingConstants, Speculation, closed_loop, disaggregated,
};

use super::fill::{self, Campaign};
use super::skip::ServingSkip;
use super::suspicion;
use crate::CalibrateError;
use crate::record::{MeasuredRow, read};

/// One usable row.
#[derive(Debug, Clone)]
pub struct ServingCase {
    pub id: String,
    pub campaign: Campaign,
    pub model: String,
    pub accelerator: String,
    /// Engine family and version as printed.
    pub engine: String,
    pub deployment: Deployment,
    pub drafts: u32,
    /// Prompt workers before `deployment`, which then only decodes.
    pub pools: Option<PoolSizes>,
    pub load: ClosedLoop,
    pub measured: MeasuredMeans,
    /// The stated layout is impossible; the real one was restored.
    pub is_repaired: bool,
    /// Other requests went before those that were measured.
    pub is_warm: bool,
    /// Why the row's figures are suspicious.
    pub suspicion: Option<ServingSkip>,
}

/// A pool of prompt workers, and how many workers both pools have.
#[derive(Debug, Clone)]
pub struct PoolSizes {
    pub prefill: Deployment,
    pub prefill_workers: u32,
    pub decode_workers: u32,
}

/// Measured means, in seconds and tokens per second and GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredMeans {
    pub first_token: f64,
    pub inter_token: f64,
    pub throughput: f64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingSkipped {
    pub id: String,
    pub reason: ServingSkip,
}

/// The rows of a file.
#[derive(Debug, Clone)]
pub struct ServingCases {
    pub used: Vec<ServingCase>,
    pub skipped: Vec<ServingSkipped>,
}

impl ServingCases {
    /// The rows that the built-in constants are fitted to.
    pub fn builtin(catalog: &Catalog) -> Result<Self, CalibrateError> {
        Self::read(include_str!("../../../../../data/serving/measured.csv"), catalog)
    }

    pub fn read(text: &str, catalog: &Catalog) -> Result<Self, CalibrateError> {
        let mut cases = Self { used: Vec::new(), skipped: Vec::new() };
        let records = read(text)?;
        let repeats = repeats(&records);
        for (index, record) in records.iter().enumerate() {
            let case = match repeats.get(&index) {
                Some(of) => Err(ServingSkip::Rounded { of: of.clone() }),
                None => ServingCase::new(record, catalog),
            };
            match case {
                Ok(case) => cases.used.push(case),
                Err(reason) => {
                    cases.skipped.push(ServingSkipped { id: record.text("id").to_owned(), reason })
                }
            }
        }
        if !cases.used.is_empty() {
            suspicion::mark(&mut cases.used);
            return Ok(cases);
        }
        let reason = match cases.skipped.first() {
            Some(first) => format!("the first says: {}", first.reason),
            None => "there is nothing below the header".to_owned(),
        };
        Err(CalibrateError::NothingUsable { rows: cases.skipped.len(), reason })
    }
}

impl ServingCase {
    fn new(record: &MeasuredRow, catalog: &Catalog) -> Result<Self, ServingSkip> {
        if !record.text("duplicate_of").is_empty() {
            return Err(ServingSkip::Duplicate { of: shown(record.text("duplicate_of")) });
        }
        if record.text("load_kind") != "closed_loop" {
            return Err(ServingSkip::Production);
        }
        let campaign = Campaign::of(record);
        let model = fill::model(record)?;
        let hardware = fill::hardware(record, catalog)?;
        let engine = fill::engine(record)?;
        let format = fill::format(record)?;
        let layouts = match record.text("pools") {
            "disaggregated" => fill::pools(record)?,
            _ => fill::Layouts::one(fill::parallel(record, heads(&model))?),
        };
        let parallel = layouts.decode;
        let load = load(record, campaign, &parallel)?;
        let measured = measured(record, &load, layouts.gpus())?;
        let drafts = fill::drafts(record, engine, format, &parallel);
        let kv = fill::kv(record, format, engine, &hardware);
        let settings = fill::settings(record, campaign, engine, &hardware, &load, &model);
        let deployment = Deployment {
            kv,
            settings,
            built: fill::built(record),
            ..Deployment::new(model, format, hardware, parallel, engine)
        };
        let pools = layouts.prefill.map(|prefill| PoolSizes {
            prefill: Deployment { parallel: prefill, ..deployment.clone() },
            prefill_workers: layouts.prefill_workers,
            decode_workers: layouts.decode_workers,
        });
        let case = Self {
            id: record.text("id").to_owned(),
            campaign,
            model: record.text("model").to_owned(),
            accelerator: record.text("accelerator").to_owned(),
            engine: record.text("engine").to_owned(),
            deployment,
            drafts,
            pools,
            load,
            measured,
            is_repaired: record.degree("gpus") != Some(layouts.gpus()),
            is_warm: !record.notes().contains("warm_up=none"),
            suspicion: None,
        };
        case.check()?;
        Ok(case)
    }

    /// Skips what could not have run.
    fn check(&self) -> Result<(), ServingSkip> {
        let priors = ServingConstants::priors();
        let replica =
            self.replica(&priors).map_err(|error| ServingSkip::BadLayout { reason: error.to_string() })?;
        if let KvRoom::DoesNotFit { over_per_gpu } = replica.memory().room {
            return Err(ServingSkip::DoesNotFit { over: over_per_gpu.to_string() });
        }
        if let Some(pools) = &self.pools {
            let prefill = Replica::new(pools.prefill.clone(), &priors)
                .map_err(|error| ServingSkip::BadLayout { reason: error.to_string() })?;
            if let KvRoom::DoesNotFit { over_per_gpu } = prefill.memory().room {
                return Err(ServingSkip::DoesNotFit { over: over_per_gpu.to_string() });
            }
        }
        let tokens = u64::from(self.load.input.longest) + u64::from(self.load.output.longest);
        if replica.memory().room.tokens() < replica.memory().tokens_of(tokens) {
            return Err(ServingSkip::RequestTooLong { tokens });
        }
        Ok(())
    }

    pub(super) fn replica(&self, constants: &ServingConstants) -> Result<Replica, bedplate_perf::PerfError> {
        let speculation = self
            .tokens_per_step(constants)
            .map(|tokens_per_step| Speculation { drafts: self.drafts, tokens_per_step });
        Replica::new(Deployment { speculation, ..self.deployment.clone() }, constants)
    }

    /// Tokens that a sequence gets in a step by drafts, which rows do not state; `None` without drafts.
    pub fn tokens_per_step(&self, constants: &ServingConstants) -> Option<f64> {
        let accepted =
            constants.draft_acceptance * (self.load.output.mean() / 1000.0).powf(constants.draft_growth);
        match self.drafts {
            0 => None,
            1 => Some(1.0 + constants.single_draft * (accepted - 1.0)),
            _ => Some(accepted),
        }
    }

    /// Model and GPU: rows held out together. DeepSeek-R1 and V3 are one model.
    pub fn group(&self) -> String {
        format!("{} {}", self.deployment.model.transformer.name, self.accelerator)
    }

    /// Rows that also share an engine, and so its flaws.
    pub(super) fn series(&self) -> String {
        let pools = if self.pools.is_some() { " pools" } else { "" };
        format!("{} {}{pools}", self.group(), self.deployment.engine.name())
    }

    pub fn predict(&self, constants: &ServingConstants) -> Option<Latency> {
        let replica = self.replica(constants).ok()?;
        let Some(sizes) = &self.pools else { return closed_loop(&replica, &self.load) };
        let pools = Pools {
            prefill: &Replica::new(sizes.prefill.clone(), constants).ok()?,
            prefill_workers: sizes.prefill_workers,
            decode: &replica,
            decode_workers: sizes.decode_workers,
            link: fill::link(&self.deployment.hardware),
            hand_off: constants.hand_off,
        };
        disaggregated(&pools, &self.load)
    }

    /// GPUs of all pools.
    pub fn gpus(&self) -> u32 {
        let prefill = self.pools.as_ref();
        let prefill = prefill.map_or(0, |pools| pools.prefill.parallel.gpus() * pools.prefill_workers);
        prefill
            + self.deployment.parallel.gpus() * self.pools.as_ref().map_or(1, |pools| pools.decode_workers)
    }

    /// Logarithms of predicted over measured.
    pub fn log_errors(&self, constants: &ServingConstants) -> LogErrors {
        let Some(predicted) = self.predict(constants) else {
            return LogErrors { first_token: 0.0, inter_token: 0.0, throughput: 0.0 };
        };
        self.log_errors_of(predicted.first_token, predicted.inter_token)
    }

    /// The same of a prediction in seconds, whoever made it. Tokens per second follow from both latencies, as those measured do.
    pub fn log_errors_of(&self, first_token: f64, inter_token: f64) -> LogErrors {
        let throughput = closed_throughput(&self.load, first_token, inter_token, self.gpus());
        LogErrors {
            first_token: (first_token / self.measured.first_token).ln(),
            inter_token: (inter_token / self.measured.inter_token).ln(),
            throughput: (throughput / self.measured.throughput).ln(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogErrors {
    pub first_token: f64,
    pub inter_token: f64,
    pub throughput: f64,
}

/// More users than this are taken for a mistake.
const MOST_USERS: u32 = 100_000;
/// Beyond this number of requests, means change by less than 1 %.
const MOST_REQUESTS: u32 = 20_000;

fn heads(model: &ServedModel) -> u64 {
    model.transformer.runs.first().map_or(1, |run| run.layer.attention.heads())
}

fn load(record: &MeasuredRow, campaign: Campaign, parallel: &Parallel) -> Result<ClosedLoop, ServingSkip> {
    let column = |name: &'static str| {
        record.degree(name).filter(|count| *count <= 1_000_000).ok_or(ServingSkip::Blank { column: name })
    };
    let users = column("concurrency_or_rate")?;
    if users > MOST_USERS {
        return Err(ServingSkip::Blank { column: "concurrency_or_rate" });
    }
    let concurrency = users / fill::copies(record, parallel);
    let shortest_share = campaign.shortest_share(record);
    let lengths = |longest: u32| LengthSpread { longest, shortest_share };
    Ok(ClosedLoop {
        concurrency,
        requests: concurrency.saturating_mul(10).min(MOST_REQUESTS.max(concurrency.saturating_mul(2))),
        input: lengths(column("isl")?),
        output: lengths(column("osl")?),
        prefixes: Prefixes::default(),
    })
}

fn measured(record: &MeasuredRow, load: &ClosedLoop, gpus: u32) -> Result<MeasuredMeans, ServingSkip> {
    let first_token = record.number("ttft_ms").ok_or(ServingSkip::NothingMeasured)? / 1e3;
    let inter_token = record.number("itl_ms").ok_or(ServingSkip::NothingMeasured)? / 1e3;
    let throughput = closed_throughput(load, first_token, inter_token, gpus);
    Ok(MeasuredMeans { first_token, inter_token, throughput })
}

/// Output tokens per second and GPU of users who each have one request in flight.
pub(super) fn closed_throughput(load: &ClosedLoop, first_token: f64, inter_token: f64, gpus: u32) -> f64 {
    let tokens = load.output.mean();
    f64::from(load.concurrency) * tokens / (first_token + inter_token * (tokens - 1.0)) / f64::from(gpus)
}

/// Rows that repeat another one with fewer decimals: same case, figures equal when rounded.
fn repeats(records: &[MeasuredRow]) -> BTreeMap<usize, String> {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, record) in records.iter().enumerate() {
        let key = ["model", "accelerator", "precision", "isl", "osl", "concurrency_or_rate", "pools"]
            .map(|column| record.text(column));
        groups.entry(key.join("|")).or_default().push(index);
    }
    let mut found = BTreeMap::new();
    for members in groups.values() {
        for index in members {
            let record = &records[*index];
            let is_rounded = decimals(record, "ttft_ms") <= 2 && decimals(record, "itl_ms") <= 2;
            let same = members.iter().find(|other| *other != index && rounds_to(&records[**other], record));
            if let (true, Some(same)) = (is_rounded, same) {
                found.insert(*index, records[*same].text("id").to_owned());
            }
        }
    }
    found
}

fn decimals(record: &MeasuredRow, column: &str) -> usize {
    record.text(column).split_once('.').map_or(0, |(_, digits)| digits.len())
}

/// Whether the figures of `long` have more decimals and give those of `short` when rounded.
fn rounds_to(long: &MeasuredRow, short: &MeasuredRow) -> bool {
    let agrees = |column: &str| match (long.number(column), short.number(column)) {
        (Some(exact), Some(rounded)) => (exact - rounded).abs() < 0.0051,
        _ => false,
    };
    decimals(long, "ttft_ms").max(decimals(long, "itl_ms")) > 2 && agrees("ttft_ms") && agrees("itl_ms")
}
