//! What can be wrong with the text of a job, and the pages that explain it.

use bedplate_diag::{Class, Diagnostic, Page, Place};
use bedplate_document::DocumentError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// A job file that cannot be read.
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("{what} has {bytes} bytes; it may have {limit}")]
    TooLarge { what: &'static str, bytes: usize, limit: usize, place: Option<Place> },
    #[error("this is not a batch script: its first line does not begin with `#!`")]
    NotAScript { place: Option<Place> },
    #[error("{option} is not an option of sbatch")]
    UnknownOption {
        option: String,
        /// The option that looks like it.
        near: Option<String>,
        place: Option<Place>,
    },
    #[error("{option} cannot be used: {reason}")]
    BadOption { option: String, reason: String, place: Option<Place> },
    #[error("a quotation mark is never closed")]
    OpenQuote { place: Option<Place> },
    #[error("the file name pattern `{pattern}` cannot be used: {reason}")]
    BadPattern { pattern: String, reason: String },
    #[error("`{key}` cannot be written for Slurm: {reason}")]
    NotForSlurm {
        /// The key of the job file.
        key: String,
        reason: String,
    },
    #[error("`{key}` cannot be written for Kubernetes: {reason}")]
    NotForKubernetes {
        /// The key of the job file.
        key: String,
        reason: String,
    },
    #[error("this manifest cannot be read as a job: {reason}")]
    Manifest { reason: String, place: Option<Place> },
}

pub const PAGES: &[&Page] = &[
    &TOO_LARGE,
    &NOT_A_SCRIPT,
    &UNKNOWN_OPTION,
    &BAD_OPTION,
    &OPEN_QUOTE,
    &BAD_PATTERN,
    &NOT_FOR_SLURM,
    &NOT_FOR_KUBERNETES,
    &MANIFEST,
];

static TOO_LARGE: Page = Page {
    code: "job/too-large",
    class: Class::User,
    meaning: "The text of a job is far larger than any that people write, so it was not read. Scripts are kept for as long as their jobs are known.",
    remedy: "put data and long programs into files that the job reads",
};
static NOT_A_SCRIPT: Page = Page {
    code: "job/not-a-script",
    class: Class::User,
    meaning: "A batch script begins with a line such as `#!/bin/bash`, which names the program that runs it.",
    remedy: "begin the script with `#!/bin/bash`, or check that this is the file you meant",
};
static UNKNOWN_OPTION: Page = Page {
    code: "job/unknown-option",
    class: Class::User,
    meaning: "A `#SBATCH` line or the command line has an option that sbatch does not have. Unknown options are refused, because a misspelt one would otherwise be ignored in silence.",
    remedy: "correct the spelling or remove the option; docs/job.md lists all options",
};
static BAD_OPTION: Page = Page {
    code: "job/bad-option",
    class: Class::User,
    meaning: "An option lacks its value, has one that it cannot have, or asks for something that cannot be given.",
    remedy: "change the option as the message says; docs/job.md lists all options",
};
static OPEN_QUOTE: Page = Page {
    code: "job/open-quote",
    class: Class::User,
    meaning: "A `#SBATCH` line opens a quotation and does not close it. A quotation cannot go on in the next line.",
    remedy: "close the quotation on the same line",
};
static BAD_PATTERN: Page = Page {
    code: "job/bad-pattern",
    class: Class::User,
    meaning: "A file name for standard input, output or errors has an unknown letter after `%`, or becomes too long.",
    remedy: "use the letters listed in docs/job.md, and `%%` for a per cent sign",
};

static NOT_FOR_SLURM: Page = Page {
    code: "job/not-for-slurm",
    class: Class::User,
    meaning: "The job asks for something that no option of sbatch can express, and leaving it out would make it another job, so no batch script is written. What can be left out without harm is left out with a remark.",
    remedy: "change the key as the message says; docs/slurm.md lists what becomes of each key",
};

static NOT_FOR_KUBERNETES: Page = Page {
    code: "job/not-for-kubernetes",
    class: Class::User,
    meaning: "The job asks for something that no field of a manifest can express, and leaving it out would make it another job, so no manifest is written. What can be left out without harm is left out with a remark.",
    remedy: "change the key as the message says; docs/kubernetes.md lists what becomes of each key",
};
static MANIFEST: Page = Page {
    code: "job/manifest",
    class: Class::User,
    meaning: "Only a JobSet, a Job or a PyTorchJob whose pods have one container that runs a command can be read as a job.",
    remedy: "check the file with `kubectl apply --dry-run=server`, or write the job as a job file",
};

impl JobError {
    /// The same error at a place.
    pub(crate) fn at(mut self, at: Place) -> Self {
        match &mut self {
            JobError::TooLarge { place, .. }
            | JobError::NotAScript { place }
            | JobError::UnknownOption { place, .. }
            | JobError::BadOption { place, .. }
            | JobError::OpenQuote { place }
            | JobError::Manifest { place, .. } => *place = Some(at),
            JobError::Document(_)
            | JobError::BadPattern { .. }
            | JobError::NotForSlurm { .. }
            | JobError::NotForKubernetes { .. } => {}
        }
        self
    }
}

impl Diagnostic for JobError {
    fn page(&self) -> &'static Page {
        match self {
            JobError::Document(error) => error.page(),
            JobError::TooLarge { .. } => &TOO_LARGE,
            JobError::NotAScript { .. } => &NOT_A_SCRIPT,
            JobError::UnknownOption { .. } => &UNKNOWN_OPTION,
            JobError::BadOption { .. } => &BAD_OPTION,
            JobError::OpenQuote { .. } => &OPEN_QUOTE,
            JobError::BadPattern { .. } => &BAD_PATTERN,
            JobError::NotForSlurm { .. } => &NOT_FOR_SLURM,
            JobError::NotForKubernetes { .. } => &NOT_FOR_KUBERNETES,
            JobError::Manifest { .. } => &MANIFEST,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            JobError::Document(error) => error.help(),
            JobError::UnknownOption { near: Some(near), .. } => Some(format!("did you mean `--{near}`?")),
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            JobError::Document(error) => error.place(),
            JobError::TooLarge { place, .. }
            | JobError::NotAScript { place }
            | JobError::UnknownOption { place, .. }
            | JobError::BadOption { place, .. }
            | JobError::OpenQuote { place }
            | JobError::Manifest { place, .. } => place.as_ref(),
            JobError::BadPattern { .. }
            | JobError::NotForSlurm { .. }
            | JobError::NotForKubernetes { .. } => None,
        }
    }
}
