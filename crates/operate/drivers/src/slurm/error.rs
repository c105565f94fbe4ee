//! What goes wrong between us and Slurm.

use std::io;

use bedplate_diag::{Diagnostic, Page, pages};

#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    #[error("slurmctld does not answer: {message}")]
    Controller { message: String },
    #[error("slurmrestd at {place} does not answer")]
    Rest { place: String, source: io::Error },
    #[error("{what} has not answered within {seconds} s")]
    TooSlow { what: String, seconds: u64 },
    #[error("Slurm's accounting does not answer: {message}")]
    Accounting { message: String },
    #[error("Slurm's command `{program}` cannot be started")]
    Command { program: String, source: io::Error },
    #[error("the answer of {what} is not understood: {reason}")]
    NotUnderstood { what: String, reason: String },
    #[error("no transport to Slurm works: {reasons}")]
    NoTransport { reasons: String },
    #[error("slurmrestd ({version}) has no field for `--{option}`")]
    NoField { option: String, version: String },
    #[error("`--{option}={value}` cannot be handed to slurmrestd: {reason}")]
    Option { option: String, value: String, reason: String },
    #[error("Slurm failed: {message}")]
    Failed { message: String },
}

pages! { pub PAGES "slurm":
    CONTROLLER "controller" Transient
        "Slurm's commands or its REST server could not reach slurmctld. It may be restarting, or this machine may have no way to it."
        "try again; if it stays, ask whether the cluster is under maintenance, and check SLURM_CONF"

    REST "rest" Transient
        "Slurm's REST server did not accept a connection, or the connection broke."
        "try again; `bedplate context show` says where it is expected, and `bedplate context add NAME slurm` without --rest uses Slurm's commands"

    TOO_SLOW "too-slow" Transient
        "Slurm did not answer in the time that the context allows (`patience_s`, 10 s unless set). A busy controller can take longer. It is not known whether the request was carried out; submissions carry a key, so repeating one does not make a second job."
        "look with `bedplate queue` what came of it and try again; `bedplate context add NAME slurm --patience 60` waits longer"

    ACCOUNTING "accounting" Transient
        "Slurm's accounting (slurmdbd), which remembers the jobs that slurmctld has forgotten, does not answer now."
        "try again later; jobs that wait, run or ended just now are shown without it"

    COMMAND "command" User
        "Without a REST server Slurm is driven by its own commands (sbatch, squeue, scontrol, scancel, sacct, sinfo), and one of them is missing here."
        "install Slurm's client commands, or run this where they are: on a login node"

    NOT_UNDERSTOOD "not-understood" User
        "Slurm answered in a form that this program does not know. Slurm 20.11 and later and the REST versions from v0.0.36 on are known."
        "please report the command, the message and the output of `sinfo --version`"

    NO_TRANSPORT "no-way" User
        "A context of the kind `slurm` needs Slurm's commands on this machine, or a REST server that answers. Neither works."
        "correct what the message names; --rest takes unix:/PATH or http://HOST:PORT, and --slurm-conf the file of a Slurm that is not the usual one"

    NO_FIELD "no-field" User
        "Slurm's REST server takes jobs as fields instead of options, and its version has no field for one of the job's options. Slurm's commands would take the option, but they do not work on this machine."
        "leave the option out, or submit from a machine with Slurm's commands"

    OPTION "option" User
        "The value of an option of the job could not be translated into what Slurm's REST server takes."
        "correct the value; `man sbatch` has the forms"

    FAILED "failed" User
        "Slurm accepted the request and reports that it failed, with a message of its own."
        "read the message; the site's administrators know what it means there"
}

impl Diagnostic for SlurmError {
    fn page(&self) -> &'static Page {
        match self {
            SlurmError::Controller { .. } => &CONTROLLER,
            SlurmError::Rest { .. } => &REST,
            SlurmError::TooSlow { .. } => &TOO_SLOW,
            SlurmError::Accounting { .. } => &ACCOUNTING,
            SlurmError::Command { .. } => &COMMAND,
            SlurmError::NotUnderstood { .. } => &NOT_UNDERSTOOD,
            SlurmError::NoTransport { .. } => &NO_TRANSPORT,
            SlurmError::NoField { .. } => &NO_FIELD,
            SlurmError::Option { .. } => &OPTION,
            SlurmError::Failed { .. } => &FAILED,
        }
    }
}
