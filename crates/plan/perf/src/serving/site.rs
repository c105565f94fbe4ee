//! What a site measured of its own deployments: a factor on step time and seconds on the first token, by
//! deployment. `calibrate` derives them from one or more measured rows; the builder of a [`Deployment`] looks
//! them up.

use bedplate_diag::Source;
use bedplate_document::{DocumentError, Table};

use super::{Deployment, Parallel};

/// How a deployment differs from its prediction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adjustment {
    /// Measured over predicted time of a step.
    pub step: f64,
    /// Seconds by which first tokens come later (or, if negative, earlier).
    pub first_token: f64,
}

impl Default for Adjustment {
    fn default() -> Self {
        Self { step: 1.0, first_token: 0.0 }
    }
}

/// The adjustments of a site.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Site {
    entries: Vec<(String, Adjustment)>,
}

impl Site {
    /// What identifies a deployment: model, accelerator, engine, formats and layout.
    pub fn key(deployment: &Deployment, accelerator: &str) -> String {
        let Parallel { tensor, pipeline, expert, attention_data } = deployment.parallel;
        let drafts = deployment.speculation.map_or(0, |speculation| speculation.drafts);
        format!(
            "{} on {} with {}, {}/{} tp{tensor}.pp{pipeline}.ep{expert}.adp{attention_data} drafts{drafts}",
            deployment.model.transformer.name,
            accelerator.to_ascii_lowercase(),
            deployment.engine.name(),
            deployment.weights.attention,
            deployment.weights.experts,
        )
    }

    pub fn add(&mut self, key: String, adjustment: Adjustment) {
        self.entries.retain(|(known, _)| *known != key);
        self.entries.push((key, adjustment));
        self.entries.sort_by(|a, b| a.0.cmp(&b.0));
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The adjustment of a deployment; none where the site has not measured it.
    pub fn find(&self, deployment: &Deployment, accelerator: &str) -> Option<Adjustment> {
        self.find_key(&Self::key(deployment, accelerator))
    }

    /// The same by [`Site::key`].
    pub fn find_key(&self, key: &str) -> Option<Adjustment> {
        self.entries.iter().find(|(known, _)| known == key).map(|(_, adjustment)| *adjustment)
    }

    pub fn read(source: Source<'_>) -> Result<Self, DocumentError> {
        let table = Table::parse(source)?.titled("the site's deployments");
        let mut site = Self::default();
        for entry in table.tables("deployment")? {
            let name: String = entry.required("name")?;
            let adjustment =
                Adjustment { step: entry.or("step", 1.0)?, first_token: entry.or("first_token", 0.0)? };
            if !(0.05..=20.0).contains(&adjustment.step) {
                return Err(entry.bad_value("step", "it must be a factor from 0.05 to 20".to_owned()));
            }
            if !(-60.0..=600.0).contains(&adjustment.first_token) {
                return Err(entry.bad_value("first_token", "it must be seconds from -60 to 600".to_owned()));
            }
            entry.finish()?;
            site.add(name, adjustment);
        }
        table.finish()?;
        Ok(site)
    }

    /// The file form.
    pub fn to_toml(&self) -> String {
        let entry = |(name, adjustment): &(String, Adjustment)| {
            let Adjustment { step, first_token } = adjustment;
            let name = name.replace('\\', "\\\\").replace('"', "\\\"");
            format!("[[deployment]]\nname = \"{name}\"\nstep = {step:.4}\nfirst_token = {first_token:.4}\n")
        };
        self.entries.iter().map(entry).collect::<Vec<_>>().join("\n")
    }
}
