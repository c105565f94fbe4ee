//! The threads that read, and what they know.
//!
//! A collector that hangs holds up only its own thread: what it knew is shown as stale, and everything else goes on. Threads
//! end soon after the exporter is dropped; one that hangs in the kernel is left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_finding::OpenFinding;
use bedplate_health::kernel_log::{KernelLine, XidLine};
use bedplate_health::{Profile, Rules, XidSeen, XidSource};

use crate::board::Board;
use crate::collectors::Collector;
use crate::collectors::gpu::{GpuBoard, Gpus, JobOnGpu};
use crate::collectors::host::HostCollector;
use crate::collectors::lustre::Lustre;
use crate::collectors::mounts::{Ask, Mounts, ask_kernel};
use crate::collectors::neuron::Neuron;
use crate::collectors::ports::Ports;
use crate::error::ExportError;
use crate::kernel_log::KernelLog;
use crate::metrics;
use crate::nvml::{self, XidEvents};
use crate::root::Root;
use crate::series::{HostnameLabel, MetricSeries, Naming, SeriesBatch};
use crate::targets::{RankEndpoints, ScrapeTarget};
use crate::watch::{FindingWatch, OnCounters, OnFindings};

/// How long one wait for an event of NVML lasts, so that its thread can end.
const EVENT_WAIT_MS: u32 = 1_000;
/// How long to wait before a log or a driver that fails is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// How long the end of commands is waited for.
const COMMANDS_END_WITHIN: Duration = Duration::from_secs(1);

/// What the exporter reads, and under which names.
#[derive(Clone)]
pub struct ExporterOptions {
    /// The node's name, for labels and findings.
    pub node: String,
    pub interval: Duration,
    pub root: Root,
    /// The NVML library; where the driver puts it when absent.
    pub nvml: Option<PathBuf>,
    pub hostname_label: HostnameLabel,
    /// Files that name the job of each GPU.
    pub job_folder: Option<PathBuf>,
    pub neuron_monitor: Option<PathBuf>,
    pub targets: Vec<ScrapeTarget>,
    pub rules: Rules,
    /// Whether the kernel log is read.
    pub reads_kernel_log: bool,
    pub on_findings: Option<OnFindings>,
    pub on_counters: Option<OnCounters>,
}

impl ExporterOptions {
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            interval: Duration::from_secs(1),
            root: Root::default(),
            nvml: None,
            hostname_label: HostnameLabel::default(),
            job_folder: None,
            neuron_monitor: None,
            targets: Vec::new(),
            rules: Rules::built_in(Profile::default()),
            reads_kernel_log: true,
            on_findings: None,
            on_counters: None,
        }
    }

    /// NVML by its name, or the one within a tree that a test made.
    fn library(&self) -> PathBuf {
        match &self.nvml {
            Some(library) => library.clone(),
            None if self.root.is_real() => nvml::LIBRARY.into(),
            None => self.root.path(nvml::LIBRARY),
        }
    }
}

/// Names of metrics that rules can watch.
pub fn watchable() -> Vec<&'static str> {
    metrics::all().map(|metric| metric.name).collect()
}

/// Reads the node until it is dropped.
pub struct Exporter {
    shared: Arc<Shared>,
    /// Closes when the thread has ended that keeps a command running.
    commands: Option<Mutex<Receiver<()>>>,
}

struct Shared {
    interval: Duration,
    board: Board,
    watch: FindingWatch,
    gpus: Arc<GpuBoard>,
    targets: Mutex<Vec<ScrapeTarget>>,
    naming: Naming,
    ending: Ending,
}

#[derive(Default)]
struct Ending {
    is_ending: AtomicBool,
    lock: Mutex<()>,
    told: Condvar,
}

impl Ending {
    fn has_come(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Sleeps, but not longer than the exporter lives.
    fn sleep(&self, time: Duration) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_come() {
            drop(self.told.wait_timeout(guard, time));
        }
    }

    fn come(&self) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_ending.store(true, Ordering::Release);
        drop(guard);
        self.told.notify_all();
    }
}

impl Exporter {
    pub fn start(options: ExporterOptions) -> Result<Self, ExportError> {
        Self::start_asking(options, Arc::new(ask_kernel))
    }

