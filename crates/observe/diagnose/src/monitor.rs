//! One job that runs, watched by what its ranks report: verdicts as they become due.
//!
//! Reports come with the time at which they came; [`Monitor::judge`] says what is wrong now. It holds a bounded number of figures for
//! each rank, so a gang of ten thousand that reports every second is watched by a fraction of one core. What it knows
//! less than [`diagnose`](crate::diagnose) does is the past: it begins with the first report.

use std::collections::BTreeMap;

use bedplate_finding::{Finding, Layer, Severity, Subject};
use bedplate_report::{Expectation, Phase, Report, StepReport};
use bedplate_units::statistics::median;

use crate::gang::{Growth, Peers, RankWork, Straggler};
use crate::pace::Pace;
use crate::slow::time;
use crate::verdict::{Cause, Culprit, JobVerdict, Observation, ProblemKind, Since, TimeLost};
use crate::weigh::weigh;

/// No step for this many usual ones is a stall, and for this many times the longest pause there was between steps.
const STEPS: f64 = 10.0;
const PAUSES: f64 = 3.0;
const LEAST_STALL_S: f64 = 3.0;
/// Loading, evaluating and saving may take this long unless they took longer before.
const LEAST_PHASE_S: f64 = 120.0;
/// Steps that must have been seen before silence means something.
const FEWEST_STEPS: u64 = 5;
/// Findings of nodes that are kept, and how much before a change they may have been made.
const MOST_FACTS: usize = 64;
const BEFORE_S: f64 = 600.0;
/// A slowdown that is smaller is no finding.
const LEAST_EXCESS: f64 = 0.045;
/// A slowdown of so much over so many steps is firm when the parts of a step account for it.
const PLAIN_EXCESS: f64 = 0.07;
const PLAIN_STEPS: u64 = 7;
/// Steps after which a run counts as slower than predicted.
const SETTLED: u64 = 40;

/// Something that a node said about itself while the job ran.
#[derive(Debug, Clone)]
struct Fact {
    node: String,
    at: f64,
    finding: Finding,
}

/// What is watched of one job.
#[derive(Debug, Clone)]
pub struct Monitor {
    expected: Option<Expectation>,
    nodes: BTreeMap<u32, String>,
    peers: Peers,
    /// The steps of the lowest rank that reports any, which stand for the job's.
    leader: Option<u32>,
    pace: Pace,
    steps: u64,
    last_step: u64,
    last_at: f64,
    /// Seconds between steps that followed on each other, the latest.
    gaps: std::collections::VecDeque<f64>,
    longest_gap: f64,
    phase: (Phase, f64),
    longest_phase: f64,
    /// A phase other than training has been since the last step.
    is_excused: bool,
    /// When values of the pace were taken: number, step and time, the latest.
    marks: std::collections::VecDeque<(u64, u64, f64)>,
    taken: u64,
    losses: Losses,
    facts: std::collections::VecDeque<Fact>,
    stragglers: Vec<Straggler>,
}

#[derive(Debug, Clone, Default)]
struct Losses {
    latest: std::collections::VecDeque<f64>,
    not_numbers: u32,
    since: Option<(u64, f64)>,
}

const MOST_GAPS: usize = 64;
const MOST_MARKS: usize = 1024;

impl Monitor {
    /// A job of which a step should take so long, if that is known.
    pub fn new(expected: Option<Expectation>) -> Self {
        Self {
            expected,
            nodes: BTreeMap::new(),
            peers: Peers::default(),
            leader: None,
            pace: Pace::new(),
            steps: 0,
            last_step: 0,
            last_at: 0.0,
            gaps: Default::default(),
            longest_gap: 0.0,
            phase: (Phase::Loading, 0.0),
            longest_phase: 0.0,
            is_excused: true,
            marks: Default::default(),
            taken: 0,
            losses: Losses::default(),
            facts: Default::default(),
            stragglers: Vec::new(),
        }
    }

    /// Says on which node a rank is, and of which pipeline stage.
    pub fn member(&mut self, rank: u32, node: &str, stage: Option<u32>) {
        if self.nodes.get(&rank).is_none_or(|known| known != node) {
            self.nodes.insert(rank, node.to_owned());
        }
        if let Some(stage) = stage {
            self.peers.of_stage(rank, stage);
        }
    }

    /// Says what a step should take, as soon as it is known.
    pub fn expect(&mut self, expected: Expectation) {
        self.expected = Some(expected);
    }

