//! Gangs that report their steps, watched as the control plane does.

use bedplate_breakdown::{Breakdown, Measured, Part, Span};
use bedplate_diagnose::{Cause, Culprit, JobVerdict, Monitor, ProblemKind};
use bedplate_finding::{Action, Finding, Layer, Severity, Subject};
use bedplate_random::Random;
use bedplate_report::{Phase, Report, StepReport};
use bedplate_units::Seconds;

const RANKS: u32 = 8;

/// Own work of a rank in one step.
#[derive(Clone, Copy)]
struct RankWork {
    compute: f64,
    storage: f64,
    network: f64,
}

/// Steps of all ranks; `change` alters the work of a rank in a step. Ends with the verdicts and the time.
fn run(
    monitor: &mut Monitor,
    steps: u64,
    change: impl Fn(u64, u32, &mut RankWork),
) -> (Vec<JobVerdict>, f64) {
    let mut random = Random::new(7);
    let mut now = 1.8e9;
    for rank in 0..RANKS {
        monitor.member(rank, &format!("n{}", rank / 4), None);
    }
    for step in 1..=steps {
        let mut works = Vec::new();
        for rank in 0..RANKS {
            let mut noisy = |seconds: f64| seconds * (1.0 + 0.01 * random.normal());
            let mut work = RankWork { compute: noisy(0.4), storage: noisy(0.02), network: noisy(0.05) };
            change(step, rank, &mut work);
            works.push(work);
        }
        let own = |work: &RankWork| work.compute + work.storage;
        let slowest = works.iter().map(own).fold(0.0, f64::max);
        let seconds = slowest + works.iter().map(|work| work.network).fold(0.0, f64::max);
        now += seconds;
        for (rank, work) in works.iter().enumerate() {
            let span = |seconds: f64| Span::exposed(Seconds::new(seconds));
            let breakdown = Breakdown::<Measured>::default()
                .with(Part::Compute, span(work.compute))
                .with(Part::Storage, span(work.storage))
                .with(Part::ScaleOut, span(seconds - own(work)));
            let report =
                StepReport { step, seconds, tokens: None, loss: Some(2.0), breakdown: Some(breakdown) };
            monitor.report(rank as u32, now, &Report::Step(Box::new(report)));
        }
    }
    (monitor.judge(now), now)
}

fn main_verdict(verdicts: &[JobVerdict]) -> (ProblemKind, Cause, bool) {
    let verdict = verdicts.first().expect("something is wrong");
    (verdict.kind, verdict.cause, verdict.is_firm)
}

#[test]
fn a_healthy_gang_has_no_verdict_and_pauses_are_no_stalls() {
    let mut monitor = Monitor::new(None);
    let (verdicts, now) = run(&mut monitor, 200, |_, _, _| {});
    assert_eq!(verdicts, []);
    monitor.report(0, now, &Report::Phase { phase: Phase::Saving });
    assert_eq!(monitor.judge(now + 60.0), []);
    monitor.report(0, now + 60.0, &Report::Phase { phase: Phase::Done });
    assert_eq!(monitor.judge(now + 600.0), []);
}

#[test]
fn the_rank_that_holds_up_the_others_is_named_with_its_node() {
    let mut monitor = Monitor::new(None);
    let (verdicts, _) = run(&mut monitor, 120, |step, rank, work| {
        if rank == 5 && step > 90 {
            work.compute *= 1.3;
        }
    });
    assert_eq!(main_verdict(&verdicts), (ProblemKind::SlowSince, Cause::Hardware, true));
    assert_eq!(verdicts[0].culprits, [Culprit::Rank(5), Culprit::Node("n1".into())]);
    let since = verdicts[0].since.step.expect("it has a beginning");
    assert!((89..=93).contains(&since), "{since}");
}

#[test]
fn what_grew_on_all_ranks_tells_the_cause() {
    let slow_storage = run(&mut Monitor::new(None), 160, |step, _, work| {
        if step > 90 {
            work.storage += 0.1;
        }
    });
    assert_eq!(main_verdict(&slow_storage.0), (ProblemKind::SlowSince, Cause::Storage, true));
    let slow_network = run(&mut Monitor::new(None), 160, |step, _, work| {
        if step > 90 {
            work.network += 0.1;
        }
    });
    assert_eq!(main_verdict(&slow_network.0), (ProblemKind::SlowSince, Cause::Network, true));
    // Another rank each step: nobody is to blame, and the network neither.
    let uneven = run(&mut Monitor::new(None), 160, |step, rank, work| {
        if step > 90 && u64::from(rank) == step * 7919 % 8 {
            work.compute += 0.12;
        }
    });
    assert_eq!(main_verdict(&uneven.0), (ProblemKind::SlowSince, Cause::Application, true));
    assert_eq!(uneven.0[0].culprits, []);
}

#[test]
fn silence_is_a_stall_within_seconds_and_a_loss_that_is_no_number_is_found() {
    let mut monitor = Monitor::new(None);
    let (_, now) = run(&mut monitor, 60, |_, _, _| {});
    assert_eq!(monitor.judge(now + 2.0), []);
    assert_eq!(main_verdict(&monitor.judge(now + 6.0)), (ProblemKind::Stall, Cause::Unknown, true));
    let lost = |step| {
        Report::Step(Box::new(StepReport {
            step,
            seconds: 0.5,
            tokens: None,
            loss: Some(f64::NAN),
            breakdown: None,
        }))
    };
    for step in 61..64 {
        monitor.report(0, now + 0.5 * (step - 60) as f64, &lost(step));
    }
    assert_eq!(main_verdict(&monitor.judge(now + 1.6)), (ProblemKind::Diverging, Cause::Application, true));
}

#[test]
fn what_a_node_says_of_itself_counts_where_it_holds_up_others() {
    let mut monitor = Monitor::new(None);
    let subject = Subject::Node { node: "n0".into() };
    let finding = Finding::new("net/errors", Severity::Warning, Layer::Network, subject, Action::Watch)
        .because("symbol errors on mlx5_3");
    monitor.finding("n0", 1.8e9 + 40.0, &finding);
    let (verdicts, _) = run(&mut monitor, 160, |step, _, work| {
        if step > 90 {
            work.network += 0.1;
        }
    });
    assert_eq!(main_verdict(&verdicts), (ProblemKind::SlowSince, Cause::Network, true));
    assert!(verdicts[0].culprits.contains(&Culprit::Node("n0".into())));
    assert!(verdicts[0].evidence.iter().any(|evidence| evidence.what.contains("mlx5_3")));
}

#[test]
fn the_prediction_is_what_a_run_is_measured_by() {
    let mut monitor = Monitor::new(None);
    let predicted = Breakdown::default().with(Part::Compute, Span::exposed(Seconds::new(0.2)));
    monitor.report(0, 1.8e9, &Report::Predicted { breakdown: Box::new(predicted), source: None });
    let (verdicts, _) = run(&mut monitor, 100, |_, _, _| {});
    assert_eq!(main_verdict(&verdicts).0, ProblemKind::SlowerThanPredicted);
}
