//! Our own format: one JSON object per line, with every field that a replay knows.
//!
//! `submit_s`, `duration_s` and a size (`gpus`, or `nodes` with `gpus_per_node`) are needed; the rest has
//! defaults. docs/replay.md is the reference. What is written reads back unchanged.

use bedplate_diag::{Source, nearest, shown};
use bedplate_gangs::{Closeness, Elastic, Preemption, Rates, Span, Time};
use bedplate_topology::Level;
use serde_json::{Map, Value, json};

use super::lines::{JobLine, lines};
use super::{Ending, Size, Trace, TraceError, TraceJob};

/// Every field.
const FIELDS: [&str; 27] = [
    "id",
    "submit_s",
    "duration_s",
    "gpus",
    "nodes",
    "gpus_per_node",
    "cpus_per_node",
    "memory_gib_per_node",
    "gpu_share",
    "accelerators",
    "exclusive",
    "time_limit_s",
    "assigned_limit_s",
    "user",
    "account",
    "qos",
    "partition",
    "nice",
    "elastic",
    "within",
    "near",
    "scale_out_share",
    "fixed_share",
    "rates",
    "checkpoint_s",
    "preemption",
    "outcome",
];
const MINIMUM_RUN: &str = "minimum_run_s";
const PREEMPTION: [(&str, Preemption); 4] = [
    ("never", Preemption::Never),
    ("requeue", Preemption::Requeue),
    ("suspend", Preemption::Suspend),
    ("shrink", Preemption::Shrink),
];
const MOST_NODES: u64 = 1_000_000;

pub(crate) fn read(source: Source<'_>) -> Result<Trace, TraceError> {
    let mut trace = Trace::default();
    for line in lines(source) {
        let job = Fields::parse(line)?.job(&mut trace)?;
        trace.jobs.push(job);
    }
    Ok(trace)
}

/// The trace as JSON lines. Fields at their defaults are left out.
pub fn write_jsonl(trace: &Trace) -> String {
    let mut text = String::new();
    for job in &trace.jobs {
        text += &line_of(job, trace).to_string();
        text.push('\n');
    }
    text
}

