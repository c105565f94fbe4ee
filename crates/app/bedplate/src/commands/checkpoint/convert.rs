//! `bedplate checkpoint convert FROM TO`

use std::path::{Path, PathBuf};

use bedplate_checkpoint::{
    CheckpointError, FolderKind, Look, Shards, from_hugging_face, from_old, to_hugging_face,
};
use bedplate_network::TensorFormat;
use bedplate_terminal::{CliError, Console};
use bedplate_units::Bytes;
use serde_json::json;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate checkpoint convert run weights
  bedplate checkpoint convert s3://bucket/run/step-00000100 weights --format bf16 --shard 2GB
  bedplate checkpoint convert ~/models/own first
  bedplate checkpoint convert old/checkpoints/step-00000040 step-00000040

The files of FROM show what it is. A checkpoint (of a run the newest good one)
becomes a Hugging Face folder with its weights; a Hugging Face folder becomes a
checkpoint of step 0 without moments; a checkpoint of an earlier release
becomes one of this release. PyTorch's distributed checkpoints read and write
such folders with HuggingFaceStorageReader and HuggingFaceStorageWriter.")]
pub(crate) struct Arguments {
    /// A checkpoint, the output folder of a run, or a Hugging Face folder
    from: String,
    /// A folder that does not exist yet
    to: PathBuf,
    /// Number format of the weights in a Hugging Face folder
    #[arg(long, value_enum, default_value = "f32")]
    format: Numbers,
    /// Largest size of a weights file
    #[arg(long, value_name = "BYTES", default_value = "5GB")]
    shard: Bytes,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Numbers {
    F32,
    Bf16,
    F16,
}

impl Numbers {
    fn format(self) -> TensorFormat {
        match self {
            Numbers::F32 => TensorFormat::F32,
            Numbers::Bf16 => TensorFormat::Bf16,
            Numbers::F16 => TensorFormat::F16,
        }
    }
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let (from, to) = (Path::new(&arguments.from), arguments.to.as_path());
    if to.exists() {
        let source = std::io::ErrorKind::AlreadyExists.into();
        return Err(CheckpointError::Write { place: to.display().to_string(), source }.into());
    }
    let (what, files) = match FolderKind::of(from) {
        Some(FolderKind::HuggingFace) => {
            from_hugging_face(from, to)?;
            ("a checkpoint of step 0", Vec::new())
        }
        Some(FolderKind::Old) => {
            from_old(from, to)?;
            ("a checkpoint of this release", Vec::new())
        }
        _ => {
            let checkpoint = Look::at(&arguments.from)?.newest()?;
            let shards = Shards { format: arguments.format.format(), bytes: arguments.shard.get() as u64 };
            ("a Hugging Face folder", to_hugging_face(&checkpoint, to, shards)?)
        }
    };
    if console.is_json() {
        return console.json(&json!({"place": to, "what": what, "files": files}));
    }
    console.line(&format!("{} is {what}", to.display()))?;
    if !files.is_empty() {
        console.say("note: checkpoints hold no tokenizer; a finished run has it in its `model` folder");
    }
    Ok(())
}
