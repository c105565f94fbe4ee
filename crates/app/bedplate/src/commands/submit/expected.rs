//! The prediction that `bedplate plan train --json` printed, read back.

use bedplate_breakdown::{Breakdown, Predicted};
use bedplate_terminal::{CliError, files};
use serde_json::Value;

use super::SubmitError;

pub(crate) fn read(path: &str) -> Result<Breakdown<Predicted>, CliError> {
    let text = files::read_text(path)?;
    let plan: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    from_plan(&plan).ok_or_else(|| SubmitError::NoPrediction { file: path.to_owned() }.into())
}

/// Without one, the file is no plan of training.
fn from_plan(plan: &Value) -> Option<Breakdown<Predicted>> {
    serde_json::from_value(plan.get("breakdown")?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use bedplate_units::Seconds;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plan_gives_its_breakdown_and_anything_else_none() {
        let plan = json!({ "breakdown": { "compute": { "exposed_s": 1.5, "hidden_s": 0.0 }, "scale_out": { "exposed_s": 0.5, "hidden_s": 1.0 } } });
        assert_eq!(from_plan(&plan).unwrap().total(), Seconds::new(2.0));
        assert!(from_plan(&json!({})).is_none());
        assert!(from_plan(&json!({ "breakdown": { "magic": { "exposed_s": 1, "hidden_s": 0 } } })).is_none());
        assert!(from_plan(&json!({ "breakdown": { "compute": "1" } })).is_none());
    }
}
