//! A whole run that is killed again and again: whatever it was doing, it goes on from a good checkpoint to the same weights.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bedplate_checkpoint::{Checkpoints, Keep};
use bedplate_random::Random;
use bedplate_terminal::{CliError, Console};

use super::place::{Model, Place, Settings, difference};
use super::run::{Run, Start};
use super::{Figure, NotMeasured};

const OUTPUT: &str = "killed";
const SETTINGS: Settings =
    Settings { model: Model::Small, steps: 60, batch: 4, sequence: 32, checkpoint_every: 3 };

/// When a run is killed.
#[derive(Clone, Copy)]
enum Moment {
    /// At any time.
    After(Duration),
    /// While a checkpoint is being written.
    Checkpoint,
    /// While the finished weights are being written.
    Export,
}

#[derive(Default)]
struct Tally {
    kills: u32,
    in_checkpoints: u32,
    in_exports: u32,
    damaged: u32,
    finished: u32,
    apart: f64,
}

pub(super) fn measure(
    place: &Place,
    kills: u32,
    seed: u64,
    console: &mut Console,
) -> Result<Vec<Figure>, CliError> {
    console.say("undisturbed");
    let began = Instant::now();
    let mut undisturbed = start("undisturbed", false).run(place)?;
    undisturbed.finish()?;
    let whole = began.elapsed();
    let expected = place.weights("undisturbed")?;
    let (mut random, mut tally) = (Random::scattered(seed), Tally::default());
    while tally.kills < kills {
        if tally.kills > 0 && tally.kills.is_multiple_of(20) {
            console.say(&format!("{} kills, {} runs finished", tally.kills, tally.finished));
        }
        let moment = match random.below(4) {
            0 => Moment::Checkpoint,
            1 => Moment::Export,
            _ => Moment::After(whole.mul_f64(random.uniform())),
        };
        one(place, moment, &mut random, &mut tally)?;
        if place.0.join(OUTPUT).join("done").exists() {
            finish(place, &expected, &mut tally)?;
        }
    }
    let mut run = start(OUTPUT, has_checkpoint(&place.0.join(OUTPUT))?).run(place)?;
    run.finish()?;
    finish(place, &expected, &mut tally)?;
    Ok(figures(&tally))
}

fn start(output: &str, resumes: bool) -> Start<'_> {
    Start { output, settings: SETTINGS, ranks: 2, layout: "dp2.zero3", spares: 0, restarts: 0, resumes }
}

/// Starts the run and kills it at a moment, unless it ends before. What is left must be a good checkpoint or none.
fn one(place: &Place, moment: Moment, random: &mut Random, tally: &mut Tally) -> Result<(), NotMeasured> {
    let output = place.0.join(OUTPUT);
    let mut run = start(OUTPUT, has_checkpoint(&output)?).run(place)?;
    let mut has_come = wait_for(&mut run, moment, &output);
    if has_come {
        thread::sleep(Duration::from_micros(random.remainder(4000)));
        has_come = !run.has_ended();
    }
    if !has_come {
        run.finish()?;
        return fs::write(output.join("done"), "").map_err(|error| super::place::cannot(&output, &error));
    }
    run.kill_all();
    tally.kills += 1;
    match moment {
        Moment::After(_) => {}
        Moment::Checkpoint => tally.in_checkpoints += 1,
        Moment::Export => tally.in_exports += 1,
    }
    tally.damaged += u32::from(newest(&output)?.is_some_and(|flaws| flaws > 0));
    Ok(())
}

/// Whether the moment comes before the run ends.
fn wait_for(run: &mut Run, moment: Moment, output: &Path) -> bool {
    let (began, started) = (Instant::now(), SystemTime::now());
    let is_now = || match moment {
        Moment::After(time) => began.elapsed() >= time,
        Moment::Checkpoint => {
            names(&output.join("checkpoints")).iter().any(|name| name.starts_with("unfinished-"))
        }
        Moment::Export => fs::metadata(output.join("model"))
            .and_then(|folder| folder.modified())
            .is_ok_and(|changed| changed >= started),
    };
    while !run.has_ended() {
        if is_now() {
            return true;
        }
        thread::sleep(Duration::from_micros(200));
    }
    false
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn has_checkpoint(output: &Path) -> Result<bool, NotMeasured> {
    newest(output).map(|newest| newest.is_some())
}

/// Reads every byte of the newest good checkpoint, if there is one, and gives how many newer ones are damaged.
fn newest(output: &Path) -> Result<Option<usize>, NotMeasured> {
    let checkpoints = Checkpoints::in_output(output, Keep { count: 2, age: Duration::ZERO });
    match checkpoints.newest_good() {
        Ok(found) => Ok(found.map(|(_, flaws)| flaws.len())),
        Err(error) => Err(NotMeasured(error.to_string())),
    }
}

/// Compares what a finished run has left, and removes it.
fn finish(place: &Place, expected: &[f32], tally: &mut Tally) -> Result<(), NotMeasured> {
    let records = super::records::Records::of(metrics(place));
    records.check(SETTINGS.steps, SETTINGS.batch)?;
    tally.apart = tally.apart.max(difference(expected, &place.weights(OUTPUT)?));
    tally.finished += 1;
    place.remove(OUTPUT);
    Ok(())
}

fn metrics(place: &Place) -> PathBuf {
    place.0.join(OUTPUT).join("metrics.jsonl")
}

fn figures(tally: &Tally) -> Vec<Figure> {
    let of = |name, value: u32| Figure::new("2 ranks, dp2.zero3", name, value.into(), "");
    vec![
        of("times all processes were killed", tally.kills),
        of("of these while a checkpoint was written", tally.in_checkpoints),
        of("of these while weights were written", tally.in_exports),
        of("checkpoints that were damaged", tally.damaged).exactly(0.0),
        of("runs that finished, records complete", tally.finished),
        Figure::new("2 ranks, dp2.zero3", "largest difference of weights", tally.apart, "").exactly(0.0),
    ]
}
