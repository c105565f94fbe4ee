//! `bedplate bench checkpoint`: how fast checkpoints are written next to fio, and what they cost a training run.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bedplate_breakdown::Part;
use bedplate_checkpoint::{Checkpoints, HeldPart, Keep, Region, RunFacts, Saving, SavingOptions};
use bedplate_data::{CorpusKind, CorpusOptions, CorpusWriter, TrainingOptions, generate, train_tokenizer};
use bedplate_diag::{Diagnostic, Page};
use bedplate_record::StepRecord;
use bedplate_terminal::benchmarks::NO_FIO;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_train::{Observer, Published, RunOptions, TrainConfig, TrainError, run as train};
use bedplate_units::Bytes;
use bedplate_units::statistics::median;
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench checkpoint
  bedplate bench checkpoint --size 2GB --rounds 7 --folder /scratch
  bedplate bench checkpoint --seconds 300 --every 60

Rounds alternate between a checkpoint and fio with direct I/O (apt-get install
fio), because disks change from minute to minute; medians are compared. With
--seconds it trains a model of 100 million parameters for that long, without
checkpoints and with one every --every seconds.")]
pub(super) struct Arguments {
    /// Bytes of the state
    #[arg(long, value_name = "BYTES", default_value = "1GB")]
    size: Bytes,
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Where to write
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Seconds to train, without checkpoints and with; 0 for not at all
    #[arg(long, value_name = "S", default_value_t = 0)]
    seconds: u64,
    /// Seconds between checkpoints
    #[arg(long, value_name = "S", default_value_t = 60)]
    every: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("fio could not be measured: {0}")]
struct NoFio(String);

impl Diagnostic for NoFio {
    fn page(&self) -> &'static Page {
        &NO_FIO
    }
}

/// How fio writes.
struct Fio {
    name: &'static str,
    block: &'static str,
    depth: usize,
    jobs: usize,
}

const FIO: [Fio; 2] = [
    Fio { name: "fio, 1 MiB, depth 16", block: "1M", depth: 16, jobs: 1 },
    Fio { name: "fio, 4 jobs of 4 MiB, depth 8", block: "4M", depth: 8, jobs: 4 },
];

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let place = Scratch::new(&arguments.folder)?;
    let rates = rates(arguments, &place.0, console)?;
    let training = match arguments.seconds {
        0 => None,
        seconds => Some(Training::measure(&place.0, seconds, arguments.every, console)?),
    };
    if console.is_json() {
        let rates: Vec<Value> = rates
            .iter()
            .map(|(name, rates)| json!({"what": name, "bytes_per_s": rates, "median": median(rates)}))
            .collect();
        return console
            .json(&json!({"rates": rates, "training": training.map(|training| training.to_json())}));
    }
    show_rates(&rates, console)?;
    training.map_or(Ok(()), |training| training.show(console))
}

