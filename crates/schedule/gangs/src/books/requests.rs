//! Requests of every sort, sensible or not.

use std::sync::Arc;

use bedplate_topology::{Level, NodeId};

use super::random::Random;
use crate::{
    AccountId, ArrayTask, Closeness, DependencyKind, Elastic, Expected, GangDependency, GangRequest, JobId,
    PartitionId, Preemption, QosId, QueueId, Rates, RoleRequest, Settings, Span, Time, UserId,
};

pub(super) fn request(id: JobId, settings: &Settings, random: &mut Random) -> GangRequest {
    let mut request = GangRequest::new(id, role(random));
    if random.chance(12) {
        request.roles.push(RoleRequest::new(1 + random.few(3), random.pick(&[0, 2, 8])));
    }
    say_who(&mut request, settings, random);
    say_when(&mut request, random);
    say_where(&mut request, random);
    request.dependencies = dependencies(id, random);
    if random.chance(10) {
        let at_once = random.pick(&[None, Some(1), Some(2)]);
        request.array = Some(ArrayTask { array: JobId(100_000 + random.below(2)), at_once });
    }
    say_what_may_be_done_to_it(&mut request, random);
    request
}

fn role(random: &mut Random) -> RoleRequest {
    let mut role = RoleRequest::new(1 + random.few(5), random.pick(&[0, 1, 2, 4, 8, 8]));
    role.per_node.cpus = random.pick(&[0, 0, 8, 32, 64]);
    role.per_node.memory_mib = random.pick(&[0, 0, 100_000, 500_000]);
    role.is_exclusive = random.chance(12);
    role.kinds = random.pick(&[u64::MAX, u64::MAX, u64::MAX, 1, 2, 4, 5]);
    if random.chance(20) {
        make_elastic(&mut role, random);
    } else if random.chance(12) {
        role.nodes = 1;
        role.per_node.gpus = 1;
        role.gpu_share = Some(random.pick(&[100, 300, 500, 600, 1000]));
    }
    role
}

fn make_elastic(role: &mut RoleRequest, random: &mut Random) {
    let (min, step) = (1 + random.few(2), 1 + random.few(2));
    role.nodes = min + step * random.few(3);
    role.elastic = Some(Elastic { min, max: role.nodes + step * random.few(4), step });
}

fn say_who(request: &mut GangRequest, settings: &Settings, random: &mut Random) {
    request.name = Arc::from(random.pick(&["", "x", "y", "z"]));
    request.user = UserId(random.few(3));
    request.account = AccountId(random.few(3));
    request.partition = PartitionId(random.pick(&[0, 0, 0, 1, 2]));
    request.qos = QosId(random.pick(&[0, 0, 1, 2]));
    if !settings.queues.is_empty() && random.chance(70) {
        request.queue = Some(QueueId(random.pick(&[1, 2])));
    }
}

fn say_when(request: &mut GangRequest, random: &mut Random) {
    request.time_limit = Span::seconds(1 + random.below(3600));
    if random.chance(3) {
        request.time_limit = Span::FOREVER;
    }
    if random.chance(10) {
        request.begin = Time::seconds(random.below(20_000));
    }
    request.is_held = random.chance(5);
}

fn say_where(request: &mut GangRequest, random: &mut Random) {
    request.closeness = match random.below(6) {
        0 => Closeness::Required(random.pick(&[Level::LEAF, Level::Domain, Level::Node, Level::Cluster])),
        1 => Closeness::Preferred(Level::LEAF),
        _ => Closeness::Any,
    };
    if random.chance(10) {
        request.segment = Some(1 + random.few(3));
    }
    if random.chance(8) {
        request.spread = Some(random.pick(&[Level::LEAF, Level::Domain]));
    }
    if random.chance(5) {
        request.filter.avoid = vec![NodeId(random.few(6))];
    }
    if random.chance(15) {
        request.expected = Some(Expected { scale_out_share: 0.4, fixed_share: 0.4 });
    }
    // A copy: the stories of known seeds stay what they are.
    let mut aside = random.clone();
    if request.elastic().is_some() && aside.chance(60) {
        let rates = (1..=8).map(|nodes| (nodes, f64::from(1 + aside.few(40)))).collect();
        request.rates = Some(Rates::new(rates).expect("they are positive"));
    }
}

/// On jobs before it, which may have ended long ago or never have been.
fn dependencies(id: JobId, random: &mut Random) -> Vec<GangDependency> {
    let mut dependencies = Vec::new();
    if id.0 > 1 && random.chance(10) {
        let kinds = [DependencyKind::AfterOk, DependencyKind::AfterAny, DependencyKind::AfterNotOk];
        let jobs = (0..2).map(|_| JobId(1 + random.below(id.0 - 1))).collect();
        dependencies.push(GangDependency { kind: random.pick(&kinds), jobs });
    }
    if random.chance(6) {
        dependencies.push(GangDependency { kind: DependencyKind::Singleton, jobs: Vec::new() });
    }
    dependencies
}

fn say_what_may_be_done_to_it(request: &mut GangRequest, random: &mut Random) {
    use Preemption::{Never, Requeue, Shrink, Suspend};
    request.preemption = random.pick(&[Requeue, Requeue, Suspend, Shrink, Never]);
    if request.elastic().is_some() && random.chance(50) {
        request.preemption = Shrink;
    }
    request.minimum_run_time = random.pick(&[Span::ZERO, Span::ZERO, Span::minutes(10)]);
    request.grace = random.pick(&[Span::ZERO, Span::seconds(1), Span::seconds(30), Span::minutes(5)]);
    request.is_requeued = !random.chance(20);
    request.survives = random.chance(30);
    request.retries = random.few(3);
}
