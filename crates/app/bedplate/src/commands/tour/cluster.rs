//! The chapter with a cluster in it: a model is trained on four nodes, one of them is killed, and training goes on.
//!
//! The cluster is in a temporary folder and is removed at the end, whatever happens in between.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_control::wire::Chaos;
use bedplate_drivers::{Driver, JobDetail, JobId, JobOrder, JobState, JobSummary, Local, new_submission_key};
use bedplate_job::{Inherited, Job};
use bedplate_local::{Machine, TemporaryCluster, Wanted};
use bedplate_terminal::present::{now_ms, wrap};
use bedplate_terminal::{CliError, Console, Context, ProgramError};
use clap::Parser;
use serde_json::{Value, json};

use super::learning::{DOCUMENTS, Learned, write_configuration};
use crate::cli::Cli;
use crate::job_text::where_or_why;
use crate::launcher::launcher;

pub(super) const TITLE: &str = "the work itself";

const RANKS: u64 = 4;
/// A node is lost in the middle of training.
const STEPS_BEFORE_THE_LOSS: usize = 60;
/// A job of which nothing has been heard for so long is stuck. How long the whole takes depends on the machine and is not limited.
const PATIENCE: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_millis(5);

/// What happened, for the JSON form.
pub(super) fn tell(context: &Context, console: &mut Console, width: usize) -> Result<Value, CliError> {
    let story = Story { width, is_json: console.is_json() };
    story.remark(
        console,
        "So far nothing ran. Now a cluster starts on this machine: a daemon, five agents, and device slots that \
         pretend to be GPUs where there are none.",
    )?;
    story.command(console, "up --nodes 5 --like p5.48xlarge")?;
    let wanted = Wanted { nodes: Some(5), like: Some("p5.48xlarge".into()), ..Wanted::default() };
    let began = Instant::now();
    let cluster = TemporaryCluster::start(&wanted, &context.load_catalog()?, launcher(context, console)?)?;
    let up_s = began.elapsed().as_secs_f64();
    for line in cluster.shape.describe(&cluster.driver.nodes()?, Machine::this()) {
        story.line(console, &line)?;
    }
    let mut told = story.train(&cluster, context, console)?;
    story.command(console, "down")?;
    let began = Instant::now();
    cluster.stop()?;
    told["up_s"] = json!(up_s);
    told["down_s"] = json!(began.elapsed().as_secs_f64());
    Ok(told)
}

pub(super) struct Story {
    width: usize,
    is_json: bool,
}

impl Story {
    fn train(
        &self,
        cluster: &TemporaryCluster,
        context: &Context,
        console: &mut Console,
    ) -> Result<Value, CliError> {
        let driver = &cluster.driver;
        let folder = cluster.folder().join("tour");
        self.prepare(&folder, context, console)?;
        self.remark(
            console,
            "The training is a job like any other, on four nodes with a rank on each. The ranks share weights, gradients and \
             optimizer state (ZeRO-3), and each keeps a copy of its neighbour's part in memory. So the job asks not to be \
             killed when a node is lost:",
        )?;
        self.command(
            console,
            "submit --nodes 4 --gpus-per-node 8 --no-kill -- bedplate train train.toml --layout dp4.zero3",
        )?;
        let training = submit_training(driver, &folder)?;
        self.line(console, training.as_str())?;
        let recorded = |_: &JobSummary| Learned::read(&folder).losses.len();
        let before = wait_until(driver, &training, |job| recorded(job) >= STEPS_BEFORE_THE_LOSS)?;
        let lost = before.nodes.last().cloned().unwrap_or_default();
        self.remark(
            console,
            &format!(
                "It runs on {} and has made {} steps. Now one of its nodes dies:",
                where_or_why(&before, now_ms()),
                recorded(&before)
            ),
        )?;
        self.command(console, &format!("chaos kill-node {lost}"))?;
        let began = Instant::now();
        let made = recorded(&before);
        driver.chaos(&lost, &Chaos::Die)?;
        let has_gone_on = |ranks: &[u64]| ranks.iter().skip(made).any(|ranks| *ranks < RANKS);
        let has_grown = |ranks: &[u64]| has_gone_on(ranks) && ranks.last() == Some(&RANKS);
        let is_over = |job: &JobSummary| job.life.state.is_final();
        wait_until(driver, &training, |job| is_over(job) || has_gone_on(&Learned::read(&folder).ranks))?;
        let recovery_s = began.elapsed().as_secs_f64();
        let ranks = Learned::read(&folder).ranks;
        let from_step = 1 + ranks.iter().take_while(|ranks| **ranks == RANKS).count();
        self.line(
            console,
            &format!(
                "after {recovery_s:.1} s the ranks that are left go on with step {from_step}, from their copies: no step is lost"
            ),
        )?;
        let after =
            wait_until(driver, &training, |job| is_over(job) || has_grown(&Learned::read(&folder).ranks))?;
        let whole_s = began.elapsed().as_secs_f64();
        self.line(
            console,
            &format!("after {whole_s:.1} s there are four again, on {}", where_or_why(&after, now_ms()),),
        )?;
        let explanation = self.explain(cluster, context, console)?;
        let end = wait_until(driver, &training, |job| job.life.state.is_final())?;
        self.command(console, &format!("job show {training}"))?;
        self.run(&format!("job show {training}"), cluster, context, console)?;
        let learned = Learned::read(&folder);
        self.show_learned(&learned, console)?;
        let straggler = self.slow_one_rank_down(cluster, &folder, context, console)?;
        let answer = self.serve(&folder.join("run/model"), console)?;
        Ok(json!({
            "lost": lost,
            "recovery_s": recovery_s,
            "from_step": from_step,
            "whole_s": whole_s,
            "ranks": learned.ranks,
            "end": end.life.state,
            "explanation": explanation,
            "losses": learned.losses,
            "samples": learned.before_and_after(),
            "straggler": straggler,
            "answer": answer,
        }))
    }

