//! What holds for every cluster and load, and agreement with a scheduler that is slow and obvious.

mod fixture;

use bedplate_gangs::*;
use fixture::World;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn cases(cases: u32) -> ProptestConfig {
    let failure_persistence = Some(Box::new(FileFailurePersistence::WithSource("regressions")) as _);
    ProptestConfig { cases, failure_persistence, max_shrink_iters: 120, ..ProptestConfig::default() }
}

/// One line of a story, from numbers.
#[derive(Debug, Clone)]
struct Line {
    minute: u32,
    text: String,
}

fn submissions(count: std::ops::Range<usize>, exact: bool) -> impl Strategy<Value = Vec<Line>> {
    let one = (0u32..120, 1u32..7, prop::sample::select(vec![1u32, 2, 4, 8]), 1u32..60, 1u32..11, 0u32..12);
    prop::collection::vec(one, count).prop_map(move |rows| {
        let line = |(index, (minute, nodes, gpus, limit, tenths, flavour)): (
            usize,
            (u32, u32, u32, u32, u32, u32),
        )| {
            let runs = if exact { limit } else { (limit * tenths).div_ceil(10) };
            let extra = match flavour {
                0 => "within=leaf",
                1 => "spread=leaf",
                2 => "exclusive",
                3 if nodes.is_multiple_of(2) => "segment=2 within=leaf",
                _ => "",
            };
            Line {
                minute,
                text: format!(
                    "submit j{index} nodes={nodes} gpus={gpus} limit={limit}m runs={runs}m {extra}"
                ),
            }
        };
        rows.into_iter().enumerate().map(line).collect()
    })
}

/// Things that happen to nodes and jobs, and after four hours calm.
fn storm() -> impl Strategy<Value = Vec<Line>> {
    let one = (0u32..200, 0u32..9, 1u32..9, 1u32..60);
    prop::collection::vec(one, 0..12).prop_map(|rows| {
        let line = |(minute, what, node, later): (u32, u32, u32, u32)| {
            let text = match what {
                0 | 1 => format!("fail n{node}"),
                2 => format!("drain n{node}"),
                3 | 4 => format!("resume n{node}"),
                5 => format!("leaves n{node} {}m", minute + later),
                6 => format!("joins n{node} {}m", minute + later),
                _ => format!("maintain n{node} {}m {}m", minute + later, minute + later + 30),
            };
            Line { minute, text }
        };
        let mut lines: Vec<Line> = rows.into_iter().map(line).collect();
        lines.extend((1..9).map(|node| Line { minute: 240, text: format!("resume n{node}") }));
        lines
    })
}

fn story(head: &str, parts: &[&[Line]]) -> String {
    let mut text = head.to_string();
    for line in parts.concat() {
        text.push_str(&format!("\n{}m {}", line.minute, line.text));
    }
    text
}

const CLUSTER: &str = "cluster 8 nodes x 8 gpus, 4 per leaf";

