//! Try.
use bedplate_catalog::{Catalog, Purchase};
use bedplate_deploy::{Load, Need, Options, Supply, search};
use bedplate_perf::serving::{ServedModel, ServingConstants};
use bedplate_replay::requests::{Objectives, picoseconds, seconds};
use bedplate_topology::Cluster;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let catalog = Catalog::builtin();
    let cluster = Cluster::from_spec(&a[2], &catalog).unwrap();
    let supply = Supply::of_cluster(&cluster, &catalog, Purchase::OnDemand, None).unwrap();
    let need = Need {
        model: &ServedModel::named(&a[1]).unwrap(),
        load: Load { input: a[3].parse().unwrap(), output: a[4].parse().unwrap(), per_second: a[5].parse().unwrap() },
        objectives: Objectives { ttft: Some(picoseconds(a[6].parse().unwrap())), itl: Some(picoseconds(a[7].parse().unwrap())), end_to_end: None },
        constants: &ServingConstants::builtin(),
        site: None,
        alternatives: &[],
        options: Options::default(),
    };
    let t = std::time::Instant::now();
    let answer = search(&need, &[supply]);
    println!("{:?}", t.elapsed());
    let answer = match answer { Ok(a) => a, Err(e) => { println!("{e}\n{:?}", bedplate_diag::Diagnostic::help(&e)); return; } };
    println!("best {} gpus {} seats {} share {} $/h {:?} replays {}", answer.best.plan, answer.best.plan.gpus(), answer.best.plan.decoders().seats, answer.best.shown.share, answer.best.dollars_per_hour, answer.replays);
    let o = &answer.best.shown.outcome;
    println!("ttft {:.3} {:.3} itl {:.4} {:.4} n {} tok/s {:.0} pre {} kv {:.2}", seconds(o.ttft.p50), seconds(o.ttft.p95), seconds(o.itl.p50), seconds(o.itl.p95), o.requests, o.output_tokens_per_second(), o.preemptions, o.kv_mean);
    for h in &answer.others { println!("  held {} gpus {} share {:.3}", h.plan, h.plan.gpus(), h.shown.share); }
    for p in &answer.front { println!("  front user {:.1} gpu {:.1} ttft {:.2} users {} {}", p.per_user, p.per_gpu, p.ttft, p.users, p.plan); }
    for t in answer.tried.iter().filter(|t| t.verdict.stage() >= 3) { println!("  {} -> {}", t.what, t.verdict); }
}
