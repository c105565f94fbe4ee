//! What the control plane does about nodes and ranks that misbehave, told step by step.

mod devices;
mod diagnosis;
mod findings;
mod survival;

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_catalog::Catalog;
use bedplate_control::record::{JobRow, JobState, Life, NodeRow, Note, Record, Restored};
use bedplate_control::wire::{
    Checkpoint, FromAgent, HeldPhase, HeldRun, Hello, HostMachine, Launch, NodeEnd, RankEnd, RunId, ToAgent,
    Unready,
};
use bedplate_control::{ClientOrder, Command, Control, ControlRules, LinkId, NodeView, Submission, Unlinked};
use bedplate_gangs::{JobId, Settings, Time};
use bedplate_job::{CheckpointSignal, Gang, Job, Receiver, Role, Workload};
use bedplate_report::{Report, StepReport};
use bedplate_topology::Cluster;
use bedplate_units::Seconds;

fn reports(run: RunId, rank: u32, report: Report) -> FromAgent {
    FromAgent::Report { run, rank, report }
}

/// A cluster whose agents do as they are told, at once.
struct Story {
    control: Control,
    now: u64,
    links: BTreeMap<LinkId, String>,
    /// The newest launch that each node was asked to prepare.
    launches: BTreeMap<String, Launch>,
    sent: Vec<(String, ToAgent)>,
    /// Nodes that say nothing of their own.
    is_mute: Vec<String>,
    bad_prolog: Option<String>,
    /// A node that never makes anything ready.
    unready: Option<String>,
    ended: BTreeMap<JobId, JobState>,
    /// What was noted about nodes.
    notes: Vec<String>,
    /// What each node's check finds, if it answers.
    check: Option<Option<String>>,
}

impl Story {
    /// Nothing has happened yet.
    fn of(control: Control, now: u64) -> Self {
        Self {
            control,
            now,
            links: BTreeMap::new(),
            launches: BTreeMap::new(),
            sent: Vec::new(),
            is_mute: Vec::new(),
            bad_prolog: None,
            unready: None,
            ended: BTreeMap::new(),
            notes: Vec::new(),
            check: Some(None),
        }
    }

    fn new(nodes: usize) -> Self {
        let cluster = Cluster::from_spec(&format!("p5.48xlarge:{nodes}"), &Catalog::builtin());
        let cluster = cluster.expect("the fixture is right");
        let control = Control::new(cluster, Settings::default(), ControlRules::default(), Time(1_000));
        let mut story = Self::of(control, 1_000);
        (1..=nodes).for_each(|number| story.join(&format!("n{number}")));
        story
    }

    fn join(&mut self, node: &str) {
        self.join_holding(node, Vec::new());
    }

    fn join_holding(&mut self, node: &str, held: Vec<HeldRun>) {
        let link = LinkId(self.now * 100 + self.links.len() as u64);
        self.links.insert(link, node.into());
        let hello = Hello {
            node: node.into(),
            address: "127.0.0.1".into(),
            incarnation: self.now,
            held,
            host: HostMachine::default(),
        };
        self.control.linked(link, hello, Time(self.now));
        self.play();
    }

    /// A control plane that was started again with what the journal has of all that was recorded.
    fn restarted(&self, records: Vec<Record>) -> Self {
        let mut restored = Restored { next_job: 100, latest: Time(self.now), ..Restored::default() };
        let mut jobs: BTreeMap<JobId, JobRow> = BTreeMap::new();
        let mut runs = BTreeMap::new();
        let known = |node: NodeView| NodeRow {
            name: node.name,
            drained: None,
            address: node.address,
            incarnation: 1,
            losses: Vec::new(),
            acknowledged_ms: 0,
            found_out: None,
        };
        let nodes = self.control.nodes(Time(self.now)).into_iter().map(known);
        let mut nodes: BTreeMap<String, NodeRow> = nodes.map(|row| (row.name.clone(), row)).collect();
        for record in records {
            match record {
                Record::Submitted(row) => drop(jobs.insert(row.id, row)),
                Record::Job { job, life } => jobs.get_mut(&job).expect("it was submitted").life = life,
                Record::Run(row) => drop(runs.insert(row.run.job, row)),
                Record::Node(row) => drop(nodes.insert(row.name.clone(), row)),
                Record::Arriving { .. } | Record::Share(_) | Record::Note(_) => {}
            }
        }
        (restored.runtime_samples, restored.jobs) = jobs.into_values().partition(JobRow::is_runtime_sample);
        restored.runs.extend(runs.into_values());
        restored.nodes.extend(nodes.into_values());
        let cluster = Cluster::from_spec(
            &format!("p5.48xlarge:{}", self.control.nodes(Time(0)).len()),
            &Catalog::builtin(),
        );
        let cluster = cluster.expect("the fixture is right");
        let (control, unreadable) =
            Control::restore(cluster, Settings::default(), ControlRules::default(), restored, Time(self.now));
        assert!(unreadable.is_empty());
        Self::of(control, self.now)
    }

