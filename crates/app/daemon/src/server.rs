//! Starting the daemon, accepting connections, and ending it in good order.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bedplate_control::Control;
use bedplate_control::wire::ToAgent;
use bedplate_gangs::JobId;
use bedplate_journal::{Journal, Reader, Writer};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::api::{self, App, MOST_READS, Shutdown};
use crate::clock::Clock;
use crate::connection::{Activity, Watched};
use crate::control_thread::{ControlThread, Surroundings};
use crate::error::DaemonError;
use crate::hub::Hub;
use crate::leases::Leases;
use crate::limits::Clients;
use crate::links::Links;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::readers::Readers;
use crate::retention;
use crate::run_secrets::RunSecrets;
use crate::state::StateDirectory;
use crate::tls::Encryption;
use crate::tokens::{Role, Tokens, Wanted};

const ADMIN_TOKEN: &str = "admin.token";
const BACKLOG: u32 = 4096;
/// Answers under way have so long when the daemon ends.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// Jobs and agents have so long to end when they are to end with the daemon.
const LAST_JOBS: Duration = Duration::from_secs(60);

/// A daemon that listens.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    shutdown: watch::Sender<Option<Shutdown>>,
    thread: JoinHandle<Result<(), DaemonError>>,
}

impl Running {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it and leaves jobs and agents as they are.
    pub fn stop(self) -> Result<(), DaemonError> {
        self.shutdown.send_replace(Some(Shutdown::LeaveJobs));
        self.wait()
    }

    /// Returns when it has ended.
    pub fn wait(self) -> Result<(), DaemonError> {
        let why = |panic: Box<dyn std::any::Any + Send>| crate::control_thread::panic_text(&*panic);
        let ended = self.thread.join();
        ended.unwrap_or_else(|panic| Err(DaemonError::Panicked { what: "the daemon", why: why(panic) }))
    }
}

/// Runs a daemon until somebody ends it: over the API, or by an interrupt or termination signal.
pub fn serve(options: Options) -> Result<(), DaemonError> {
    launch(options, Signals::Obeyed)?.wait()
}

