//! Operators recorded once and started together, as often as wanted.

use std::sync::Arc;

use super::Cuda;
use super::driver::Context;

/// What a device recorded; see [`Device::record`](crate::Device::record).
pub struct Recording {
    context: Arc<Context>,
    executable: usize,
    /// How often scratch memory had moved by then.
    moves: u64,
}

impl Cuda {
    pub(crate) fn record(&self, work: impl FnOnce()) -> Recording {
        /// Other threads may allocate meanwhile.
        const RELAXED: i32 = 2;
        let (driver, stream) = (self.context.driver(), self.context.stream());
        self.timeline.pause(&self.context);
        self.context.must(driver.begin_capture(stream, RELAXED), "begin to record");
        self.is_recording.set(true);
        work();
        self.is_recording.set(false);
        let (mut graph, mut executable) = (0, 0);
        self.context.must(driver.end_capture(stream, &mut graph), "end a recording");
        self.context.must(driver.instantiate(&mut executable, graph, 0), "prepare a recording");
        driver.graph_destroy(graph);
        Recording { context: self.context.clone(), executable, moves: self.context.moves() }
    }

    /// Whether it could be started: not where its scratch memory has moved.
    pub(crate) fn replay(&self, recording: &Recording) -> bool {
        if recording.moves != self.context.moves() {
            return false;
        }
        let code = self.context.driver().graph_launch(recording.executable, self.context.stream());
        self.context.must(code, "start a recording");
        true
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.context.driver().executable_destroy(self.executable);
    }
}