    fn link(&self, node: &str) -> LinkId {
        *self.links.iter().rev().find(|(_, name)| *name == node).expect("it joined").0
    }

    fn says(&mut self, node: &str, message: FromAgent) {
        self.control.heard(self.link(node), message, Time(self.now));
        self.play();
    }

    /// Time passes; nodes that are not mute are heard all the while.
    fn wait(&mut self, ms: u64) {
        for _ in 0..ms / 250 {
            self.now += 250;
            for (link, node) in self.links.clone() {
                if !self.is_mute.contains(&node) && self.control.link_of(&node) == Some(link) {
                    // Anything said counts as a sign of life.
                    self.control.heard(link, FromAgent::Healthy, Time(self.now));
                }
            }
            self.control.tick(Time(self.now));
            self.play();
        }
    }

    /// Agents do what they are told until nobody has anything to say.
    fn play(&mut self) {
        self.play_and_record();
    }

    /// The same; gives what was to be recorded.
    fn play_and_record(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        loop {
            let output = self.control.take_output();
            records.extend(output.records.iter().cloned());
            for record in &output.records {
                if let Record::Job { job, life } = record
                    && life.state.is_final()
                {
                    self.ended.insert(*job, life.state);
                }
                if let Record::Note(Note { node: Some(_), text, .. }) = record {
                    self.notes.push(text.clone());
                }
            }
            let commands: Vec<Command> = output.urgent.into_iter().chain(output.commands).collect();
            if commands.is_empty() {
                return records;
            }
            for command in commands {
                let Command::Send { link, message } = command else { continue };
                let Some(node) = self.links.get(&link).cloned() else { continue };
                self.sent.push((node.clone(), message.clone()));
                if let Some(answer) = self.answer(&node, message) {
                    self.control.heard(link, answer, Time(self.now));
                }
            }
        }
    }

    fn answer(&mut self, node: &str, message: ToAgent) -> Option<FromAgent> {
        if self.is_mute.iter().any(|mute| mute == node) {
            return None;
        }
        match message {
            ToAgent::Prepare(launch) => {
                let run = launch.run;
                self.launches.insert(node.into(), *launch);
                if self.unready.as_deref() == Some(node) {
                    return None;
                }
                if self.bad_prolog.as_deref() == Some(node) {
                    let why = Unready::Prolog { status: 3, output: "ECC errors on GPU 5".into() };
                    return Some(FromAgent::NotPrepared { run, why });
                }
                Some(FromAgent::Prepared { run, master_port: Some(29_500) })
            }
            ToAgent::Stop { run, .. } => {
                Some(FromAgent::Released { run, end: NodeEnd { was_stopped: true, ..NodeEnd::default() } })
            }
            ToAgent::Check => self.check.clone().map(|fault| FromAgent::Checked { fault }),
            _ => None,
        }
    }

    fn submit(&mut self, job: Job) -> JobId {
        self.submit_as("ada", job)
    }

    fn submit_as(&mut self, user: &str, job: Job) -> JobId {
        let submission = Submission::new(user, job);
        let accepted = self.control.submit(submission, Time(self.now)).expect("it can run here");
        self.play();
        accepted.first
    }

    fn run_of(&self, job: JobId) -> RunId {
        RunId { job: job.0, number: self.control.job(job).expect("it is live").life.runs }
    }

