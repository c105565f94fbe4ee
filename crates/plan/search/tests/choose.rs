//! Scaling curves and the choice of machines.

mod support;

use bedplate_catalog::{Catalog, Purchase};
use bedplate_diag::Diagnostic;
use bedplate_goodput::{Assumptions, CheckpointStore, Published, Recovery, RecoveryKind, RunLimits};
use bedplate_layout::ComputePrecision;
use bedplate_search::{
    Axes, BatchSize, GpuScaling, Machine, Objection, QuestionChange, Reliability, SearchError, TrainingNeed,
    Uncalibrated, choose, scaling,
};
use bedplate_units::{Bytes, Dollars, Seconds, Tokens};
use support::{Bench, bench};

#[test]
fn strong_scaling_loses_efficiency_and_weak_scaling_less() {
    let bench = bench("llama-3-8b", "p5.48xlarge:2", 8192, 128);
    let setup = bench.setup();
    let gpus = [16, 32, 64, 128, 128, 37];
    let axes = Axes::coarse(8);
    let strong = scaling(&setup, &axes, &gpus, GpuScaling::Strong);
    let weak = scaling(&setup, &axes, &gpus, GpuScaling::Weak);
    assert_eq!(strong.iter().map(|point| point.gpus).collect::<Vec<_>>(), [16, 32, 37, 64, 128]);
    assert!(strong[2].outcome.is_err());
    let efficiency = |points: &[bedplate_search::ScalingPoint]| -> Vec<f64> {
        points.iter().filter_map(|point| point.outcome.as_ref().ok()).map(|step| step.efficiency).collect()
    };
    let (strong_efficiency, weak_efficiency) = (efficiency(&strong), efficiency(&weak));
    assert_eq!(strong_efficiency[0], 1.0);
    assert!(strong_efficiency.is_sorted_by(|a, b| *b <= a * 1.02), "{strong_efficiency:?}");
    assert!(weak_efficiency.last().unwrap() >= strong_efficiency.last().unwrap());
    assert_eq!(weak.last().unwrap().global_batch, 1024);
}

fn need<'a>(bench: &'a Bench, limits: RunLimits) -> TrainingNeed<'a> {
    TrainingNeed {
        model: &bench.model,
        tokens: Tokens::new(100e9),
        workload: bench.workload,
        batch: BatchSize::Sequences(bench.workload.global_batch),
        constants: &bench.constants,
        limits,
        purchase: Some(Purchase::OnDemand),
        region: None,
        precision: ComputePrecision::Bf16,
        max_gpus: 256,
        reliability: None,
        uncalibrated: Uncalibrated::List,
    }
}

#[test]
fn the_cheapest_machine_in_time_is_chosen_and_every_other_has_its_reason() {
    let bench = bench("llama-3-8b", "p5.48xlarge:1", 8192, 512);
    let catalog = Catalog::builtin();
    let limits = RunLimits { deadline: Some(Seconds::days(7.0)), budget: None };
    let choice = choose(&need(&bench, limits), &catalog).unwrap();
    assert!(choice.best.time <= Seconds::days(7.0));
    let cost = choice.best.cost.unwrap();
    let machines = Machine::of_catalog(&catalog);
    assert_eq!(choice.others.len() + 1, machines.len());
    for (name, objection) in &choice.others {
        match objection {
            Objection::Beaten { offer } => assert!(offer.cost.unwrap() >= cost, "{name}"),
            Objection::TooSlow { by, .. } => assert!(by.get() > 0.0, "{name}"),
            Objection::Uncalibrated { offer } => assert!(offer.time <= Seconds::days(7.0), "{name}"),
            Objection::UnknownPrice { offer } => assert_eq!(offer.cost, None, "{name}"),
            Objection::OverBudget { .. } => panic!("{name}: there is no budget"),
            Objection::MissingFigure { .. } | Objection::FitsNowhere { .. } => {}
        }
    }
    let unpriced = choice.others.iter().find(|(name, _)| name == "dgx-h100").unwrap();
    assert!(matches!(unpriced.1, Objection::UnknownPrice { .. }), "{unpriced:?}");
    assert!(choice.front.iter().any(|offer| offer.cost == Some(cost)) || !choice.front.is_empty());
}

#[test]
fn a_budget_alone_buys_the_fastest_and_a_tight_one_names_the_cheapest() {
    let bench = bench("llama-3-8b", "p5.48xlarge:1", 8192, 512);
    let catalog = Catalog::builtin();
    let rich = RunLimits { deadline: None, budget: Some(Dollars::new(60_000.0)) };
    let fast = choose(&need(&bench, rich), &catalog).unwrap();
    assert!(fast.best.cost.unwrap() <= Dollars::new(60_000.0));
    let cheap = choose(&need(&bench, RunLimits::default()), &catalog).unwrap();
    assert!(cheap.best.cost <= fast.best.cost && cheap.best.time >= fast.best.time);
    let poor = RunLimits { deadline: None, budget: Some(Dollars::new(10.0)) };
    let error = choose(&need(&bench, poor), &catalog).unwrap_err();
    assert_eq!(error.page().code, "plan/no-machine");
    let help = error.help().unwrap();
    assert!(help.contains("--budget '$") && help.contains("--tokens "), "{help}");
    let SearchError::NoMachine { ways, others, .. } = error else { panic!("{error:?}") };
    assert_eq!(others.len(), Machine::of_catalog(&catalog).len(), "the reason for every machine");
    for way in ways {
        let limits = match way.change {
            QuestionChange::Budget(budget) => RunLimits { budget: Some(budget), ..poor },
            _ => poor,
        };
        let tokens =
            if let QuestionChange::Tokens(tokens) = way.change { tokens } else { Tokens::new(100e9) };
        let changed = TrainingNeed { tokens, ..need(&bench, limits) };
        if matches!(way.change, QuestionChange::Budget(_) | QuestionChange::Tokens(_)) {
            assert_eq!(choose(&changed, &catalog).unwrap().best, *way.offer, "{way}");
        }
    }
}

