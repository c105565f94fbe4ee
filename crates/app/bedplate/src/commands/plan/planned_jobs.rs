//! `plan calibrate --jobs PLAN=REPORTS`: jobs that ran as planned, as measured rows for the fit.
//!
//! A plan is what `plan train --json` printed; reports are the lines that the job wrote (`docs/report.md`), or what
//! `bedplate job show --json` prints of it.

use std::str::FromStr;

use bedplate_calibrate::Case;
use bedplate_calibrate::own_runs::{PlannedJob, reported_seconds};
use bedplate_catalog::Catalog;
use bedplate_perf::Hardware;
use bedplate_terminal::{CliError, ProgramError, files};
use serde_json::Value;

use crate::{clusters, models};

/// The two files of one job.
#[derive(Debug, Clone)]
pub(super) struct JobFiles {
    plan: String,
    reports: String,
}

impl FromStr for JobFiles {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (plan, reports) = text.split_once('=').ok_or("write PLAN=REPORTS, two files")?;
        Ok(Self { plan: plan.into(), reports: reports.into() })
    }
}

impl JobFiles {
    pub(super) fn case(&self, catalog: &Catalog) -> Result<Case, CliError> {
        let plan: Value = serde_json::from_str(&files::read_text(&self.plan)?)
            .map_err(|error| ProgramError::Usage { message: format!("`{}`: {error}", self.plan) })?;
        let job = PlannedJob::read(&plan, &self.plan)?;
        let cluster = clusters::load(&job.cluster, catalog)?;
        let hardware = Hardware::from_cluster(&cluster, catalog)?;
        let seconds = reported_seconds(&files::read_text(&self.reports)?, &self.reports)?;
        Ok(job.case(&self.reports, models::load(&job.model)?, &cluster, hardware, seconds))
    }
}
