//! `bedplate bench …`: how fast the program's own parts are, next to a named peer.

mod alert;
mod checkpoint;
mod comm;
mod deploy;
mod engine;
mod heal;
mod host_file;
mod kernels;
mod machine;
mod observe;
mod peer;
mod schedule;
mod search;
mod serve;
mod submit;
mod survival;
mod training;

use bedplate_terminal::{CliError, Console, Context};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench search
  bedplate bench deploy
  bedplate bench deploy --peer aiconfigurator --peer-python venv/bin/python
  bedplate bench search --peer calculon --peer-path ~/calculon --json
  bedplate bench schedule --nodes 1000 --pending 10000
  bedplate bench submit --peer slurm
  bedplate bench heal
  bedplate bench alert
  bedplate bench observe
  bedplate bench comm --peer gloo,openmpi
  bedplate bench checkpoint --seconds 300
  bedplate bench survival --kills 50
  bedplate bench engine --model qwen2.5-0.5b --weights int8
  bedplate bench machine
  bedplate bench serve http://127.0.0.1:8000 --concurrency 32
  bedplate bench kernels --peer torch --peer-python venv/bin/python")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Layouts priced per second and core
    Search(search::Arguments),
    /// Seconds of a whole search for a deployment, and errors of its predictions next to aiconfigurator's
    Deploy(deploy::Arguments),
    /// Milliseconds per pass of the cluster scheduler
    Schedule(schedule::Arguments),
    /// Jobs accepted per second, and seconds until many small ones are done
    Submit(submit::Arguments),
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
    /// Measure this host with the program's own operators, as a catalog file to plan with
    Machine(machine::Arguments),
}

pub(crate) fn run(arguments: Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let catalog = context.load_catalog()?;
    match arguments.command {
        Command::Search(arguments) => search::run(&arguments, &catalog, console),
        Command::Deploy(arguments) => deploy::run(&arguments, &catalog, console),
        Command::Schedule(arguments) => schedule::run(&arguments, &catalog, console),
        Command::Submit(arguments) => submit::run(&arguments, context, console),
        Command::Kernels(arguments) => kernels::run(&arguments, console),
        Command::Training(arguments) => training::run(&arguments, context, console),
        Command::TrainingRank(arguments) => training::rank::run(&arguments),
        Command::Heal(arguments) => heal::run(&arguments, context, console),
        Command::Alert(arguments) => alert::run(&arguments, console),
        Command::Observe(arguments) => observe::run(&arguments, context, console),
        Command::Comm(arguments) => comm::run(&arguments, context, console),
        Command::CommRank(arguments) => comm::rank::run(&arguments),
        Command::Checkpoint(arguments) => checkpoint::run(&arguments, console),
        Command::Survival(arguments) => survival::run(&arguments, console),
        Command::Engine(arguments) => engine::run(&arguments, context, console),
        Command::Serve(arguments) => serve::run(&arguments, console),
        Command::Machine(arguments) => machine::run(&arguments, context, console),
    }
}

/// The pages of this command and of its larger parts.
pub(crate) const PAGES: &[&[&bedplate_diag::Page]] = &[
    &[
        &peer::PEER_FAILED,
        &kernels::TORCH,
        &training::NOT_MEASURED,
        &submit::SLURM,
        &submit::STUCK,
        &checkpoint::NO_FIO,
        &survival::NOT_SURVIVED,
    ],
    comm::PAGES,
    &[&alert::PEERS, &alert::NO_ALERT],
];
