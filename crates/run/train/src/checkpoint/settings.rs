//! Every setting that shapes the loss curve, as a checkpoint records it, and what has changed since.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bedplate_checkpoint::RunFacts;
use bedplate_data::Packing;
use bedplate_network::Architecture;
use serde_json::{Map, Value};

use crate::setup::Data;
use crate::{Decay, LearningRate, TrainConfig};

/// The settings that differ from those of now in a way that the steps done before a checkpoint would have noticed.
pub(crate) fn changes(facts: &RunFacts, now: &CurveSettings) -> Vec<Change> {
    let then = CurveSettings(facts.settings.clone());
    let has_same_rates = match (then.learning_rate(), now.learning_rate()) {
        (Some(then), Some(now)) => (0..facts.step).all(|step| then.at(step) == now.at(step)),
        _ => false,
    };
    let keys: BTreeSet<&String> = then.0.keys().chain(now.0.keys()).collect();
    let of = |settings: &CurveSettings, key: &String| settings.0.get(key).cloned().unwrap_or(Value::Null);
    keys.into_iter()
        .filter(|key| !(has_same_rates && SCHEDULE.contains(&key.as_str())))
        .map(|key| Change { key: key.clone(), was: of(&then, key), is: of(now, key) })
        .filter(|change| change.was != change.is)
        .collect()
}

/// A setting that is not what it was when a checkpoint was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub key: String,
    was: Value,
    is: Value,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Value| match value {
            Value::Null => "absent".to_owned(),
            value => bedplate_diag::shown(&value.to_string()),
        };
        write!(f, "`{}` was {} and is {}", self.key, shown(&self.was), shown(&self.is))
    }
}

/// Everything that decides the loss curve, by key. Where files are and how fast the run is do not.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CurveSettings(pub(super) BTreeMap<String, Value>);

/// Keys that count by the learning rates they give: a change that leaves the rates of all past steps as they were is none.
const SCHEDULE: [&str; 6] = [
    "optimizer.learning_rate",
    "optimizer.decay",
    "optimizer.warmup",
    "optimizer.final_share",
    "optimizer.decay_share",
    "training.steps",
];

/// Keys of a config.json that no arithmetic depends on.
const IDLE: [&str; 6] =
    ["torch_dtype", "dtype", "transformers_version", "architectures", "use_cache", "pad_token_id"];

impl CurveSettings {
    /// `weights` is the checksum of the weights that the run began with, where these were given.
    pub(crate) fn of(
        config: &TrainConfig,
        architecture: &Architecture,
        data: &Data,
        weights: Option<u32>,
    ) -> Self {
        let TrainConfig { model, data: given, training, optimizer, adapter, .. } = config;
        let mut settings = Map::new();
        let mut set = |key: &str, value: Value| drop(settings.insert(key.to_owned(), value));
        set("model.weights", weights.map_or(Value::Null, |sum| format!("checksum {sum:08x}").into()));
        if weights.is_none() || adapter.is_some() {
            set("model.seed", model.seed.into());
        }
        set("data.corpora", data.digests().into());
        set("data.weights", given.corpora.iter().map(|corpus| corpus.weight).collect());
        set("data.sequence", given.sequence.into());
        set("data.packing", if given.packing == Packing::Whole { "whole" } else { "windows" }.into());
        set("data.document_mask", data.is_masked().into());
        set("data.seed", given.seed.into());
        set("training.batch", training.batch.into());
        if architecture.transformer.is_mixture() {
            // The load-balancing loss is one of each micro-batch.
            set("training.micro_batch", training.micro_batch.into());
        }
        set("training.precision", training.precision.name().into());
        set("training.steps", training.steps.into());
        set("optimizer.learning_rate", optimizer.learning_rate.into());
        set("optimizer.decay", optimizer.decay.name().into());
        set("optimizer.warmup", optimizer.warmup.into());
        set("optimizer.final_share", optimizer.final_share.into());
        set("optimizer.decay_share", optimizer.decay_share.into());
        set("optimizer.beta1", optimizer.beta1.into());
        set("optimizer.beta2", optimizer.beta2.into());
        set("optimizer.epsilon", optimizer.epsilon.into());
        set("optimizer.weight_decay", optimizer.weight_decay.into());
        set("optimizer.clip", optimizer.clip.into());
        if let Some(adapter) = adapter {
            set("adapter.rank", adapter.rank.into());
            set("adapter.alpha", adapter.alpha.into());
            set("adapter.targets", adapter.targets.clone().into());
        }
        settings.extend(model_settings(architecture));
        // As they are read back: parsing may round a number in its last place.
        let text = Value::Object(settings).to_string();
        serde_json::from_str::<BTreeMap<String, Value>>(&text).map(Self).unwrap_or_default()
    }

