//! What only our own control plane keeps: usage in SQL, history, and tokens.

pub use bedplate_control::UsageBy;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What was used, under one key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageRow {
    /// The user, account, day or job.
    pub key: String,
    pub gpu_hours: f64,
    #[serde(default)]
    pub runs: u64,
    #[serde(default)]
    pub energy_joules: Option<f64>,
}

/// What left the history, or would.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pruned {
    pub jobs: u64,
    pub runs: u64,
    pub notes: u64,
    /// Jobs that ended before then.
    pub before_ms: u64,
    pub dry_run: bool,
}

/// A token that was just made; its text is never shown again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenMade {
    #[serde(default)]
    pub id: Value,
    pub token: String,
}

/// A token without its text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenView {
    pub id: Value,
    pub user: String,
    pub role: String,
    #[serde(default)]
    pub expires_ms: Option<u64>,
    #[serde(flatten)]
    pub rest: serde_json::Map<String, Value>,
}
