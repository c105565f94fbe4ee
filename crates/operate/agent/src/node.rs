//! The agent of a node at work: one loop that owns the state machine, feeds it what happens, and carries out its acts.
//!
//! Everything slow is done elsewhere and comes back as an [`AgentEvent`]: processes by run shims, the link and steps by
//! tasks of their own, the job's file systems by threads that may hang without stopping a heartbeat.

mod chaos;
mod clean;
mod dump;
mod observing;
mod prepare;
mod probes;
mod ranks;
mod run_shims;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use bedplate_control::agent::{Act, Agent, AgentRules, Happened, LinkLoss, Spent};
use bedplate_control::wire::{Audience, FromAgent, Hello, HostMachine, Launch, RunId, ToAgent};
use bedplate_job::rank_environment::{Surroundings, mark};
use nix::sys::prctl::set_child_subreaper;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::warn;

use crate::clock::now;
use crate::error::AgentError;
use crate::event::AgentEvent;
use crate::fault_injection::FaultInjection;
use crate::fork_client::ForkClient;
use crate::fork_server::orders::ToRunShim;
use crate::identity::{Identity, JobUsers};
use crate::options::AgentOptions;
use crate::outputs::Outputs;
use crate::places::Places;
use crate::reports::ReportFile;
use crate::slow::SlowWork;
use crate::watched::LogWatch;
use crate::{link, processes, random, socket, tls};

/// Where programs are, for users other than the agent's own.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How often reports are read.
const REPORTS: Duration = Duration::from_millis(200);
/// Logs are trimmed at every so many readings of the reports.
const LOOKS_PER_TRIM: u32 = 25;

/// Runs the agent until it is told to end (`SIGTERM`, `SIGINT` or by the control plane) or cannot go on. No process of
/// any run is left when it returns.
pub(crate) async fn run(options: AgentOptions) -> Result<(), AgentError> {
    let tls = options.fingerprint.as_deref().map(tls::connector).transpose()?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(|source| AgentError::ForkServer { source })?,
    };
    let places = Places::begin(&options.state, &options.node, &program, options.users)?;
    // Run shims of a dead fork server become our children.
    let _ = set_child_subreaper(true);
    let (events, mut incoming) = unbounded_channel();
    let mut node = Node::begin(options, places, program, events.clone())?;
    node.await_fork_server(&mut incoming).await?;
    node.begin_node_probe();
    node.begin_observing();
    socket::listen(&node.places.socket, node.options.users, events.clone())?;
    tokio::spawn(link::keep(node.options.clone(), tls, node.fault_injection.clone(), events));
    let outcome = node.attend(incoming).await;
    node.places.say_neither();
    if let Err(AgentError::Refused { message, .. }) = &outcome {
        node.places.say_turned_away(message);
    }
    let _ = std::fs::remove_file(&node.places.socket);
    // Their links close, which ends them and their runs.
    node.run_shims.clear();
    if let Some(fork_server) = node.fork_server.take() {
        fork_server.end().await;
    }
    let variable = agent_variable(&node.places);
    let _ = tokio::task::spawn_blocking(move || processes::kill_marked(&[&variable])).await;
    outcome
}

struct Node {
    options: AgentOptions,
    places: Places,
    program: PathBuf,
    agent: Agent,
    incarnation: u64,
    events: UnboundedSender<AgentEvent>,
    fault_injection: FaultInjection,
    link: Option<UnboundedSender<FromAgent>>,
    fork_server: Option<ForkClient>,
    fork_servers_started: u32,
    /// What the fork server was asked.
    unanswered: run_shims::Unanswered,
    /// What the fork server was last told of the lease.
    fork_server_lease: run_shims::ForkServerLease,
    /// By the group whose processes they have.
    run_shims: BTreeMap<String, run_shims::RunShim>,
    last_run_shim: u64,
    enforced: Vec<String>,
    has_efa: bool,
    /// What each living process is for, by the number that its run shim knows it by.
    processes: BTreeMap<u64, Purpose>,
    last_process: u64,
    runs: BTreeMap<RunId, Local>,
    probes: probes::Probes,
    looks: u32,
    slow: SlowWork,
    retained: clean::Retained,
    observing: Option<observing::Observing>,
    watched: LogWatch,
}

