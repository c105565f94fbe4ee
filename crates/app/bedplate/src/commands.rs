//! One module per command; the folder mirrors the command line.

pub(crate) mod agent;
pub(crate) mod bench;
pub(crate) mod catalog;
pub(crate) mod chaos;
pub(crate) mod checkpoint;
pub(crate) mod cluster;
pub(crate) mod comm;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod context;
pub(crate) mod daemon;
pub(crate) mod dashboards;
pub(crate) mod data;
pub(crate) mod diagnose;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod error;
pub(crate) mod export;
pub(crate) mod generate;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod job;
pub(crate) mod journal;
pub(crate) mod launch;
pub(crate) mod layout;
pub(crate) mod man;
pub(crate) mod model;
pub(crate) mod node;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod replay;
pub(crate) mod route;
pub(crate) mod rules;
pub(crate) mod scheduler;
pub(crate) mod scrape_config;
pub(crate) mod selftest;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod submit;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod tour;
pub(crate) mod train;
pub(crate) mod unit;
pub(crate) mod up;
pub(crate) mod usage;
pub(crate) mod watch;

use bedplate_terminal::{CliError, Console, Context};

use crate::cli::Command;

pub(crate) fn run(command: Command, context: &Context, console: &mut Console) -> Result<(), CliError> {
    match command {
        Command::Agent(arguments) => agent::run(*arguments),
        Command::Tour(arguments) => tour::run(&arguments, context, console),
        Command::Train(arguments) => train::run(&arguments, context, console),
        Command::Serve(arguments) => serve::run(&arguments, console),
        Command::Route(arguments) => route::run(&arguments, console),
        Command::Generate(arguments) => generate::run(&arguments, console),
        Command::Catalog(arguments) => catalog::run(arguments, context, console),
        Command::Checkpoint(arguments) => checkpoint::run(&arguments, console),
        Command::Cluster(arguments) => cluster::run(arguments, context, console),
        Command::Comm(arguments) => comm::run(&arguments, console),
        Command::Model(arguments) => model::run(arguments, console),
        Command::Plan(arguments) => plan::run(*arguments, context, console),
        Command::Replay(arguments) => replay::run(arguments, context, console),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Data(arguments) => data::run(&arguments, console),
        Command::Launch(arguments) => launch::run(arguments),
        Command::LaunchHelper(arguments) => launch::help(arguments),
        Command::Layout(arguments) => layout::run(&arguments, console),
        Command::Export(arguments) => export::run(&arguments, console),
        Command::Health(arguments) => health::run(&arguments, console),
        Command::Error(arguments) => error::run(&arguments, console),
        Command::Completions(arguments) => completions::run(&arguments, console),
        Command::Man(arguments) => man::run(&arguments, console),
        Command::Up(arguments) => up::run(&arguments, context, console),
        Command::Daemon(arguments) => daemon::run(&arguments, context, console),
        Command::Unit(arguments) => unit::run(&arguments, console),
        Command::Join(arguments) => up::join::run(&arguments, context, console),
        Command::Supervise(arguments) => up::supervise::run(&arguments, context, console),
        Command::Down(arguments) => down::run(&arguments, console),
        Command::Submit(arguments) => submit::run(&arguments, console),
        Command::Queue(arguments) => queue::run(&arguments, console),
        Command::Job(arguments) => job::run(&arguments, console),
        Command::Node(arguments) => node::run(&arguments, context, console),
        Command::Top(arguments) => top::run(&arguments, console),
        Command::Usage(arguments) => usage::run(&arguments, console),
        Command::History(arguments) => history::run(&arguments, console),
        Command::Journal(arguments) => journal::run(&arguments, console),
        Command::Status(arguments) => status::run(&arguments, console),
        Command::Compare(arguments) => compare::run(&arguments, console),
        Command::Diagnose(arguments) => diagnose::run(&arguments, context, console),
        Command::Watch(arguments) => watch::run(&arguments, console),
        Command::Doctor(arguments) => doctor::run(&arguments, context, console),
        Command::Selftest(arguments) => selftest::run(&arguments, context, console),
        Command::Rules(arguments) => rules::run(&arguments, console),
        Command::Dashboards(arguments) => dashboards::run(&arguments, console),
        Command::Scheduler(arguments) => scheduler::run(&arguments, console),
        Command::ScrapeConfig(arguments) => scrape_config::run(&arguments, console),
        Command::Token(arguments) => token::run(&arguments, console),
        Command::Context(arguments) => context::run(&arguments, console),
        Command::Chaos(arguments) => chaos::run(&arguments, context, console),
    }
}