    fn stands(&self, job: JobId) -> String {
        match self.control.job(job) {
            Some(view) => format!("{} on {}", view.life.state.name(), view.nodes.join(" ")),
            None => self.ended.get(&job).map_or("unknown".into(), |state| state.name().into()),
        }
    }

    fn node(&self, name: &str) -> (String, Option<String>) {
        let nodes = self.control.nodes(Time(self.now));
        let node = nodes.into_iter().find(|node| node.name == name).expect("it is in the cluster");
        (node.state.to_string(), node.reason.map(|reason| reason.text))
    }
}

fn gang(nodes: u32) -> Job {
    let role = Role { nodes, gpus_per_node: 8, ..Role::named(Role::ONLY) };
    Job::new("train", Workload::command(["train"]), Gang::of(role))
}

#[test]
fn a_lost_node_is_replaced_and_the_gang_starts_from_its_checkpoint() {
    let mut story = Story::new(3);
    let job = story.submit(gang(2));
    assert_eq!(story.stands(job), "running on n1 n2");
    let run = story.run_of(job);
    story.says(
        "n1",
        reports(run, 0, Report::Checkpoint(Checkpoint { step: 700, path: Some("/c/700".into()) })),
    );
    story.control.unlinked(story.link("n2"), Unlinked::Closed, Time(story.now));
    story.wait(750);
    assert_eq!(story.stands(job), "running on n1 n2", "it may come back");
    story.wait(500);
    assert_eq!(story.stands(job), "running on n1 n3");
    let launch = &story.launches["n3"];
    assert_eq!(launch.checkpoint.as_ref().map(|checkpoint| checkpoint.step), Some(700));
    assert_eq!((launch.node_index, launch.facts.restarts), (1, 1));
}

#[test]
fn reported_steps_are_kept_with_their_run_and_are_progress() {
    let mut story = Story::new(1);
    let mut job = gang(1);
    job.health.stuck_after = Some(Seconds::new(10.0));
    let job = story.submit(job);
    let run = story.run_of(job);
    for (step, seconds) in [(1, 2.0), (2, 4.0)] {
        let report = StepReport { step, seconds, tokens: None, loss: Some(3.0), breakdown: None };
        story.says("n1", reports(run, 0, Report::Step(Box::new(report))));
        story.wait(6_000);
    }
    assert_eq!(story.run_of(job), run, "steps are progress, so it is not stuck");
    let steps = story.control.steps(job).expect("two were reported");
    assert_eq!((steps.steps, steps.mean_s, steps.latest.len()), (2, 3.0, 2));
    let stale = RunId { number: run.number + 1, ..run };
    story.says("n1", reports(stale, 0, Report::Progress { step: 99 }));
    assert_eq!(story.control.steps(job).map(|steps| steps.steps), Some(2));
}

#[test]
fn a_node_that_comes_back_in_time_is_as_if_it_had_never_gone() {
    let mut story = Story::new(2);
    let job = story.submit(gang(1));
    let run = story.run_of(job);
    story.control.unlinked(story.link("n1"), Unlinked::Closed, Time(story.now));
    story.now += 500;
    let link = LinkId(9);
    story.links.insert(link, "n1".into());
    let held = vec![HeldRun { run, phase: HeldPhase::Running, is_suspended: false }];
    let (node, address, host) = ("n1".into(), "127.0.0.1".into(), HostMachine::default());
    story.control.linked(link, Hello { node, address, incarnation: 1, held, host }, Time(story.now));
    story.play();
    assert_eq!((story.stands(job).as_str(), story.run_of(job)), ("running on n1", run));
}

#[test]
fn nodes_have_their_time_to_come_back_from_when_the_control_plane_listens() {
    let before = Story::new(1);
    let mut story = before.restarted(Vec::new());
    let is_lost = |story: &Story| story.notes.iter().any(|note| note.contains("it did not come back"));
    // The start took long: it stood still, or read a large journal. Agents were refused meanwhile, and their ranks live.
    let rejoin = ControlRules::default().rejoin;
    story.now += rejoin.0 - 1;
    story.control.listens(Time(story.now));
    story.wait(rejoin.0 / 2);
    assert!(!is_lost(&story), "{:?}", story.notes);
    story.wait(rejoin.0);
    assert!(is_lost(&story), "{:?}", story.notes);
}