/// Why a process was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Prolog(RunId),
    Rank(RunId, u32),
    Task {
        run: RunId,
        step: u32,
        task: u32,
    },
    Epilog(RunId),
    /// Of a run, or the node's own.
    Probe(Option<RunId>),
    /// Of the node, because jobs failed there.
    Check,
}

impl Purpose {
    /// Whether it may not begin once the control plane may have given its run up.
    fn needs_lease(self) -> bool {
        match self {
            Purpose::Prolog(_) | Purpose::Rank(..) | Purpose::Task { .. } | Purpose::Probe(Some(_)) => true,
            Purpose::Epilog(_) | Purpose::Probe(None) | Purpose::Check => false,
        }
    }
}

/// A run on this node.
struct Local {
    launch: Launch,
    /// How its processes are marked; its run shim's name for it.
    group: String,
    directory: PathBuf,
    /// Whom its processes run as, where that is not the agent's user.
    identity: Option<Identity>,
    outputs: Outputs,
    master_port: Option<u16>,
    reports: BTreeMap<u32, ReportFile>,
    /// Ranks that report their steps themselves.
    tells: BTreeSet<u32>,
    steps: BTreeMap<u32, steps::Relay>,
    cleaning: Option<clean::Cleaning>,
    spent: Spent,
    /// How often its processes were written down.
    dumps: u64,
}

impl Node {
    fn begin(
        options: AgentOptions,
        places: Places,
        program: PathBuf,
        events: UnboundedSender<AgentEvent>,
    ) -> Result<Self, AgentError> {
        // What an agent of this name left behind when it was killed: first those who could still start ranks. One that stands still
        // would obey its last orders when it goes on.
        processes::kill_marked(&[&fork_server_variable(&places)]);
        processes::kill_marked(&[&agent_variable(&places)]);
        let mut node = Self {
            agent: Agent::new(AgentRules::default(), now()),
            incarnation: random::number() >> 1,
            fault_injection: FaultInjection::none(),
            link: None,
            fork_server: None,
            fork_servers_started: 0,
            unanswered: run_shims::Unanswered::default(),
            fork_server_lease: run_shims::ForkServerLease::default(),
            run_shims: BTreeMap::new(),
            last_run_shim: 0,
            enforced: Vec::new(),
            has_efa: processes::has_efa(),
            processes: BTreeMap::new(),
            last_process: 0,
            runs: BTreeMap::new(),
            probes: probes::Probes::default(),
            looks: 0,
            slow: SlowWork::default(),
            retained: clean::Retained::default(),
            observing: None,
            watched: LogWatch::start(&events),
            options,
            places,
            program,
            events,
        };
        node.start_fork_server().map_err(|source| AgentError::ForkServer { source })?;
        Ok(node)
    }

