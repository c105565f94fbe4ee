//! `bedplate plan …`: predict and choose.

mod budget;
mod calibrate;
mod choose;
mod collectives;
mod constants;
mod explanation;
mod launch;
mod offer;
mod own_runs;
mod page;
mod planned_jobs;
mod posttrain;
mod question;
mod regret;
mod serve;
pub(crate) mod serving;
mod task;
mod train;
mod validate;
mod waterfall;
mod whole_run;

use bedplate_terminal::{CliError, Console, Context};

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate plan train --model llama-3.1-405b --cluster p5.48xlarge:2048 --tokens 15T
  bedplate plan train --model mixtral-8x7b --cluster p5.48xlarge:16 --explain dp16.tp8.sp.ep8
  bedplate plan serve --model llama-3.1-8b --isl 1000 --osl 200 --rate 50/s --slo itl=20ms
  bedplate plan posttrain --model llama-3.1-8b --cluster p5en.48xlarge:2
  bedplate plan choose --model llama-3.1-70b --tokens 2T --deadline 30d
  bedplate plan budget --dollars '$1M' --instance p5.48xlarge
  bedplate plan validate --data runs.csv")]
pub(crate) enum Arguments {
    /// The best layouts for a training run: why, how long, how much, whether they fit
    Train(Box<train::Arguments>),
    /// The cheapest deployment that serves a load within its objectives, verified by replay
    Serve(Box<serve::Arguments>),
    /// Where the time of a reinforcement learning step goes, and the best split of GPUs
    Posttrain(posttrain::Arguments),
    /// Which machines to use, for a deadline or a budget
    Choose(choose::Arguments),
    /// Which model for the money, by published scaling laws
    Budget(budget::Arguments),
    /// The performance model's error on any file of measured runs or latencies
    Validate(validate::Arguments),
    /// Fit the performance model to your own runs
    Calibrate(calibrate::Arguments),
}

pub(crate) fn run(arguments: Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let catalog = context.load_catalog()?;
    match arguments {
        Arguments::Train(arguments) => train::run(&arguments, &catalog, console),
        Arguments::Serve(arguments) => serve::run(&arguments, &catalog, console),
        Arguments::Posttrain(arguments) => posttrain::run(&arguments, &catalog, console),
        Arguments::Choose(arguments) => choose::run(&arguments, &catalog, console),
        Arguments::Budget(arguments) => budget::run(&arguments, &catalog, console),
        Arguments::Validate(arguments) => validate::run(&arguments, &catalog, console),
        Arguments::Calibrate(arguments) => calibrate::run(&arguments, &catalog, console),
    }
}

pub(crate) const PAGES: &[&bedplate_diag::Page] = &[
    &budget::IMPOSSIBLE_MFU,
    &choose::NO_TOKENS,
    &launch::CANNOT_LAUNCH,
    &serve::NO_ENCODER,
    &serve::NO_RATE,
];

pub(crate) use own_runs::PAGES as RUN_PAGES;