    /// A rank says something; `at` in seconds since 1970.
    pub fn report(&mut self, rank: u32, at: f64, report: &Report) {
        match report {
            Report::Step(step) => {
                self.peers.take(rank, at, step);
                if self.leader.is_none_or(|leader| rank <= leader) {
                    self.lead(rank, at, step);
                }
            }
            Report::Predicted { breakdown, source } if self.expected.is_none() => {
                self.expected = Some(Expectation::told(breakdown, source.as_deref()));
            }
            Report::Stage { stage } => self.peers.of_stage(rank, *stage),
            Report::Phase { phase } if self.leader.is_none_or(|leader| rank <= leader) => {
                self.enter(*phase, at)
            }
            _ => {}
        }
    }

    fn enter(&mut self, phase: Phase, at: f64) {
        let (before, since) = self.phase;
        if before != Phase::Training && since > 0.0 {
            self.longest_phase = self.longest_phase.max(at - since);
        }
        self.phase = (phase, at);
        self.is_excused |= phase != Phase::Training;
    }

    fn lead(&mut self, rank: u32, at: f64, step: &StepReport) {
        let begins_anew = self.leader != Some(rank) || step.step < self.last_step;
        if begins_anew {
            self.pace.restart();
            self.is_excused = true;
        }
        self.leader = Some(rank);
        if self.phase.0 != Phase::Training {
            self.enter(Phase::Training, at);
        }
        self.taken += 1;
        match self.is_excused {
            true => self.pace.pause(),
            false => {
                self.pace.take(step.seconds);
                let gap = at - self.last_at;
                if self.steps > 1 && gap > 0.0 {
                    self.longest_gap = self.longest_gap.max(gap);
                    keep(&mut self.gaps, gap / (step.step - self.last_step).max(1) as f64, MOST_GAPS);
                }
            }
        }
        keep(&mut self.marks, (self.taken, step.step, at), MOST_MARKS);
        self.losses.take(step, at);
        self.is_excused = false;
        (self.last_step, self.last_at) = (step.step, at);
        self.steps += 1;
    }

    /// A node of the job says what is wrong with it.
    pub fn finding(&mut self, node: &str, at: f64, finding: &Finding) {
        let is_known = |fact: &Fact| {
            fact.node == node && fact.finding.rule == finding.rule && fact.finding.subject == finding.subject
        };
        if finding.severity != Severity::Info && !self.facts.iter().any(is_known) {
            keep(&mut self.facts, Fact { node: node.to_owned(), at, finding: finding.clone() }, MOST_FACTS);
        }
    }

    /// What is wrong now, the most important first; to be asked every second or so.
    pub fn judge(&mut self, now: f64) -> Vec<JobVerdict> {
        self.stragglers = self.peers.stragglers();
        let mut verdicts: Vec<JobVerdict> = self.stall(now).into_iter().collect();
        verdicts.extend(self.diverging());
        verdicts.extend(self.slowdown());
        if !verdicts.iter().any(|verdict| verdict.kind == ProblemKind::SlowSince) {
            verdicts.extend(self.straggling());
        }
        verdicts.extend(self.against_prediction());
        verdicts
    }

    fn stall(&self, now: f64) -> Option<JobVerdict> {
        if self.steps < FEWEST_STEPS || self.phase.0 == Phase::Done {
            return None;
        }
        let usual = median(&Vec::from_iter(self.gaps.iter().copied()));
        let allowed = match self.phase.0 {
            Phase::Training => (STEPS * usual).max(PAUSES * self.longest_gap).max(LEAST_STALL_S),
            _ => (PAUSES * self.longest_phase).max(LEAST_PHASE_S),
        };
        let silent = now - self.last_at.max(self.phase.1);
        if silent <= allowed {
            return None;
        }
        let furthest = self.peers.last_steps().map(|(_, step)| step).max()?;
        let behind: Vec<u32> =
            self.peers.last_steps().filter(|(_, step)| *step < furthest).map(|(rank, _)| rank).collect();
        let evidence = vec![plain(
            format!(
                "no step for {}, and the longest pause between steps was {}",
                time(silent),
                time(self.longest_gap)
            ),
            "reports",
        )];
        let mut verdict = self.concluded(ProblemKind::Stall, evidence, self.last_at);
        verdict.since = Since { step: Some(self.last_step), unix_seconds: Some(self.last_at), place: None };
        if behind.len() * 4 <= self.peers.count().max(4) && verdict.culprits.is_empty() {
            for rank in &behind {
                verdict.evidence.push(plain(
                    format!("rank {rank} has not ended step {furthest}, others have"),
                    "reports",
                ));
            }
            verdict.culprits = behind.into_iter().map(Culprit::Rank).collect();
            verdict.culprit_confidence = 0.7;
        }
        let lost = silent;
        verdict.cost = Some(self.cost(lost, 1.0));
        verdict.next = vec![
            "see which rank has not entered which collective: its flight record, or NCCL's RAS on port 28028"
                .to_owned(),
            "look at the stacks of all ranks, for example with py-spy dump".to_owned(),
        ];
        Some(verdict)
    }

