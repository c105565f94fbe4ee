//! Job files: one reader behind TOML and JSON, one writer behind both.
//!
//! Reading checks that every key is known and every value is of its kind. Whether the job can ever run is
//! a question for [`Job::flaws`].

mod read;
mod read_kubernetes;
mod values;
mod write;
mod write_kubernetes;
mod write_toml;

use bedplate_diag::Source;
use bedplate_document::Table;
use serde_json::Value;

use crate::{Imported, Job, JobError};

impl Job {
    /// Reads a manifest of Kubernetes, or a job file in JSON or TOML.
    pub fn from_file(text: &str, name: &str) -> Result<Imported, JobError> {
        let job = match (Self::is_manifest(text), text.trim_start().starts_with('{')) {
            (true, _) => return Self::from_manifest(text, name),
            (false, true) => Self::from_json(text, name)?,
            (false, false) => Self::from_toml(text, name)?,
        };
        Ok(Imported { job, remarks: Vec::new() })
    }

    /// Reads a job file; errors speak of it as `name`.
    pub fn from_toml(text: &str, name: &str) -> Result<Self, JobError> {
        Ok(read::job(Table::parse(Source::new(name, text))?)?)
    }

    /// Reads the same keys from a JSON object.
    pub fn from_json(text: &str, name: &str) -> Result<Self, JobError> {
        Ok(read::job(Table::parse_json(Source::new(name, text))?)?)
    }

    /// The job file of this job in its one canonical form. Defaults are left out.
    pub fn to_toml(&self) -> String {
        write_toml::document(&write::object(self))
    }

    /// The same as JSON.
    pub fn to_json(&self) -> Value {
        Value::Object(write::object(self))
    }
}
