//! Ranks that are killed one after the other, or two at a time, while a small model is trained.

use std::thread;
use std::time::{Duration, Instant};

use bedplate_random::Random;
use bedplate_terminal::{CliError, Console};

use super::place::{Model, Place, Settings, difference};
use super::run::{Run, Start};
use super::{Figure, NotMeasured, longest, median};

const RANKS: u32 = 4;
/// Steps from one loss to the next: in some of them the run shrinks, in others it grows again.
const BETWEEN: u64 = 40;
const BATCH: u64 = 8;

/// One way to lose ranks.
struct Round {
    name: &'static str,
    layout: &'static str,
    spares: u32,
    /// A second rank is killed while the others still deal with the loss of the first.
    is_double: bool,
    /// The largest difference of weights from those of an undisturbed run.
    tolerance: f64,
}

const ROUNDS: [Round; 3] = [
    Round { name: "dp4.zero3, no spare", layout: "dp4.zero3", spares: 0, is_double: false, tolerance: 1e-5 },
    Round { name: "dp4.zero3, a spare", layout: "dp4.zero3", spares: 1, is_double: false, tolerance: 0.0 },
    Round { name: "dp4, two at a time", layout: "dp4", spares: 0, is_double: true, tolerance: 1e-5 },
];

/// What the losses of a run cost.
#[derive(Default)]
struct Costs {
    seconds: Vec<f64>,
    /// Steps that were done again.
    repeated: u64,
    kills: u32,
    /// Losses after which the run went on with fewer ranks.
    shrunk: u32,
}

pub(super) fn measure(
    place: &Place,
    kills: u32,
    seed: u64,
    console: &mut Console,
) -> Result<Vec<Figure>, CliError> {
    let mut figures = Vec::new();
    for (number, round) in ROUNDS.iter().enumerate() {
        let (number, rounds) = (number as u32, ROUNDS.len() as u32);
        let share = kills * (number + 1) / rounds - kills * number / rounds;
        if share > 0 {
            console.say(&format!("{}: {share} kills", round.name));
            figures.extend(round.measure(place, share, Random::stream(seed, number.into()))?);
        }
    }
    figures.extend(restart(place, console)?);
    Ok(figures)
}

fn settings(losses: u32) -> Settings {
    let steps = BETWEEN * u64::from(losses + 2);
    Settings { model: Model::Small, steps, batch: BATCH, sequence: 32, checkpoint_every: 0 }
}