#[test]
fn a_silent_node_is_lost_after_its_lease() {
    let mut story = Story::new(2);
    let job = story.submit(gang(1));
    story.is_mute.push("n1".into());
    story.wait(2_750);
    assert_eq!(story.stands(job), "running on n1");
    story.wait(500);
    assert_eq!(story.stands(job), "running on n2");
    assert_eq!(story.node("n1").0, "down");
}

#[test]
fn a_job_avoids_the_node_that_fails_it_and_the_node_stays_in_service_until_others_fail_there() {
    let mut story = Story::new(4);
    story.bad_prolog = Some("n2".into());
    let first = story.submit(gang(2));
    story.wait(2_000);
    assert_eq!(story.stands(first), "running on n1 n3");
    assert_eq!(story.node("n2"), ("idle".into(), None));
    let second = story.submit_as("bob", Job { workload: Workload::command(["evaluate"]), ..gang(1) });
    story.wait(2_000);
    assert_eq!(story.stands(second), "running on n4");
    let (state, reason) = story.node("n2");
    assert_eq!(state, "drained");
    assert!(reason.is_some_and(|reason| reason.contains("2 users") && reason.contains("ECC errors")));
}

/// An epilog of a job fails as often as its user likes.
fn epilogs_fail(story: &mut Story, user: &str, programs: &[&str]) {
    for program in programs {
        let job = story.submit_as(user, Job { workload: Workload::command([*program]), ..gang(1) });
        let (run, nodes) = (story.run_of(job), story.control.job(job).expect("it runs").nodes);
        let end = NodeEnd { epilog_failed: Some("exit code 1".into()), ..NodeEnd::default() };
        story.says(&nodes[0], FromAgent::Released { run, end });
    }
}

fn checks(story: &Story) -> usize {
    story.sent.iter().filter(|(_, message)| *message == ToAgent::Check).count()
}

#[test]
fn a_user_alone_costs_a_node_no_more_than_a_check() {
    let mut story = Story::new(2);
    let neighbour = story.submit_as("bob", gang(1));
    epilogs_fail(&mut story, "mallory", &["a", "b", "c", "a", "b", "c"]);
    assert_eq!(checks(&story), 1, "not with each failure");
    assert_eq!(story.node("n2"), ("idle".into(), None));
    let noted = story.notes.iter().filter(|note| note.contains("checks itself")).count();
    assert_eq!(noted, 1, "{:?}", story.notes);
    assert_eq!(story.stands(neighbour), "running on n1");
}

#[test]
fn what_the_check_confirms_takes_the_node_out() {
    let mut story = Story::new(2);
    story.check = Some(Some("matrix products differ from run to run".into()));
    let _neighbour = story.submit_as("bob", gang(1));
    epilogs_fail(&mut story, "ada", &["train", "evaluate"]);
    assert_eq!(story.node("n2"), ("drained".into(), Some("matrix products differ from run to run".into())));
}

#[test]
fn the_only_node_stays_in_service_whatever_jobs_do() {
    let mut story = Story::new(1);
    for (user, programs) in [("mallory", ["a", "b"]), ("eve", ["c", "d"]), ("trudy", ["e", "f"])] {
        epilogs_fail(&mut story, user, &programs);
    }
    assert_eq!(story.node("n1"), ("idle".into(), None));
}

#[test]
fn a_job_that_succeeds_there_speaks_for_the_node() {
    let mut story = Story::new(2);
    let _busy = story.submit_as("carol", gang(1));
    epilogs_fail(&mut story, "mallory", &["a"]);
    let job = story.submit_as("carol", gang(1));
    let run = story.run_of(job);
    story.says("n2", FromAgent::Released { run, end: NodeEnd::default() });
    epilogs_fail(&mut story, "bob", &["b"]);
    assert_eq!(story.node("n2"), ("idle".into(), None));
}

