//! Pods: their gang, what they need, where they may stand, and what must be looked up elsewhere.

use std::collections::BTreeMap;

use bedplate_gangs::{Closeness, Span, Time};
use bedplate_kubernetes::k8s_openapi::api::core::v1 as core;
use bedplate_kubernetes::k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use bedplate_kubernetes::names;
use bedplate_pods::{Constraints, GangPolicy, Pod, PodPhase, Resources, Term, Toleration};
use bedplate_topology::Level;
use bedplate_units::Seconds;

use super::node::effect;
use super::{resources, terms};

/// Something that another object says of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lookup {
    /// How many pods a Job runs at once.
    Job {
        namespace: String,
        name: String,
    },
    JobSet {
        namespace: String,
        name: String,
    },
    /// Where the volume of a claim can be reached from.
    Claim {
        namespace: String,
        name: String,
    },
}

/// A pod, and what is still to be looked up for it.
pub(crate) struct PodReading {
    pub(crate) pod: Pod,
    pub(crate) size: Option<Lookup>,
    pub(crate) claims: Vec<Lookup>,
}

struct Labels<'a>(&'a meta::ObjectMeta);

impl Labels<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        self.0.labels.as_ref()?.get(key).map(String::as_str)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.0.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn either(&self, key: &str) -> Option<&str> {
        self.annotation(key).or_else(|| self.label(key))
    }

    fn number(&self, key: &str) -> Option<u32> {
        self.either(key)?.trim().parse().ok()
    }
}

pub(crate) fn pod(object: &core::Pod, scheduler: &str) -> PodReading {
    let spec = object.spec.clone().unwrap_or_default();
    let status = object.status.clone().unwrap_or_default();
    let labels = Labels(&object.metadata);
    let is_ours = spec.scheduler_name.as_deref() == Some(scheduler);
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    let name = object.metadata.name.clone().unwrap_or_default();
    let Membership { gang, job, gang_size, size } = membership(&labels, &namespace, &name);
    let mut pod = Pod {
        uid: object.metadata.uid.clone().unwrap_or_default(),
        is_ours,
        gang,
        job,
        gang_size,
        rank: rank(&labels),
        created: object.metadata.creation_timestamp.as_ref().map_or(Time::ZERO, time),
        needs: needs(&spec),
        node: spec.node_name.clone().filter(|node| !node.is_empty()),
        nominated: status.nominated_node_name.clone().filter(|node| !is_ours && !node.is_empty()),
        bound_at: bound_at(&status),
        phase: phase(&status),
        ended_at: ended_at(&status),
        is_disrupted: is_disrupted(&status),
        is_leaving: object.metadata.deletion_timestamp.is_some(),
        is_gated: spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()),
        namespace,
        name,
        ..Pod::default()
    };
    if !is_ours {
        return PodReading { pod, size: None, claims: Vec::new() };
    }
    let outcome = constraints(&labels, &spec)
        .and_then(|constraints| Ok((constraints, policy(&labels, &spec, &pod.namespace)?)));
    match outcome {
        Ok((constraints, policy)) => (pod.constraints, pod.policy) = (constraints, policy),
        Err(what) => pod.unsupported = Some(what),
    }
    pod.unsupported = pod.unsupported.or_else(|| unsupported(&spec));
    let claims = claims(&spec, &pod);
    PodReading { pod, size: size.filter(|_| gang_size.is_none()), claims }
}

/// The gang that a pod starts with.
struct Membership {
    gang: String,
    /// What all attempts of the gang have in common.
    job: String,
    gang_size: Option<u32>,
    /// Where to look for the size if the pod does not say it.
    size: Option<Lookup>,
}