struct Fields<'a> {
    line: JobLine<'a>,
    object: Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn parse(line: JobLine<'a>) -> Result<Self, TraceError> {
        let value: Value = serde_json::from_str(line.text)
            .map_err(|error| line.bad(format!("it is not a JSON object: {}", shown(&error.to_string()))))?;
        let Value::Object(object) = value else {
            return Err(line.bad("it is not a JSON object"));
        };
        let known = || FIELDS.into_iter().chain([MINIMUM_RUN]);
        for key in object.keys() {
            if !known().any(|field| field == key) {
                return Err(line.bad_near(format!("`{}` is not a field", shown(key)), nearest(key, known())));
            }
        }
        Ok(Self { line, object })
    }

    fn job(&self, trace: &mut Trace) -> Result<TraceJob, TraceError> {
        let submit = self.required(self.seconds("submit_s")?, "submit_s")?;
        let duration = self.required(self.seconds("duration_s")?, "duration_s")?;
        let mut job = TraceJob::new(Time::ZERO + submit, duration, self.size()?);
        job.name = self.name()?;
        job.cpus_per_node = self.whole("cpus_per_node", u64::from(u16::MAX))?.unwrap_or(0) as u16;
        let memory = self.number("memory_gib_per_node", 0.0, 4_000_000.0)?.unwrap_or(0.0);
        job.memory_mib_per_node = (memory * 1024.0).ceil() as u32;
        job.gpu_share = self.number("gpu_share", 0.001, 1.0)?.map(|share| (share * 1000.0).round() as u16);
        job.accelerators = self.texts("accelerators")?;
        job.is_exclusive = self.flag("exclusive")?;
        job.time_limit = self.seconds("time_limit_s")?.filter(|limit| *limit > Span::ZERO);
        job.assigned_limit = self.seconds("assigned_limit_s")?.filter(|limit| *limit > Span::ZERO);
        job.user = trace.users.place(&self.text("user")?);
        job.account = trace.accounts.place(&self.text("account")?);
        job.qos = trace.qos.place(&self.text("qos")?);
        job.partition = trace.partitions.place(&self.text("partition")?);
        job.nice = self.number("nice", -1e9, 1e9)?.unwrap_or(0.0) as i64;
        job.elastic = self.elastic(job.size)?;
        job.closeness = self.closeness()?;
        job.scale_out_share = self.number("scale_out_share", 0.0, 1.0)?.unwrap_or(0.0);
        job.fixed_share = self.number("fixed_share", 0.0, 1.0)?.unwrap_or(job.scale_out_share);
        job.rates = self.rates(job.elastic)?;
        job.checkpoint_every = self.seconds("checkpoint_s")?.filter(|every| *every > Span::ZERO);
        job.preemption = self.choice("preemption", &PREEMPTION)?.unwrap_or(Preemption::Requeue);
        job.minimum_run_time = self.seconds(MINIMUM_RUN)?.unwrap_or(Span::ZERO);
        job.ending = self.choice("outcome", &Ending::ALL)?.unwrap_or(Ending::Completed);
        Ok(job)
    }

    fn name(&self) -> Result<String, TraceError> {
        match self.object.get("id") {
            None => Ok(self.line.number.to_string()),
            Some(Value::String(name)) => Ok(name.clone()),
            Some(Value::Number(number)) => Ok(number.to_string()),
            Some(_) => Err(self.line.bad("`id` is neither text nor a number")),
        }
    }

    fn size(&self) -> Result<Size, TraceError> {
        let gpus = self.whole("gpus", MOST_NODES * 64)?;
        let nodes = self.whole("nodes", MOST_NODES)?;
        let per_node = self.whole("gpus_per_node", 64)?;
        match (gpus, nodes, per_node) {
            (Some(gpus), None, None) => Ok(Size::Gpus(gpus as u32)),
            (None, Some(0), _) => Err(self.line.bad("a job has at least one node")),
            (None, Some(nodes), Some(per_node)) => {
                Ok(Size::Nodes { nodes: nodes as u32, gpus_per_node: per_node as u16 })
            }
            _ => Err(self.line.bad("the size is either `gpus`, or `nodes` with `gpus_per_node`")),
        }
    }

    fn elastic(&self, size: Size) -> Result<Option<Elastic>, TraceError> {
        let Some(value) = self.object.get("elastic") else {
            return Ok(None);
        };
        let part = |key: &str| value.get(key).and_then(Value::as_u64).filter(|part| *part <= MOST_NODES);
        let (Some(min), Some(max)) = (part("min"), part("max")) else {
            return Err(self.line.bad("`elastic` has `min` and `max`, in nodes, and perhaps `step`"));
        };
        let step = part("step").unwrap_or(1);
        let elastic = Elastic { min: min as u32, max: max as u32, step: step as u32 };
        match size {
            Size::Nodes { nodes, .. } if min > 0 && elastic.allows(nodes) => Ok(Some(elastic)),
            Size::Nodes { .. } => Err(self.line.bad("`nodes` is not one of the sizes that `elastic` allows")),
            Size::Gpus(_) => Err(self.line.bad("an elastic job gives its size as `nodes`")),
        }
    }

    /// Pairs of nodes and throughput.
    fn rates(&self, elastic: Option<Elastic>) -> Result<Option<Rates>, TraceError> {
        let Some(value) = self.object.get("rates") else {
            return Ok(None);
        };
        let nodes = |value: &Value| value.as_u64().filter(|nodes| *nodes <= MOST_NODES);
        let point = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
            Some([size, rate]) => Some((nodes(size)? as u32, rate.as_f64()?)),
            _ => None,
        };
        let points: Option<Vec<(u32, f64)>> =
            value.as_array().and_then(|pairs| pairs.iter().map(point).collect());
        let points = points.ok_or_else(|| {
            self.line.bad("`rates` is a list of pairs of nodes and throughput, such as [[2, 1.0], [4, 1.8]]")
        })?;
        if elastic.is_none() {
            return Err(self
                .line
                .bad("`rates` says how fast an elastic job is, and this one is not `elastic`"));
        }
        let rates = Rates::new(points).map_err(|bad| self.line.bad(format!("`rates`: {bad}")))?;
        Ok(Some(rates))
    }

    fn closeness(&self) -> Result<Closeness, TraceError> {
        let level = |key: &str| -> Result<Option<Level>, TraceError> {
            let text = self.text(key)?;
            let bad =
                |_| self.line.bad(format!("`{key}` is not a level of a cluster, such as leaf or spine"));
            if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(bad) }
        };
        match (level("within")?, level("near")?) {
            (Some(_), Some(_)) => Err(self.line.bad("`within` and `near` exclude each other")),
            (Some(level), None) => Ok(Closeness::Required(level)),
            (None, Some(level)) => Ok(Closeness::Preferred(level)),
            (None, None) => Ok(Closeness::Any),
        }
    }

    fn required<T>(&self, value: Option<T>, key: &str) -> Result<T, TraceError> {
        value.ok_or_else(|| self.line.bad(format!("it lacks `{key}`")))
    }

    fn seconds(&self, key: &str) -> Result<Option<Span>, TraceError> {
        Ok(self.number(key, 0.0, 1e12)?.map(|seconds| Span((seconds * 1000.0).round() as u64)))
    }

    fn number(&self, key: &str, least: f64, most: f64) -> Result<Option<f64>, TraceError> {
        let Some(value) = self.object.get(key) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|number| (least..=most).contains(number));
        number
            .map(Some)
            .ok_or_else(|| self.line.bad(format!("`{key}` is not a number from {least} to {most}")))
    }

    fn whole(&self, key: &str, most: u64) -> Result<Option<u64>, TraceError> {
        let Some(value) = self.object.get(key) else {
            return Ok(None);
        };
        let number = value.as_u64().filter(|number| *number <= most);
        number.map(Some).ok_or_else(|| self.line.bad(format!("`{key}` is not a whole number up to {most}")))
    }

    fn text(&self, key: &str) -> Result<String, TraceError> {
        match self.object.get(key) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(self.line.bad(format!("`{key}` is not text"))),
        }
    }

    fn texts(&self, key: &str) -> Result<Vec<String>, TraceError> {
        let Some(value) = self.object.get(key) else {
            return Ok(Vec::new());
        };
        let items = value.as_array().map(Vec::as_slice).unwrap_or(std::slice::from_ref(value));
        let text = |item: &Value| item.as_str().map(str::to_owned);
        let texts: Option<Vec<String>> = items.iter().map(text).collect();
        texts.ok_or_else(|| self.line.bad(format!("`{key}` is not a list of names")))
    }

    fn flag(&self, key: &str) -> Result<bool, TraceError> {
        let Some(value) = self.object.get(key) else {
            return Ok(false);
        };
        value.as_bool().ok_or_else(|| self.line.bad(format!("`{key}` is neither true nor false")))
    }

    fn choice<T: Copy>(&self, key: &str, all: &[(&str, T)]) -> Result<Option<T>, TraceError> {
        let text = self.text(key)?;
        if text.is_empty() {
            return Ok(None);
        }
        let found = all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        let names = || all.iter().map(|(name, _)| *name);
        found.map(Some).ok_or_else(|| {
            let listed: Vec<&str> = names().collect();
            self.line
                .bad_near(format!("`{key}` must be one of {}", listed.join(", ")), nearest(&text, names()))
        })
    }
}