    fn slowdown(&self) -> Option<JobVerdict> {
        let slow = self.pace.slowdowns().into_iter().rfind(|slow| slow.ended.is_none())?;
        let explained = !self.stragglers.is_empty();
        if slow.excess() < LEAST_EXCESS {
            return None;
        }
        let onset = self.marks.iter().find(|(taken, _, _)| *taken >= slow.onset);
        let (step, at) = onset.map_or((self.last_step, self.last_at), |(_, step, at)| (*step, *at));
        let mut evidence = vec![plain(
            format!("median step of {} before and {} since", time(slow.before), time(slow.since)),
            "reports",
        )];
        match explained {
            true => evidence.extend(self.stragglers.iter().flat_map(straggling)),
            false => evidence.extend(
                self.peers.growth().iter().flat_map(|growth| grown(growth, slow.since - slow.before)),
            ),
        }
        let mut verdict = self.concluded(ProblemKind::SlowSince, evidence, at);
        verdict.since = Since { step: Some(step), unix_seconds: Some(at), place: None };
        let lost = (slow.since - slow.before) * self.last_step.saturating_sub(step) as f64;
        verdict.cost = Some(self.cost(lost, slow.since / slow.before));
        // A culprit, or parts that grew as much as the step did, make it firm soon; else it must last.
        let is_plain =
            verdict.cause != Cause::Unknown && slow.excess() >= PLAIN_EXCESS && slow.lasted >= PLAIN_STEPS;
        verdict.is_firm = slow.is_firm || explained || is_plain;
        verdict.next = self.next_of_slow(&verdict);
        Some(verdict)
    }

    /// Ranks that hold up the others, and did so from the start or too little for the pace to tell.
    fn straggling(&self) -> Option<JobVerdict> {
        let first = self.stragglers.iter().min_by_key(|straggler| straggler.from.0)?;
        let evidence: Vec<Observation> = self.stragglers.iter().flat_map(straggling).collect();
        let (step, at) = first.from;
        let mut verdict = self.concluded(ProblemKind::SlowSince, evidence, at);
        verdict.since = Since { step: Some(step), unix_seconds: Some(at), place: None };
        let longest =
            self.stragglers.iter().map(|straggler| straggler.own - straggler.peers).fold(0.0, f64::max);
        let lost = longest * self.last_step.saturating_sub(step) as f64;
        verdict.cost = Some(self.cost(lost, 1.0 + longest / (first.step_seconds - longest).max(1e-9)));
        verdict.next = self.next_of_slow(&verdict);
        Some(verdict)
    }

    fn against_prediction(&self) -> Option<JobVerdict> {
        let expected = self.expected.as_ref()?;
        let usual = self.pace.usual().filter(|usual| *usual > expected.high)?;
        if self.taken < SETTLED {
            return None;
        }
        let evidence = vec![plain(
            format!(
                "median step of {}, and {} to {} were predicted by {}",
                time(usual),
                time(expected.low),
                time(expected.high),
                expected.source
            ),
            "reports",
        )];
        let mut verdict = self.concluded(ProblemKind::SlowerThanPredicted, evidence, 0.0);
        verdict.cost =
            Some(self.cost((usual - expected.seconds) * self.steps as f64, usual / expected.seconds));
        verdict.next = vec!["compare the parts of a step with the plan: `bedplate job show`".to_owned()];
        Some(verdict)
    }

