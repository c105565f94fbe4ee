//! What a job waits for.

use std::fmt;
use std::str::FromStr;

use bedplate_diag::nearest;

use crate::NotationError;

/// Written as in Slurm: `afterok:17:18`, `singleton`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    pub kind: DependencyKind,
    /// Jobs waited for; empty for `Singleton`.
    pub jobs: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DependencyKind {
    /// After all have succeeded.
    AfterOk,
    /// After all have ended, however.
    AfterAny,
    /// After all have failed.
    AfterNotOk,
    /// One at a time of this name and user.
    Singleton,
}

impl DependencyKind {
    pub const ALL: [DependencyKind; 4] = [
        DependencyKind::AfterOk,
        DependencyKind::AfterAny,
        DependencyKind::AfterNotOk,
        DependencyKind::Singleton,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            DependencyKind::AfterOk => "afterok",
            DependencyKind::AfterAny => "afterany",
            DependencyKind::AfterNotOk => "afternotok",
            DependencyKind::Singleton => "singleton",
        }
    }
}

impl Dependency {
    /// Whether `name` can stand for a job in a dependency: letters, digits, `_`, `.`, `-`.
    pub(crate) fn is_job_name(name: &str) -> bool {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        !name.is_empty() && name.chars().all(is_plain)
    }
}

impl FromStr for Dependency {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let error = |reason: String| NotationError::new(text, "a dependency such as `afterok:17:18`", reason);
        let (word, jobs) = match text.trim().split_once(':') {
            Some((word, jobs)) => (word, Some(jobs)),
            None => (text.trim(), None),
        };
        let Some(kind) = DependencyKind::ALL.into_iter().find(|kind| kind.name() == word) else {
            return Err(error(unknown_kind(word)));
        };
        let jobs: Vec<String> =
            jobs.into_iter().flat_map(|jobs| jobs.split(':')).map(str::to_owned).collect();
        if let Some(job) = jobs.iter().find(|job| !Dependency::is_job_name(job)) {
            return Err(error(format!("`{}` is not the number of a job", NotationError::shown(job))));
        }
        match (kind, jobs.is_empty()) {
            (DependencyKind::Singleton, false) => Err(error("a singleton names no jobs".into())),
            (DependencyKind::Singleton, true) | (_, false) => Ok(Self { kind, jobs }),
            (_, true) => Err(error("it names no job to wait for".into())),
        }
    }
}

fn unknown_kind(word: &str) -> String {
    let names = DependencyKind::ALL.map(DependencyKind::name);
    match nearest(word, names) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("the kinds are {}", names.join(", ")),
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        self.jobs.iter().try_for_each(|job| write!(f, ":{job}"))
    }
}
