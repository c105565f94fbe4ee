//! `bedplate bench …`: benchmarks are a program of their own, `bedplate-bench`; this finds it and becomes it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process;

use bedplate_terminal::benchmarks::{BENCHMARKS, EXAMPLES};
use bedplate_terminal::{CliError, ProgramError, find_companion};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches, Subcommand};

const PROGRAM: &str = "bedplate-bench";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

/// One of the benchmarks with its arguments, which only that program understands.
struct Benchmark(Vec<OsString>);

impl Subcommand for Benchmark {
    fn augment_subcommands(command: Command) -> Command {
        let rest = || {
            let rest = Arg::new("arguments").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
            rest.value_parser(clap::value_parser!(OsString)).help("Its own; `--help` lists them")
        };
        let below = |(name, about)| Command::new(name).about(about).disable_help_flag(true).arg(rest());
        command.subcommands(BENCHMARKS.map(below)).subcommand_required(true).arg_required_else_help(true)
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        BENCHMARKS.iter().any(|(known, _)| *known == name)
    }
}

impl FromArgMatches for Benchmark {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (name, below) = matches
            .subcommand()
            .ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingSubcommand))?;
        let rest = below.get_many::<OsString>("arguments").into_iter().flatten().cloned();
        let own = OsString::from(name);
        Ok(Self(global_options(below).into_iter().chain([own]).chain(rest).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Those that were given to this program; variables of the environment are passed on anyway.
fn global_options(matches: &ArgMatches) -> Vec<OsString> {
    let mut options: Vec<OsString> = matches.get_flag("json").then(|| "--json".into()).into_iter().collect();
    for (id, flag) in [("catalog", "--catalog"), ("log", "--log"), ("log_format", "--log-format")] {
        let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
        let values = matches.get_raw(id).filter(|_| is_given).into_iter().flatten();
        options.extend(values.flat_map(|value| [flag.into(), value.to_owned()]));
    }
    options
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    // Returns only where the program cannot be started.
    let source = process::Command::new(find_companion(PROGRAM)?).args(&arguments.benchmark.0).exec();
    Err(ProgramError::Companion { name: PROGRAM, source }.into())
}