    fn learning_rate(&self) -> Option<LearningRate> {
        let number = |key: &str| self.0.get(key)?.as_f64();
        let count = |key: &str| self.0.get(key)?.as_u64();
        let decay = self.0.get("optimizer.decay")?.as_str()?;
        Some(LearningRate {
            peak: number("optimizer.learning_rate")?,
            decay: Decay::ALL.iter().find(|(name, _)| *name == decay)?.1,
            warmup: count("optimizer.warmup")?,
            final_share: number("optimizer.final_share")?,
            decay_share: number("optimizer.decay_share")?,
            steps: count("training.steps")?,
        })
    }
}

fn model_settings(architecture: &Architecture) -> Vec<(String, Value)> {
    let Ok(Value::Object(keys)) = serde_json::from_str(architecture.config_json()) else { return Vec::new() };
    keys.into_iter()
        .filter(|(key, value)| !IDLE.contains(&key.as_str()) && !key.starts_with('_') && !value.is_null())
        .map(|(key, value)| (format!("model.config: {key}"), value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings(changes: &[(&str, Value)]) -> CurveSettings {
        let mut settings = BTreeMap::from([
            ("optimizer.learning_rate".to_owned(), json!(1e-3)),
            ("optimizer.decay".to_owned(), json!("warmup-stable-decay")),
            ("optimizer.warmup".to_owned(), json!(2)),
            ("optimizer.final_share".to_owned(), json!(0.1)),
            ("optimizer.decay_share".to_owned(), json!(0.2)),
            ("training.steps".to_owned(), json!(100)),
            ("data.seed".to_owned(), json!(1)),
        ]);
        changes.iter().for_each(|(key, value)| drop(settings.insert((*key).to_owned(), value.clone())));
        CurveSettings(settings)
    }

    fn changes(then: &[(&str, Value)], now: &[(&str, Value)], step: u64) -> String {
        let facts = RunFacts { step, settings: settings(then).0, ..RunFacts::default() };
        let changes = super::changes(&facts, &settings(now));
        changes.iter().map(Change::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_change_is_what_past_steps_would_have_noticed() {
        assert_eq!(changes(&[], &[], 50), "");
        assert_eq!(changes(&[], &[("data.seed", json!(2))], 50), "`data.seed` was 1 and is 2");
        let added = [("adapter.rank", json!(8))];
        assert_eq!(changes(&[], &added, 50), "`adapter.rank` was absent and is 8");
        let longer = [("training.steps", json!(200))];
        assert_eq!(changes(&[], &longer, 50), "", "the rate has not begun to fall");
        assert_eq!(changes(&[], &longer, 90), "`training.steps` was 100 and is 200");
        let cosine = [("optimizer.decay", json!("cosine"))];
        let longer = [("optimizer.decay", json!("cosine")), ("training.steps", json!(200))];
        assert_eq!(changes(&cosine, &longer, 50), "`training.steps` was 100 and is 200");
        assert_eq!(changes(&cosine, &longer, 2), "", "only the warm-up is done");
    }
}
