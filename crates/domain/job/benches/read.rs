//! What it costs to read one job: a control plane reads one for every submission.

use std::hint::black_box;
use std::time::Instant;

use bedplate_job::Job;

const SMALL: &str = "name = \"hello\"\ncommand = [\"python\", \"train.py\"]\nnodes = 2\ngpus_per_node = 8\n";
const LARGE: &str = include_str!("../../../dev/fuzzing/seeds/job.toml");
const SCRIPT: &str = include_str!("../tests/scripts/torchrun.sbatch");
const ROUNDS: u32 = 20_000;

fn main() {
    let json = Job::from_toml(SMALL, "job").expect("the job is sound").to_json().to_string();
    measure("small job file", || Job::from_toml(black_box(SMALL), "job").is_ok());
    measure("small job as JSON", || Job::from_json(black_box(&json), "job").is_ok());
    measure("job file with every key", || Job::from_toml(black_box(LARGE), "job").is_ok());
    measure("batch script", || Job::from_sbatch(black_box(SCRIPT), "job").is_ok());
    let job = Job::from_toml(LARGE, "job").expect("the job is sound");
    measure("flaws of the large job", || job.flaws().len() < 9);
    measure("writing the large job", || !job.to_toml().is_empty());
}

#[expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
fn measure(what: &str, work: impl Fn() -> bool) {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        assert!(work());
    }
    println!("{what}: {:.2} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));
}
