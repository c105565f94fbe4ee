//! Starting the gateway on threads of its own, and ending it in good order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use bedplate_http::{Limits, Request, Server, bind};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::error::GatewayError;
use crate::gateway::{self, Gateway};
use crate::model::ServedModel;
use crate::options::GatewayOptions;

/// A gateway that listens. Dropping it ends it.
pub struct RunningGateway {
    address: SocketAddr,
    gateway: Arc<Gateway>,
    end: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl RunningGateway {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more requests, finishes those that run, within the grace, and returns.
    pub fn stop(mut self) {
        self.end();
    }

    /// Returns when it has ended: after [`Ender::end`], or never.
    pub fn wait(mut self) {
        self.join();
    }

    /// Ends it from elsewhere, such as a handler of signals.
    pub fn ender(&self) -> Ender {
        Ender(self.end.clone())
    }

    fn end(&mut self) {
        self.end.send_replace(true);
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of a handler ends its request and not the thread.
            let _ = thread.join();
            if let Some(trace) = &self.gateway.trace {
                trace.close();
            }
        }
    }
}

impl Drop for RunningGateway {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends a gateway.
#[derive(Clone)]
pub struct Ender(pub(crate) watch::Sender<bool>);

impl Ender {
    pub fn end(&self) {
        self.0.send_replace(true);
    }
}

/// Serves models and returns once it listens.
pub fn start(models: Vec<ServedModel>, options: GatewayOptions) -> Result<RunningGateway, GatewayError> {
    bedplate_http::raise_file_limit();
    let address = options.listen;
    let server = Server::new(limits(&options));
    let gateway = Arc::new(Gateway::new(models, options, server)?);
    let threads = |source| GatewayError::Threads { source };
    let workers = thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8) / 2).max(1);
    let runtime =
        Builder::new_multi_thread().worker_threads(workers).thread_name("gateway").enable_all().build();
    let runtime = runtime.map_err(threads)?;
    let listen = |source| GatewayError::Listen { address, source };
    let listener = runtime.block_on(async { bind(address) }).map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let (end, ending) = watch::channel(false);
    let served = gateway.clone();
    let run = move || run(runtime, served, listener, ending);
    let thread = thread::Builder::new().name("gateway".into()).spawn(run).map_err(threads)?;
    Ok(RunningGateway { address, gateway, end, thread: Some(thread) })
}

fn limits(options: &GatewayOptions) -> Limits {
    Limits {
        connections: options.bounds.connections,
        body_bytes: options.bounds.body_bytes,
        grace: options.grace,
        ..Limits::default()
    }
}

fn run(runtime: Runtime, gateway: Arc<Gateway>, listener: TcpListener, mut ending: watch::Receiver<bool>) {
    let shared = gateway.clone();
    let handler = move |request: Request| gateway::answer(shared.clone(), request);
    runtime.block_on(async {
        let told = async {
            let _ = ending.wait_for(|is_ending| *is_ending).await;
            gateway.drain();
            gateway.server.begin_end();
        };
        tokio::join!(gateway.server.serve(listener, handler), told);
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
}