#[test]
fn spot_machines_are_chosen_with_a_rate_of_interruptions_only() {
    let bench = bench("llama-3-8b", "p5.48xlarge:1", 8192, 512);
    let catalog = Catalog::builtin();
    let assumptions = |spot_per_node_day| Assumptions {
        like: None,
        failures_per_node_day: None,
        spot_per_node_day,
        restart_time: None,
        recovery: RecoveryKind::Restart,
        storage: "fsx-lustre-persistent-1000".into(),
        storage_size: None,
        object_bandwidth: None,
        stall: Seconds::new(5.0),
        interval: None,
        purchase: Some(Purchase::Spot),
        region: None,
        limits: RunLimits::default(),
    };
    let unknown = Reliability::assumed(&assumptions(None), Bytes::tb(0.1), &catalog).unwrap_err();
    assert_eq!(unknown.page().code, "plan/unknown-spot-rate");
    let goodput = |rate: f64| {
        let reliability = Reliability::assumed(&assumptions(Some(rate)), Bytes::tb(0.1), &catalog).unwrap();
        let need = TrainingNeed {
            purchase: Some(Purchase::Spot),
            reliability: Some(&reliability),
            ..need(&bench, RunLimits::default())
        };
        choose(&need, &catalog).unwrap().best.goodput
    };
    assert!(goodput(0.5) < goodput(0.01));
}

#[test]
fn every_offer_has_the_batch_of_a_plan_for_its_gpus_and_ultraservers_their_only_price() {
    let bench = bench("llama-3-8b", "p5.48xlarge:1", 8192, 512);
    let batch = BatchSize::Tokens(Tokens::new(4_194_304.0));
    let need = TrainingNeed { batch, purchase: None, ..need(&bench, RunLimits::default()) };
    let choice = choose(&need, &Catalog::builtin()).unwrap();
    for offer in &choice.front {
        assert_eq!(offer.global_batch, batch.sequences(8192, offer.gpus), "{offer:?}");
    }
    let beaten = choice.others.iter().find(|(name, _)| name == "u-p6e-gb200x72").unwrap();
    let Objection::Beaten { offer } = &beaten.1 else { panic!("{beaten:?}") };
    assert_eq!(offer.purchase, Some(Purchase::CapacityBlock));
}

#[test]
fn a_deadline_that_nothing_meets_names_the_fastest() {
    let bench = bench("llama-3.1-405b", "p5.48xlarge:1", 8192, 512);
    let limits = RunLimits { deadline: Some(Seconds::hours(1.0)), budget: None };
    let error = choose(&need(&bench, limits), &Catalog::builtin()).unwrap_err();
    assert!(error.help().unwrap().contains("--deadline "), "{:?}", error.help());
}

#[test]
fn failures_lengthen_the_run_and_uncalibrated_chips_are_chosen_only_when_allowed() {
    let bench = bench("llama-3-8b", "p5.48xlarge:1", 8192, 512);
    let (catalog, published) = (Catalog::builtin(), Published::builtin());
    let class = catalog.storage_class("fsx-lustre-persistent-1000").unwrap();
    let reliability = Reliability {
        taken_per_node_day: 0.0,
        failures_per_gpu_day: published.usual_rate().unwrap().per_gpu_day(),
        store: CheckpointStore::shared(class, Bytes::tb(50.0)),
        stall: Seconds::new(5.0),
        recovery: Recovery::restart(&published),
    };
    let limits = RunLimits { deadline: Some(Seconds::days(30.0)), budget: None };
    let sound = choose(&need(&bench, limits), &catalog).unwrap();
    assert_eq!(sound.best.goodput, 1.0);
    let failing = TrainingNeed { reliability: Some(&reliability), ..need(&bench, limits) };
    let failing = choose(&failing, &catalog).unwrap();
    assert!(failing.best.goodput < 1.0 && failing.best.goodput > 0.9, "{}", failing.best.goodput);
    assert!(failing.best.cost >= sound.best.cost);
    let is_trainium = |name: &str| name.starts_with("trn");
    assert!(!is_trainium(&sound.best.machine));
    let listed = sound.others.iter().filter(|(name, _)| is_trainium(name));
    assert!(
        listed.clone().any(|(_, objection)| matches!(objection, Objection::Uncalibrated { .. })),
        "{listed:?}"
    );
    let open = TrainingNeed { uncalibrated: Uncalibrated::Choose, ..need(&bench, limits) };
    assert!(choose(&open, &catalog).unwrap().best.cost <= sound.best.cost);
}
