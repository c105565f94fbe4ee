//! What a job takes from the user who submits it: variables and the folder.

use std::env;
use std::path::Path;

use bedplate_job::{Inherited, Job};

use crate::{Driver, DriverError, Submitted, new_submission_key};

/// Variables of ours that name one run or open a cluster; they must not travel into another job.
const OWN: &str = "BEDPLATE_";

/// Submits a job with what surrounds the user.
pub fn submit_here(mut job: Job, driver: &dyn Driver) -> Result<Submitted, DriverError> {
    surround(&mut job, driver);
    driver.submit(&job, &new_submission_key())
}

/// Fills in what the job leaves to its submitter. The cluster's own variables are no part of it after this.
pub fn surround(job: &mut Job, driver: &dyn Driver) {
    let variables = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    if driver.runs_containers() {
        if job.environment.inherited == Inherited::All {
            job.environment.inherited = Inherited::Nothing;
        }
        return fill(job, variables);
    }
    fill(job, variables);
    if let Ok(here) = env::current_dir() {
        place(job, &here);
    }
}

/// A folder that is not absolute is one below the folder of submission, as for sbatch.
fn place(job: &mut Job, here: &Path) {
    let directory = match job.working_directory.as_deref() {
        None | Some(".") => here.to_owned(),
        Some(directory) => here.join(directory),
    };
    if let Some(directory) = directory.to_str() {
        job.working_directory = Some(directory.to_owned());
    }
}

fn fill(job: &mut Job, variables: impl Iterator<Item = (String, String)>) {
    let inherited = std::mem::replace(&mut job.environment.inherited, Inherited::Nothing);
    for (name, value) in variables.filter(|(name, _)| is_name(name) && !name.starts_with(OWN)) {
        let is_wanted = match &inherited {
            Inherited::All => true,
            Inherited::Nothing => false,
            Inherited::Only(names) => names.contains(&name),
        };
        if is_wanted {
            job.environment.set.entry(name).or_insert(value);
        }
    }
}

/// Functions that a shell exports have other names, and belong to that shell.
fn is_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.is_empty()
}

#[cfg(test)]
mod tests {
    use bedplate_job::{Gang, Role, Workload};

    use super::*;

    fn filled(inherited: Inherited) -> Vec<String> {
        let mut job = Job::new("x", Workload::command(["true"]), Gang::of(Role::named(Role::ONLY)));
        job.environment.inherited = inherited;
        job.environment.set.insert("A".into(), "own".into());
        let pairs = [("A", "1"), ("B", "2"), ("BEDPLATE_TOKEN", "t"), ("BASH_FUNC_x%%", "()"), ("1X", "")];
        fill(&mut job, pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(job.environment.inherited, Inherited::Nothing);
        job.environment.set.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn a_folder_is_below_that_of_the_submission_unless_it_is_absolute() {
        for (given, expected) in [
            (None, "/home/ada"),
            (Some("."), "/home/ada"),
            (Some("run"), "/home/ada/run"),
            (Some("/fsx"), "/fsx"),
        ] {
            let mut job = Job::new("x", Workload::command(["true"]), Gang::of(Role::named(Role::ONLY)));
            job.working_directory = given.map(str::to_owned);
            place(&mut job, Path::new("/home/ada"));
            assert_eq!(job.working_directory.as_deref(), Some(expected));
        }
    }

    #[test]
    fn the_submitters_variables_go_along_as_the_job_wants_them() {
        assert_eq!(filled(Inherited::All), ["A=own", "B=2"]);
        assert_eq!(filled(Inherited::Nothing), ["A=own"]);
        assert_eq!(filled(Inherited::Only(vec!["B".into(), "C".into()])), ["A=own", "B=2"]);
    }
}