#[test]
fn a_job_whose_own_probe_fails_everywhere_ends_and_its_neighbours_and_nodes_are_left_alone() {
    let mut story = Story::new(4);
    let neighbour = story.submit(gang(1));
    let hostile = story.submit(gang(1));
    for _ in 0..20 {
        story.wait(5_000);
        let Some(node) = story.stands(hostile).strip_prefix("running on ").map(str::to_owned) else {
            continue;
        };
        let run = story.run_of(hostile);
        story.says(&node, FromAgent::Unhealthy { reason: "its probe failed".into(), run: Some(run) });
    }
    assert_eq!(story.ended.get(&hostile).copied(), Some(JobState::Failed));
    assert_eq!((story.stands(neighbour).as_str(), story.run_of(neighbour).number), ("running on n1", 1));
    for node in ["n1", "n2", "n3", "n4"] {
        assert_eq!(story.node(node).1, None, "{node} stays in service");
    }
}

#[test]
fn a_job_whose_ranks_vanish_again_and_again_is_given_up() {
    let mut story = Story::new(1);
    let job = story.submit(gang(1));
    let mut runs = 0;
    while !story.ended.contains_key(&job) {
        assert!(runs < 100, "it starts for ever");
        if story.stands(job).starts_with("running") {
            let run = story.run_of(job);
            runs = run.number;
            story.says(
                "n1",
                FromAgent::Released { run, end: NodeEnd { was_lost: true, ..NodeEnd::default() } },
            );
        }
        story.wait(1_000);
    }
    assert_eq!(story.ended.get(&job).copied(), Some(JobState::Failed));
    assert_eq!(runs, 11, "ten restarts");
}

#[test]
fn a_failing_epilog_changes_no_outcome_and_takes_no_node_out() {
    let mut story = Story::new(2);
    let job = story.submit(gang(1));
    let run = story.run_of(job);
    let end = NodeEnd { epilog_failed: Some("exit code 1".into()), ..NodeEnd::default() };
    story.says("n1", FromAgent::Released { run, end });
    assert_eq!(story.ended.get(&job).copied(), Some(JobState::Succeeded));
    assert_eq!(story.node("n1"), ("idle".into(), None));
}

#[test]
fn a_failing_probe_takes_the_node_out_and_moves_the_gang() {
    let mut story = Story::new(2);
    let job = story.submit(gang(1));
    story.says("n1", FromAgent::Unhealthy { reason: "nvidia-smi hangs".into(), run: None });
    assert_eq!(story.stands(job), "running on n2");
    assert_eq!(story.node("n1"), ("drained".into(), Some("nvidia-smi hangs".into())));
    story
        .control
        .order(ClientOrder::Resume { node: "n1".into() }, "ada", Time(story.now))
        .expect("it is there");
    story.play();
    assert_eq!(story.node("n1").0, "idle");
}

#[test]
fn a_gang_leaves_the_node_whose_rank_stands_still_twice() {
    let mut story = Story::new(3);
    let mut job = gang(2);
    job.health.stuck_after = Some(Seconds::new(10.0));
    let job = story.submit(job);
    for expected in ["running on n1 n2", "running on n1 n3"] {
        let run = story.run_of(job);
        story.says("n1", reports(run, 0, Report::Progress { step: 5 }));
        story.says("n2", reports(run, 1, Report::Progress { step: 4 }));
        story.wait(9_000);
        assert_eq!(story.stands(job), "running on n1 n2");
        story.wait(4_000);
        assert_eq!(story.stands(job), expected);
    }
    assert_eq!(story.node("n2").1, None, "one job is no proof");
}

#[test]
fn a_gang_that_stands_still_as_a_whole_starts_again_and_no_node_is_blamed() {
    let mut story = Story::new(2);
    let mut job = gang(2);
    job.health.stuck_after = Some(Seconds::new(10.0));
    let job = story.submit(job);
    story.wait(11_000);
    assert_eq!((story.stands(job).as_str(), story.run_of(job).number), ("running on n1 n2", 2));
    assert_eq!((story.node("n1").1, story.node("n2").1), (None, None));
}

