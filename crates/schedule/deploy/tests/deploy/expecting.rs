//! What held-out measurements say about a plan, and which of near ties is taken.

use bedplate_calibrate::serving::ServingErrors;
use bedplate_deploy::{DeployAnswer, Edge, Outlook, front_outlook, outlook, search};
use bedplate_replay::requests::picoseconds;
use proptest::prelude::*;

use crate::support::{Question, question};

fn expected(question: &Question, answer: &DeployAnswer) -> Option<Outlook> {
    let best = &answer.best;
    outlook(&question.need(), &question.supply, &best.plan, &best.shown, &ServingErrors::builtin())
}

fn answered(question: &Question) -> DeployAnswer {
    search(&question.need(), question.supplies()).expect("some deployment holds")
}

#[test]
fn a_plan_has_intervals_and_a_confidence_in_each_of_its_limits() {
    let question = question("llama-3.1-8b", "p5en.48xlarge:1", (1000, 200, 5.0), (300.0, 15.0));
    let answer = answered(&question);
    let found = expected(&question, &answer).expect("h200 was measured");
    for figure in [found.ttft, found.itl, found.end_to_end, found.throughput] {
        assert!(figure.low < figure.high && figure.low > 0.0, "{figure:?}");
        assert!(figure.high / figure.low < 10.0, "an interval that says nothing: {figure:?}");
    }
    assert!(found.end_to_end.limit.is_none(), "none was asked for");
    let limits =
        [found.ttft, found.itl, found.throughput].map(|figure| figure.limit.expect("one was asked for"));
    assert_eq!(limits[0].value, 0.3);
    assert_eq!(limits[2].value, 1000.0);
    assert!(limits.iter().all(|limit| found.least_confidence() <= limit.confidence));
    assert!(found.ttft.predicted <= 0.3 && found.itl.predicted <= 0.015, "the replay held: {found:?}");
}

#[test]
fn points_of_the_front_have_intervals() {
    let question = question("llama-3.1-8b", "p5en.48xlarge:1", (1000, 200, 5.0), (300.0, 15.0));
    let answer = answered(&question);
    let errors = ServingErrors::builtin();
    for point in &answer.front {
        let found =
            front_outlook(&question.need(), &question.supply, point, &errors).expect("h200 was measured");
        assert_eq!(found.per_user.predicted, point.per_user);
        for figure in [found.per_user, found.per_gpu, found.ttft] {
            assert!(figure.low < figure.high && figure.limit.is_none(), "{figure:?}");
        }
    }
}

#[test]
fn chips_of_which_no_family_was_measured_have_no_intervals() {
    let question = question("llama-3.1-8b", "p4de.24xlarge:1", (1000, 200, 2.0), (1000.0, 40.0));
    assert!(!ServingErrors::builtin().has_measured(&question.supply.accelerator));
    assert_eq!(expected(&question, &answered(&question)), None);
}

#[test]
fn of_near_ties_the_cheapest_is_not_always_taken() {
    let mut question = question("llama-3.3-70b", "p5en.48xlarge:4", (4000, 500, 20.0), (600.0, 25.0));
    let exact = answered(&question);
    question.options.near = 0.1;
    let near = answered(&question);
    let dollars = |answer: &DeployAnswer| answer.best.dollars_per_hour.expect("it has a price");
    assert!(dollars(&near) >= dollars(&exact) && dollars(&near) <= 1.1 * dollars(&exact));
    for other in &near.others {
        let is_cheaper = other.held.dollars_per_hour < near.best.dollars_per_hour;
        assert!(!is_cheaper || other.edge != Edge::Cheaper, "{}", other.held.plan);
    }
    let told = near.tried.iter().map(|tried| tried.verdict.to_string()).collect::<Vec<_>>();
    assert!(
        near.best.plan == exact.best.plan || told.iter().any(|told| told.contains("costs about as much and")),
        "{told:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn a_longer_limit_is_never_less_certain(ttft in 100.0f64..1000.0, more in 1.0f64..1000.0) {
        let mut question = question("llama-3.1-8b", "p5en.48xlarge:1", (1000, 200, 5.0), (2000.0, 20.0));
        let answer = answered(&question);
        let mut confidence = |ms: f64| {
            question.objectives.ttft = Some(picoseconds(ms / 1e3));
            let found = expected(&question, &answer).expect("h200 was measured");
            found.ttft.limit.expect("one was asked for").confidence
        };
        prop_assert!(confidence(ttft) <= confidence(ttft + more));
    }
}
