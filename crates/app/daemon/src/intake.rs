//! From the body of a submission to a job.

pub use bedplate_job::JobFormat;
use bedplate_job::{Imported, Job, JobError};

/// A job and what could not be honoured of its script.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    pub job: Job,
    pub remarks: Vec<String>,
}

/// Why a body is no job.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unreadable {
    #[error("the body is not UTF-8")]
    NotText,
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("the array has {tasks} tasks; it may have {limit}")]
    TooManyTasks { tasks: u64, limit: u64 },
}

/// Reads a job of at most so many tasks.
pub fn read(format: JobFormat, body: &[u8], most_tasks: u64) -> Result<Read, Unreadable> {
    let text = std::str::from_utf8(body).map_err(|_| Unreadable::NotText)?;
    let mut read = match format {
        JobFormat::Toml => Read { job: Job::from_toml(text, "job")?, remarks: Vec::new() },
        JobFormat::Json => Read { job: Job::from_json(text, "job")?, remarks: Vec::new() },
        JobFormat::Script => {
            let Imported { job, remarks } = Job::from_sbatch(text, "script")?;
            Read { job, remarks: remarks.iter().map(ToString::to_string).collect() }
        }
    };
    if read.job.health.spare_nodes > 0 {
        let text =
            "health.spare_nodes: no nodes are held as spares here; a lost node is replaced by any free one";
        read.remarks.push(text.to_owned());
    }
    let tasks = read.job.policy.array.as_ref().map_or(1, bedplate_job::Array::count);
    if tasks > most_tasks {
        return Err(Unreadable::TooManyTasks { tasks, limit: most_tasks });
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types_are_recognised_without_their_parameters() {
        for (content_type, format) in [
            ("application/toml", Some(JobFormat::Toml)),
            ("Application/JSON; charset=utf-8", Some(JobFormat::Json)),
            ("text/x-shellscript", Some(JobFormat::Script)),
            ("text/plain", None),
            ("", None),
        ] {
            assert_eq!(JobFormat::of(content_type), format, "{content_type}");
        }
    }

    #[test]
    fn spare_nodes_are_remarked_upon_because_a_cluster_of_ours_holds_none() {
        let text = "name = \"a\"\ncommand = [\"true\"]\n[health]\nspare_nodes = 2\n";
        let remarks = read(JobFormat::Toml, text.as_bytes(), 100).unwrap().remarks;
        assert!(remarks[0].starts_with("health.spare_nodes: no nodes are held"), "{remarks:?}");
    }

    #[test]
    fn an_array_may_not_be_endless() {
        let text = "name = \"a\"\ncommand = [\"true\"]\narray = \"0-9999999\"\n";
        let refused = read(JobFormat::Toml, text.as_bytes(), 100);
        assert_eq!(refused, Err(Unreadable::TooManyTasks { tasks: 10_000_000, limit: 100 }));
    }
}