#[test]
fn a_node_that_comes_and_goes_is_kept_out_until_somebody_resumes_it() {
    let mut story = Story::new(2);
    for _ in 0..3 {
        story.control.unlinked(story.link("n2"), Unlinked::Closed, Time(story.now));
        story.wait(1_250);
        assert_ne!(story.node("n2").0, "idle");
        story.join("n2");
    }
    let (state, reason) = story.node("n2");
    assert_eq!(state, "drained");
    assert!(reason.is_some_and(|reason| reason.contains("lost 3 times")));
    story
        .control
        .order(ClientOrder::Resume { node: "n2".into() }, "ada", Time(story.now))
        .expect("it is there");
    assert_eq!(story.node("n2").0, "idle");
}

#[test]
fn a_rank_that_fails_ends_its_gang_and_retries_are_counted() {
    let mut story = Story::new(2);
    let mut job = gang(2);
    job.policy.retries = 1;
    let job = story.submit(job);
    for expected in ["running on n1 n2", "failed"] {
        let run = story.run_of(job);
        story.says("n2", FromAgent::RankFailed { run, rank: 1, end: RankEnd::Exit(7) });
        assert_eq!(story.stands(job), expected);
    }
    let told =
        story.sent.iter().filter(|(node, message)| node == "n1" && matches!(message, ToAgent::Stop { .. }));
    assert_eq!(told.count(), 2, "its other node was stopped each time");
}

#[test]
fn ranks_are_signalled_before_their_time_is_up() {
    let mut story = Story::new(1);
    let mut job = gang(1);
    job.policy.time_limit = Some(Seconds::new(120.0));
    let receiver = Receiver::default();
    job.policy.checkpoint_signal =
        Some(CheckpointSignal { signal: 10, before: Seconds::new(60.0), receiver });
    let job = story.submit(job);
    let signals = |story: &Story| {
        story.sent.iter().filter(|(_, message)| matches!(message, ToAgent::Signal { signal: 10, .. })).count()
    };
    story.wait(59_000);
    assert_eq!(signals(&story), 0);
    story.wait(2_000);
    assert_eq!(signals(&story), 1);
    story.wait(60_000);
    assert_eq!((signals(&story), story.ended.get(&job).copied()), (1, Some(JobState::TimedOut)));
}

#[test]
fn an_agent_that_was_started_anew_has_lost_its_ranks() {
    let mut story = Story::new(1);
    let job = story.submit(gang(1));
    story.now += 100;
    story.control.unlinked(story.link("n1"), Unlinked::Closed, Time(story.now));
    story.join("n1");
    assert_eq!((story.stands(job).as_str(), story.run_of(job).number), ("running on n1", 2));
}

#[test]
fn a_second_agent_of_a_node_is_turned_away_while_the_first_is_heard() {
    let mut story = Story::new(1);
    let job = story.submit(gang(1));
    let first = story.link("n1");
    story.now += 100;
    story.join("n1");
    let answer = &story.sent.last().expect("it was answered").1;
    assert!(
        matches!(answer, ToAgent::Unwelcome { why } if why.contains("another agent is node `n1`")),
        "{answer:?}"
    );
    assert_eq!((story.stands(job).as_str(), story.run_of(job).number), ("running on n1", 1));
    // One that has fallen silent is replaced, whether its connection has been noticed to be broken or not.
    story.links.insert(first, "n1".into());
    story.is_mute.push("n1".into());
    story.now += 3_100;
    story.join("n1");
    let answer = &story.sent.last().expect("it was answered").1;
    assert!(!matches!(answer, ToAgent::Unwelcome { .. }), "{answer:?}");
}

#[test]
fn a_stranger_is_not_let_in() {
    let mut story = Story::new(1);
    story.join("n77");
    let answer = &story.sent.last().expect("it was answered").1;
    assert!(matches!(answer, ToAgent::Unwelcome { why } if why.contains("n77")));
}

#[test]
fn a_connection_that_broke_proves_nothing_about_the_runs_on_a_node() {
    for (how, lost_after) in [(Unlinked::Closed, 1_000), (Unlinked::Broken, 3_000)] {
        let mut story = Story::new(2);
        story.is_mute.push("n2".into());
        story.control.unlinked(story.link("n2"), how, Time(story.now));
        story.wait(lost_after - 250);
        assert_ne!(story.node("n2").0, "down", "{how:?}");
        story.wait(250);
        assert_eq!(story.node("n2").0, "down", "{how:?}");
    }
}

