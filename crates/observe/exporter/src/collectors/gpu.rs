//! GPUs through NVML, with the job that has each of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bedplate_health::kernel_log::PciAddress;

use crate::collectors::{Collector, Failed};
use crate::metrics::gpu as metric;
use crate::nvml::{NoLibrary, Nvml, Said, XidEvents};
use crate::root::{Root, read};
use crate::series::{Naming, SeriesBatch, Spot};

/// How long to wait before looking for the driver again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// GPUs on the bus are counted in one of so many samples.
const COUNT_SAMPLES: u32 = 10;

/// Which job has a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobOnGpu {
    pub job: String,
    /// Ranks on this GPU, `3` or `3,4`.
    pub rank: Option<String>,
}

/// What threads share about the GPUs.
#[derive(Debug, Default)]
pub(crate) struct GpuBoard {
    jobs: Mutex<BTreeMap<u32, JobOnGpu>>,
    energy: Mutex<BTreeMap<u32, Energy>>,
    addresses: Mutex<BTreeMap<PciAddress, u32>>,
}

/// The energy counter of a GPU. It is read seldom, and continued by the power drawn since.
#[derive(Debug, Clone, Copy)]
struct Energy {
    counter_mj: f64,
    /// What was drawn since the counter changed.
    since_mj: f64,
    watts: f64,
    at: Instant,
}

impl Energy {
    fn now_mj(&self) -> u64 {
        (self.counter_mj + self.since_mj + self.watts * 1000.0 * self.at.elapsed().as_secs_f64()) as u64
    }

    /// A reading after the one before.
    fn follow(before: Option<&Energy>, counter_mj: f64, watts: f64) -> Self {
        let is_same = before.filter(|before| before.counter_mj == counter_mj);
        let since_mj = is_same.map_or(0.0, |before| {
            before.since_mj + before.watts * 1000.0 * before.at.elapsed().as_secs_f64()
        });
        Self { counter_mj, since_mj, watts, at: Instant::now() }
    }
}

impl GpuBoard {
    pub(crate) fn set_jobs(&self, jobs: BTreeMap<u32, JobOnGpu>) {
        *locked(&self.jobs) = jobs;
    }

    /// In millijoules.
    pub(crate) fn energy_mj(&self) -> BTreeMap<u32, u64> {
        locked(&self.energy).iter().map(|(gpu, energy)| (*gpu, energy.now_mj())).collect()
    }

    pub(crate) fn index_of(&self, address: PciAddress) -> Option<u32> {
        locked(&self.addresses).get(&address).copied()
    }
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// GPUs on the PCI bus, in the order in which NVML lists them: by address.
pub(crate) fn on_the_bus(root: &Root) -> Vec<PciAddress> {
    const FOLDER: &str = "sys/bus/pci/devices";
    let is_gpu = |name: &String| {
        let of = |file: &str| read(&root.path(&format!("{FOLDER}/{name}/{file}"))).unwrap_or_default();
        // 3D and VGA controllers of NVIDIA.
        of("vendor").trim() == "0x10de"
            && ["0x0302", "0x0300"].iter().any(|kind| of("class").starts_with(kind))
    };
    let mut found: Vec<PciAddress> = root
        .list(FOLDER)
        .iter()
        .filter(|name| is_gpu(name))
        .filter_map(|name| PciAddress::parse(name))
        .collect();
    found.sort_unstable();
    found
}

pub(crate) struct Gpus {
    root: Root,
    library: PathBuf,
    naming: Naming,
    interval: Duration,
    board: Arc<GpuBoard>,
    /// Files named after GPUs, with the job of each in its first line, as dcgm-exporter's HPC mapping has them.
    job_folder: Option<PathBuf>,
    nvml: Option<Nvml>,
    on_the_bus: Option<(Instant, u32)>,
    looked: Option<Instant>,
    /// There is a driver that does not work.
    is_broken: bool,
    said: Said,
    labels: Vec<(JobOnGpu, Arc<str>)>,
}

impl Gpus {
    pub(crate) fn new(
        root: Root,
        library: PathBuf,
        naming: Naming,
        interval: Duration,
        board: Arc<GpuBoard>,
        job_folder: Option<PathBuf>,
    ) -> Self {
        let addresses = on_the_bus(&root);
        *locked(&board.addresses) = (0..).zip(addresses).map(|(index, address)| (address, index)).collect();
        Self {
            root,
            library,
            naming,
            interval,
            board,
            job_folder,
            nvml: None,
            on_the_bus: None,
            looked: None,
            is_broken: false,
            said: Said::new(),
            labels: Vec::new(),
        }
    }

    /// Opens NVML; events are for another thread to wait for.
    pub(crate) fn open(&mut self) -> Option<XidEvents> {
        if self.nvml.is_some() || self.looked.is_some_and(|looked| looked.elapsed() < LOOK_AGAIN) {
            return None;
        }
        self.looked = Some(Instant::now());
        let opened = Nvml::open(&self.library, self.interval);
        self.is_broken = matches!(opened, Err(NoLibrary::Foreign | NoLibrary::Refuses(_)));
        match opened {
            Ok(nvml) => {
                let found = nvml.gpus.iter();
                let addresses =
                    found.filter_map(|gpu| Some((PciAddress::parse(&gpu.bus_id)?, gpu.index))).collect();
                *locked(&self.board.addresses) = addresses;
                let events = nvml.events();
                self.nvml = Some(nvml);
                events
            }
            Err(_) => None,
        }
    }

