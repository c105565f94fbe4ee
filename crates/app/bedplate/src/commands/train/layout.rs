//! The layout of a run as the command line gives it.

use bedplate_layout::{ComputePrecision, Layout, Recompute};
use bedplate_terminal::{CliError, ProgramError};

/// A layout as settings of a configuration: what is computed at once, and how, are keys of their own there.
pub(super) fn as_settings(text: &str) -> Result<Vec<String>, CliError> {
    let layout: Layout = text.parse()?;
    let plain = Layout::default();
    let only_ranks = Layout {
        micro_batch: plain.micro_batch,
        recompute: plain.recompute,
        precision: plain.precision,
        ..layout
    };
    let mut settings = vec![format!("training.layout = \"{only_ranks}\"")];
    let parts: Vec<&str> = text.split('.').map(str::trim).collect();
    if parts.iter().any(|part| part.starts_with("mb")) {
        settings.push(format!("training.micro_batch = {}", layout.micro_batch));
    }
    match layout.recompute {
        Recompute::None => {}
        Recompute::Selective => settings.push("training.recompute = \"cheap\"".into()),
        Recompute::Full => settings.push("training.recompute = \"full\"".into()),
    }
    match layout.precision {
        ComputePrecision::Fp32 => settings.push("training.precision = \"f32\"".into()),
        ComputePrecision::Bf16 if parts.contains(&"bf16") => {
            settings.push("training.precision = \"bf16\"".into());
        }
        ComputePrecision::Bf16 => {}
        ComputePrecision::Fp8 => settings.push("training.precision = \"fp8\"".into()),
        other => {
            let message = format!("this program trains in f32, bf16 and fp8, not in {other:?}");
            return Err(ProgramError::Usage { message }.into());
        }
    }
    Ok(settings)
}