fn membership(labels: &Labels<'_>, namespace: &str, pod: &str) -> Membership {
    let said = labels.number(names::GANG_SIZE);
    // What a JobSet starts again is a gang of its own, while the pods of the attempt before it still go.
    let attempt = labels.either(names::JOBSET_RESTART_ATTEMPT).unwrap_or("0");
    let of = |job: String, gang_size: Option<u32>, size: Option<Lookup>| Membership {
        gang: job.clone(),
        job,
        gang_size,
        size,
    };
    let of_attempt = |job: String, size: Option<Lookup>| Membership {
        gang: format!("{job}/{attempt}"),
        job,
        gang_size: said,
        size,
    };
    if let Some(name) = labels.label(names::GANG) {
        return of_attempt(format!("{namespace}/{name}"), None);
    }
    if let Some(name) = labels.either(names::JOBSET_NAME) {
        let lookup = Lookup::JobSet { namespace: namespace.to_owned(), name: name.to_owned() };
        return of_attempt(format!("{namespace}/jobset/{name}"), Some(lookup));
    }
    if let Some(name) = labels.label(names::KUEUE_POD_GROUP) {
        let said = said.or(labels.number(names::KUEUE_POD_GROUP_SIZE));
        return of(format!("{namespace}/group/{name}"), said, None);
    }
    if let Some(name) = labels.label(names::JOB_NAME) {
        let lookup = Lookup::Job { namespace: namespace.to_owned(), name: name.to_owned() };
        return of(format!("{namespace}/job/{name}"), said, Some(lookup));
    }
    of(format!("{namespace}/pod/{pod}"), Some(1), None)
}

/// When the last of its containers ended.
fn ended_at(status: &core::PodStatus) -> Option<Time> {
    let states = status.container_statuses.iter().flatten().filter_map(|each| each.state.as_ref());
    let ended = states.filter_map(|state| state.terminated.as_ref()?.finished_at.as_ref());
    ended.map(time).max()
}

/// Somebody else stopped it: a drain, a preemption, a node out of memory or going down. A pod that was never admitted by its node
/// has done nothing wrong either.
fn is_disrupted(status: &core::PodStatus) -> bool {
    let conditions = status.conditions.iter().flatten();
    let is_target = conditions.clone().any(|each| each.type_ == "DisruptionTarget" && each.status == "True");
    is_target || status.reason.as_deref().is_some_and(|reason| reason != "DeadlineExceeded")
}

fn rank(labels: &Labels<'_>) -> (u32, u32) {
    let number = |key| labels.number(key).unwrap_or(0);
    (number(names::JOBSET_JOB_INDEX), number(names::JOB_COMPLETION_INDEX))
}

pub(super) fn time(time: &meta::Time) -> Time {
    Time(u64::try_from(time.0.as_millisecond()).unwrap_or(0))
}

fn bound_at(status: &core::PodStatus) -> Option<Time> {
    let conditions = status.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|each| each.type_ == "PodScheduled" && each.status == "True")?;
    scheduled.last_transition_time.as_ref().map(time)
}

fn phase(status: &core::PodStatus) -> PodPhase {
    match status.phase.as_deref() {
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        Some("Running") => PodPhase::Running,
        _ => PodPhase::Pending,
    }
}

/// What the pod takes of its node: all containers together, or the largest initial one beside the side cars before it, if that is
/// more; and what running it costs.
fn needs(spec: &core::PodSpec) -> Resources {
    let of = |list: &Option<core::ResourceRequirements>| {
        let list = list.as_ref().and_then(|list| list.requests.as_ref());
        list.map(resources).unwrap_or_default()
    };
    let mut running = Resources::default();
    spec.containers.iter().for_each(|container| running.add(&of(&container.resources)));
    let (mut side_cars, mut starting) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let own = of(&container.resources);
        if container.restart_policy.as_deref() == Some("Always") {
            side_cars.add(&own);
            starting = most(&starting, &side_cars);
        } else {
            let mut beside = side_cars.clone();
            beside.add(&own);
            starting = most(&starting, &beside);
        }
    }
    running.add(&side_cars);
    let mut needs = most(&running, &starting);
    if let Some(whole) = spec.resources.as_ref().and_then(|whole| whole.requests.as_ref()) {
        let whole = resources(whole);
        needs.cpu_milli = if whole.cpu_milli > 0 { whole.cpu_milli } else { needs.cpu_milli };
        needs.memory_bytes = if whole.memory_bytes > 0 { whole.memory_bytes } else { needs.memory_bytes };
    }
    needs.add(&spec.overhead.as_ref().map(resources).unwrap_or_default());
    needs.pods = 1;
    needs
}