    fn jobs(&self) -> BTreeMap<u32, JobOnGpu> {
        let mut jobs = locked(&self.board.jobs).clone();
        if let Some(folder) = &self.job_folder {
            jobs.extend(mapped_jobs(folder));
        }
        jobs
    }

    /// The labels of a GPU; made anew when its job changes.
    fn labels(&mut self, at: usize, job: &JobOnGpu) -> Arc<str> {
        if let Some((known, labels)) = self.labels.get(at)
            && known == job
        {
            return Arc::clone(labels);
        }
        let Some(gpu) = self.nvml.as_ref().map(|nvml| &nvml.gpus[at]) else { return "".into() };
        let (index, device) = (gpu.index.to_string(), format!("nvidia{}", gpu.index));
        let mut pairs = vec![
            ("gpu", index.as_str()),
            ("UUID", &gpu.uuid),
            ("pci_bus_id", &gpu.bus_id),
            ("device", &device),
            ("modelName", &gpu.name),
        ];
        if !job.job.is_empty() {
            pairs.push(("hpc_job", &job.job));
            pairs.extend(job.rank.as_deref().map(|rank| ("rank", rank)));
        }
        let labels = self.naming.labels(&pairs);
        match self.labels.get_mut(at) {
            Some(known) => *known = (job.clone(), Arc::clone(&labels)),
            None => self.labels.push((job.clone(), Arc::clone(&labels))),
        }
        labels
    }

    fn read_all(&mut self, to: &mut SeriesBatch) {
        let jobs = self.jobs();
        let count = self.nvml.as_ref().map_or(0, |nvml| nvml.gpus.len());
        let mut answering = 0;
        let before = locked(&self.board.energy).clone();
        let mut energy = BTreeMap::new();
        for at in 0..count {
            let Some(nvml) = &mut self.nvml else { return };
            let index = nvml.gpus[at].index;
            let outcome = nvml.read(at, &mut self.said);
            let labels = self.labels(at, jobs.get(&index).unwrap_or(&JobOnGpu::default()));
            let spot = Spot::Gpu(index);
            to.put(&metric::GPU_LOST, &labels, &spot, f64::from(u8::from(outcome.is_err())));
            if outcome.is_err() {
                continue;
            }
            answering += 1;
            let find = |name: &str| {
                self.said.iter().find(|(metric, _)| metric.name == name).map(|(_, value)| *value)
            };
            if let Some(counter) = find(metric::TOTAL_ENERGY_CONSUMPTION.name) {
                let watts = find(metric::POWER_USAGE.name).unwrap_or(0.0);
                energy.insert(index, Energy::follow(before.get(&index), counter, watts));
            }
            for (metric, value) in &self.said {
                to.put(metric, &labels, &spot, *value);
            }
            if let Some(driver) = self.nvml.as_ref().and_then(|nvml| nvml.driver.as_deref()) {
                let labels: Arc<str> = format!("{labels},DCGM_FI_DRIVER_VERSION=\"{driver}\"").into();
                to.put(&metric::DRIVER_VERSION, &labels, &spot, 1.0);
            }
        }
        *locked(&self.board.energy) = energy;
        let labels = self.naming.labels(&[]);
        to.put(&metric::GPUS_ANSWERING, &labels, &Spot::Node, f64::from(answering));
    }

    /// GPUs on the bus, counted seldom: that takes many small files.
    fn count_on_the_bus(&mut self) -> u32 {
        match self.on_the_bus {
            Some((counted, count)) if counted.elapsed() < self.interval * COUNT_SAMPLES => count,
            _ => {
                let count = on_the_bus(&self.root).len() as u32;
                self.on_the_bus = Some((Instant::now(), count));
                count
            }
        }
    }

    /// GPUs on the bus that the driver does not list.
    fn count_missing(&mut self, to: &mut SeriesBatch) {
        let on_the_bus = self.count_on_the_bus();
        let listed = self.nvml.as_ref().and_then(Nvml::listed);
        if let Some(listed) = listed.filter(|_| on_the_bus > 0) {
            let labels = self.naming.labels(&[]);
            let missing = on_the_bus.saturating_sub(listed);
            to.put(&metric::GPUS_MISSING, &labels, &Spot::Node, f64::from(missing));
        }
    }
}

impl Collector for Gpus {
    fn name(&self) -> &'static str {
        "gpu"
    }

    fn collect(&mut self, to: &mut SeriesBatch) -> Result<(), Failed> {
        if self.nvml.is_some() {
            self.read_all(to);
            self.count_missing(to);
        }
        if self.is_broken { Err(Failed) } else { Ok(()) }
    }
}

fn mapped_jobs(folder: &Path) -> BTreeMap<u32, JobOnGpu> {
    let of = |name: String| {
        let index: u32 = name.parse().ok()?;
        let text = read(&folder.join(&name))?;
        let jobs: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(8).collect();
        let job: String = jobs.join(",").chars().filter(|each| !each.is_control()).take(200).collect();
        (!job.is_empty()).then_some((index, JobOnGpu { job, rank: None }))
    };
    crate::root::list(folder).into_iter().filter_map(of).collect()
}
