//! CUDA graphs: operators captured once and launched together, as often as wanted.

use std::sync::Arc;

use super::Cuda;
use super::driver::CudaContext;

/// Operators that a device has captured; see [`Device::capture`](crate::Device::capture).
pub struct CudaGraph {
    context: Arc<CudaContext>,
    executable: usize,
    /// How often scratch memory had moved by then.
    moves: u64,
}

impl Cuda {
    pub(crate) fn capture(&self, work: impl FnOnce()) -> CudaGraph {
        /// Other threads may allocate meanwhile.
        const RELAXED: i32 = 2;
        let (driver, stream) = (self.context.driver(), self.context.stream());
        self.timeline.pause(&self.context);
        self.context.must(driver.begin_capture(stream, RELAXED), "begin a CUDA graph");
        self.is_capturing.set(true);
        work();
        self.is_capturing.set(false);
        let (mut graph, mut executable) = (0, 0);
        self.context.must(driver.end_capture(stream, &mut graph), "end a CUDA graph");
        self.context.must(driver.instantiate(&mut executable, graph, 0), "prepare a CUDA graph");
        driver.graph_destroy(graph);
        CudaGraph { context: self.context.clone(), executable, moves: self.context.moves() }
    }

    /// Whether it could be started: not where its scratch memory has moved.
    pub(crate) fn launch_graph(&self, graph: &CudaGraph) -> bool {
        if graph.moves != self.context.moves() {
            return false;
        }
        let code = self.context.driver().graph_launch(graph.executable, self.context.stream());
        self.context.must(code, "launch a CUDA graph");
        true
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        self.context.driver().executable_destroy(self.executable);
    }
}
