//! A server on a thread of its own, for programs without a runtime.

use std::io;
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Runtime};

use crate::{Handler, Limits, Server, bind};

/// Answers until it is dropped.
pub struct Background {
    address: SocketAddr,
    server: Server,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Returns once it listens. Handlers run on one thread and must not block for long.
    pub fn start(address: SocketAddr, limits: Limits, handler: impl Handler) -> io::Result<Self> {
        Self::start_server(address, Server::new(limits), handler)
    }

    pub fn start_server(address: SocketAddr, server: Server, handler: impl Handler) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        // The caller may be a task of another runtime, which must not wait for this one, not even for its end.
        let bound = {
            let _entered = runtime.enter();
            bind(address)
        };
        let listener = match bound {
            Ok(listener) => listener,
            Err(error) => {
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let address = listener.local_addr()?;
        let serving = server.clone();
        let serve = move || serve(runtime, async move { serving.serve(listener, handler).await });
        let thread = thread::Builder::new().name("http".into()).spawn(serve)?;
        Ok(Self { address, server, thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn serve(runtime: Runtime, serving: impl Future<Output = ()>) {
    runtime.block_on(serving);
    runtime.shutdown_background();
}

impl Drop for Background {
    fn drop(&mut self) {
        self.server.begin_end();
        if let Some(thread) = self.thread.take() {
            // Its panic would have been a handler's, which ends with its connection.
            let _ = thread.join();
        }
    }
}
