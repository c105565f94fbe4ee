//! One storm: a site, steps of trouble, then calm.

use bedplate_topology::NodeId;

use super::random::Random;
use super::requests::request;
use super::site;
use super::world::World;
use crate::{Event, GangOutcome, JobId, Maintenance, NodeOrder, Scheduler, Span, Time, Wait};

pub(super) struct Storm {
    pub(super) world: World,
    /// How many steps have begun.
    pub(super) step: u32,
    submitted: u64,
}

/// Nodes to which things happen; on a large cluster trouble would thin out.
const STRUCK: u32 = 12;
/// Maintenance windows that are known by name.
const WINDOWS: u64 = 3;

impl Storm {
    pub(super) const STEPS: u32 = 120;

    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let settings = site::settings(&mut random);
        let scheduler = Scheduler::new(site::cluster(&mut random), settings);
        Self { world: World::new(scheduler, random), step: 0, submitted: 0 }
    }

    /// Plays the storm, and the calm after it.
    pub(super) fn tell(&mut self) {
        while self.step < Self::STEPS {
            self.take_a_step();
            self.ask_for_reasons();
        }
        self.calm_down();
        self.world.pass_until(Time::NEVER, 20_000);
        self.nobody_is_stuck();
    }

    pub(super) fn take_a_step(&mut self) {
        self.step += 1;
        self.let_time_pass();
        let events = self.troubles();
        self.world.happen(events);
    }

    fn let_time_pass(&mut self) {
        let world = &mut self.world;
        let until = world.now + Span(world.random.pick(&[0, 0, 0, 1000, 7000, 60_000, 200_000, 900_000]));
        world.pass_until(until, 5000);
        world.now = until;
    }

    fn troubles(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..1 + self.world.random.below(3) {
            events.push(self.trouble());
            events.extend(self.false_report());
        }
        events
    }

    fn trouble(&mut self) -> Event {
        let job = self.some_job();
        match self.world.random.below(30) {
            0..=13 => self.submit(),
            14 | 15 => Event::Cancel(job),
            16 => Event::Hold(job),
            17 | 18 => Event::Release(job),
            19 => Event::Requeue(job),
            20 | 21 => Event::Checkpointed(job),
            22..=27 => Event::Node { node: self.some_node(), order: self.node_order() },
            28 => Event::Reserve(self.maintenance()),
            _ => Event::Unreserve { name: self.window() },
        }
    }

    fn submit(&mut self) -> Event {
        self.submitted += 1;
        let World { scheduler, random, .. } = &mut self.world;
        Event::Submit(Box::new(request(JobId(self.submitted), &scheduler.settings, random)))
    }

    fn node_order(&mut self) -> NodeOrder {
        let soon = self.world.now + Span(self.world.random.below(3_000_000));
        let resume = NodeOrder::Resume;
        let orders = [NodeOrder::LeavesAt(soon), NodeOrder::JoinsAt(soon), NodeOrder::Fail, NodeOrder::Drain];
        self.world.random.pick(&[&orders[..], &[resume, resume]].concat())
    }

    /// It may have begun already, and may be over.
    fn maintenance(&mut self) -> Maintenance {
        let name = self.window();
        let nodes = (0..1 + self.world.random.below(3)).map(|_| self.some_node()).collect();
        let from = Time(self.world.now.0.saturating_sub(500_000)) + Span(self.world.random.below(3_000_000));
        Maintenance { name, nodes, from, until: from + Span(self.world.random.below(2_000_000)) }
    }

    /// A gang ended although nobody expected it, or left nodes that it need not leave or never had.
    fn false_report(&mut self) -> Option<Event> {
        let running: Vec<JobId> = self.world.scheduler.running().map(|(job, _)| job).collect();
        let random = &mut self.world.random;
        if running.is_empty() || !random.chance(8) {
            return None;
        }
        let job = random.pick(&running);
        Some(match random.below(3) {
            0 => Event::Left { job, nodes: vec![NodeId(random.few(STRUCK)), NodeId(999)] },
            1 => Event::Ended { job, outcome: GangOutcome::Succeeded },
            _ => Event::Ended { job, outcome: GangOutcome::Failed },
        })
    }

    /// A job that lives, or the first one.
    fn some_job(&mut self) -> JobId {
        let live: Vec<JobId> = self.world.scheduler.jobs.iter().map(|(job, _)| job).collect();
        if live.is_empty() { JobId(1) } else { self.world.random.pick(&live) }
    }

    fn some_node(&mut self) -> NodeId {
        let count = self.world.scheduler.fleet.count();
        NodeId(self.world.random.few(count.min(STRUCK)))
    }

    fn window(&mut self) -> String {
        format!("window {}", self.world.random.below(WINDOWS))
    }

    /// Explanations change nothing and answer for every job.
    fn ask_for_reasons(&mut self) {
        if self.world.random.chance(5) {
            let scheduler = &self.world.scheduler;
            scheduler.jobs.iter().for_each(|(job, _)| drop(scheduler.explain(job, self.world.now)));
        }
    }

    /// All nodes return, no maintenance is planned, nobody is held.
    fn calm_down(&mut self) {
        let scheduler = &self.world.scheduler;
        let nodes = (0..scheduler.fleet.count()).map(NodeId);
        let resumed = nodes.map(|node| Event::Node { node, order: NodeOrder::Resume });
        let opened = (0..WINDOWS).map(|window| Event::Unreserve { name: format!("window {window}") });
        let released = scheduler.jobs.iter().map(|(job, _)| Event::Release(job));
        let events = resumed.chain(opened).chain(released).collect();
        self.world.happen(events);
    }

    /// Who is left waits for a job that is itself left, or that never was.
    fn nobody_is_stuck(&self) {
        let scheduler = &self.world.scheduler;
        let never_ended = |job: &JobId| scheduler.outcome(*job).is_none();
        for (job, entry) in scheduler.jobs.iter() {
            let waits_for_another = match scheduler.wait_now(entry) {
                Wait::Dependency { on } => on.iter().any(never_ended),
                Wait::Singleton { behind } => scheduler.jobs.get(behind).is_some(),
                _ => false,
            };
            let why = scheduler.explain(job, self.world.now);
            assert!(waits_for_another, "{job} never ran: {why:?} {:?} {:?}", entry.state, entry.request);
        }
    }
}
