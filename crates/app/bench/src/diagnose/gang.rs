//! Simulated gangs, watched as the daemon watches real ones: what was found, when, and whether it is so.

use std::collections::BTreeMap;
use std::ops::Range;

use bedplate_breakdown::{Breakdown, Measured, Part, Span};
use bedplate_diagnose::{Cause, Culprit, JobVerdict, Monitor};
use bedplate_finding::{Action, Finding, Layer, Severity, Subject};
use bedplate_logs::Recognizer;
use bedplate_report::{Phase, Report, StepReport};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_units::Seconds;
use bedplate_units::statistics::quantile;
use serde_json::{Value, json};

use super::cost;
use super::faults::{Fault, Parts, World};
use super::score::{Answer, Confusion};

/// How often the daemon judges.
const JUDGE_EVERY_S: f64 = 1.0;
/// After the last step of a gang that stands, its silence goes on for so long.
const SILENCE_S: f64 = 240.0;
/// In time is within so many seconds, and within so many steps of a gang whose steps take longer.
const IN_TIME_S: f64 = 15.0;
const IN_TIME_STEPS: f64 = 15.0;
const STALL_IN_TIME_S: f64 = 5.0;
const STALL_IN_TIME_STEPS: f64 = 12.0;

/// What became of one gang.
struct Outcome {
    fault: Fault,
    truth: Answer,
    answer: Answer,
    /// Whether the rank that was named is the one, where one was to be named.
    is_culprit_right: Option<bool>,
    delay_s: Option<f64>,
    is_in_time: bool,
    healthy_s: f64,
    false_alarms: usize,
    summary: String,
}

pub(super) fn run(seeds: Range<u64>, recognizer: &Recognizer, console: &mut Console) -> Result<(), CliError> {
    let outcomes: Vec<Outcome> = seeds.clone().map(watch).collect();
    let mut confusion = Confusion::default();
    for outcome in &outcomes {
        confusion.add(outcome.truth, outcome.answer);
    }
    let cost = cost::measure(recognizer);
    let healthy_hours = outcomes.iter().map(|outcome| outcome.healthy_s).sum::<f64>() / 3600.0;
    let false_alarms: usize = outcomes.iter().map(|outcome| outcome.false_alarms).sum();
    let with_culprit: Vec<bool> = outcomes.iter().filter_map(|outcome| outcome.is_culprit_right).collect();
    let culprits = share(with_culprit.iter().filter(|right| **right).count(), with_culprit.len());
    let faulty = outcomes.iter().filter(|outcome| outcome.fault != Fault::Healthy);
    let in_time = share(faulty.clone().filter(|outcome| outcome.is_in_time).count(), faulty.count());
    if console.is_json() {
        return console.json(&json!({
            "seeds": [seeds.start, seeds.end], "confusion": confusion.json(),
            "culprits_right": culprits, "in_time": in_time,
            "healthy_hours": healthy_hours, "false_alarms": false_alarms,
            "wrong": outcomes.iter().zip(seeds).filter(|(outcome, _)| outcome.truth != outcome.answer).map(|(outcome, seed)| wrong(outcome, seed)).collect::<Vec<Value>>(),
            "cost": cost.json(),
        }));
    }
    console.table(&by_fault(&outcomes))?;
    console.line("")?;
    console.table(&confusion.table())?;
    console.line(&format!(
        "\ncause: precision {:.3}, F1 {:.3} (Minder reports 0.904 and 0.893 for the machine, without a cause)\n\
         culprit rank right in {:.1} % of {} (Holmes reports 97.2 %)\n\
         in time (15 s or 15 steps; stalls 5 s or 12 steps) in {:.1} % (Mycroft reports 90 % within 15 s)\n\
         {false_alarms} false alarms in {healthy_hours:.1} healthy hours",
        confusion.precision(),
        confusion.f1(),
        100.0 * culprits,
        with_culprit.len(),
        100.0 * in_time,
    ))?;
    console.line(&cost.text())
}

fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn wrong(outcome: &Outcome, seed: u64) -> Value {
    json!({ "seed": seed, "fault": outcome.fault.name(), "answer": super::score::name(outcome.answer), "summary": outcome.summary })
}

/// Runs one gang from its first step to its last, judged every second.
fn watch(seed: u64) -> Outcome {
    let mut world = World::of_seed(seed);
    let fault = world.fault;
    let mut monitor = Monitor::new(None);
    let (mut now, mut judged) = (1.8e9, 1.8e9);
    let mut outcome = Outcome {
        fault,
        truth: fault.truth().map(|(_, cause)| cause),
        answer: None,
        is_culprit_right: None,
        delay_s: None,
        is_in_time: false,
        healthy_s: 0.0,
        false_alarms: 0,
        summary: String::new(),
    };
    let began = now;
    let mut onset = f64::INFINITY;
    let mut step_s = 0.0;
    let mut latest: Option<JobVerdict> = None;
    for rank in 0..world.ranks {
        monitor.member(rank, &world.node(rank), None);
    }
    for step in 1..=world.steps {
        if fault == Fault::Frozen && step == world.onset {
            onset = now;
            break;
        }
        if step == world.onset && fault != Fault::Healthy {
            onset = now;
            if let Some(finding) = finding(&world) {
                monitor.finding(&world.culprits_node(), now + 3.0, &finding);
            }
        }
        now += pause(step, &world, &mut monitor, now);
        let parts = world.step(step);
        step_s = report(step, &parts, fault == Fault::NotANumber && step >= world.onset, now, &mut monitor);
        now += step_s;
        while judged + JUDGE_EVERY_S <= now {
            judged += JUDGE_EVERY_S;
            take(&mut outcome, &mut latest, monitor.judge(now), now - onset);
        }
    }
    if fault == Fault::Frozen {
        for second in 1..=SILENCE_S as u32 {
            take(&mut outcome, &mut latest, monitor.judge(now + f64::from(second)), f64::from(second));
        }
    }
    outcome.healthy_s = onset.min(now) - began;
    if let Some(verdict) = latest {
        outcome.answer = Some(verdict.cause);
        outcome.summary = verdict.to_string();
        let named: Vec<u32> = verdict
            .culprits
            .iter()
            .filter_map(|culprit| match culprit {
                Culprit::Rank(rank) => Some(*rank),
                _ => None,
            })
            .collect();
        outcome.is_culprit_right = world.culprit().map(|culprit| named == [culprit]);
    } else {
        outcome.is_culprit_right = world.culprit().map(|_| false);
    }
    let (seconds, steps) = match fault {
        Fault::Frozen => (STALL_IN_TIME_S, STALL_IN_TIME_STEPS),
        _ => (IN_TIME_S, IN_TIME_STEPS),
    };
    outcome.is_in_time = outcome.delay_s.is_some_and(|delay| delay <= seconds.max(steps * step_s));
    outcome
}

/// The first verdict after the onset stops the clock; what is said last counts as the answer. Before the onset all are false.
fn take(outcome: &mut Outcome, latest: &mut Option<JobVerdict>, verdicts: Vec<JobVerdict>, since: f64) {
    let Some(verdict) = verdicts.into_iter().find(|verdict| verdict.is_firm) else { return };
    if since < 0.0 {
        // The same alarm that goes on is one.
        if outcome.summary.is_empty() {
            outcome.false_alarms += 1;
            outcome.summary = verdict.to_string();
        }
        if outcome.fault == Fault::Healthy {
            *latest = Some(verdict);
        }
        return;
    }
    outcome.delay_s.get_or_insert(since);
    *latest = Some(verdict);
}

