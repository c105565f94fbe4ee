//! Starting the daemon, accepting connections, and ending it in good order.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bedplate_control::Control;
use bedplate_control::wire::ToAgent;
use bedplate_gangs::JobId;
use bedplate_host::{panics, tell_systemd};
use bedplate_http::{Handler, Request, Server};
use bedplate_journal::{Journal, JournalError, Reader, Writer};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::api::{self, App, MOST_READS, Shutdown};
use crate::background::Background;
use crate::backups;
use crate::clock::Clock;
use crate::control_thread::{ControlSetup, ControlThread};
use crate::diagnosing::Diagnosing;
use crate::error::DaemonError;
use crate::hub::Hub;
use crate::leases::Leases;
use crate::limits::Clients;
use crate::links::AgentLinks;
use crate::metrics::DaemonMetrics;
use crate::options::DaemonOptions;
use crate::readers::Readers;
use crate::retention;
use crate::run_secrets::RunSecrets;
use crate::state::StateDirectory;
use crate::tls::Encryption;
use crate::tokens::{AccessRole, TokenStore, WantedToken};

const ADMIN_TOKEN: &str = "admin.token";
/// Agents have so long to hear that they are to end.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Jobs and agents have so long to end when they are to end with the daemon.
const LAST_JOBS: Duration = Duration::from_secs(60);

/// A daemon that listens.
#[derive(Debug)]
pub struct RunningDaemon {
    address: SocketAddr,
    shutdown: watch::Sender<Option<Shutdown>>,
    thread: JoinHandle<Result<(), DaemonError>>,
}