    /// A generated corpus, a small model, and its training configuration.
    fn prepare(&self, folder: &Path, context: &Context, console: &mut Console) -> Result<(), CliError> {
        self.remark(
            console,
            "Something to learn: stories and sums in a small language that the program makes up, with a tokenizer \
             trained on them.",
        )?;
        let words =
            |out: &str| format!("data generate --documents {DOCUMENTS} --vocabulary 1024 --out {out}");
        self.command(console, &words("corpus"))?;
        let out = folder.join("corpus").display().to_string();
        let all = words(&out);
        let cli = Cli::try_parse_from(["bedplate"].into_iter().chain(all.split(' ')))
            .map_err(CliError::from_clap)?;
        let mut silent = Console::recorder();
        crate::commands::run(cli.command, context, if self.is_json { &mut silent } else { console })?;
        write_configuration(folder)?;
        Ok(())
    }

    /// The loss over the steps, and what the model writes before and after.
    fn show_learned(&self, learned: &Learned, console: &mut Console) -> Result<(), CliError> {
        self.remark(console, "Did it learn? The loss over its steps, the lost node included:")?;
        self.line(console, &format!("\n{}", learned.curve(self.width)))?;
        let Some(samples) = learned.before_and_after() else { return Ok(()) };
        for (when, sample) in ["Before the first step it wrote:", "And after the last:"].iter().zip(samples) {
            self.line(
                console,
                &format!("\n{when}\n{}", wrap(&format!("  {sample}"), self.width).join("\n  ")),
            )?;
        }
        Ok(())
    }

    /// The trained model behind an API, and a question to it.
    fn serve(&self, folder: &Path, console: &mut Console) -> Result<String, CliError> {
        self.remark(
            console,
            "What was trained is a folder in Hugging Face's format, and can be served like any other: an OpenAI-compatible API, by the \
             request scheduler that `replay` simulates. A client asks it to continue a story:",
        )?;
        self.command(console, "serve run/model")?;
        let answer = super::serving::continued(folder, "One day")?;
        let text = format!("One day{}", answer.trim_end());
        let text: Vec<&str> = text.split_whitespace().collect();
        self.line(console, &wrap(&format!("  {}", text.join(" ")), self.width).join("\n  "))?;
        Ok(answer)
    }

    /// A job that cannot start now, and the reason.
    fn explain(
        &self,
        cluster: &TemporaryCluster,
        context: &Context,
        console: &mut Console,
    ) -> Result<Value, CliError> {
        self.remark(console, "Another job needs all five nodes, and one of them is lost. Why does it wait?")?;
        self.command(console, "submit --nodes 5 --gpus-per-node 8 --time 10 -- hostname")?;
        let options = ["--nodes=5", "--gpus-per-node=8", "--time=10"];
        let waiting = submit(&cluster.driver, &options, &["hostname"], "/")?;
        self.line(console, waiting.as_str())?;
        self.command(console, &format!("job explain {waiting}"))?;
        self.run(&format!("job explain {waiting}"), cluster, context, console)?;
        let explanation = json!(cluster.driver.explain(&waiting)?);
        // The next job should not wait behind it. It may have started just now, when the lost node came back, and be over.
        let _ = cluster.driver.order(&waiting, JobOrder::Cancel);
        Ok(explanation)
    }

