//! What Slurm's complaints mean. Its commands print sentences, its REST server sends the same ones with numbers.

use bedplate_diag::Reason;

use super::error::SlurmError;
use crate::{DriverError, JobId, NodeId};

/// The kinds of complaints that callers must tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Complaint {
    NoSuchJob,
    NoSuchNode,
    NotAllowed,
    HasEnded,
    Controller,
    Accounting,
    NoAccounting,
    Other,
}

/// Beginnings and parts of the sentences in `slurm_errno.c` and of what its commands say themselves.
const SENTENCES: &[(&str, Complaint)] = &[
    ("accounting storage is disabled", Complaint::NoAccounting),
    ("Slurm accounting storage is disabled", Complaint::NoAccounting),
    ("Problem talking to the database", Complaint::Accounting),
    ("slurmdbd", Complaint::Accounting),
    ("persistent connection", Complaint::Accounting),
    ("Unable to connect to database", Complaint::Accounting),
    ("Invalid job id", Complaint::NoSuchJob),
    ("Invalid Job Id", Complaint::NoSuchJob),
    ("Unable to find JobId", Complaint::NoSuchJob),
    ("Invalid node name", Complaint::NoSuchNode),
    ("not found", Complaint::NoSuchNode),
    ("Access/permission denied", Complaint::NotAllowed),
    ("Access denied", Complaint::NotAllowed),
    ("Invalid user id", Complaint::NotAllowed),
    ("User id is invalid", Complaint::NotAllowed),
    ("authentication", Complaint::NotAllowed),
    ("Authentication", Complaint::NotAllowed),
    ("already finished", Complaint::HasEnded),
    ("already completing or completed", Complaint::HasEnded),
    ("Unable to contact slurm controller", Complaint::Controller),
    ("Connection refused", Complaint::Controller),
    ("Connection timed out", Complaint::Controller),
    ("Socket timed out", Complaint::Controller),
    ("Zero Bytes were transmitted", Complaint::Controller),
    ("connect failure", Complaint::Controller),
    ("Communication connection failure", Complaint::Controller),
    ("standby mode", Complaint::Controller),
    ("Could not establish a configuration source", Complaint::Controller),
    ("Unable to establish configuration source", Complaint::Controller),
];

impl Complaint {
    pub(super) fn of(text: &str) -> Self {
        let known = SENTENCES.iter().find(|(sentence, _)| text.contains(sentence));
        known.map_or(Self::Other, |(_, complaint)| *complaint)
    }

    /// By the numbers of `slurm_errno.h`; 0 where there is none.
    pub(super) fn of_number(number: u64, text: &str) -> Self {
        match number {
            2017 => Self::NoSuchJob,
            2018 => Self::NoSuchNode,
            2002 | 2010 | 1007..=1009 | 6000..=6999 => Self::NotAllowed,
            2021 => Self::HasEnded,
            1001..=1006 | 1800..=1900 | 5004..=5007 => Self::Controller,
            7000..=7999 => match Self::of(text) {
                Self::Other => Self::Accounting,
                other => other,
            },
            _ => Self::of(text),
        }
    }

    /// The error for a complaint that concerns no job or node in particular.
    pub(super) fn error(self, message: String) -> DriverError {
        match self {
            Complaint::NotAllowed => {
                DriverError::NotAllowed { message: format!("Slurm says no: {message}"), help: None }
            }
            Complaint::Controller => SlurmError::Controller { message }.into(),
            Complaint::Accounting => SlurmError::Accounting { message }.into(),
            Complaint::NoAccounting => no_accounting(),
            Complaint::NoSuchJob | Complaint::NoSuchNode | Complaint::HasEnded => refused("refused", message),
            Complaint::Other => SlurmError::Failed { message }.into(),
        }
    }
}

pub(super) fn refused(code: &str, message: String) -> DriverError {
    let reason = Some(Reason::new(code, message.clone()));
    DriverError::Refused { code: format!("slurm/{code}"), message, help: None, reason }
}

pub(super) fn no_such_job(id: &JobId) -> DriverError {
    refused("no_such_job", format!("there is no job {id}"))
}

pub(super) fn no_such_node(id: &NodeId) -> DriverError {
    refused("no_such_node", format!("there is no node {id}"))
}

fn no_accounting() -> DriverError {
    refused("no_accounting", "this Slurm keeps no accounting".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_of_slurm_are_told_apart() {
        for (text, complaint) in [
            ("slurm_load_jobs error: Invalid job id specified", Complaint::NoSuchJob),
            ("Node nx not found", Complaint::NoSuchNode),
            ("slurm_update error: Access/permission denied", Complaint::NotAllowed),
            (
                "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
                Complaint::Controller,
            ),
            ("Slurm accounting storage is disabled", Complaint::NoAccounting),
            (
                "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:127.0.0.1:27151: Connection refused",
                Complaint::Accounting,
            ),
            (
                "sbatch: error: Batch job submission failed: Requested node configuration is not available",
                Complaint::Other,
            ),
        ] {
            assert_eq!(Complaint::of(text), complaint, "{text}");
        }
    }
}
