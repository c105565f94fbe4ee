//! `bedplate job cancel|hold|release|requeue JOB…`

use bedplate_diag::render_text;
use bedplate_drivers::JobOrder;
use bedplate_terminal::present::printable;
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use super::Jobs;

/// Goes through all jobs; a refused one does not keep the others from their order.
pub(super) fn run(arguments: &Jobs, order: JobOrder, console: &mut Console) -> Result<(), CliError> {
    let driver = arguments.connection.driver()?;
    let mut done = Vec::new();
    let mut refused = None;
    for label in &arguments.jobs {
        match driver.order(label, order) {
            Ok(()) => {
                console.say(&format!("job {label}: {}", did(order)));
                done.push(label);
            }
            Err(error) if error.is_refusal() && arguments.jobs.len() > 1 => {
                console.say_raw(&printable(&render_text(&error)));
                refused = Some(CliError::Refused);
            }
            Err(error) => return Err(error.into()),
        }
    }
    if console.is_json() {
        console.json(&json!({ "done": done }))?;
    }
    refused.map_or(Ok(()), Err)
}

fn did(order: JobOrder) -> &'static str {
    match order {
        JobOrder::Cancel => "cancelled",
        JobOrder::Hold => "held",
        JobOrder::Release => "released",
        JobOrder::Requeue => "stopped, and waits again",
    }
}
