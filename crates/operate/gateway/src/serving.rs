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

/// A server that listens, on a thread of its own. Dropping it ends it.
pub struct Running<T> {
    address: SocketAddr,
    end: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    /// What it serves with; dropped after its end.
    pub(crate) served: T,
}

/// A gateway that listens.
pub type RunningGateway = Running<Traced>;

impl<T> Running<T> {
    /// Starts the thread `name` with what tells it to end.
    pub(crate) fn start(
        name: &str,
        address: SocketAddr,
        served: T,
        run: impl FnOnce(watch::Receiver<bool>) + Send + 'static,
    ) -> Result<Self, GatewayError> {
        let (end, ending) = watch::channel(false);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || run(ending));
        let thread = thread.map_err(|source| GatewayError::Threads { source })?;
        Ok(Self { address, end, thread: Some(thread), served })
    }

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
        }
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.end();
    }
}

/// A gateway whose trace is closed when all requests have been answered.
pub struct Traced(Arc<Gateway>);

impl Drop for Traced {
    fn drop(&mut self) {
        if let Some(trace) = &self.0.trace {
            trace.close();
        }
    }
}

/// Ends a server.
#[derive(Clone)]
pub struct Ender(watch::Sender<bool>);

impl Ender {
    pub fn end(&self) {
        self.0.send_replace(true);
    }
}

/// The threads of a server, named after it.
pub(crate) fn runtime(name: &str) -> Result<Runtime, GatewayError> {
    let workers = thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8) / 2).max(1);
    let runtime = Builder::new_multi_thread().worker_threads(workers).thread_name(name).enable_all().build();
    runtime.map_err(|source| GatewayError::Threads { source })
}

/// Listens, and says where: port 0 is any that is free.
pub(crate) fn listen(
    runtime: &Runtime,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), GatewayError> {
    let failed = |source| GatewayError::Listen { address, source };
    let listener = runtime.block_on(async { bind(address) }).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Serves models and returns once it listens.
pub fn start(models: Vec<ServedModel>, options: GatewayOptions) -> Result<RunningGateway, GatewayError> {
    bedplate_http::raise_file_limit();
    let address = options.listen;
    let server = Server::new(limits(&options));
    let gateway = Arc::new(Gateway::new(models, options, server)?);
    let runtime = runtime("gateway")?;
    let (listener, address) = listen(&runtime, address)?;
    let traced = Traced(gateway.clone());
    Running::start("gateway", address, traced, move |ending| run(runtime, gateway, listener, ending))
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