fn most(one: &Resources, other: &Resources) -> Resources {
    let mut others: BTreeMap<String, i64> = one.others.clone();
    for (name, amount) in &other.others {
        let known = others.entry(name.clone()).or_default();
        *known = (*known).max(*amount);
    }
    Resources {
        gpus: one.gpus.max(other.gpus),
        cpu_milli: one.cpu_milli.max(other.cpu_milli),
        memory_bytes: one.memory_bytes.max(other.memory_bytes),
        pods: one.pods.max(other.pods),
        others,
    }
}

fn constraints(labels: &Labels<'_>, spec: &core::PodSpec) -> Result<Constraints, String> {
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let affinity: Result<Vec<Vec<Term>>, String> = required.into_iter().map(terms).collect();
    let toleration = |each: &core::Toleration| Toleration {
        key: each.key.clone().filter(|key| !key.is_empty()),
        value: match each.operator.as_deref() {
            Some("Exists") => None,
            _ => Some(each.value.clone().unwrap_or_default()),
        },
        effect: each.effect.as_deref().and_then(effect),
    };
    Ok(Constraints {
        selector: spec.node_selector.clone().unwrap_or_default(),
        affinity: affinity?,
        tolerations: spec.tolerations.iter().flatten().map(toleration).collect(),
        is_apart: labels.either(names::APART) == Some("true"),
    })
}

fn policy(labels: &Labels<'_>, spec: &core::PodSpec, namespace: &str) -> Result<GangPolicy, String> {
    let annotated = |key: &str| labels.either(key).filter(|value| !value.is_empty());
    let bad = |key: &str, value: &str| format!("the value `{value}` of `{key}`");
    let owned = |key: &str| annotated(key).map(str::to_owned);
    let limit = annotated(names::TIME_LIMIT)
        .map(|text| text.parse::<Seconds>().map(Span::from).map_err(|_| bad(names::TIME_LIMIT, text)));
    let deadline =
        spec.active_deadline_seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Span::seconds);
    let level = annotated(names::CLOSENESS)
        .map(|text| text.parse::<Level>().map_err(|_| bad(names::CLOSENESS, text)))
        .transpose()?;
    Ok(GangPolicy {
        time_limit: limit.transpose()?.or(deadline),
        partition: owned(names::PARTITION),
        qos: owned(names::QOS),
        account: owned(names::ACCOUNT),
        user: owned(names::USER).unwrap_or_else(|| namespace.to_owned()),
        closeness: level.map_or(Closeness::Any, Closeness::Required),
        is_preemptible: annotated(names::PREEMPTIBLE) == Some("true"),
        priority: spec.priority.unwrap_or(0),
        grace: Span::seconds(
            spec.termination_grace_period_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .unwrap_or(30),
        ),
    })
}

/// What this scheduler would have to weigh and does not.
fn unsupported(spec: &core::PodSpec) -> Option<String> {
    let affinity = spec.affinity.as_ref();
    let has_affinity = affinity.and_then(|it| it.pod_affinity.as_ref()).is_some_and(|it| {
        it.required_during_scheduling_ignored_during_execution.as_ref().is_some_and(|list| !list.is_empty())
    });
    let has_anti_affinity = affinity.and_then(|it| it.pod_anti_affinity.as_ref()).is_some_and(|it| {
        it.required_during_scheduling_ignored_during_execution.as_ref().is_some_and(|list| !list.is_empty())
    });
    let must_spread = spec
        .topology_spread_constraints
        .iter()
        .flatten()
        .any(|each| each.when_unsatisfiable == "DoNotSchedule");
    let ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    let has_host_ports = ports.clone().any(|port| port.host_port.is_some_and(|port| port > 0));
    let has_claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    let checks = [
        (has_affinity, "required affinity to other pods"),
        (has_anti_affinity, "required anti-affinity to other pods"),
        (must_spread, "topology spread constraints that must hold"),
        (has_host_ports, "ports of the host"),
        (has_claims, "resource claims"),
    ];
    checks.into_iter().find(|(is_there, _)| *is_there).map(|(_, what)| what.to_owned())
}

fn claims(spec: &core::PodSpec, pod: &Pod) -> Vec<Lookup> {
    let claim = |volume: &core::Volume| {
        let named = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone());
        let own = volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name, volume.name));
        Some(Lookup::Claim { namespace: pod.namespace.clone(), name: named.or(own)? })
    };
    spec.volumes.iter().flatten().filter_map(claim).collect()
}