    async fn attend(&mut self, mut incoming: UnboundedReceiver<AgentEvent>) -> Result<(), AgentError> {
        let failed = |source| AgentError::ForkServer { source };
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut reports = interval(REPORTS);
        reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let pause = Duration::from_millis(self.agent.wakeup().since(now()).0.min(60_000));
            tokio::select! {
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                () = sleep(pause) => self.agent.tick(now()),
                _ = reports.tick(), if !self.runs.is_empty() => self.look_at_files(),
                event = incoming.recv() => match event {
                    Some(AgentEvent::Refused { status, message }) => {
                        let server = self.options.server.clone();
                        return Err(AgentError::Refused { server, status, message });
                    }
                    Some(AgentEvent::Told(ToAgent::End)) | None => return Ok(()),
                    Some(event) => self.take_in(event)?,
                },
            }
            self.renew_lease();
            self.carry_out_acts();
            self.watch_run_shims()?;
        }
    }

    fn take_in(&mut self, event: AgentEvent) -> Result<(), AgentError> {
        match event {
            AgentEvent::Linked(link) => self.greet(link),
            AgentEvent::Told(message) => self.told(message),
            AgentEvent::LinkLost(how) => self.link_lost(how),
            AgentEvent::ForkServerSays { fork_server, notice } if self.is_current(fork_server) => {
                self.fork_server_says(notice)
            }
            AgentEvent::ForkServerGone { fork_server } if self.is_current(fork_server) => {
                return self.replace_fork_server();
            }
            AgentEvent::RunShimSays { run_shim, notice } => self.run_shim_says(run_shim, notice),
            AgentEvent::RunShimSilent { run_shim } => self.run_shim_silent(run_shim),
            AgentEvent::Swept { run_shim } => self.lose_run_shim(run_shim),
            AgentEvent::Identified { run, outcome } => self.identified(run, outcome),
            AgentEvent::Checked { run, outcome } => self.checked(run, outcome),
            AgentEvent::Overdue { id } => self.overdue(id),
            AgentEvent::Found(findings) => self.happened(Happened::Found(findings)),
            // Of a node that runs nothing they are of no interest.
            AgentEvent::Counted(counters) if self.runs.is_empty() => drop(counters),
            AgentEvent::Counted(counters) => {
                let readings = counters.into_iter().map(|(metric, value)| (metric.to_owned(), value));
                self.send(FromAgent::Counters { readings: readings.collect() });
            }
            AgentEvent::LogSaid { run, rank, reports } => self.log_said(run, rank, reports),
            AgentEvent::ProbeDue { run } => self.start_probe(run),
            AgentEvent::StepAsked { request, uid, answer } => {
                drop(answer.send(self.ask_for_step(request, uid)))
            }
            AgentEvent::StepSignal { run, step, signal } => self.signal_step(run, step, signal),
            AgentEvent::StepOver { run, step } => self.end_step(run, step),
            // Of an earlier fork server, or dealt with before.
            AgentEvent::ForkServerSays { .. }
            | AgentEvent::ForkServerGone { .. }
            | AgentEvent::Refused { .. } => {}
        }
        Ok(())
    }

    fn carry_out_acts(&mut self) {
        loop {
            let acts = self.agent.take_acts();
            if acts.is_empty() {
                return;
            }
            for act in acts {
                self.carry_out(act);
            }
        }
    }

    fn carry_out(&mut self, act: Act) {
        match act {
            Act::Send(message) => self.send(message),
            Act::Prepare(launch) => self.prepare(*launch),
            Act::Start { run, master_port } => self.start_ranks(run, master_port),
            Act::Signal { run, signal, to: Audience::All } => self.signal(run, signal),
            Act::Signal { run, signal, to: Audience::Steps } => self.signal_steps(run, signal),
            Act::Signal { run, signal, to: Audience::Script } => self.signal_script(run, signal),
            Act::Kill { run } => self.order_for(run, ToRunShim::Kill),
            Act::Suspend { run } => self.signal(run, libc::SIGSTOP),
            Act::Resume { run } => self.signal(run, libc::SIGCONT),
            Act::Clean { run } => self.clean(run),
            Act::Step(step) => self.start_step(*step),
            Act::Check => self.start_check(),
            Act::Disconnect => self.link = None,
        }
    }

    fn happened(&mut self, happened: Happened) {
        self.agent.happened(happened, now());
    }

    fn greet(&mut self, link: UnboundedSender<FromAgent>) {
        let hello = Hello {
            node: self.options.node.clone(),
            address: self.options.address.clone(),
            incarnation: self.incarnation,
            held: self.agent.greet(now()),
            host: self.host(),
        };
        let _ = link.send(FromAgent::Hello(hello));
        self.probes.forget();
        self.link = Some(link);
    }

    fn host(&self) -> HostMachine {
        let all_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let memory_mib = match self.options.memory_mib {
            0 => processes::memory_mib(),
            share => share,
        };
        HostMachine {
            name: bedplate_host::host_name(),
            cores: if self.options.cores.is_empty() { all_cores } else { self.options.cores.len() } as u32,
            memory_mib,
            gpus: processes::count_gpus(),
            enforced: self.enforced(),
        }
    }

    /// What this node makes sure of, for people.
    fn enforced(&self) -> Vec<String> {
        let by_user = match self.options.users {
            JobUsers::Own => None,
            JobUsers::Submitters { .. } => Some("each job as the user who submitted it".to_owned()),
        };
        self.enforced.iter().cloned().chain(by_user).collect()
    }

    fn told(&mut self, message: ToAgent) {
        match message {
            ToAgent::ReadLog { request, log, offset, most_bytes } => {
                self.read_log(request, &log, offset, most_bytes);
            }
            ToAgent::Retain { age_ms, bytes } => self.retain(Duration::from_millis(age_ms), bytes),
            ToAgent::Acknowledge { until_ms } => self.acknowledge(until_ms),
            ToAgent::Chaos(chaos) => self.break_on_purpose(chaos),
            ToAgent::Dump { run } => self.dump(run),
            ToAgent::Unwelcome { why } => {
                warn!(node = self.options.node, "the control plane does not let this node join: {why}");
                self.places.say_turned_away(&why);
                self.agent.told(ToAgent::Unwelcome { why }, now());
            }
            message => {
                if matches!(message, ToAgent::Welcome { .. }) {
                    self.places.say_joined();
                }
                self.agent.told(message, now());
            }
        }
    }

    fn link_lost(&mut self, how: LinkLoss) {
        self.link = None;
        self.agent.link_lost(how, now());
    }

    fn send(&self, message: FromAgent) {
        if let Some(link) = &self.link {
            // A link that is just breaking is reported as lost soon.
            let _ = link.send(message);
        }
    }

    fn signal(&mut self, run: RunId, signal: i32) {
        self.order_for(run, ToRunShim::Signal { signal });
    }

    fn order_for(&mut self, run: RunId, order: ToRunShim) {
        if let Some(local) = self.runs.get(&run) {
            let group = local.group.clone();
            self.order(&group, order);
        }
    }

    /// What the processes of a run find around them on this node.
    fn surroundings(&self, local: &Local, report: String) -> Surroundings {
        Surroundings {
            inherited: inherited(&self.options.environment, local.identity.as_ref()),
            agent_socket: self.places.socket.display().to_string(),
            report,
            programs: self.places.programs.display().to_string(),
            has_efa: self.has_efa,
            user: Some(match &local.identity {
                Some(identity) => (identity.uid, identity.gid),
                None => (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()),
            }),
        }
    }

    fn held_ports(&self) -> BTreeSet<u16> {
        self.runs.values().filter_map(|local| local.master_port).collect()
    }

    fn mark(&self, run: RunId) -> String {
        mark(run.job, run.number, &self.options.node)
    }
}

/// What a job finds in its environment that neither it nor its submitter has set: of the agent's own a few harmless
/// variables, because the rest belongs to whoever started the cluster.
fn inherited(agents: &BTreeMap<String, String>, user: Option<&Identity>) -> BTreeMap<String, String> {
    let find = |name: &str| Some((name.to_owned(), agents.get(name)?.clone()));
    let Some(user) = user else {
        let names = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "TZ"];
        return names.into_iter().filter_map(find).collect();
    };
    let own = [
        ("PATH", PATH),
        ("HOME", &user.home),
        ("USER", &user.name),
        ("LOGNAME", &user.name),
        ("SHELL", &user.shell),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    own.chain(["LANG", "TZ"].into_iter().filter_map(find)).collect()
}

/// The variable by which all processes of all runs of this agent are recognised.
fn agent_variable(places: &Places) -> String {
    format!("BEDPLATE_AGENT={}", places.socket.display())
}

/// In the environment of fork servers and run shims, and of no rank.
const FORK_SERVER_OF: &str = "BEDPLATE_FORK_SERVER_OF";

/// The variable by which fork servers and run shims of this agent are recognised.
fn fork_server_variable(places: &Places) -> String {
    format!("{FORK_SERVER_OF}={}", places.socket.display())
}
