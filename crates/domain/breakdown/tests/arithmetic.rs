//! Parts add up, scale and compare.

use bedplate_breakdown::*;
use bedplate_units::Seconds;
use proptest::prelude::*;

fn seconds(value: f64) -> Seconds {
    Seconds::new(value)
}

#[test]
fn the_names_are_the_documented_ones() {
    let names = Part::ALL.map(Part::name);
    let documented = [
        "compute",
        "memory",
        "scale_up",
        "scale_out",
        "bubble",
        "optimizer",
        "storage",
        "host",
        "other",
        "queue",
    ];
    assert_eq!(names, documented);
    assert!(Part::ALL.into_iter().all(|part| Part::find(part.name()) == Some(part)));
    assert_eq!(Part::find("network"), None);
}

#[test]
fn only_exposed_time_counts_for_the_whole() {
    let step = Breakdown::<Predicted>::default()
        .with(Part::Compute, Span::exposed(seconds(3.0)))
        .with(Part::ScaleOut, Span { exposed: seconds(0.5), hidden: seconds(1.5) });
    assert_eq!(step.total(), seconds(3.5));
    assert_eq!(step[Part::ScaleOut], Span { exposed: seconds(0.5), hidden: seconds(1.5) });
    assert_eq!(step[Part::ScaleOut].busy(), seconds(2.0));
    assert_eq!(step.limit(), Some(Part::Compute));
    assert_eq!(step.share(Part::ScaleOut), 0.5 / 3.5);
    let nothing = Breakdown::<Predicted>::default();
    assert_eq!((nothing.limit(), nothing.share(Part::Host)), (None, 0.0));
}

#[test]
fn a_faster_run_lost_nothing_and_one_without_a_plan_all() {
    let plan = Breakdown::<Predicted>::default().with(Part::Compute, Span::exposed(seconds(2.0)));
    let run = Breakdown::<Measured>::default().with(Part::Compute, Span::exposed(seconds(1.0)));
    let comparison = Comparison::new(&plan, &run);
    assert_eq!(comparison.slowdown(), Some(0.5));
    assert!(comparison.ranked().iter().all(|each| each.lost() <= Seconds::ZERO));
    let no_plan = Comparison::new(&Breakdown::default(), &run);
    assert_eq!(no_plan.slowdown(), None);
    assert_eq!(no_plan.ranked()[0].part, Part::Compute);
}

fn any_breakdown<Origin: 'static>() -> impl Strategy<Value = Breakdown<Origin>> {
    proptest::collection::vec((0.0..1e6f64, 0.0..1e6f64), Part::ALL.len()).prop_map(|spans| {
        Part::ALL.into_iter().zip(spans).fold(Breakdown::default(), |sum, (part, (exposed, hidden))| {
            sum.with(part, Span { exposed: seconds(exposed), hidden: seconds(hidden) })
        })
    })
}

proptest! {
    #[test]
    fn totals_are_linear(a in any_breakdown::<Predicted>(), b in any_breakdown::<Predicted>(), k in 0.0..100.0f64) {
        let sum = (a + b) * k;
        let expected = (a.total() + b.total()) * k;
        prop_assert!((sum.total() - expected).get().abs() <= 1e-9 * expected.get().max(1.0));
    }

    #[test]
    fn losses_add_up_to_the_whole(a in any_breakdown::<Predicted>(), b in any_breakdown::<Measured>()) {
        let comparison = Comparison::new(&a, &b);
        let lost: Seconds = comparison.differences().iter().map(Difference::lost).sum();
        prop_assert!((lost - (b.total() - a.total())).get().abs() < 1e-6);
        prop_assert!(comparison.ranked().is_sorted_by(|x, y| x.lost() >= y.lost()));
    }
}