/// Starts a daemon on threads of its own and returns once it listens. Signals are left to the caller.
pub fn start(options: Options) -> Result<Running, DaemonError> {
    launch(options, Signals::Ignored)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signals {
    Obeyed,
    Ignored,
}

fn launch(options: Options, signals: Signals) -> Result<Running, DaemonError> {
    let (ready, is_ready) = oneshot::channel();
    let (shutdown, _) = watch::channel(None);
    let told = shutdown.clone();
    let run = move || run(options, signals, told, ready);
    let thread = thread::Builder::new().name("daemon".into()).spawn(run);
    let thread = thread.map_err(|source| DaemonError::Thread { source })?;
    match is_ready.blocking_recv() {
        Ok(address) => Ok(Running { address, shutdown, thread }),
        Err(_) => {
            let ended = thread.join().unwrap_or_else(|panic| {
                Err(DaemonError::Panicked {
                    what: "the daemon",
                    why: crate::control_thread::panic_text(&*panic),
                })
            });
            Err(ended.err().unwrap_or(DaemonError::Panicked { what: "the daemon", why: "it ended".into() }))
        }
    }
}

fn run(
    options: Options,
    signals: Signals,
    shutdown: watch::Sender<Option<Shutdown>>,
    ready: oneshot::Sender<SocketAddr>,
) -> Result<(), DaemonError> {
    raise_file_limit();
    let state = StateDirectory::open(&options.state_directory)?;
    let clock = Arc::new(Clock::start());
    let mut journal = Journal::open_with(&state.journal(), &options.journal)?;
    let control = restore(&options, &mut journal, &clock)?;
    let writer = Arc::new(Writer::start(journal).map_err(|source| DaemonError::Thread { source })?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|source| DaemonError::Thread { source })?;
    let result = runtime.block_on(async {
        let daemon = Daemon::prepare(options, &state, control, &writer, clock, shutdown).await?;
        daemon.run(&state, signals, ready).await
    });
    state.withdraw();
    end(runtime, writer);
    result
}

/// Connections go first, so that the journal has all they said when its writer ends.
fn end(runtime: Runtime, writer: Arc<Writer>) {
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(writer);
}

fn restore(options: &Options, journal: &mut Journal, clock: &Clock) -> Result<Control, DaemonError> {
    let mut restored = journal.restore()?;
    let awaited = journal.ended(&restored.awaited())?;
    let known: Vec<JobId> = restored.ended.iter().map(|row| row.id).collect();
    restored.ended.extend(awaited.into_iter().filter(|row| !known.contains(&row.id)));
    let (cluster, settings) = (options.cluster.clone(), options.settings.clone());
    let (control, unreadable) =
        Control::restore(cluster, settings, options.rules.clone(), restored, clock.now());
    for (JobId(job), why) in unreadable {
        (options.remark)(&format!("job {job} cannot be read from the journal and is left out: {why}"));
    }
    Ok(control)
}

/// As many files as the system allows: every connection is one.
fn raise_file_limit() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Without it fewer connections are possible.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

struct Daemon {
    app: Arc<App>,
    listener: TcpListener,
    encryption: Option<Encryption>,
    control_thread: JoinHandle<()>,
    failures: mpsc::UnboundedReceiver<DaemonError>,
}

impl Daemon {
    async fn prepare(
        options: Options,
        state: &StateDirectory,
        control: Control,
        writer: &Arc<Writer>,
        clock: Arc<Clock>,
        shutdown: watch::Sender<Option<Shutdown>>,
    ) -> Result<Self, DaemonError> {
        let reader = Reader::open(&state.journal())?;
        let tokens = Arc::new(Tokens::load(&reader, writer.clone(), clock.clone())?);
        keep_admin_token(state, &tokens, &options.administrator)?;
        let address = options.listen;
        let encryption = match options.tls || !address.ip().is_loopback() {
            true => Some(Encryption::prepare(state, &options.names, address.ip())?),
            false => None,
        };
        let listener = listen(address).map_err(|source| DaemonError::Listen { address, source })?;
        let leases = Arc::new(Leases::new(clock.clone(), options.rules.silence));
        let links = Arc::new(Links::new(leases.clone(), RunSecrets::open(state)?));
        let hub = Arc::new(Hub::new(clock.now().0, options.limits.events_behind));
        let metrics = Arc::new(Metrics::new());
        let (failure, failures) = mpsc::unbounded_channel();
        let surroundings = Surroundings {
            clock: clock.clone(),
            links: links.clone(),
            leases,
            on_turn: options.on_turn.clone(),
            hub: hub.clone(),
            metrics: metrics.clone(),
            failure,
        };
        let (control, control_thread) =
            ControlThread::start(control, writer.clone(), surroundings, options.limits.durable)?;
        let app = Arc::new(App {
            cluster: options.cluster.clone(),
            clients: Clients::new(&options.limits),
            at_once: Arc::new(Semaphore::new(options.limits.requests_at_once)),
            explanations: Semaphore::new(2),
            left_behind: Arc::new(Semaphore::new(MOST_READS)),
            readers: Readers::new(state.journal()),
            writer: writer.clone(),
            options,
            clock,
            control,
            links,
            hub,
            tokens,
            metrics,
            shutdown,
        });
        Ok(Self { app, listener, encryption, control_thread, failures })
    }

    async fn run(
        mut self,
        state: &StateDirectory,
        signals: Signals,
        ready: oneshot::Sender<SocketAddr>,
    ) -> Result<(), DaemonError> {
        let address = self.listener.local_addr();
        let address =
            address.map_err(|source| DaemonError::Listen { address: self.app.options.listen, source })?;
        let fingerprint = self.encryption.as_ref().map(|encryption| encryption.fingerprint.clone());
        state.announce(address, fingerprint)?;
        // Nobody may be waiting for it.
        let _ = ready.send(address);
        let mut stopping = self.app.shutdown.subscribe();
        let result = tokio::select! {
            () = accept(&self.app, &self.listener, self.encryption.as_ref()) => Ok(()),
            () = retention::keep_within_limits(&self.app) => Ok(()),
            _ = stopping.wait_for(Option::is_some) => Ok(()),
            () = interrupted(signals) => Ok(()),
            failure = self.failures.recv() => failure.map_or(Ok(()), Err),
        };
        let how = *self.app.shutdown.borrow();
        if how == Some(Shutdown::StopJobs) && result.is_ok() {
            // Agents must still be heard while their jobs end.
            let stopped = timeout(LAST_JOBS, stop_jobs(&self.app));
            tokio::select! {
                () = accept(&self.app, &self.listener, self.encryption.as_ref()) => {}
                _ = stopped => {}
            }
        }
        drop(self.listener);
        self.app.shutdown.send_replace(Some(Shutdown::LeaveJobs));
        self.app.control.stop().await;
        let control_thread = self.control_thread;
        // Its panic, if any, is the result already.
        let _ = tokio::task::spawn_blocking(move || control_thread.join()).await;
        result
    }
}

/// The administrator's token lies in the state directory, made when it is not there or not valid.
fn keep_admin_token(state: &StateDirectory, tokens: &Tokens, user: &str) -> Result<(), DaemonError> {
    let kept = state.read(ADMIN_TOKEN)?.and_then(|bytes| String::from_utf8(bytes).ok());
    let is_good =
        |secret: String| tokens.identify(secret.trim()).is_some_and(|identity| identity.role == Role::Admin);
    if kept.is_some_and(is_good) {
        return Ok(());
    }
    let wanted = Wanted { user: user.into(), role: Role::Admin, label: ADMIN_TOKEN.into(), expires: None };
    let made = tokens.make_now(wanted)?;
    state.write(ADMIN_TOKEN, format!("{}\n", made.secret).as_bytes())
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn interrupted(signals: Signals) {
    let streams = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    match (signals, streams) {
        (Signals::Obeyed, (Ok(mut terminate), Ok(mut interrupt))) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        _ => std::future::pending().await,
    }
}

async fn accept(app: &Arc<App>, listener: &TcpListener, encryption: Option<&Encryption>) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Out of files or memory: others must end first.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let counted = Counted::enter(&app.metrics);
        if app.metrics.connections.get() > app.options.limits.connections as u64 {
            app.metrics.connections_refused.add(1);
            continue;
        }
        let app = app.clone();
        let acceptor = encryption.map(|encryption| encryption.acceptor.clone());
        tokio::spawn(async move {
            let _counted = counted;
            let _ = stream.set_nodelay(true);
            match acceptor {
                None => converse(&app, stream, peer.ip()).await,
                Some(acceptor) => {
                    if let Ok(Ok(stream)) = timeout(app.options.limits.head, acceptor.accept(stream)).await {
                        converse(&app, stream, peer.ip()).await;
                    }
                }
            }
        });
    }
}

