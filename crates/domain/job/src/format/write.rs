//! From a job to the keys of its file, in the order in which people read them.

use std::collections::BTreeMap;

use bedplate_breakdown::{Breakdown, Predicted};
use bedplate_units::Seconds;
use serde_json::{Map, Value, json};

use super::write_kubernetes;
use crate::notation::{written_duration, written_size};
use crate::{
    CheckpointSignal, Closeness, HealthPolicy, Inherited, Job, Placement, Policy, Probe, Receiver, Role,
    Streams, Workload,
};

pub(super) type Object = Map<String, Value>;

pub(super) fn object(job: &Job) -> Object {
    let mut object = Object::new();
    put(&mut object, "name", job.name.as_str());
    put_workload(&mut object, &job.workload);
    put_some(&mut object, "working_directory", job.working_directory.as_deref());
    let roles = &job.gang.roles;
    let is_plain = roles.len() == 1 && roles[0].name == Role::ONLY;
    if is_plain {
        put_role(&mut object, &roles[0]);
    }
    put_policy(&mut object, &job.policy);
    put_streams(&mut object, &job.streams);
    put_list(&mut object, "prolog", &job.hooks.prolog);
    put_list(&mut object, "epilog", &job.hooks.epilog);
    match &job.environment.inherited {
        Inherited::All => {}
        Inherited::Nothing => put(&mut object, "inherit_environment", "none"),
        Inherited::Only(names) => put(&mut object, "inherit_environment", json!(names)),
    }
    if !is_plain {
        put(&mut object, "role", Value::Array(roles.iter().map(named_role).collect()));
    }
    put_object(&mut object, "placement", placement(&job.placement));
    put_object(&mut object, "health", health(&job.health));
    put_object(&mut object, "environment", plain_map(&job.environment.set));
    put_object(&mut object, "labels", plain_map(&job.labels));
    put_object(&mut object, "kubernetes", write_kubernetes::settings(&job.kubernetes));
    if let Some(step) = &job.expected {
        put(&mut object, "expected", Value::Object(expected(step)));
    }
    object
}

pub(super) fn put(object: &mut Object, key: &str, value: impl Into<Value>) {
    object.insert(key.to_owned(), value.into());
}

pub(super) fn put_some<V: Into<Value>>(object: &mut Object, key: &str, value: Option<V>) {
    if let Some(value) = value {
        put(object, key, value);
    }
}

/// Leaves the key out where it has its usual value.
pub(super) fn put_unless<V: Into<Value> + PartialEq>(object: &mut Object, key: &str, value: V, usual: V) {
    if value != usual {
        put(object, key, value);
    }
}

pub(super) fn put_list(object: &mut Object, key: &str, list: &[String]) {
    if !list.is_empty() {
        put(object, key, json!(list));
    }
}

pub(super) fn put_object(object: &mut Object, key: &str, value: Object) {
    if !value.is_empty() {
        put(object, key, Value::Object(value));
    }
}

fn put_workload(object: &mut Object, workload: &Workload) {
    match workload {
        Workload::Command { arguments } => put(object, "command", json!(arguments)),
        Workload::Script { text } => put(object, "script", text.as_str()),
        Workload::Native { kind, configuration } => {
            put(object, "native", kind.as_str());
            put_unless(object, "configuration", configuration.as_str(), "");
        }
    }
}

fn named_role(role: &Role) -> Value {
    let mut object = Object::new();
    put(&mut object, "name", role.name.as_str());
    put_role(&mut object, role);
    Value::Object(object)
}

fn put_role(object: &mut Object, role: &Role) {
    put_unless(object, "nodes", role.nodes, 1);
    put_unless(object, "tasks_per_node", role.tasks_per_node, 1);
    put_unless(object, "gpus_per_node", role.gpus_per_node, u32::from(role.gpu_share.is_some()));
    put_some(object, "gpu_share", role.gpu_share.map(|share| f64::from(share) / 1000.0));
    put_some(object, "accelerator", role.accelerator.as_deref());
    put_unless(object, "cpus_per_task", role.cpus_per_task, 1);
    put_some(object, "memory_per_node", role.memory_per_node.map(written_size));
    put_unless(object, "exclusive", role.is_exclusive, false);
    if let Some(elastic) = role.elastic {
        let mut range = Object::new();
        put(&mut range, "min", elastic.min);
        put(&mut range, "max", elastic.max);
        put_unless(&mut range, "step", elastic.step, 1);
        put(object, "elastic", Value::Object(range));
    }
}