    pub(crate) fn start_asking(options: ExporterOptions, ask: Ask) -> Result<Self, ExportError> {
        let naming = Naming::new(&options.node, options.hostname_label);
        let shared = Arc::new(Shared {
            interval: options.interval,
            board: Board::new(naming.clone(), options.interval),
            watch: FindingWatch::new(
                &options.node,
                options.rules.clone(),
                options.on_findings.clone(),
                options.on_counters.clone(),
            ),
            gpus: Arc::default(),
            targets: Mutex::new(options.targets.clone()),
            naming: naming.clone(),
            ending: Ending::default(),
        });
        let mut exporter = Self { shared, commands: None };
        exporter.start_gpus(&options, &naming)?;
        let root = &options.root;
        let files: Vec<Box<dyn Collector>> = vec![
            Box::new(HostCollector::new(root.clone(), naming.clone())),
            Box::new(Ports::new(root.clone(), naming.clone())),
            Box::new(Lustre::new(root.clone(), naming.clone())),
        ];
        exporter.thread("export-files", move |shared| shared.collect_all(files))?;
        let mounts: Box<dyn Collector> = Box::new(Mounts::new(root.clone(), naming.clone(), ask));
        exporter.thread("export-mounts", move |shared| shared.collect_all(vec![mounts]))?;
        exporter.thread("export-ranks", |shared| shared.fetch_targets())?;
        if let Some(program) = options.neuron_monitor.clone() {
            let neuron: Box<dyn Collector> = Box::new(Neuron::new(program, naming));
            let (ends, ended) = channel();
            exporter.commands = Some(Mutex::new(ended));
            exporter.thread("export-neuron", move |shared| {
                let _ends: Sender<()> = ends;
                shared.collect_all(vec![neuron]);
            })?;
        }
        if options.reads_kernel_log {
            let path = root.path("dev/kmsg");
            exporter.thread("export-log", move |shared| shared.read_kernel_log(&path))?;
        }
        Ok(exporter)
    }

    /// The GPUs are opened before anything reads the kernel log, which names them by their address.
    fn start_gpus(&self, options: &ExporterOptions, naming: &Naming) -> Result<(), ExportError> {
        let board = Arc::clone(&self.shared.gpus);
        let folder = options.job_folder.clone();
        let (root, library, interval) = (options.root.clone(), options.library(), options.interval);
        let gpus = Gpus::new(root, library, naming.clone(), interval, board, folder);
        self.thread("export-gpu", move |shared| shared.collect_gpus(gpus))
    }

    fn thread(
        &self,
        name: &str,
        work: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> Result<(), ExportError> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(name.into()).stack_size(256 << 10);
        thread.spawn(move || work(&shared)).map_err(|source| ExportError::Thread { source })?;
        Ok(())
    }

    /// What Prometheus gets now.
    pub fn text(&self) -> String {
        self.shared.text()
    }

    /// The same, for another thread to call.
    pub fn reader(&self) -> impl Fn() -> String + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.text()
    }

    pub fn findings(&self) -> Vec<OpenFinding> {
        self.shared.watch.findings()
    }

    /// Which job has which GPU from now on.
    pub fn set_jobs(&self, jobs: BTreeMap<u32, JobOnGpu>) {
        self.shared.gpus.set_jobs(jobs);
    }

    /// Where ranks offer their own metrics from now on.
    pub fn set_targets(&self, targets: Vec<ScrapeTarget>) {
        *locked(&self.shared.targets) = targets;
    }

    /// The energy counters of the GPUs in millijoules, as of the last reading.
    pub fn energy_mj(&self) -> BTreeMap<u32, u64> {
        self.shared.gpus.energy_mj()
    }

    /// An operator knows of what was found until then.
    pub fn acknowledge(&self, until_ms: u64) {
        self.shared.watch.acknowledge(until_ms);
    }

    /// As if an XID had been seen, for demonstrations.
    pub fn pretend_xid(&self, gpu: u32, xid: u32) {
        let text = "made up to show what follows";
        let source = XidSource::KernelLog;
        self.shared.watch.saw_xid(XidSeen { gpu: Some(gpu), xid, process: None, text, source });
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.shared.ending.come();
        // A process that ends at once would leave its commands behind.
        let _ = self.commands.as_ref().map(|ended| locked(ended).recv_timeout(COMMANDS_END_WITHIN));
    }
}

impl Shared {
    fn text(&self) -> String {
        self.board.text(&self.watch.xids(), &self.watch.findings(), &self.watch.counted())
    }

