//! Jobs of every shape, for laws about all of them.

use std::collections::BTreeMap;

use bedplate_breakdown::{Breakdown, Part, Span};
use bedplate_job::kubernetes::{PodSettings, SecretKey, Toleration, Volume, VolumeSource};
use bedplate_job::*;
use bedplate_topology::Level;
use bedplate_units::{Bytes, Seconds};
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,8}",
        "\\PC{0,12}",
        "[\u{0}-\u{20}\"'\\\\=#\\[\\]]{0,8}",
        "(line '''\n|end'|\ttab\n){0,3}"
    ]
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..4)
}

fn seconds() -> impl Strategy<Value = Seconds> {
    prop_oneof![
        (0u32..10_000).prop_map(|minutes| Seconds::new(f64::from(minutes) * 60.0)),
        (0.0..1e9f64).prop_map(Seconds::new),
        (1e-12..1e-3f64).prop_map(Seconds::new),
    ]
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![(0u32..4096).prop_map(|count| Bytes::gib(count.into())), (0.0..1e15f64).prop_map(Bytes::new)]
}

fn level() -> impl Strategy<Value = Level> {
    prop_oneof![
        Just(Level::Gpu),
        Just(Level::Domain),
        Just(Level::Node),
        (1u8..9).prop_map(Level::Switch),
        Just(Level::Cluster)
    ]
}

fn workload() -> impl Strategy<Value = Workload> {
    prop_oneof![
        texts().prop_map(|arguments| Workload::Command { arguments }),
        text().prop_map(|text| Workload::Script { text }),
        (text(), text()).prop_map(|(kind, configuration)| Workload::Native { kind, configuration }),
    ]
}

prop_compose! {
    fn role()(
        name in prop_oneof![Just("main".to_owned()), text()],
        (nodes, tasks_per_node, gpus_per_node) in (any::<u32>(), 0u32..9, 0u32..9),
        gpu_share in of(1u16..=1000),
        accelerator in of(text()),
        cpus_per_task in 0u32..99,
        memory_per_node in of(bytes()),
        is_exclusive: bool,
        elastic in of((any::<u32>(), any::<u32>(), 0u32..5).prop_map(|(min, max, step)| Elastic { min, max, step })),
    ) -> Role {
        Role {
            name, nodes, tasks_per_node, gpus_per_node, gpu_share, accelerator, cpus_per_task, memory_per_node,
            is_exclusive, elastic,
        }
    }
}

fn closeness() -> impl Strategy<Value = Closeness> {
    prop_oneof![
        Just(Closeness::Any),
        level().prop_map(Closeness::Required),
        level().prop_map(Closeness::Preferred)
    ]
}

prop_compose! {
    fn placement()(
        closeness in closeness(), segment in of(any::<u32>()), spread in of(level()),
        avoid_nodes in texts(), only_nodes in texts(), features in texts(),
    ) -> Placement {
        Placement { closeness, segment, spread, avoid_nodes, only_nodes, features }
    }
}

fn dependency() -> impl Strategy<Value = Dependency> {
    let kind = prop::sample::select(&DependencyKind::ALL[..3]);
    prop_oneof![
        Just(Dependency { kind: DependencyKind::Singleton, jobs: vec![] }),
        (kind, vec("[0-9]{1,9}(_[0-9]{1,3})?", 1..4)).prop_map(|(kind, jobs)| Dependency { kind, jobs }),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    let range = (any::<u32>(), any::<u32>(), 1u32..9).prop_map(|(a, b, step)| IndexRange {
        first: a.min(b),
        last: a.max(b),
        step,
    });
    (vec(range, 1..4), of(any::<u32>())).prop_map(|(ranges, at_once)| Array { ranges, at_once })
}

fn signal() -> impl Strategy<Value = CheckpointSignal> {
    let receiver = prop_oneof![Just(Receiver::Tasks), Just(Receiver::Script)];
    (any::<i32>(), seconds(), receiver).prop_map(|(signal, before, receiver)| CheckpointSignal {
        signal,
        before,
        receiver,
    })
}

fn begin() -> impl Strategy<Value = Begin> {
    prop_oneof![
        seconds().prop_map(Begin::After),
        (0u64..253_402_300_800).prop_map(|unix_seconds| Begin::At { unix_seconds })
    ]
}

prop_compose! {
    fn policy()(
        (partition, account, qos) in (of(text()), of(text()), of(text())),
        (priority, nice, retries) in any::<(i64, i32, u32)>(),
        (time_limit, grace, minimum_run_time) in (of(seconds()), seconds(), seconds()),
        (is_requeued, survives, is_held) in any::<(bool, bool, bool)>(),
        begin in of(begin()),
        dependencies in vec(dependency(), 0..3),
        array in of(array()),
        checkpoint_signal in of(signal()),
        preemption in prop::sample::select(&Preemption::ALL[..]),
    ) -> Policy {
        Policy {
            partition, account, qos, priority, nice, time_limit, grace, retries, is_requeued, survives, is_held,
            begin, dependencies, array, checkpoint_signal, preemption, minimum_run_time,
        }
    }
}

fn inherited() -> impl Strategy<Value = Inherited> {
    prop_oneof![Just(Inherited::All), Just(Inherited::Nothing), texts().prop_map(Inherited::Only)]
}

fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map(text(), text(), 0..4)
}