impl RunningDaemon {
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
        self.thread.join().unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> DaemonError {
    DaemonError::Panicked { what: "the daemon", why: panics::message(panic).to_owned() }
}

/// Runs a daemon until somebody ends it: over the API, or by an interrupt or termination signal.
pub fn serve(options: DaemonOptions) -> Result<(), DaemonError> {
    let result = launch(options, Signals::Obeyed).and_then(RunningDaemon::wait);
    if let Err(error) = &result {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        tell_systemd(&format!("STATUS={error}{cause}"));
    }
    result
}

/// Starts a daemon on threads of its own and returns once it listens. Signals are left to the caller.
pub fn start(options: DaemonOptions) -> Result<RunningDaemon, DaemonError> {
    launch(options, Signals::Ignored)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signals {
    Obeyed,
    Ignored,
}

fn launch(options: DaemonOptions, signals: Signals) -> Result<RunningDaemon, DaemonError> {
    let (ready, is_ready) = oneshot::channel();
    let (shutdown, _) = watch::channel(None);
    let told = shutdown.clone();
    let run = move || run(options, signals, told, ready);
    let thread = thread::Builder::new().name("daemon".into()).spawn(run);
    let thread = thread.map_err(|source| DaemonError::Thread { source })?;
    match is_ready.blocking_recv() {
        Ok(address) => Ok(RunningDaemon { address, shutdown, thread }),
        Err(_) => {
            let ended = thread.join().unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
            Err(ended.err().unwrap_or(DaemonError::Panicked { what: "the daemon", why: "it ended".into() }))
        }
    }
}

fn run(
    options: DaemonOptions,
    signals: Signals,
    shutdown: watch::Sender<Option<Shutdown>>,
    ready: oneshot::Sender<SocketAddr>,
) -> Result<(), DaemonError> {
    bedplate_http::raise_file_limit();
    let state = StateDirectory::open(&options.state_directory)?;
    let clock = Arc::new(Clock::start());
    bedplate_journal::make_room(&state.journal());
    let mut journal = Journal::open_with(&state.journal(), &options.journal)?;
    let is_examined = journal.is_examined();
    journal.hold_reserve(&state.journal(), options.reserve_bytes);
    let control = restore(&options, &mut journal, &clock)?;
    let writer = Arc::new(Writer::start(journal).map_err(|source| DaemonError::Thread { source })?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|source| DaemonError::Thread { source })?;
    let result = runtime.block_on(async {
        let daemon = Daemon::prepare(options, &state, control, &writer, clock, shutdown).await?;
        tokio::select! {
            result = daemon.run(&state, signals, ready) => result,
            error = examined(state.journal(), is_examined) => Err(error),
        }
    });
    // After a failure others still look for it here, and for its port.
    if result.is_ok() {
        state.withdraw();
    }
    end(runtime, writer);
    result
}

/// Connections go first, so that the journal has all they said when its writer ends.
fn end(runtime: Runtime, writer: Arc<Writer>) {
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(writer);
}

fn restore(options: &DaemonOptions, journal: &mut Journal, clock: &Clock) -> Result<Control, DaemonError> {
    let mut restored = journal.restore()?;
    clock.go_on_from(restored.latest);
    let awaited = journal.ended(&restored.awaited())?;
    let known: Vec<JobId> = restored.ended.iter().map(|row| row.id).collect();
    restored.ended.extend(awaited.into_iter().filter(|row| !known.contains(&row.id)));
    let (cluster, settings) = (options.cluster.clone(), options.settings.clone());
    let (control, unreadable) =
        Control::restore(cluster, settings, options.rules.clone(), restored, clock.now());
    for (JobId(job), why) in unreadable {
        warn!(%job, "job {job} cannot be read from the journal and is skipped: {why}");
    }
    Ok(control)
}

struct Daemon {
    app: Arc<App>,
    listener: TcpListener,
    fingerprint: Option<String>,
    control_thread: JoinHandle<()>,
    failures: mpsc::UnboundedReceiver<DaemonError>,
}

impl Daemon {
    async fn prepare(
        options: DaemonOptions,
        state: &StateDirectory,
        mut control: Control,
        writer: &Arc<Writer>,
        clock: Arc<Clock>,
        shutdown: watch::Sender<Option<Shutdown>>,
    ) -> Result<Self, DaemonError> {
        let reader = Reader::open(&state.journal())?;
        let tokens = Arc::new(TokenStore::load(&reader, writer.clone(), clock.clone())?);
        keep_admin_token(state, &tokens, &options.administrator)?;
        let address = options.listen;
        let encryption = match options.tls || !address.ip().is_loopback() {
            true => Some(Encryption::prepare(state, &options.names, address.ip())?),
            false => None,
        };
        let server = Server::new(options.limits.of_connections());
        let (server, fingerprint) = match encryption {
            Some(Encryption { acceptor, fingerprint }) => (server.encrypted(acceptor), Some(fingerprint)),
            None => (server, None),
        };
        let listener =
            bedplate_http::bind_beside(address).map_err(|source| DaemonError::Listen { address, source })?;
        control.listens(clock.now());
        let leases = Arc::new(Leases::new(clock.clone(), options.rules.silence));
        let (diagnosing, watching) = Diagnosing::new();
        let links = Arc::new(AgentLinks::new(leases.clone(), RunSecrets::open(state)?, diagnosing.clone()));
        let hub = Arc::new(Hub::new(clock.now().0, options.limits.events_behind));
        let metrics = Arc::new(DaemonMetrics::new());
        let (failure, failures) = mpsc::unbounded_channel();
        let surroundings = ControlSetup {
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
        watching.start(control.clone(), options.policy.clone());
        let background = Background::start()?;
        let app = Arc::new(App {
            cluster: options.cluster.clone(),
            clients: Clients::new(&options.limits),
            at_once: Arc::new(Semaphore::new(options.limits.requests_at_once)),
            left_behind: Arc::new(Semaphore::new(MOST_READS)),
            readers: Readers::new(state.journal(), background.clone()),
            background,
            keys: Arc::default(),
            writer: writer.clone(),
            options,
            clock,
            control,
            links,
            diagnosing,
            hub,
            tokens,
            metrics,
            server,
            shutdown,
        });
        let (keys, all) = (app.keys.clone(), app.keys.clone());
        let read = app.readers.clone();
        tokio::spawn(async move {
            let noted = read
                .ask(move |reader| {
                    reader.keys(|key| {
                        keys.note(key);
                    })
                })
                .await;
            match noted {
                Ok(()) => all.complete(),
                Err(why) => warn!("keys of submissions are looked up one by one: {why}"),
            }
        });
        Ok(Self { app, listener, fingerprint, control_thread, failures })
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
        let announce = || state.announce(address, self.fingerprint.clone());
        announce()?;
        tell_systemd(&format!("READY=1\nSTATUS=listening at {address}"));
        // Nobody may be waiting for it.
        let _ = ready.send(address);
        let mut stopping = self.app.shutdown.subscribe();
        let result = tokio::select! {
            () = self.app.server.accept(&self.listener, handler(&self.app)) => Ok(()),
            () = retention::keep_within_limits(&self.app) => Ok(()),
            _ = stopping.wait_for(Option::is_some) => Ok(()),
            () = interrupted(signals) => Ok(()),
            () = stay_announced(state, announce) => Ok(()),
            () = backups::keep(&self.app) => Ok(()),
            failure = self.failures.recv() => failure.map_or(Ok(()), Err),
        };
        let how = *self.app.shutdown.borrow();
        if how.is_some() && result.is_ok() {
            state.conclude();
        }
        if how == Some(Shutdown::StopJobs) && result.is_ok() {
            // Agents must still be heard while their jobs end.
            let stopped = timeout(LAST_JOBS, stop_jobs(&self.app));
            tokio::select! {
                () = self.app.server.accept(&self.listener, handler(&self.app)) => {}
                _ = stopped => {}
            }
        }
        drop(self.listener);
        self.app.shutdown.send_replace(Some(Shutdown::LeaveJobs));
        self.app.server.begin_end();
        self.app.control.stop().await;
        let control_thread = self.control_thread;
        // Its panic, if any, is the result already.
        let _ = tokio::task::spawn_blocking(move || control_thread.join()).await;
        result
    }
}

/// Reads a journal that was too large to be read before it was opened; returns only where it is hurt.
async fn examined(path: PathBuf, is_examined: bool) -> DaemonError {
    if is_examined {
        return std::future::pending().await;
    }
    let look = move || match bedplate_journal::check(&path) {
        Ok(found) => {
            let damage = found.damage.first()?.to_string();
            // Without the note the daemon would come up again with it.
            if let Err(error) = bedplate_journal::suspect(&path) {
                warn!("the journal is hurt, which cannot be noted: {error}");
            }
            Some(JournalError::Hurt { path, damage })
        }
        Err(error) => {
            warn!("the journal could not be read as a whole: {error}");
            None
        }
    };
    match tokio::task::spawn_blocking(look).await {
        Ok(Some(error)) => error.into(),
        _ => std::future::pending().await,
    }
}

/// Writes `daemon.json` again when it is gone. Never returns.
async fn stay_announced(state: &StateDirectory, announce: impl Fn() -> Result<(), DaemonError>) {
    loop {
        sleep(Duration::from_secs(1)).await;
        if !state.is_announced()
            && let Err(error) = announce()
        {
            warn!("daemon.json is missing and cannot be written: {error}");
        }
    }
}

/// The administrator's token lies in the state directory, made when it is not there or not valid.
fn keep_admin_token(state: &StateDirectory, tokens: &TokenStore, user: &str) -> Result<(), DaemonError> {
    let kept = state.read(ADMIN_TOKEN)?.and_then(|bytes| String::from_utf8(bytes).ok());
    let is_good = |secret: String| {
        tokens.identify(secret.trim()).is_some_and(|identity| identity.role == AccessRole::Admin)
    };
    if kept.is_some_and(is_good) {
        return Ok(());
    }
    let wanted =
        WantedToken { user: user.into(), role: AccessRole::Admin, label: ADMIN_TOKEN.into(), expires: None };
    let made = tokens.make_now(wanted)?;
    state.write(ADMIN_TOKEN, format!("{}\n", made.secret).as_bytes())
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

fn handler(app: &Arc<App>) -> impl Handler {
    let app = app.clone();
    move |request: Request| api::answer(app.clone(), request)
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
    let _ = timeout(LAST_WORDS, async {
        while app.links.count() > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