proptest! {
    #![proptest_config(cases(64))]

    /// The fixture checks after every event that no GPU is held twice and every gang is whole.
    #[test]
    fn whatever_happens_to_nodes_every_job_ends_once_it_is_calm(
        jobs in submissions(1..25, false), storm in storm(),
    ) {
        let mut world = World::new(&story(CLUSTER, &[&jobs, &storm]));
        world.run();
        prop_assert!(world.unfinished().is_empty(), "left over: {:?}", world.unfinished());
    }

    #[test]
    fn no_gang_starts_later_than_first_reserved_when_gangs_use_the_time_they_asked_for(
        jobs in submissions(1..25, true), reserved in prop::sample::select(vec![1u32, 3, 2000]),
    ) {
        let mut world = World::new(&story(&format!("{CLUSTER}\nset reserved={reserved} expansion=0"), &[&jobs]));
        world.run();
        for (job, reserved) in &world.reserved_starts {
            prop_assert!(world.first_start(*job).is_some_and(|start| start <= *reserved), "{job} had reserved {reserved:?}");
        }
        prop_assert!(world.unfinished().is_empty());
    }

    #[test]
    fn usage_adds_up_and_equal_stories_end_equally(jobs in submissions(1..25, false)) {
        let story = story(CLUSTER, &[&jobs]);
        let mut world = World::new(&story);
        world.run();
        prop_assert_eq!(world.scheduler.usage().total(), world.gpu_ms());
        let mut again = World::new(&story);
        again.run();
        prop_assert_eq!(world.ended(), again.ended());
    }

    /// The fixture checks quotas and limits after every event.
    #[test]
    fn quotas_and_limits_hold_with_preemption_and_elastic_gangs(
        jobs in submissions(1..20, false),
        choices in prop::collection::vec((0u32..3, 0u32..3, 0u32..4), 20),
        storm in storm(),
        sizes in prop::sample::select(vec!["request", "goodput"]),
    ) {
        let head = format!(
            "{CLUSTER}\nset sizes={sizes}\npartition high tier=10\nqos small user_gpus=16 gpus=32\nqos urgent preempts=small user_jobs=3\n\
             queue cohort nominal=16\nqueue red parent=cohort nominal=24 borrows=16\nqueue blue parent=cohort nominal=24 lends=8"
        );
        let mut dressed = jobs.clone();
        for (line, (queue, qos, rest)) in dressed.iter_mut().zip(&choices) {
            let queue = ["queue=red", "queue=blue", ""][*queue as usize];
            let qos = ["", "qos=small", "qos=urgent"][*qos as usize];
            let rest = ["partition=high", "elastic=1..6 preempted=shrink", "preempted=suspend", "grace=2m"][*rest as usize];
            line.text.push_str(&format!(" {queue} {qos} {rest} user={}", line.minute % 3));
        }
        let mut world = World::new(&story(&head, &[&dressed, &storm]));
        world.run();
        prop_assert!(world.unfinished().is_empty(), "left over: {:?}", world.unfinished());
    }

    #[test]
    fn a_full_cycle_agrees_with_the_slow_and_obvious_scheduler(
        running in prop::collection::vec((1u32..5, 1u16..9, 1u64..90), 0..8),
        waiting in prop::collection::vec((1u32..9, 1u16..9, 1u64..90, prop::bool::ANY), 1..30),
    ) {
        let mut reference = Reference::new(8, 8, 4);
        let settings = Settings {
            packing: Packing::FirstFit,
            backfill: Backfill { resolution: Span::ZERO, replan_percent: 0, ..Backfill::conservative() },
            ..Settings::by_arrival()
        };
        let mut scheduler = Scheduler::new(fixture::cluster(8, 8, 4, 1.0), settings);
        let jobs = running.iter().map(|(nodes, gpus, minutes)| (*nodes, *gpus, *minutes, false)).chain(waiting.iter().copied());
        for (id, (nodes, gpus, minutes, one_leaf)) in (1..).zip(jobs) {
            let mut request = GangRequest::new(JobId(id), RoleRequest::new(nodes, gpus));
            request.time_limit = Span::minutes(minutes);
            if one_leaf && nodes > 1 {
                request.closeness = Closeness::Required(bedplate_topology::Level::LEAF);
            }
            let expected = reference.place(nodes, gpus, Span::minutes(minutes), one_leaf && nodes > 1);
            let decisions = scheduler.apply(Event::Submit(Box::new(request)), Time::ZERO);
            let refused = matches!(decisions[..], [Decision::Reject { .. }]);
            let found = scheduler.running().find(|(job, _)| job.0 == id).map(|(_, shares)| {
                (Time::ZERO, shares.iter().map(|share| share.node.0).collect::<Vec<u32>>())
            });
            let reserved = scheduler.reservation(JobId(id)).map(|reservation| {
                (reservation.start, reservation.nodes.iter().map(|reserved| reserved.node.0).collect())
            });
            prop_assert_eq!(expected, found.or(reserved), "job {} refused: {}", id, refused);
        }
    }

    #[test]
    fn gangs_behind_never_change_what_those_before_have_reserved(
        first in submissions(1..12, true), more in submissions(1..12, true),
    ) {
        let at_once = |lines: &[Line], offset: usize| -> Vec<Line> {
            let rename = |(index, line): (usize, &Line)| {
                let text = line.text.replacen(&format!("submit j{index} "), &format!("submit j{} ", index + offset), 1);
                Line { minute: 0, text }
            };
            lines.iter().enumerate().map(rename).collect()
        };
        let first = at_once(&first, 0);
        let more = at_once(&more, first.len());
        let reservations = |parts: &[&[Line]]| {
            let mut world = World::new(&story(&format!("{CLUSTER}\nset replan_percent=0"), parts));
            world.run();
            world
        };
        let (alone, together) = (reservations(&[&first]), reservations(&[&first, &more]));
        for job in (1..=first.len() as u64).map(JobId) {
            prop_assert_eq!(alone.reserved_starts.get(&job), together.reserved_starts.get(&job));
        }
    }
}

/// Free GPUs of every node in every minute; gangs are placed one after the other at the first minute that
/// has enough, on the first nodes in order.
struct Reference {
    free: Vec<Vec<u16>>,
    per_leaf: usize,
}

impl Reference {
    const MINUTES: usize = 6000;

    fn new(nodes: usize, gpus: u16, per_leaf: usize) -> Self {
        Self { free: vec![vec![gpus; Self::MINUTES]; nodes], per_leaf }
    }

    fn place(&mut self, nodes: u32, gpus: u16, length: Span, one_leaf: bool) -> Option<(Time, Vec<u32>)> {
        let minutes = (length.0 / 60_000) as usize;
        let set = if one_leaf { self.per_leaf } else { self.free.len() };
        for start in 0..Self::MINUTES - minutes {
            let fits =
                |node: &usize| self.free[*node][start..start + minutes].iter().all(|free| *free >= gpus);
            for first in (0..self.free.len()).step_by(set) {
                let chosen: Vec<usize> = (first..first + set).filter(fits).take(nodes as usize).collect();
                if chosen.len() == nodes as usize {
                    for node in &chosen {
                        self.free[*node][start..start + minutes].iter_mut().for_each(|free| *free -= gpus);
                    }
                    let nodes = chosen.into_iter().map(|node| node as u32).collect();
                    return Some((Time::ZERO + Span::minutes(start as u64), nodes));
                }
            }
        }
        None
    }
}
