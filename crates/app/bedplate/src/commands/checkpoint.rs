//! `bedplate checkpoint …`: what is in checkpoints, whether they are good, and other tools' formats.

mod convert;
mod show;
mod verify;

use bedplate_checkpoint::{Checkpoint, CheckpointError};
use bedplate_terminal::present::now_ms;
use bedplate_terminal::{CliError, Console};

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate checkpoint show run
  bedplate checkpoint show run/checkpoints/step-00000100 --tensors
  bedplate checkpoint verify s3://bucket/run
  bedplate checkpoint convert run weights --format bf16
  bedplate checkpoint convert ~/models/own first

The AWS_... variables give the endpoint and credentials of buckets. See docs/checkpoint.md.")]
pub(crate) enum Arguments {
    /// Steps, layout, sizes, tensors and age
    Show(show::Arguments),
    /// Read every byte and compare it with its checksum
    Verify(verify::Arguments),
    /// To and from Hugging Face folders, and from checkpoints of earlier releases
    Convert(convert::Arguments),
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    match arguments {
        Arguments::Show(arguments) => show::run(arguments, console),
        Arguments::Verify(arguments) => verify::run(arguments, console),
        Arguments::Convert(arguments) => convert::run(arguments, console),
    }
}

/// Seconds since a checkpoint was published.
fn age(checkpoint: &Checkpoint) -> f64 {
    (now_ms() / 1000).saturating_sub(checkpoint.manifest().written) as f64
}

/// An error in one line, with its causes.
fn told(error: &CheckpointError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
