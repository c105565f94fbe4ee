//! The answers of this crate for one model, printed: `cargo run --release -p bedplate-search --example tour`.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use bedplate_catalog::{Catalog, Purchase};
use bedplate_diag::render_text;
use bedplate_goodput::RunLimits;
use bedplate_layout::ComputePrecision;
use bedplate_perf::{Constants, Hardware, Workload};
use bedplate_search::{
    Axes, BatchSize, GpuScaling, LayoutVerdict, Means, Objection, Remedy, Setup, Space, TrainingNeed,
    Uncalibrated, WhatIf, budget, choose, explain, scaling, search, what_if_best,
};
use bedplate_topology::Cluster;
use bedplate_transformer::builtin;
use bedplate_units::{DollarRate, Dollars, Seconds, Tokens, grouped};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let catalog = Catalog::builtin();
    let constants = Constants::builtin();
    let model = builtin("llama-3.1-405b")?;
    let cluster = Cluster::from_spec("p5.48xlarge:2048", &catalog)?;
    let setup = Setup {
        model: &model,
        hardware: Hardware::from_cluster(&cluster, &catalog)?,
        workload: Workload { sequence: 8192, global_batch: 2048, ..Workload::default() },
        constants: &constants,
    };
    let axes = Axes::default();
    let answer = search(&setup, &axes, 5)?;
    println!(
        "{} on {} GPUs: {} layouts",
        model.name,
        grouped(setup.gpus().into()),
        grouped(answer.counts.priced)
    );
    for candidate in &answer.best {
        let each = setup.workload.tokens() / candidate.seconds.get() / f64::from(setup.gpus());
        let share = setup.mfu(each, candidate.layout.precision);
        println!(
            "  {:<36} {:>9} {:>9}  MFU {:.1} %",
            candidate.layout,
            candidate.seconds,
            candidate.memory,
            100.0 * share
        );
    }
    println!(
        "front: {} layouts from {} to {}",
        answer.front.len(),
        answer.front[0].memory,
        answer.front[answer.front.len() - 1].memory
    );
    for count in answer.refusals.iter() {
        println!("  cut {:>5} branches, as {}: {}", count.branches, count.example, count.refusal);
    }

    let space = Space::new(&setup, &axes)?;
    let explanation =
        explain(&setup, &space, &answer, &"dp128.tp8.sp.pp16.zero1".parse()?, &WhatIf::usual(&setup))?;
    match &explanation.verdict {
        LayoutVerdict::DoesNotFit { over, largest, remedies, .. } => {
            println!("\n{}: {over} too large, most of it {} ({})", explanation.layout, largest.0, largest.1);
            for remedy in remedies {
                let Remedy { changed, candidate } = remedy;
                println!(
                    "  change {}: {} takes {}",
                    changed.join(" and "),
                    candidate.layout,
                    candidate.seconds
                );
            }
        }
        other => println!("\n{}: {other:#?}", explanation.layout),
    }
    for other in &explanation.counterfactuals {
        println!("  {}: {:?}", other.what, other.outcome);
    }
    let rack = WhatIf::machine("u-p6e-gb200x72", &catalog).ok_or("the rack is in the catalog")?;
    let there = what_if_best(&setup, &axes, &answer.best[0].layout, &rack)?;
    println!(
        "  {}: {:?}, best {:?}",
        there.what,
        there.outcome,
        there.best.map(|best| best.layout.to_string())
    );

    println!("\nstrong scaling");
    for point in scaling(&setup, &Axes::coarse(8), &[1024, 2048, 4096, 8192, 16384], GpuScaling::Strong) {
        match point.outcome {
            Ok(step) => println!("  {:>6} {:<30} {:.2}", point.gpus, step.candidate.layout, step.efficiency),
            Err(error) => println!("  {:>6} {error}", point.gpus),
        }
    }

    println!(
        "\n{}",
        render_text(&search(&setup.with_gpus(1_000_000_000), &axes, 1).expect_err("no site has them"))
    );
    println!("{}", render_text(&search(&setup.with_gpus(64), &axes, 1).expect_err("it is too large")));

    let need = TrainingNeed {
        model: &model,
        tokens: "15T".parse::<Tokens>()?,
        workload: setup.workload,
        batch: BatchSize::Sequences(setup.workload.global_batch),
        constants: &constants,
        limits: RunLimits { deadline: Some(Seconds::days(90.0)), budget: None },
        purchase: Some(Purchase::CapacityBlock),
        region: None,
        precision: ComputePrecision::Bf16,
        max_gpus: 65_536,
        reliability: None,
        uncalibrated: Uncalibrated::List,
    };
    let choice = choose(&need, &catalog)?;
    let best = &choice.best;
    println!(
        "chosen: {} x {}, {}, {} in {}",
        best.units,
        best.machine,
        best.candidate.layout,
        best.cost.unwrap_or_default(),
        best.time
    );
    for (name, objection) in &choice.others {
        let word = match objection {
            Objection::MissingFigure { what } => what.clone(),
            Objection::FitsNowhere { up_to_gpus } => format!("fits on no number of GPUs up to {up_to_gpus}"),
            Objection::TooSlow { by, .. } => format!("too slow by {by}"),
            Objection::OverBudget { by, .. } => format!("over budget by {by}"),
            Objection::Uncalibrated { offer } => {
                format!("no training measurement; {} units in {}", offer.units, offer.time)
            }
            Objection::UnknownPrice { offer } => format!("no price; {} units in {}", offer.units, offer.time),
            Objection::Beaten { offer } => {
                format!("{} units, {} in {}", offer.units, offer.cost.unwrap_or_default(), offer.time)
            }
        };
        println!("  {name}: {word}");
    }

    let means = Means::Money { dollars: Dollars::new(1e7), per_gpu: DollarRate::per_hour(Dollars::new(4.0)) };
    let plan = budget(means, setup.delivered(answer.best[0].seconds))?;
    for optimum in plan.optima {
        println!(
            "{:<26} {:>8.1}B parameters {:>14}",
            optimum.law.name(),
            optimum.parameters / 1e9,
            optimum.tokens
        );
    }
    Ok(())
}