impl Round {
    fn start<'a>(&self, output: &'a str, losses: u32) -> Start<'a> {
        let restarts = RANKS * (losses + 1);
        let settings = settings(losses);
        let (layout, spares) = (self.layout, self.spares);
        Start { output, settings, ranks: RANKS, layout, spares, restarts, resumes: false }
    }

    fn measure(&self, place: &Place, kills: u32, mut random: Random) -> Result<Vec<Figure>, NotMeasured> {
        let losses = if self.is_double { kills.div_ceil(2) } else { kills };
        let mut undisturbed = Self { spares: 0, ..*self }.start("undisturbed", losses).run(place)?;
        undisturbed.finish()?;
        let steps = settings(losses).steps;
        let expected = undisturbed.records.check(steps, BATCH)?;
        let step = undisturbed.records.step_seconds();
        let mut run = self.start("disturbed", losses).run(place)?;
        let mut costs = Costs::default();
        for loss in 1..=u64::from(losses) {
            run.wait_for_step(loss * BETWEEN + random.remainder(BETWEEN / 2))?;
            self.lose(&mut run, kills - costs.kills, step, &mut costs, &mut random)?;
        }
        run.finish()?;
        let found = run.records.check(steps, BATCH)?;
        let off = expected.iter().map(|(step, loss)| (loss - found[step]).abs()).fold(0.0, f64::max);
        let apart = difference(&place.weights("undisturbed")?, &place.weights("disturbed")?);
        ["undisturbed", "disturbed"].iter().for_each(|output| place.remove(output));
        Ok(self.figures(&costs, steps, apart, off))
    }

    /// Kills one rank or two at a random instant, and waits for the next step.
    fn lose(
        &self,
        run: &mut Run,
        kills_left: u32,
        step: f64,
        costs: &mut Costs,
        random: &mut Random,
    ) -> Result<(), NotMeasured> {
        let (ranks, spares) = (RANKS as usize, self.spares as usize);
        let has_all = |run: &Run| run.records.ranks.last().is_none_or(|now| *now == ranks as u64);
        run.wait_until("all ranks", |run| {
            has_all(run) && run.working().len() == ranks && run.waiting() >= spares
        })?;
        thread::sleep(Duration::from_secs_f64(2.0 * step * random.uniform()));
        run.records.look();
        let (before, seen, worlds) = (run.records.newest, run.records.seen, run.records.went_on.len());
        let mut victims = run.working();
        let known = victims.clone();
        let mut kill = |run: &Run, random: &mut Random| {
            run.kill_one(victims.swap_remove(random.below(victims.len())));
            costs.kills += 1;
        };
        kill(run, random);
        if self.is_double && kills_left > 1 {
            let until = Instant::now() + Duration::from_secs_f64(0.3 * random.uniform());
            while Instant::now() < until {
                run.hold_newcomers(&known);
                thread::sleep(Duration::from_millis(1));
            }
            kill(run, random);
        }
        run.wait_until("the step after a loss", |run| {
            // Without a spare the others go on before the launcher's new process is there.
            if self.spares == 0 {
                run.hold_newcomers(&known);
            }
            run.records.went_on.len() > worlds && run.records.newest > before
        })?;
        run.let_newcomers_go();
        costs.shrunk += u32::from(run.records.ranks[worlds..].iter().any(|now| *now < ranks as u64));
        costs.seconds.push(((run.records.seen - seen).as_secs_f64() - step).max(0.0));
        let from = run.records.went_on[worlds..].iter().min().copied().unwrap_or(before);
        costs.repeated += before.saturating_sub(from);
        Ok(())
    }

    fn figures(&self, costs: &Costs, steps: u64, apart: f64, off: f64) -> Vec<Figure> {
        let of = |name, value, unit| Figure::new(self.name, name, value, unit);
        let fewest = if self.spares == 0 { costs.seconds.len() as f64 } else { 0.0 };
        let weights = of("largest difference of weights", apart, "");
        vec![
            of("ranks killed", costs.kills.into(), ""),
            of("steps recorded exactly once", steps as f64, "").exactly(steps as f64),
            of("samples used exactly once", (steps * BATCH) as f64, "").exactly((steps * BATCH) as f64),
            of("steps done again", costs.repeated as f64, ""),
            of("losses after which it shrank", costs.shrunk.into(), "").at_least(fewest),
            of("cost of a loss, median", median(&costs.seconds), "s").at_most(3.0),
            of("cost of a loss, longest", longest(&costs.seconds), "s").at_most(3.0),
            of("largest difference of losses", off, "").at_most(self.tolerance),
            if self.tolerance == 0.0 { weights.exactly(0.0) } else { weights.at_most(self.tolerance) },
        ]
    }
}

/// What it costs to start the run again from a checkpoint instead.
fn restart(place: &Place, console: &Console) -> Result<Vec<Figure>, NotMeasured> {
    console.say("a restart from a checkpoint");
    let settings = Settings { checkpoint_every: BETWEEN / 2, ..settings(4) };
    let seconds = restart_seconds(place, "dp4.zero3", settings, BETWEEN + 10)?;
    Ok(vec![Figure::new("the peer", "restart from a checkpoint", seconds, "s")])
}

/// Seconds from the kill of a whole run until it has done the next step, after a step with a checkpoint before it.
pub(super) fn restart_seconds(
    place: &Place,
    layout: &str,
    settings: Settings,
    after: u64,
) -> Result<f64, NotMeasured> {
    let start = |resumes| Start {
        output: "restarted",
        settings,
        ranks: RANKS,
        layout,
        spares: 0,
        restarts: 0,
        resumes,
    };
    let mut run = start(false).run(place)?;
    run.wait_for_step(after)?;
    let checkpoints = place.0.join("restarted/checkpoints");
    let is_published = |_: &Run| {
        let names = std::fs::read_dir(&checkpoints).into_iter().flatten().flatten();
        names.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("step-"))
    };
    run.wait_until("a checkpoint", is_published)?;
    let (before, step) = (run.records.newest, run.records.step_seconds());
    let killed = std::time::Instant::now();
    run.kill_all();
    // So that only steps of the run that is started now are seen.
    let _ = std::fs::remove_file(place.0.join("restarted/metrics.jsonl"));
    let mut run = start(true).run(place)?;
    run.wait_for_step(before + 1)?;
    let seconds = (run.records.seen - killed).as_secs_f64() - step;
    run.kill_all();
    place.remove("restarted");
    Ok(seconds)
}
