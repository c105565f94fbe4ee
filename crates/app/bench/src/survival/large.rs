//! One rank of a model of 100 million parameters is killed while a spare waits.

use std::thread;
use std::time::Duration;

use bedplate_random::Random;
use bedplate_terminal::{CliError, Console};

use super::kills::restart_seconds;
use super::place::{Model, Place, Settings, difference};
use super::run::Start;
use super::{Figure, NotMeasured};

const RANKS: u32 = 4;
const BATCH: u64 = 4;
const STEPS: u64 = 8;
/// The rank is killed after this step.
const AFTER: u64 = 4;

pub(super) fn measure(place: &Place, seed: u64, console: &mut Console) -> Result<Vec<Figure>, CliError> {
    let mut figures = Vec::new();
    for (number, layout) in ["dp4.zero3", "dp4"].into_iter().enumerate() {
        console.say(&format!("100 million parameters, {layout}"));
        figures.extend(lose_one(place, layout, Random::stream(seed, 100 + number as u64))?);
    }
    Ok(figures)
}

fn settings() -> Settings {
    Settings { model: Model::Large, steps: STEPS, batch: BATCH, sequence: 32, checkpoint_every: 0 }
}

fn start<'a>(output: &'a str, layout: &'a str, spares: u32) -> Start<'a> {
    Start { output, settings: settings(), ranks: RANKS, layout, spares, restarts: 0, resumes: false }
}

fn lose_one(place: &Place, layout: &str, mut random: Random) -> Result<Vec<Figure>, NotMeasured> {
    let mut undisturbed = start("undisturbed", layout, 0).run(place)?;
    undisturbed.finish()?;
    undisturbed.records.check(STEPS, BATCH)?;
    let step = undisturbed.records.step_seconds();
    let expected = place.weights("undisturbed")?;
    place.remove("undisturbed");
    let mut run = start("disturbed", layout, 1).run(place)?;
    run.wait_for_step(AFTER)?;
    run.wait_until("the spare", |run| run.waiting() == 1)?;
    thread::sleep(Duration::from_secs_f64(step * random.uniform()));
    run.records.look();
    let (before, seen) = (run.records.newest, run.records.seen);
    let killed = std::time::Instant::now();
    let working = run.working();
    run.kill_one(random.pick(&working));
    run.wait_until("the step after the loss", |run| run.records.newest > before)?;
    let (away, whole) = ((run.records.seen - killed).as_secs_f64(), (run.records.seen - seen).as_secs_f64());
    run.finish()?;
    run.records.check(STEPS, BATCH)?;
    let repeated = run.records.went_on.first().map_or(0, |from| before.saturating_sub(*from));
    let apart = difference(&expected, &place.weights("disturbed")?);
    drop(run);
    place.remove("disturbed");
    let peer = restart_seconds(place, layout, Settings { checkpoint_every: 2, ..settings() }, AFTER + 1)?;
    let of = |name, value, unit| Figure::new(&format!("100M, {layout}"), name, value, unit);
    Ok(vec![
        of("a step", step, "s"),
        of("cost of a killed rank", (whole - step).max(0.0), "s").at_most(3.0),
        of("from the kill to the next step", away, "s"),
        of("steps lost", repeated as f64, "").exactly(0.0),
        of("largest difference of weights", apart, "").exactly(0.0),
        of("the peer: restart from a checkpoint", peer, "s"),
        of("cost, as a share of the peer's", (whole - step).max(0.0) / peer.max(1e-9), ""),
    ])
}