    pub(super) fn remark(&self, console: &mut Console, text: &str) -> Result<(), CliError> {
        self.line(console, &format!("\n{}", wrap(text, self.width).join("\n")))
    }

    pub(super) fn command(&self, console: &mut Console, command: &str) -> Result<(), CliError> {
        self.line(console, &format!("\n$ {}", super::typed(command, self.width)))
    }

    pub(super) fn line(&self, console: &mut Console, line: &str) -> Result<(), CliError> {
        if self.is_json { Ok(()) } else { console.line(line) }
    }

    /// Runs a command on the cluster of the chapter, as a user would.
    pub(super) fn run(
        &self,
        command: &str,
        cluster: &TemporaryCluster,
        context: &Context,
        console: &mut Console,
    ) -> Result<(), CliError> {
        if self.is_json {
            return Ok(());
        }
        let folder = cluster.folder().display().to_string();
        let words = ["bedplate"].into_iter().chain(command.split(' ')).chain(["--state-dir", &folder]);
        let cli = Cli::try_parse_from(words).map_err(CliError::from_clap)?;
        crate::commands::run(cli.command, context, console)
    }
}

/// The job with the configuration in the folder, run by this program.
fn submit_training(driver: &Local, folder: &Path) -> Result<JobId, CliError> {
    let program = std::env::current_exe().map_err(|error| ProgramError::Bug { what: error.to_string() })?;
    let program = program.display().to_string();
    submit(
        driver,
        &["--nodes=4", "--gpus-per-node=8", "--no-kill"],
        &[&program, "train", "train.toml", "--layout", "dp4.zero3"],
        &folder.display().to_string(),
    )
}

pub(super) fn submit(
    driver: &Local,
    options: &[&str],
    command: &[&str],
    folder: &str,
) -> Result<JobId, CliError> {
    let pair = |option: &&str| {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        (name.to_owned(), Some(value.to_owned()))
    };
    let options: Vec<_> = options.iter().map(pair).collect();
    let mut job = Job::from_options(&options, command.iter().map(|word| (*word).to_owned()).collect())?.job;
    job.environment.inherited = Inherited::Nothing;
    job.working_directory = Some(folder.into());
    Ok(driver.submit(&job, &new_submission_key())?.id)
}

fn wait_until(
    driver: &Local,
    label: &JobId,
    is_so: impl Fn(&JobSummary) -> bool,
) -> Result<JobSummary, CliError> {
    let mut moved = (Instant::now(), None);
    loop {
        let detail = driver.job(label)?;
        if is_so(&detail.summary) {
            return Ok(detail.summary);
        }
        let now = Some(progress(&detail));
        if moved.1 != now {
            moved = (Instant::now(), now);
        }
        if moved.0.elapsed() > PATIENCE || detail.summary.life.state.is_final() {
            return Err(ProgramError::Bug { what: stuck(driver, label) }.into());
        }
        thread::sleep(PAUSE);
    }
}

/// What grows or changes as long as a job gets on.
fn progress(detail: &JobDetail) -> (JobState, u32, usize, u64) {
    let steps = detail.steps.as_ref().map_or(0, |steps| steps.steps);
    (detail.summary.life.state, detail.summary.life.runs, detail.notes.len(), steps)
}

/// What is known of a job that does not get on: its runs and why they ended, and what happened.
fn stuck(driver: &Local, label: &JobId) -> String {
    let detail = match driver.job(label) {
        Ok(detail) => detail,
        Err(error) => return format!("job {label} of the tour is stuck, and cannot be asked about: {error}"),
    };
    let runs = detail.runs.iter().map(|run| {
        let reason = run.reason.as_ref().map_or_else(|| "goes on".to_owned(), ToString::to_string);
        format!("  run {}: {reason}\n", run.number)
    });
    let notes = detail.notes.iter().map(|note| format!("  {} {}\n", note.at_ms, note.text));
    let happened: String = runs.chain(notes).collect();
    format!("job {label} of the tour is stuck: {:?}\n{happened}", detail.summary)
}