/// Evaluations and checkpoints, which every job has.
fn pause(step: u64, world: &World, monitor: &mut Monitor, now: f64) -> f64 {
    let (phase, seconds) = match () {
        () if step.is_multiple_of(world.evaluates_every) => (Phase::Evaluating, 20.0),
        () if step.is_multiple_of(world.saves_every) => (Phase::Saving, 8.0),
        () => return 0.0,
    };
    monitor.report(0, now, &Report::Phase { phase });
    monitor.report(0, now + seconds, &Report::Phase { phase: Phase::Training });
    seconds
}

/// All ranks report a step, which ends for all of them together; says how long it took.
fn report(step: u64, parts: &[Parts], is_lost: bool, now: f64, monitor: &mut Monitor) -> f64 {
    let own = |parts: &Parts| parts.compute + parts.memory + parts.storage + parts.host;
    let slowest = parts.iter().map(own).fold(0.0, f64::max);
    let network = parts.iter().map(|parts| parts.network).fold(0.0, f64::max);
    let seconds = slowest + network;
    for (rank, parts) in parts.iter().enumerate() {
        let span = |seconds: f64| Span::exposed(Seconds::new(seconds));
        let breakdown = Breakdown::<Measured>::default()
            .with(Part::Compute, span(parts.compute))
            .with(Part::Memory, span(parts.memory))
            .with(Part::Storage, span(parts.storage))
            .with(Part::Host, span(parts.host))
            .with(Part::ScaleOut, span(seconds - own(parts)));
        let loss = Some(if is_lost { f64::NAN } else { 3.0 });
        let report = StepReport { step, seconds, tokens: None, loss, breakdown: Some(breakdown) };
        monitor.report(rank as u32, now + seconds, &Report::Step(Box::new(report)));
    }
    seconds
}

/// What the culprit's node says, in some of the worlds.
fn finding(world: &World) -> Option<Finding> {
    let subject = Subject::Node { node: world.culprits_node() };
    match world.fault {
        Fault::ThrottledGpu => Some(
            Finding::new("gpu/throttled", Severity::Warning, Layer::Hardware, subject, Action::Watch)
                .because("GPU 2 is at 1,200 of 1,980 MHz: thermal slowdown"),
        ),
        Fault::FaultyLink => Some(
            Finding::new("net/errors", Severity::Warning, Layer::Network, subject, Action::Watch)
                .because("symbol errors on mlx5_3"),
        ),
        _ => None,
    }
}

fn by_fault(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new(vec![
        Column::left("FAULT", 0),
        Column::right("GANGS", 0),
        Column::right("CAUSE RIGHT", 0),
        Column::right("UNKNOWN", 0),
        Column::right("WRONG", 0),
        Column::right("CULPRIT RIGHT", 0),
        Column::right("IN TIME", 0),
        Column::right("MEDIAN DELAY", 0),
    ]);
    let mut groups: BTreeMap<Fault, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        groups.entry(outcome.fault).or_default().push(outcome);
    }
    for (fault, of_fault) in groups {
        let count = |admits: &dyn Fn(&&&Outcome) -> bool| of_fault.iter().filter(|each| admits(each)).count();
        let right = count(&|each| each.truth == each.answer);
        let unknown = count(&|each| {
            each.truth != each.answer && each.answer.is_none_or(|cause| cause == Cause::Unknown)
        });
        let percent = |part: usize| format!("{:.0} %", 100.0 * share(part, of_fault.len()));
        let delays: Vec<f64> = of_fault.iter().filter_map(|each| each.delay_s).collect();
        let has_fault = fault != Fault::Healthy;
        table.row(vec![
            fault.name().to_owned(),
            of_fault.len().to_string(),
            percent(right),
            unknown.to_string(),
            (of_fault.len() - right - unknown).to_string(),
            if fault.has_culprit() {
                percent(count(&|each| each.is_culprit_right == Some(true)))
            } else {
                String::new()
            },
            if has_fault { percent(count(&|each| each.is_in_time)) } else { String::new() },
            if has_fault && !delays.is_empty() {
                Seconds::new(quantile(&delays, 0.5)).to_string()
            } else {
                String::new()
            },
        ]);
    }
    table
}
