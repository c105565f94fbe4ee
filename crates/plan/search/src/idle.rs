//! A machine with some GPUs of each scale-up domain idle, where that is faster than with all of them.

use bedplate_perf::{Hardware, Workload};

use crate::{Axes, Setup, search};

/// The machine with fewer GPUs, and what that gains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IdleGpus {
    pub hardware: Hardware,
    pub workload: Workload,
    pub gain: IdleGain,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum IdleGain {
    /// By this share of the rate with all GPUs.
    Faster(f64),
    /// No layout of all of them fits.
    OnlyThenFits,
}

/// `None` where all GPUs are best used. A smaller machine has a workload of its own, by `workload_on`.
pub fn with_idle_gpus(
    setup: &Setup<'_>,
    axes: &Axes,
    workload_on: impl Fn(&Hardware) -> Workload,
) -> Option<IdleGpus> {
    let hardware = setup.hardware.with_idle_gpus()?;
    let workload = workload_on(&hardware);
    let rate = |setup: &Setup<'_>| {
        let best = *search(setup, axes, 1).ok()?.best.first()?;
        Some(setup.workload.tokens() / best.weighted().get())
    };
    let gain = match (rate(setup), rate(&Setup { hardware, workload, ..*setup })?) {
        (Some(all), some) if some > all => IdleGain::Faster(some / all - 1.0),
        (None, _) => IdleGain::OnlyThenFits,
        _ => return None,
    };
    Some(IdleGpus { hardware, workload, gain })
}