fn line_of(job: &TraceJob, trace: &Trace) -> Value {
    let plain = TraceJob::new(Time::ZERO, Span::ZERO, job.size);
    let mut object = Map::new();
    let mut put = |key: &str, value: Value, is_default: bool| {
        if !is_default {
            object.insert(key.to_owned(), value);
        }
    };
    put("id", json!(job.name), false);
    put("submit_s", seconds_json(job.submit.since(Time::ZERO)), false);
    put("duration_s", seconds_json(job.duration), false);
    match job.size {
        Size::Gpus(gpus) => put("gpus", json!(gpus), false),
        Size::Nodes { nodes, gpus_per_node } => {
            put("nodes", json!(nodes), false);
            put("gpus_per_node", json!(gpus_per_node), false);
        }
    }
    put("cpus_per_node", json!(job.cpus_per_node), job.cpus_per_node == 0);
    let memory = f64::from(job.memory_mib_per_node) / 1024.0;
    put("memory_gib_per_node", json!(memory), job.memory_mib_per_node == 0);
    let share = job.gpu_share.map(|share| f64::from(share) / 1000.0);
    put("gpu_share", json!(share), share.is_none());
    put("accelerators", json!(job.accelerators), job.accelerators.is_empty());
    put("exclusive", json!(true), !job.is_exclusive);
    let optional = |span: Option<Span>| span.map_or(Value::Null, seconds_json);
    put("time_limit_s", optional(job.time_limit), job.time_limit.is_none());
    put("assigned_limit_s", optional(job.assigned_limit), job.assigned_limit.is_none());
    put("user", json!(trace.users.name(job.user)), job.user == 0);
    put("account", json!(trace.accounts.name(job.account)), job.account == 0);
    put("qos", json!(trace.qos.name(job.qos)), job.qos == 0);
    put("partition", json!(trace.partitions.name(job.partition)), job.partition == 0);
    put("nice", json!(job.nice), job.nice == 0);
    let range = job.elastic.map(|range| json!({"min": range.min, "max": range.max, "step": range.step}));
    put("elastic", json!(range), range.is_none());
    match job.closeness {
        Closeness::Any => {}
        Closeness::Required(level) => put("within", json!(level.to_string()), false),
        Closeness::Preferred(level) => put("near", json!(level.to_string()), false),
    }
    put("scale_out_share", json!(job.scale_out_share), job.scale_out_share == 0.0);
    put("fixed_share", json!(job.fixed_share), job.fixed_share == job.scale_out_share);
    let rates = job.rates.as_ref().map(Rates::points);
    put("rates", json!(rates), rates.is_none());
    put("checkpoint_s", optional(job.checkpoint_every), job.checkpoint_every.is_none());
    let preemption = PREEMPTION.iter().find(|(_, each)| *each == job.preemption).map(|(name, _)| *name);
    put("preemption", json!(preemption), job.preemption == plain.preemption);
    put(MINIMUM_RUN, seconds_json(job.minimum_run_time), job.minimum_run_time == Span::ZERO);
    put("outcome", json!(job.ending.name()), job.ending == Ending::Completed);
    Value::Object(object)
}

/// Whole seconds without a fraction.
fn seconds_json(span: Span) -> Value {
    if span.0.is_multiple_of(1000) { json!(span.0 / 1000) } else { json!(span.as_seconds()) }
}
