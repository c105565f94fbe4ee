//! `bedplate checkpoint verify PATH`

use bedplate_checkpoint::{Checkpoint, CheckpointError, Listed, Look};
use bedplate_terminal::{CliError, Console};
use bedplate_units::Bytes;
use serde_json::{Value, json};

use super::told;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate checkpoint verify run
  bedplate checkpoint verify s3://bucket/run/step-00000100

The exit code is 1 where anything is missing, cut off or changed.")]
pub(crate) struct Arguments {
    /// A checkpoint, a folder or prefix with checkpoints, or the output folder of a run
    place: String,
}

/// What a checkpoint turned out to be.
struct Verdict {
    place: String,
    outcome: Result<u64, CheckpointError>,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let verdicts = match Look::at(&arguments.place)? {
        Look::One(checkpoint) => {
            let bytes = verify(&checkpoint)?;
            vec![Verdict { place: checkpoint.place(), outcome: Ok(bytes) }]
        }
        Look::Many(listed) => listed.into_iter().map(judge).collect(),
    };
    tell(&verdicts, console)?;
    // What cannot be read now is not the checkpoint's fault; it is reported as any error.
    let is_good = verdicts.iter().all(|verdict| verdict.outcome.is_ok());
    if is_good { Ok(()) } else { Err(CliError::Refused) }
}

fn judge(Listed { place, opened }: Listed) -> Verdict {
    Verdict { place, outcome: opened.and_then(|checkpoint| verify(&checkpoint)) }
}

fn verify(checkpoint: &Checkpoint) -> Result<u64, CheckpointError> {
    checkpoint.verify()?;
    Ok(checkpoint.manifest().bytes())
}

fn tell(verdicts: &[Verdict], console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        let json = |Verdict { place, outcome }: &Verdict| match outcome {
            Ok(bytes) => json!({"place": place, "is_good": true, "bytes": bytes}),
            Err(error) => json!({"place": place, "is_good": false, "flaw": told(error)}),
        };
        return console.json(&Value::Array(verdicts.iter().map(json).collect()));
    }
    for Verdict { place, outcome } in verdicts {
        match outcome {
            Ok(bytes) => console.line(&format!("good  {place}, {}", Bytes::new(*bytes as f64)))?,
            Err(error) => console.line(&format!("BAD   {}", told(error)))?,
        }
    }
    Ok(())
}