prop_compose! {
    fn streams()(stdin in of(text()), stdout in of(text()), stderr in of(text()), is_appended: bool) -> Streams {
        Streams { stdin, stdout, stderr, is_appended }
    }
}

prop_compose! {
    fn health()(
        stuck_after in of(seconds()),
        probe in of((texts(), seconds()).prop_map(|(command, every)| Probe { command, every })),
        spare_nodes in prop_oneof![Just(0), any::<u32>()],
    ) -> HealthPolicy {
        HealthPolicy { stuck_after, probe, spare_nodes }
    }
}

fn volume_source() -> impl Strategy<Value = VolumeSource> {
    prop_oneof![
        text().prop_map(VolumeSource::Claim),
        text().prop_map(VolumeSource::HostPath),
        text().prop_map(VolumeSource::Secret),
        text().prop_map(VolumeSource::ConfigMap),
        bytes().prop_map(VolumeSource::Memory),
        Just(VolumeSource::Empty),
    ]
}

prop_compose! {
    fn volume()(mount in text(), source in volume_source(), sub_path in of(text()), is_read_only: bool) -> Volume {
        Volume { mount, source, sub_path, is_read_only }
    }
}

prop_compose! {
    fn pod_settings()(
        (image, namespace, service_account) in (of(text()), of(text()), of(text())),
        (queue, scheduler, priority_class, gpu_resource) in (of(text()), of(text()), of(text()), of(text())),
        (pull_secrets, node_labels) in (texts(), map()),
        resources in btree_map(text(), any::<u32>(), 0..3),
        secret_environment in btree_map(
            text(),
            ("[a-z.-]{1,8}", "[a-z._-]{1,8}").prop_map(|(secret, key)| SecretKey { secret, key }),
            0..3
        ),
        tolerations in vec(
            (text(), of(text()), of(text())).prop_map(|(key, value, effect)| Toleration { key, value, effect }),
            0..3
        ),
        volumes in vec(volume(), 0..3),
    ) -> PodSettings {
        PodSettings {
            image, pull_secrets, namespace, service_account, queue, scheduler, priority_class, gpu_resource,
            resources, node_labels, secret_environment, tolerations, volumes,
        }
    }
}

fn expected() -> impl Strategy<Value = Breakdown<bedplate_breakdown::Predicted>> {
    let part = prop::sample::select(&Part::ALL[..]);
    let span = (seconds(), seconds()).prop_map(|(exposed, hidden)| Span { exposed, hidden });
    vec((part, span), 0..4).prop_map(|parts| {
        parts.into_iter().fold(Breakdown::default(), |step, (part, span)| step.with(part, span))
    })
}

prop_compose! {
    pub fn job()(
        name in text(),
        workload in workload(),
        roles in vec(role(), 0..4),
        placement in placement(),
        policy in policy(),
        working_directory in of(text()),
        environment in (inherited(), map()).prop_map(|(inherited, set)| Environment { inherited, set }),
        streams in streams(),
        hooks in (texts(), texts()).prop_map(|(prolog, epilog)| Hooks { prolog, epilog }),
        (health, labels, expected) in (health(), map(), of(expected())),
        kubernetes in prop_oneof![Just(PodSettings::default()), pod_settings()],
    ) -> Job {
        Job {
            name, workload, gang: Gang { roles }, placement, policy, working_directory, environment, streams, hooks,
            health, labels, kubernetes, expected,
        }
    }
}
