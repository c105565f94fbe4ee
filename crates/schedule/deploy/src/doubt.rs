//! What is asked of a deployment that no measured row had.

use std::collections::BTreeSet;

use bedplate_calibrate::serving::ServingErrors;

use crate::{Need, Supply};

/// Chips, adapters, images and pools of different GPUs without measurements; `has_outlook` says whether figures have
/// intervals all the same. `None` where everything asked for was measured.
pub fn unmeasured(
    need: &Need<'_>,
    supply: &Supply,
    errors: &ServingErrors,
    has_outlook: bool,
) -> Option<String> {
    let is_other = |prompts: &Supply| prompts.accelerator != supply.accelerator;
    let unlike = [
        (need.options.adapters.is_some(), "adapters"),
        (need.options.images.is_some(), "images"),
        (supply.prompts.as_deref().is_some_and(is_other), "pools of different GPUs"),
    ];
    let unlike = unlike.into_iter().filter(|(is_asked, _)| *is_asked && has_outlook);
    let unlike = unlike.map(|(_, what)| format!("with {what}: intervals are those of serving without"));
    let doubts: Vec<String> =
        unmeasured_chips(supply, errors, has_outlook).into_iter().chain(unlike).collect();
    (!doubts.is_empty()).then(|| doubts.join("; "))
}

fn unmeasured_chips(supply: &Supply, errors: &ServingErrors, has_outlook: bool) -> Option<String> {
    let unmeasured = |kind: &&Supply| !errors.has_measured(&kind.accelerator);
    let chips = supply.kinds().filter(unmeasured).map(|kind| kind.accelerator.as_str());
    let chips = Vec::from_iter(BTreeSet::from_iter(chips));
    let figures = match has_outlook {
        true => "intervals and confidence are those of other chips of its family",
        false => "figures are the performance model's alone, without intervals or confidence",
    };
    (!chips.is_empty()).then(|| format!("of serving on {}: {figures}", chips.join(" and ")))
}