/// A connection that counts.
struct Counted(Arc<Metrics>);

impl Counted {
    fn enter(metrics: &Arc<Metrics>) -> Self {
        metrics.connections.enter();
        Self(metrics.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.leave();
    }
}

/// Answers the requests of one connection until it ends or holds things up.
async fn converse(
    app: &Arc<App>,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: IpAddr,
) {
    let activity = Activity::new();
    let limits = &app.options.limits;
    let watched = Watched::new(stream, activity.clone());
    let service = service_fn(|request| api::answer(app.clone(), peer, activity.clone(), request));
    let connection = http1::Builder::new()
        .max_buf_size(limits.head_bytes)
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(watched), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    tokio::select! {
        // Clients that break off concern nobody.
        _ = connection.as_mut() => {}
        () = activity.overdue(limits) => {}
        () = app.ends() => {
            connection.as_mut().graceful_shutdown();
            let _ = timeout(LAST_ANSWERS, connection).await;
        }
    }
}

/// Sends every running job back to the queue, waits until nothing runs, then ends the agents.
async fn stop_jobs(app: &App) {
    let closed = app.control.change(|control, now| control.close("the daemon, which goes down", now));
    if closed.await.is_err() {
        return;
    }
    while let Ok(false) = app.control.ask(|control, _| control.is_quiet()).await {
        sleep(Duration::from_millis(20)).await;
    }
    let links = app.control.ask(|control, now| {
        let names = control.nodes(now).into_iter().map(|node| node.name);
        names.filter_map(|name| control.link_of(&name)).collect::<Vec<_>>()
    });
    for link in links.await.unwrap_or_default() {
        app.links.send(link, ToAgent::End);
    }
    let _ = timeout(LAST_ANSWERS, async {
        while app.links.count() > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