    fn diverging(&self) -> Option<JobVerdict> {
        let (step, at) = self.losses.since?;
        let what = match self.losses.not_numbers {
            0 => "the loss is far above what it was".to_owned(),
            count => format!("the loss is no number since step {step} ({count} steps)"),
        };
        let mut evidence = plain(what, "reports");
        (evidence.speaks_for, evidence.weight) = (Some(Cause::Application), 1.5);
        let mut verdict = self.concluded(ProblemKind::Diverging, vec![evidence], at);
        verdict.since = Since { step: Some(step), unix_seconds: Some(at), place: None };
        verdict.next = vec![
            "start again from the checkpoint before that step, with a lower learning rate or without the batches there".to_owned(),
            "test the GPUs if it happens at other steps each time: `bedplate selftest`".to_owned(),
        ];
        Some(verdict)
    }

    /// A verdict by its evidence and by what the nodes said around that time.
    fn concluded(&self, kind: ProblemKind, mut evidence: Vec<Observation>, at: f64) -> JobVerdict {
        let slow: Vec<&str> = self
            .stragglers
            .iter()
            .filter_map(|straggler| self.nodes.get(&straggler.rank).map(String::as_str))
            .collect();
        let mut accused = Vec::new();
        for fact in self.facts.iter().filter(|fact| at == 0.0 || fact.at >= at - BEFORE_S) {
            let Some(cause) = cause_of(fact.finding.layer) else { continue };
            // A node that holds nobody up accounts for little of a slowdown that has a culprit.
            let is_there = slow.is_empty() || slow.contains(&fact.node.as_str());
            let of_severity = if fact.finding.severity == Severity::Critical { 3.0 } else { 2.0 };
            let weight = of_severity * fact.finding.confidence * if is_there { 1.0 } else { 0.2 };
            if is_there {
                accused.push(match &fact.finding.subject {
                    Subject::Gpu { .. } => Culprit::Gpu(format!("{} of {}", fact.finding.subject, fact.node)),
                    _ => Culprit::Node(fact.node.clone()),
                });
            }
            evidence.push(Observation {
                what: format!("{}: {}", fact.node, fact.finding.summary),
                source: fact.finding.rule.clone(),
                speaks_for: Some(cause),
                weight,
            });
        }
        let weighed = weigh(&evidence);
        let mut verdict = JobVerdict::new(kind, weighed.cause, weighed.confidence);
        verdict.alternatives = weighed.alternatives;
        verdict.evidence = evidence;
        let ranks = self.stragglers.iter().map(|straggler| Culprit::Rank(straggler.rank));
        verdict.culprits = ranks.chain(accused).collect();
        verdict.culprits.dedup();
        verdict.culprit_confidence = if verdict.culprits.is_empty() { 0.0 } else { 0.85 };
        if let [straggler] = &self.stragglers[..]
            && let Some(node) = self.nodes.get(&straggler.rank)
            && !verdict.culprits.contains(&Culprit::Node(node.clone()))
        {
            verdict.culprits.push(Culprit::Node(node.clone()));
        }
        verdict
    }

    fn next_of_slow(&self, verdict: &JobVerdict) -> Vec<String> {
        let node = self.stragglers.first().and_then(|straggler| self.nodes.get(&straggler.rank));
        let mut next = Vec::new();
        if let Some(node) = node {
            next.push(format!(
                "look at {node}: clocks, throttling, other processes (`bedplate node show {node}`)"
            ));
            next.push(format!("if it stays so, drain it: `bedplate node drain {node}`; the job goes on elsewhere from its checkpoint"));
        }
        match verdict.cause {
            Cause::Storage => next.push(
                "look at the mounts of data and checkpoints, and at the number of loader workers".to_owned(),
            ),
            Cause::Network => {
                next.push("test the links between the job's nodes: `bedplate bench comm`".to_owned())
            }
            _ if node.is_none() => {
                next.push("see what changed then: settings, data, other runs (`bedplate compare`)".to_owned())
            }
            _ => {}
        }
        next
    }

    fn cost(&self, seconds: f64, factor: f64) -> TimeLost {
        let ranks = self.nodes.len().max(self.peers.count());
        TimeLost { seconds, rank_hours: Some(seconds * ranks as f64 / 3600.0), factor }
    }
}

impl Losses {
    /// A loss that is no number for this many steps, or so many spreads above the latest for them, is no accident.
    const STEPS: u32 = 3;
    const SPREADS: f64 = 12.0;
    const KEPT: usize = 64;

