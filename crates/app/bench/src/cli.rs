//! The command line: the benchmarks by name, with the global options of `bedplate`.

use bedplate_terminal::{CliError, Console, Context, GlobalArguments, benchmarks};
use clap::Parser;

use crate::{
    abuse, alert, checkpoint, comm, deploy, diagnose, engine, heal, kernels, machine, observe, schedule,
    search, serve, submit, survival, training,
};

/// Measure how fast the program's own parts are, next to named peers
#[derive(Parser)]
#[command(name = "bedplate-bench", bin_name = "bedplate bench", version, propagate_version = true)]
#[command(max_term_width = 100, after_help = benchmarks::EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArguments,

    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(clap::Subcommand)]
pub(crate) enum BenchCommand {
    /// Layouts priced per second and core
    Search(search::Arguments),
    /// Seconds of a whole search for a deployment, and errors of its predictions next to aiconfigurator's
    Deploy(deploy::Arguments),
    /// Milliseconds per pass of the cluster scheduler
    Schedule(schedule::Arguments),
    /// Jobs accepted per second, and seconds until many small ones are done
    Submit(submit::Arguments),
    /// What one user with ordinary rights can do to another, by twenty ways to abuse a cluster
    Abuse(abuse::Arguments),
    /// Milliseconds of each operator, of a block and of whole models, next to PyTorch
    Kernels(kernels::Arguments),
    /// Predicted and measured steps of six models on this host
    Training(training::Arguments),
    /// Seconds until a gang runs again after the loss of a node, and until a killed daemon is back
    Heal(heal::Arguments),
    /// Seconds from an XID to an alert at a webhook, through a real Prometheus and Alertmanager
    Alert(alert::Arguments),
    /// Seconds from an XID to a drained node, and what the exporter costs
    Observe(observe::Arguments),
    /// Collectives between ranks of this machine, next to Gloo and Open MPI
    Comm(comm::Arguments),
    /// A rank of `bench comm`
    #[command(hide = true)]
    CommRank(comm::rank::Arguments),
    /// Checkpoints written per second, next to fio, and what they cost a training run
    Checkpoint(checkpoint::Arguments),
    /// What killed ranks cost a training run, next to a restart from a checkpoint
    Survival(survival::Arguments),
    /// A rank of `bench training`
    #[command(hide = true)]
    TrainingRank(training::rank::Arguments),
    /// A model that answers on this host: next to the memory's limit, by batch, and as `replay` predicts it
    Engine(Box<engine::Arguments>),
    /// What clients of a server of models experience under load: ours, vLLM, SGLang
    Serve(Box<serve::Arguments>),
    /// How often a diagnosis is right, how soon it comes, what it costs: simulated gangs, labelled logs, real step times
    Diagnose(diagnose::Arguments),
    /// Measure this host with the program's own operators, as a catalog file to plan with
    Machine(machine::Arguments),
}

pub(crate) fn run(command: BenchCommand, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let catalog = context.load_catalog()?;
    match command {
        BenchCommand::Search(arguments) => search::run(&arguments, &catalog, console),
        BenchCommand::Deploy(arguments) => deploy::run(&arguments, &catalog, console),
        BenchCommand::Schedule(arguments) => schedule::run(&arguments, &catalog, console),
        BenchCommand::Submit(arguments) => submit::run(&arguments, context, console),
        BenchCommand::Abuse(arguments) => abuse::run(&arguments, context, console),
        BenchCommand::Kernels(arguments) => kernels::run(&arguments, console),
        BenchCommand::Training(arguments) => training::run(&arguments, context, console),
        BenchCommand::TrainingRank(arguments) => training::rank::run(&arguments),
        BenchCommand::Heal(arguments) => heal::run(&arguments, context, console),
        BenchCommand::Alert(arguments) => alert::run(&arguments, console),
        BenchCommand::Observe(arguments) => observe::run(&arguments, context, console),
        BenchCommand::Comm(arguments) => comm::run(&arguments, context, console),
        BenchCommand::CommRank(arguments) => comm::rank::run(&arguments),
        BenchCommand::Checkpoint(arguments) => checkpoint::run(&arguments, console),
        BenchCommand::Survival(arguments) => survival::run(&arguments, console),
        BenchCommand::Engine(arguments) => engine::run(&arguments, context, console),
        BenchCommand::Serve(arguments) => serve::run(&arguments, console),
        BenchCommand::Diagnose(arguments) => diagnose::run(&arguments, context, console),
        BenchCommand::Machine(arguments) => machine::run(&arguments, context, console),
    }
}

#[cfg(test)]
mod tests {
    use bedplate_testkit::book;
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn bedplate_lists_the_benchmarks_as_they_are() {
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|below| !below.is_hide_set());
        let found: Vec<(String, String)> = visible
            .map(|below| (below.get_name().to_owned(), below.get_about().unwrap_or_default().to_string()))
            .collect();
        let listed = benchmarks::BENCHMARKS.map(|(name, about)| (name.to_owned(), about.to_owned()));
        assert_eq!(found, listed);
    }

    #[test]
    fn the_reference_of_benchmarks_is_current() {
        let mut text = String::from(
            "# Benchmarks\n\nGenerated from the program `bedplate-bench`: the help of every benchmark. [bench.md](bench.md) is the guide.\n",
        );
        let mut command = Cli::command().disable_help_subcommand(true).term_width(100);
        command.build();
        book::add_help(&mut command, "bedplate bench", &mut text);
        book::check("bench-commands.md", &text);
    }
}
