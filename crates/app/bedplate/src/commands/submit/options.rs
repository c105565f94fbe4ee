//! sbatch's options on our command line, from the one table that `#SBATCH` lines are read by.

use bedplate_job::Job;
use bedplate_job::sbatch::{OPTIONS, SbatchOption, Takes};
use bedplate_terminal::{CliError, ProgramError};
use clap::{Arg, ArgAction, ArgMatches, Command, Error, FromArgMatches};

/// Options of sbatch, in the order in which they were given.
pub(super) struct SbatchOptions {
    pub(super) given: Vec<(String, Option<String>)>,
}

impl SbatchOptions {
    pub(super) fn has(&self, name: &str) -> bool {
        self.given.iter().any(|(given, _)| given == name)
    }

    /// A job file says everything itself; only what concerns this one submission may stand beside it.
    pub(super) fn apply_to_file(&self, job: &mut Job) -> Result<(), CliError> {
        for (name, value) in &self.given {
            match (name.as_str(), value) {
                ("hold", _) => job.policy.is_held = true,
                ("job-name", Some(name)) => job.name = name.clone(),
                _ => {
                    let message = format!(
                        "--{name} does not go with a job file: change the file, or submit a batch script or a command"
                    );
                    return Err(ProgramError::Usage { message }.into());
                }
            }
        }
        Ok(())
    }
}

/// Those that our own command line has itself.
fn is_ours(option: &SbatchOption) -> bool {
    matches!(option.name, "wait" | "verbose" | "quiet")
}

impl clap::Args for SbatchOptions {
    fn augment_args(command: Command) -> Command {
        let command = command.next_help_heading("The job, as sbatch has it");
        let rows = OPTIONS.iter().filter(|row| !is_ours(row));
        rows.fold(command, |command, row| command.arg(argument(row))).next_help_heading(None::<&str>)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(row: &SbatchOption) -> Arg {
    let argument = Arg::new(row.name)
        .long(row.name)
        .help(row.meaning.replace('`', ""))
        .hide(!row.is_honoured())
        .action(ArgAction::Append)
        .value_name("VALUE");
    let argument = match row.letter.filter(|letter| !matches!(letter, 'W' | 'f')) {
        Some(letter) => argument.short(letter),
        None => argument,
    };
    match row.takes {
        Takes::Value => argument.num_args(1).allow_hyphen_values(true),
        Takes::Perhaps => argument.num_args(0..=1).require_equals(true).default_missing_value(""),
        Takes::Nothing => argument.num_args(0).default_missing_value(""),
    }
}

impl FromArgMatches for SbatchOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut given: Vec<(usize, String, Option<String>)> = Vec::new();
        for row in OPTIONS.iter().filter(|row| !is_ours(row)) {
            let (Some(values), Some(indices)) =
                (matches.get_many::<String>(row.name), matches.indices_of(row.name))
            else {
                continue;
            };
            for (value, index) in values.zip(indices) {
                let has_value = row.takes == Takes::Value || !value.is_empty();
                given.push((index, row.name.to_owned(), has_value.then(|| value.clone())));
            }
        }
        given.sort_by_key(|(index, ..)| *index);
        Ok(Self { given: given.into_iter().map(|(_, name, value)| (name, value)).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;

    fn given(words: &[&str]) -> Vec<(String, Option<String>)> {
        let command = SbatchOptions::augment_args(Command::new("submit").no_binary_name(true));
        SbatchOptions::from_arg_matches(&command.get_matches_from(words)).unwrap().given
    }

    #[test]
    fn options_come_in_the_order_given_with_their_values() {
        let read =
            given(&["--no-requeue", "-N", "2", "--gpus-per-node=8", "--requeue", "--exclusive", "-t10"]);
        let names: Vec<(&str, Option<&str>)> =
            read.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
        assert_eq!(
            names,
            [
                ("no-requeue", None),
                ("nodes", Some("2")),
                ("gpus-per-node", Some("8")),
                ("requeue", None),
                ("exclusive", None),
                ("time", Some("10")),
            ]
        );
        assert_eq!(given(&["--exclusive=user"])[0].1.as_deref(), Some("user"));
        assert_eq!(given(&["--nice=-5"])[0].1.as_deref(), Some("-5"));
    }
}