fn put_policy(object: &mut Object, policy: &Policy) {
    let usual = Policy::default();
    put_some(object, "partition", policy.partition.as_deref());
    put_some(object, "account", policy.account.as_deref());
    put_some(object, "qos", policy.qos.as_deref());
    put_unless(object, "priority", policy.priority, usual.priority);
    put_unless(object, "nice", policy.nice, usual.nice);
    put_some(object, "time_limit", policy.time_limit.map(written_duration));
    put_duration(object, "grace", policy.grace, usual.grace);
    put_unless(object, "retries", policy.retries, usual.retries);
    put_unless(object, "requeue", policy.is_requeued, usual.is_requeued);
    put_unless(object, "survive", policy.survives, usual.survives);
    put_unless(object, "hold", policy.is_held, usual.is_held);
    put_some(object, "begin", policy.begin.map(|begin| begin.to_string()));
    let dependencies: Vec<String> = policy.dependencies.iter().map(ToString::to_string).collect();
    put_list(object, "dependencies", &dependencies);
    put_some(object, "array", policy.array.as_ref().map(ToString::to_string));
    put_some(object, "checkpoint_signal", policy.checkpoint_signal.map(checkpoint_signal));
    put_unless(object, "preemption", policy.preemption.name(), usual.preemption.name());
    put_duration(object, "minimum_run_time", policy.minimum_run_time, usual.minimum_run_time);
}

fn put_duration(object: &mut Object, key: &str, duration: Seconds, usual: Seconds) {
    put_unless(object, key, written_duration(duration), written_duration(usual));
}

fn checkpoint_signal(signal: CheckpointSignal) -> Value {
    let mut object = Object::new();
    match CheckpointSignal::name_of(signal.signal) {
        Some(name) => put(&mut object, "signal", name),
        None => put(&mut object, "signal", signal.signal),
    }
    put(&mut object, "before", written_duration(signal.before));
    if signal.receiver == Receiver::Script {
        put(&mut object, "to", "script");
    }
    Value::Object(object)
}

fn put_streams(object: &mut Object, streams: &Streams) {
    put_some(object, "stdin", streams.stdin.as_deref());
    put_some(object, "stdout", streams.stdout.as_deref());
    put_some(object, "stderr", streams.stderr.as_deref());
    put_unless(object, "append", streams.is_appended, false);
}

fn placement(placement: &Placement) -> Object {
    let mut object = Object::new();
    match placement.closeness {
        Closeness::Any => {}
        Closeness::Required(level) => put(&mut object, "required", level.to_string()),
        Closeness::Preferred(level) => put(&mut object, "preferred", level.to_string()),
    }
    put_some(&mut object, "segment", placement.segment);
    put_some(&mut object, "spread", placement.spread.map(|level| level.to_string()));
    put_list(&mut object, "only_nodes", &placement.only_nodes);
    put_list(&mut object, "avoid_nodes", &placement.avoid_nodes);
    put_list(&mut object, "features", &placement.features);
    object
}

fn health(health: &HealthPolicy) -> Object {
    let mut object = Object::new();
    put_some(&mut object, "stuck_after", health.stuck_after.map(written_duration));
    if let Some(probe) = &health.probe {
        put(&mut object, "probe", json!(probe.command));
        put_duration(&mut object, "probe_every", probe.every, Probe::EVERY);
    }
    put_unless(&mut object, "spare_nodes", health.spare_nodes, 0);
    object
}

pub(super) fn plain_map(map: &BTreeMap<String, String>) -> Object {
    map.iter().map(|(key, text)| (key.clone(), Value::from(text.as_str()))).collect()
}

fn expected(step: &Breakdown<Predicted>) -> Object {
    let mut object = Object::new();
    let mut hidden = Object::new();
    for (part, span) in step.parts() {
        if !span.exposed.is_zero() {
            put(&mut object, part.name(), written_duration(span.exposed));
        }
        if !span.hidden.is_zero() {
            put(&mut hidden, part.name(), written_duration(span.hidden));
        }
    }
    put_object(&mut object, "hidden", hidden);
    object
}
