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
        let (context, stream) = (&self.context, self.context.stream());
        self.timeline.pause(&self.context);
        let is_begun = context.ask("begin a CUDA graph", |driver| driver.begin_capture(stream, RELAXED));
        self.is_capturing.set(true);
        work();
        self.is_capturing.set(false);
        let (mut graph, mut executable) = (0, 0);
        if is_begun {
            // Also where an operator has failed meanwhile: a stream that goes on capturing can do nothing else.
            match context.driver().end_capture(stream, &mut graph) {
                0 => {}
                code => drop(context.fail(code, "end a CUDA graph")),
            }
        }
        context.ask("prepare a CUDA graph", |driver| driver.instantiate(&mut executable, graph, 0));
        if graph != 0 {
            context.driver().graph_destroy(graph);
        }
        CudaGraph { context: self.context.clone(), executable, moves: self.context.moves() }
    }

    /// Whether it could be started: not where its scratch memory has moved.
    pub(crate) fn launch_graph(&self, graph: &CudaGraph) -> bool {
        if graph.moves != self.context.moves() {
            return false;
        }
        self.context.ask("launch a CUDA graph", |driver| {
            driver.graph_launch(graph.executable, self.context.stream())
        });
        true
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.executable != 0 {
            self.context.driver().executable_destroy(self.executable);
        }
    }
}