    fn collect_all(&self, mut collectors: Vec<Box<dyn Collector>>) {
        let mut next = Instant::now();
        while !self.ending.has_come() {
            for collector in &mut collectors {
                self.collect(collector.as_mut());
            }
            self.pause(&mut next);
        }
    }

    /// Until the next reading is due. Readings that were missed are not made up for.
    fn pause(&self, next: &mut Instant) {
        *next = (*next + self.interval).max(Instant::now());
        let left = next.saturating_duration_since(Instant::now());
        self.ending.sleep(left.max(Duration::from_millis(1)));
    }

    fn collect(&self, collector: &mut dyn Collector) {
        let began = Instant::now();
        let mut batch = SeriesBatch::default();
        let outcome = collector.collect(&mut batch);
        self.watch.take(batch.0.iter().map(MetricSeries::reading));
        self.board.post(collector.name(), batch, outcome.is_ok(), began.elapsed());
    }

    fn collect_gpus(self: &Arc<Self>, mut gpus: Gpus) {
        let mut next = Instant::now();
        while !self.ending.has_come() {
            if let Some(events) = gpus.open() {
                let shared = Arc::clone(self);
                let waiting = thread::Builder::new().name("export-events".into()).stack_size(256 << 10);
                // Without the thread XIDs come by the kernel log.
                let _ = waiting.spawn(move || shared.wait_for_events(&events));
            }
            self.collect(&mut gpus);
            self.pause(&mut next);
        }
    }

    fn wait_for_events(&self, events: &XidEvents) {
        while !self.ending.has_come() {
            let began = Instant::now();
            match events.wait(EVENT_WAIT_MS) {
                Ok(Some((gpu, xid))) => {
                    let seen =
                        XidSeen { gpu: Some(gpu), xid, process: None, text: "", source: XidSource::Driver };
                    self.watch.saw_xid(seen);
                }
                Ok(None) if began.elapsed() < Duration::from_millis(50) => {
                    self.ending.sleep(Duration::from_secs(1));
                }
                Ok(None) => {}
                Err(()) => self.ending.sleep(TRY_AGAIN),
            }
        }
    }

    fn read_kernel_log(&self, path: &std::path::Path) {
        while !self.ending.has_come() {
            let outcome = KernelLog::open(path).and_then(|mut log| self.follow(&mut log));
            if outcome.is_err() {
                self.board.post("kernel-log", SeriesBatch::default(), false, Duration::ZERO);
                self.ending.sleep(TRY_AGAIN);
            }
        }
    }

    fn follow(&self, log: &mut KernelLog) -> std::io::Result<()> {
        let mut posted: Option<Instant> = None;
        while !self.ending.has_come() {
            if posted.is_none_or(|posted| posted.elapsed() >= self.interval) {
                self.board.post("kernel-log", SeriesBatch::default(), true, Duration::ZERO);
                posted = Some(Instant::now());
            }
            log.next(|line| self.saw_line(line))?;
        }
        Ok(())
    }

    fn saw_line(&self, line: KernelLine<'_>) {
        match XidLine::parse(line.text) {
            Some(xid) => self.watch.saw_xid(XidSeen {
                gpu: self.gpus.index_of(xid.bus).filter(|_| !xid.is_switch),
                xid: xid.xid,
                process: xid.process,
                text: xid.text,
                source: if xid.is_switch { XidSource::Switch } else { XidSource::KernelLog },
            }),
            None => self.watch.saw_line(line.text),
        }
    }

    fn fetch_targets(&self) {
        let mut next = Instant::now();
        let mut ranks = RankEndpoints::default();
        while !self.ending.has_come() {
            let targets: BTreeSet<ScrapeTarget> = locked(&self.targets).iter().cloned().collect();
            let (families, answered) = ranks.fetch(&targets, &self.naming.labels(&[]));
            let told = targets.iter().map(|target| (self.target_labels(target), answered.contains(target)));
            self.board.post_foreign(families, told.collect());
            self.pause(&mut next);
        }
    }

    fn target_labels(&self, target: &ScrapeTarget) -> String {
        let url = format!("http://{}{}", target.address, target.path);
        let mut pairs = vec![("target", url.as_str())];
        pairs.extend(target.job.as_deref().map(|job| ("hpc_job", job)));
        pairs.extend(target.rank.as_deref().map(|rank| ("rank", rank)));
        self.naming.labels(&pairs).to_string()
    }
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
