//! What a checkpoint says of the run that wrote it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// How far a run was, and what it was.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunFacts {
    pub step: u64,
    /// Samples that the run has learned from, by which the order of data continues.
    pub samples: u64,
    /// The layout of the ranks that wrote it. Any other can read it.
    pub layout: String,
    /// Everything that decides the loss curve, by key.
    pub settings: BTreeMap<String, Value>,
    /// The model's `config.json`; absent where the state is not that of a whole model.
    pub model: Option<Map<String, Value>>,
}

impl RunFacts {
    pub(crate) fn to_json(&self) -> Value {
        let Self { step, samples, layout, settings, model } = self;
        json!({"step": step, "samples": samples, "layout": layout, "settings": settings, "model": model})
    }

    /// Reads facts; in words what is wrong with them.
    pub(crate) fn parse(value: &Value) -> Result<Self, String> {
        let number =
            |key: &str| value[key].as_u64().ok_or_else(|| format!("its facts have no number `{key}`"));
        let settings = value["settings"].as_object().ok_or("its facts have no `settings`")?;
        Ok(Self {
            step: number("step")?,
            samples: number("samples")?,
            layout: value["layout"].as_str().ok_or("its facts have no `layout`")?.to_owned(),
            settings: settings.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            model: value["model"].as_object().cloned(),
        })
    }
}
