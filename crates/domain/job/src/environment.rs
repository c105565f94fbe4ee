//! The variables and files that the processes of a job see.

use std::collections::BTreeMap;

/// The variables of every task. Those set here win over inherited ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    pub inherited: Inherited,
    pub set: BTreeMap<String, String>,
}

/// Which of the submitter's variables go into the job. The submitting program looks them up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Inherited {
    #[default]
    All,
    Nothing,
    /// Those of these names.
    Only(Vec<String>),
}

/// Where the standard streams go: patterns of file names, as [`FileNames`](crate::FileNames) reads them.
///
/// Output without a file is kept by the cluster; errors without one go where the output goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Streams {
    pub stdin: Option<String>,
    pub stdout: Option<String>,
    pub stderr: Option<String>,
    /// Files that exist are continued instead of begun anew.
    pub is_appended: bool,
}