#[test]
fn what_is_held_against_a_job_survives_a_restart_of_the_control_plane() {
    let mut story = Story::new(4);
    let job = story.submit(gang(1));
    let first = story.control.job(job).expect("it runs").nodes[0].clone();
    let mut records = Vec::new();
    for _ in 0..2 {
        story.wait(30_000);
        let node = story.control.job(job).expect("it is live").nodes[0].clone();
        let run = story.run_of(job);
        let failed = FromAgent::Unhealthy { reason: "its probe failed".into(), run: Some(run) };
        story.control.heard(story.link(&node), failed, Time(story.now));
        records.extend(story.control.clone().take_output().records);
        story.play();
    }
    let charges = records.iter().rev().find_map(|record| match record {
        Record::Job { job: of, life } if *of == job => Some(life.charges.clone()),
        _ => None,
    });
    let charges = charges.expect("failures are recorded");
    assert_eq!((charges.restarts, charges.failures.len()), (2, 2), "{charges:?}");
    assert!(charges.failures.iter().any(|charge| charge.node == first));

    let row = JobRow {
        id: job,
        array: None,
        user: "ada".into(),
        name: "gang".into(),
        account: "root".into(),
        submitted: Time(1_000),
        key: None,
        text: story.control.job_text(job).expect("it is live").into(),
        life: Life { charges, ..Life::default() },
    };
    let restored = Restored { next_job: 2, jobs: vec![row], ..Restored::default() };
    let cluster = Cluster::from_spec("p5.48xlarge:4", &Catalog::builtin()).expect("the fixture is right");
    let (mut again, unreadable) =
        Control::restore(cluster, Settings::default(), ControlRules::default(), restored, Time(story.now));
    assert_eq!(unreadable, []);
    let view = again.job(job).expect("it waits");
    assert_eq!((view.life.charges.restarts, view.life.charges.failures.len()), (2, 2));
    assert!(again.take_output().records.iter().all(|record| !matches!(record, Record::Submitted(_))));
}

#[test]
fn a_new_run_does_not_show_the_exit_code_of_the_one_before() {
    let mut story = Story::new(1);
    let mut retried = gang(1);
    retried.policy.retries = 3;
    let job = story.submit(retried);
    let failed = FromAgent::RankFailed { run: story.run_of(job), rank: 0, end: RankEnd::Exit(7) };
    story.says("n1", failed);
    story.wait(10_000);
    let view = story.control.job(job).expect("it runs again");
    assert_eq!((view.life.state, view.life.runs, view.life.exit_status), (JobState::Running, 2, None));
}

#[test]
fn run_times_that_were_learned_before_a_restart_decide_after_it() {
    let mut story = Story::new(1);
    let job = story.submit(gang(1));
    let text: Arc<str> = story.control.job_text(job).expect("it is live").into();
    let row = |id: u64, user: &str, life: Life| JobRow {
        id: JobId(id),
        array: None,
        user: user.into(),
        name: "gang".into(),
        account: "root".into(),
        submitted: Time(id),
        key: None,
        text: text.clone(),
        life,
    };
    let ran = |minutes: u64| Life {
        state: JobState::Succeeded,
        runs: 1,
        started_ms: Some(0),
        ended_ms: Some(minutes * 60_000),
        ..Life::default()
    };
    let waiting = [row(10, "bob", Life::default()), row(11, "ada", Life::default())];
    let runtime_samples = [row(1, "ada", ran(1)), row(2, "bob", ran(30))];
    for (rows, first) in [(waiting.to_vec(), 10), ([&runtime_samples[..], &waiting].concat(), 11)] {
        let quiet = Story::new(1);
        let mut again = quiet.restarted(rows.into_iter().map(Record::Submitted).collect());
        // No node has joined: both wait, and learned run times order them.
        again.wait(1_000);
        let ahead = |id: u64| again.control.explain(JobId(id), Time(2_000)).expect("it waits").ahead;
        let in_front: Vec<u64> = [10, 11].into_iter().filter(|id| ahead(*id) == Some(0)).collect();
        assert_eq!(in_front, [first]);
    }
}