/// A folder that goes away.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path) -> Result<Self, CliError> {
        let path = parent.join(format!("bedplate-bench-checkpoint-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| NoFio(format!("{}: {error}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

type Rates = Vec<(&'static str, Vec<f64>)>;

/// Rounds in turn, bytes per second.
fn rates(arguments: &Arguments, folder: &Path, console: &mut Console) -> Result<Rates, CliError> {
    let state = State::new(arguments.size.get() as usize);
    let mut rates: Rates = vec![("checkpoint", Vec::new())];
    rates.extend(FIO.iter().map(|fio| (fio.name, Vec::new())));
    for round in 0..arguments.rounds.max(1) {
        console.say(&format!("round {} of {}", round + 1, arguments.rounds.max(1)));
        rates[0].1.push(state.save(folder)?);
        for (index, fio) in FIO.iter().enumerate() {
            rates[index + 1].1.push(fio.measure(folder, state.bytes())?);
        }
    }
    Ok(rates)
}

/// A state in memory.
struct State {
    numbers: Vec<f32>,
    regions: Vec<Region>,
}

impl State {
    fn new(bytes: usize) -> Self {
        let rows = (bytes / 4 / 1024).max(1);
        let numbers = (0..rows * 1024).map(|place| place as f32).collect();
        Self { numbers, regions: vec![Region::whole("weights/all", [rows, 1024])] }
    }

    fn bytes(&self) -> u64 {
        4 * self.numbers.len() as u64
    }

    /// Bytes per second of a whole checkpoint, from the first copy to its name being durable.
    fn save(&self, folder: &Path) -> Result<f64, CliError> {
        let keep = Keep { count: 1, age: Duration::ZERO };
        let output = folder.join("saved");
        let checkpoints = Checkpoints::in_output(&output, keep);
        let began = Instant::now();
        let attempt = checkpoints.begin(1)?;
        let mut saving =
            Saving::start(checkpoints.store(), &attempt, 0, self.regions.clone(), SavingOptions::default())?;
        saving.complete(self);
        let part = saving.wait()?;
        checkpoints.publish(&attempt, vec![part], RunFacts { step: 1, ..RunFacts::default() })?;
        let seconds = began.elapsed().as_secs_f64();
        let _ = fs::remove_dir_all(&output);
        Ok(self.bytes() as f64 / seconds)
    }
}

impl HeldPart for State {
    fn read(&self, _region: usize, range: Range<usize>, values: &mut [f32]) {
        values.copy_from_slice(&self.numbers[range]);
    }
}

impl Fio {
    fn measure(&self, folder: &Path, bytes: u64) -> Result<f64, NoFio> {
        let folder = folder.join("fio");
        fs::create_dir_all(&folder).map_err(|error| NoFio(error.to_string()))?;
        // A second bound, in case the disk hangs; fio itself ends when all is written.
        let output = Command::new("timeout")
            .args([
                "300",
                "fio",
                "--name=write",
                "--rw=write",
                "--direct=1",
                "--ioengine=libaio",
                "--end_fsync=1",
            ])
            .args(["--group_reporting", "--output-format=json", "--thread"])
            .arg(format!("--directory={}", folder.display()))
            .arg(format!("--bs={}", self.block))
            .arg(format!("--iodepth={}", self.depth))
            .arg(format!("--numjobs={}", self.jobs))
            .arg(format!("--size={}", bytes / self.jobs as u64))
            .output()
            .map_err(|error| NoFio(error.to_string()))?;
        let _ = fs::remove_dir_all(&folder);
        let text = String::from_utf8_lossy(&output.stdout);
        let value: Value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or_default())
            .map_err(|_| {
                NoFio(
                    String::from_utf8_lossy(&output.stderr)
                        .lines()
                        .last()
                        .unwrap_or("it printed nothing")
                        .to_owned(),
                )
            })?;
        let rate = value["jobs"][0]["write"]["bw_bytes"].as_f64().filter(|rate| *rate > 0.0);
        rate.ok_or_else(|| NoFio("it wrote nothing".into()))
    }
}

fn show_rates(rates: &Rates, console: &mut Console) -> Result<(), CliError> {
    let own = median(&rates[0].1);
    let mut table = Table::new(vec![
        Column::left("WRITTEN BY", 0),
        Column::right("MEDIAN", 0),
        Column::right("SLOWEST", 1),
        Column::right("FASTEST", 1),
        Column::right("A CHECKPOINT'S SHARE", 0),
    ]);
    for (name, rates) in rates {
        let rate = |value: f64| format!("{:.2} GB/s", value / 1e9);
        let (slowest, fastest) =
            (rates.iter().copied().fold(f64::INFINITY, f64::min), rates.iter().copied().fold(0.0, f64::max));
        let share = format!("{:.0} %", 100.0 * own / median(rates));
        table.row(vec![(*name).into(), rate(median(rates)), rate(slowest), rate(fastest), share]);
    }
    console.table(&table)
}

/// A run without checkpoints and one with them.
struct Training {
    without: Watch,
    with: Watch,
}

/// What an observer saw of a run.
#[derive(Default)]
struct Watch {
    began: Option<Instant>,
    last: Option<Instant>,
    steps: u64,
    /// Seconds that steps waited for copies.
    held_up: f64,
    checkpoints: u64,
    bytes: u64,
}

impl Observer for Watch {
    fn step(&mut self, record: &StepRecord) -> Result<(), TrainError> {
        // The first steps warm up.
        if record.step > 2 {
            self.steps += 1;
            self.held_up += record.breakdown[Part::Storage].exposed.get();
        } else {
            self.began = Some(Instant::now());
        }
        self.last = Some(Instant::now());
        Ok(())
    }

    fn published(&mut self, checkpoint: &Published) -> Result<(), TrainError> {
        self.checkpoints += 1;
        let entries = fs::read_dir(&checkpoint.path).into_iter().flatten().flatten();
        self.bytes = entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum();
        Ok(())
    }
}

impl Watch {
    fn step_seconds(&self) -> f64 {
        match (self.began, self.last) {
            (Some(began), Some(last)) if self.steps > 0 => (last - began).as_secs_f64() / self.steps as f64,
            _ => 0.0,
        }
    }
}

const MODEL: &str = r#"{"model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12, "vocab_size": 20000, "max_position_embeddings": 512, "tie_word_embeddings": true}"#;

impl Training {
    fn measure(folder: &Path, seconds: u64, every: u64, console: &mut Console) -> Result<Self, CliError> {
        write_corpus(folder)?;
        fs::write(folder.join("config.json"), MODEL).map_err(|error| NoFio(error.to_string()))?;
        console.say("how long a step takes");
        let step = Self::train(folder, 6, 0)?.step_seconds();
        let (steps, every) = ((seconds as f64 / step).ceil() as u64 + 2, (every as f64 / step).ceil() as u64);
        console.say(&format!("{steps} steps without checkpoints"));
        let without = Self::train(folder, steps, 0)?;
        console.say(&format!("{steps} steps with one every {every}"));
        let with = Self::train(folder, steps, every)?;
        Ok(Self { without, with })
    }

    fn train(folder: &Path, steps: u64, every: u64) -> Result<Watch, TrainError> {
        let text = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let mut config = TrainConfig::new(&text("config.json"), &text("corpus"));
        (config.data.sequence, config.training.steps) = (256, steps);
        (config.training.batch, config.training.micro_batch) = (1, 1);
        (config.evaluation.every, config.checkpoint.every) = (0, every);
        config.output.folder = folder.join("trained");
        let mut watch = Watch::default();
        let outcome = train(&config, &RunOptions::default(), &mut watch);
        let _ = fs::remove_dir_all(&config.output.folder);
        outcome.map(|_| watch)
    }

    /// The share of the throughput that checkpoints cost.
    fn lost(&self) -> f64 {
        1.0 - self.without.step_seconds() / self.with.step_seconds()
    }

    /// The same by the time that steps were held up, which other load does not change.
    fn held_up(&self) -> f64 {
        self.with.held_up / (self.with.steps as f64 * self.with.step_seconds())
    }

    fn show(&self, console: &mut Console) -> Result<(), CliError> {
        let Self { without, with } = self;
        let per = with.held_up / (with.checkpoints.saturating_sub(1)).max(1) as f64;
        console.line(&format!(
            "\n{} steps of {:.0} ms without checkpoints, of {:.0} ms with {} of {}: {:.1} % of the throughput lost",
            with.steps,
            1e3 * without.step_seconds(),
            1e3 * with.step_seconds(),
            with.checkpoints.saturating_sub(1),
            Bytes::new(with.bytes as f64),
            100.0 * self.lost(),
        ))?;
        console.line(&format!(
            "a checkpoint held its step up for {per:.2} s; {:.1} % of the time",
            100.0 * self.held_up()
        ))
    }

    fn to_json(&self) -> Value {
        let side = |watch: &Watch| json!({"steps": watch.steps, "step_s": watch.step_seconds(), "held_up_s": watch.held_up, "checkpoints": watch.checkpoints});
        json!({"without": side(&self.without), "with": side(&self.with), "lost": self.lost(), "held_up": self.held_up(), "bytes": self.with.bytes})
    }
}

fn write_corpus(folder: &Path) -> Result<(), CliError> {
    let texts: Vec<String> = (0..300).map(|number| generate(CorpusKind::Stories, 1, number)).collect();
    let options = TrainingOptions { vocabulary: 512, ..TrainingOptions::default() };
    let tokenizer = train_tokenizer(texts.iter().map(String::as_str), &options)?;
    let mut writer =
        CorpusWriter::create(&folder.join("corpus"), &tokenizer, CorpusOptions::text(&tokenizer))?;
    for text in &texts {
        writer.push_text(&tokenizer.encode(text)?, text.len() as u64)?;
    }
    writer.finish()?;
    Ok(())
}
