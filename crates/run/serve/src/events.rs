//! What an engine logs, all of it here: where it stands at `info`, requests by their number at `debug`, what it loses at `warn`, what ends it
//! at `error`. Nothing of a prompt or an answer is logged, only how long they are.

use bedplate_kernels::DeviceFault;
use tracing::{debug, error, info, warn};

use crate::{About, EngineMemory};

pub(crate) fn loaded(about: &About, memory: &EngineMemory) {
    let EngineMemory { weights, kv, weight_format, kv_format, is_on_gpu, threads, .. } = memory;
    let (context, blocks, block_tokens) = (about.context_limit, about.blocks, about.block_tokens);
    info!(weights, weight_format, is_on_gpu, threads, adapters = about.adapters.len(), "the model is loaded");
    info!(context, blocks, block_tokens, kv, kv_format, "the engine is ready");
}

pub(crate) fn drains() {
    info!("takes no more requests");
}

pub(crate) fn asked(request: u64, prompt: usize, samples: u16) {
    debug!(request, prompt, samples, "asked");
}

pub(crate) fn admitted(request: u64, cached: u32) {
    debug!(request, cached, "admitted");
}

pub(crate) fn finished(request: u64) {
    debug!(request, "finished");
}

pub(crate) fn cancelled(request: u64) {
    debug!(request, "cancelled");
}

pub(crate) fn failed(request: u64, why: &str) {
    debug!(request, why, "failed");
}

pub(crate) fn preempted(request: u64) {
    debug!(request, "preempted");
}

pub(crate) fn swapped_out(sequence: u32, blocks: usize) {
    debug!(sequence, blocks, "swapped out");
}

pub(crate) fn spill_failed(why: &std::io::Error) {
    warn!(%why, "prefixes cannot be kept on disk");
}

pub(crate) fn device_failed(fault: &DeviceFault) {
    let gpu = &fault.gpu;
    error!(gpu = gpu.uuid, address = gpu.address, what = fault.what, why = fault.why, "the GPU failed");
}

pub(crate) fn stopped(why: &str) {
    error!(why, "the engine cannot go on");
}

pub(crate) fn ended() {
    info!("the engine ends");
}