    fn take(&mut self, step: &StepReport, at: f64) {
        let Some(loss) = step.loss else { return };
        if !loss.is_finite() {
            self.not_numbers += 1;
            if self.not_numbers == 1 {
                self.since = None;
            }
            if self.not_numbers >= Self::STEPS && self.since.is_none() {
                self.since = Some((step.step + 1 - u64::from(self.not_numbers), at));
            }
            return;
        }
        self.not_numbers = 0;
        self.since = None;
        keep(&mut self.latest, loss, Self::KEPT);
        let all: Vec<f64> = self.latest.iter().copied().collect();
        if all.len() < Self::KEPT / 2 {
            return;
        }
        let (before, now) = all.split_at(all.len() - 8);
        let middle = median(before);
        let spread =
            median(&Vec::from_iter(before.iter().map(|loss| (loss - middle).abs()))).max(0.01 * middle.abs());
        if median(now) > middle + Self::SPREADS * spread && median(now) > 1.5 * middle {
            self.since = Some((step.step.saturating_sub(8), at));
        }
    }
}

fn keep<T>(values: &mut std::collections::VecDeque<T>, value: T, most: usize) {
    if values.len() == most {
        values.pop_front();
    }
    values.push_back(value);
}

fn plain(what: String, source: &str) -> Observation {
    Observation { what, source: source.to_owned(), speaks_for: None, weight: 0.0 }
}

fn cause_of(layer: Layer) -> Option<Cause> {
    match layer {
        Layer::Hardware => Some(Cause::Hardware),
        Layer::Network => Some(Cause::Network),
        Layer::Storage => Some(Cause::Storage),
        Layer::Software | Layer::Application => Some(Cause::Application),
    }
}

/// One rank alone takes longer: by what it does then, its node or its part of the work.
fn straggling(straggler: &Straggler) -> Vec<Observation> {
    let what = format!(
        "rank {} works {} of a step and its peers {}; the difference is {}",
        straggler.rank,
        time(straggler.own),
        time(straggler.peers),
        straggler.work.words()
    );
    let weights: &[(Cause, f64)] = match straggler.work {
        RankWork::Compute => &[(Cause::Hardware, 1.4), (Cause::Application, 0.3)],
        RankWork::Storage => &[(Cause::Storage, 1.6), (Cause::Application, 0.3)],
        RankWork::Host => &[(Cause::Hardware, 0.6), (Cause::Application, 0.6)],
        RankWork::Other => &[(Cause::Hardware, 0.5), (Cause::Application, 0.5)],
    };
    weighted(&what, weights)
}

/// All ranks take longer: by what grew on them.
fn grown(growth: &Growth, longer: f64) -> Vec<Observation> {
    const LEAST_SHARE: f64 = 0.4;
    let mut found = Vec::new();
    for work in RankWork::ALL {
        let by = growth.work[work as usize];
        if by < LEAST_SHARE * longer {
            continue;
        }
        let weights: &[(Cause, f64)] = match work {
            RankWork::Compute => &[(Cause::Application, 1.5), (Cause::Hardware, 0.2)],
            RankWork::Storage => &[(Cause::Storage, 1.8), (Cause::Application, 0.3)],
            RankWork::Host => &[(Cause::Application, 1.2)],
            RankWork::Other => &[(Cause::Application, 0.5)],
        };
        found.extend(weighted(
            &format!("{} grew by {} a step on the median rank", work.words(), time(by)),
            weights,
        ));
    }
    if growth.unevenness >= LEAST_SHARE * longer && found.is_empty() {
        let what = format!(
            "in each step another rank works longer, by {} more than before, and the others wait for it",
            time(growth.unevenness)
        );
        found.extend(weighted(&what, &[(Cause::Application, 1.5), (Cause::Storage, 0.3)]));
    }
    if growth.waits >= LEAST_SHARE * longer && found.is_empty() {
        let what = format!("communication grew by {} a step, and no rank's own work did", time(growth.waits));
        found.extend(weighted(&what, &[(Cause::Network, 1.6), (Cause::Hardware, 0.2)]));
    }
    found
}

fn weighted(what: &str, weights: &[(Cause, f64)]) -> Vec<Observation> {
    let of = |(cause, weight): &(Cause, f64)| Observation {
        what: what.to_owned(),
        source: "reports of the ranks".to_owned(),
        speaks_for: Some(*cause),
        weight: *weight,
    };
    weights.iter().map(of).collect()
}
