//! GPUs through NVML: which there are, and what each says. Units are those of dcgm-exporter.

mod ffi;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::metrics::Metric;
use crate::metrics::gpu as metric;

use ffi::{Code, GpmSample, Handle, Library};

pub(crate) use ffi::NoLibrary;

/// Where the driver puts NVML.
pub(crate) const LIBRARY: &str = "libnvidia-ml.so.1";

/// Values that mean "blank" in NVIDIA's interfaces begin here; they are never passed on.
const BLANK_64: f64 = 9.0e18;

/// How often slow counters are read. On an H200 with driver 580 a reading of the energy counter takes 3.8 ms of a
/// processor, of one violation counter 0.67 ms, of the replay counter 0.18 ms, and of everything else 0.1 ms together.
const SLOW_EVERY: Duration = Duration::from_secs(15);

/// NVML, open.
pub(crate) struct Nvml {
    library: Library,
    pub(crate) driver: Option<String>,
    pub(crate) gpus: Vec<Gpu>,
}

/// A GPU as it was found.
pub(crate) struct Gpu {
    pub(crate) index: u32,
    handle: Handle,
    pub(crate) uuid: String,
    pub(crate) bus_id: String,
    pub(crate) name: String,
    activity: Option<Activity>,
    nvlinks: u32,
    slow: Slow,
}

/// Counters that take long to read, as of the last reading.
struct Slow {
    next: Option<Instant>,
    said: Said,
}

/// Two samples of the activity counters, the older one first.
struct Activity {
    samples: [GpmSample; 2],
    newest: usize,
    filled: u32,
}

/// What a GPU said, in a list that is used again and again.
pub(crate) type Said = Vec<(&'static Metric, f64)>;

/// The GPU does not answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost;

impl Nvml {
    pub(crate) fn open(path: &Path) -> Result<Self, NoLibrary> {
        let library = Library::open(path)?;
        let mut nvml = Self { library, driver: library.driver().ok(), gpus: Vec::new() };
        nvml.find().map_err(NoLibrary::Refuses)?;
        Ok(nvml)
    }

    fn find(&mut self) -> Result<(), Code> {
        for index in 0..self.library.count()? {
            // One that is lost from the start is told by the count.
            if let Ok(handle) = self.library.device(index) {
                self.gpus.push(Gpu::found(self.library, index, handle));
            }
        }
        Ok(())
    }

    /// How many the driver lists, whether they answer or not.
    pub(crate) fn listed(&self) -> Option<u32> {
        self.library.count().ok()
    }

    /// Reads one GPU.
    pub(crate) fn read(&mut self, at: usize, said: &mut Said) -> Result<(), Lost> {
        said.clear();
        let gpu = &mut self.gpus[at];
        let mut reader = Reader { library: self.library, gpu: gpu.handle, said, is_lost: false };
        reader.basics();
        if reader.is_lost {
            return Err(Lost);
        }
        let began = Instant::now();
        if gpu.slow.next.is_none_or(|next| began >= next) {
            // GPUs take turns, so that no sample is much longer than the others.
            let turn = if gpu.slow.next.is_none() {
                Duration::from_secs(u64::from(gpu.index % 8))
            } else {
                Duration::ZERO
            };
            gpu.slow.next = Some(began + SLOW_EVERY + turn);
            let from = reader.said.len();
            reader.slow();
            gpu.slow.said = reader.said.split_off(from);
        }
        reader.said.extend_from_slice(&gpu.slow.said);
        reader.errors();
        reader.links(gpu.nvlinks);
        if let Some(activity) = &mut gpu.activity {
            reader.activity(activity);
        }
        if reader.is_lost { Err(Lost) } else { Ok(()) }
    }

    /// Events of all GPUs, where the driver has them.
    pub(crate) fn events(&self) -> Option<Events> {
        let set = self.library.event_set().ok()?;
        let devices: Vec<(Handle, u32)> = self.gpus.iter().map(|gpu| (gpu.handle, gpu.index)).collect();
        let registered =
            devices.iter().filter(|(device, _)| self.library.register_xids(*device, set).is_ok()).count();
        (registered > 0).then_some(Events { library: self.library, set, devices })
    }
}

impl Gpu {
    fn found(library: Library, index: u32, handle: Handle) -> Self {
        let activity = library.has_gpm(handle).then(|| Activity::new(library)).flatten();
        let is_up = |link: &u32| library.is_nvlink_up(handle, *link) == Ok(true);
        Self {
            index,
            handle,
            uuid: library.uuid(handle).unwrap_or_default(),
            bus_id: library.bus_id(handle).unwrap_or_default(),
            name: library.name(handle).unwrap_or_default(),
            activity,
            nvlinks: (0..MOST_NVLINKS).filter(is_up).count() as u32,
            slow: Slow { next: None, said: Said::new() },
        }
    }
}

const MOST_NVLINKS: u32 = 18;

impl Activity {
    fn new(library: Library) -> Option<Self> {
        let samples = [library.gpm_sample().ok()?, library.gpm_sample().ok()?];
        Some(Self { samples, newest: 0, filled: 0 })
    }
}

/// Asks one GPU for everything.
struct Reader<'a> {
    library: Library,
    gpu: Handle,
    said: &'a mut Said,
    is_lost: bool,
}

impl Reader<'_> {
    /// A reading that the GPU has; what it does not support is absent.
    fn put(&mut self, metric: &'static Metric, value: Result<f64, Code>) {
        match value {
            Ok(value) if value.is_finite() && value < BLANK_64 => self.said.push((metric, value)),
            Ok(_) => {}
            Err(Code::GPU_IS_LOST | Code::RESET_REQUIRED) => self.is_lost = true,
            Err(_) => {}
        }
    }

    fn basics(&mut self) {
        let (library, gpu) = (self.library, self.gpu);
        self.put(&metric::GPU_TEMP, library.temperature(gpu).map(f64::from));
        if self.is_lost {
            return;
        }
        self.put(&metric::SM_CLOCK, library.clock(gpu, 1).map(f64::from));
        self.put(&metric::MEM_CLOCK, library.clock(gpu, 2).map(f64::from));
        self.put(&metric::POWER_USAGE, library.power_mw(gpu).map(|value| f64::from(value) / 1000.0));
        let limit = library.power_limit_mw(gpu);
        self.put(&metric::POWER_MGMT_LIMIT, limit.map(|value| f64::from(value) / 1000.0));
        if let Ok([busy, memory]) = library.utilization(gpu) {
            self.put(&metric::GPU_UTIL, Ok(f64::from(busy)));
            self.put(&metric::MEM_COPY_UTIL, Ok(f64::from(memory)));
        }
        self.put(&metric::ENC_UTIL, library.encoder(gpu).map(f64::from));
        self.put(&metric::DEC_UTIL, library.decoder(gpu).map(f64::from));
        if let Ok([reserved, free, used]) = library.memory(gpu) {
            for (metric, bytes) in
                [(&metric::FB_RESERVED, reserved), (&metric::FB_FREE, free), (&metric::FB_USED, used)]
            {
                self.put(metric, Ok((bytes as f64 / 1_048_576.0).floor()));
            }
        }
    }

    /// Energy, time under limits, PCIe replays.
    fn slow(&mut self) {
        let (library, gpu) = (self.library, self.gpu);
        self.put(&metric::TOTAL_ENERGY_CONSUMPTION, library.energy_mj(gpu).map(|value| value as f64));
        self.put(&metric::PCIE_REPLAY_COUNTER, library.replays(gpu).map(f64::from));
        let violations = [
            &metric::POWER_VIOLATION,
            &metric::THERMAL_VIOLATION,
            &metric::SYNC_BOOST_VIOLATION,
            &metric::BOARD_LIMIT_VIOLATION,
            &metric::LOW_UTIL_VIOLATION,
            &metric::RELIABILITY_VIOLATION,
        ];
        for (policy, metric) in violations.into_iter().enumerate() {
            let time = self.library.violation_ns(self.gpu, policy as u32);
            self.put(metric, time.map(|value| value as f64));
        }
    }

    fn errors(&mut self) {
        let (library, gpu) = (self.library, self.gpu);
        let reasons = library.throttle_reasons(gpu);
        self.put(&metric::CLOCK_THROTTLE_REASONS, reasons.map(|value| value as f64));
        for (metric, kind, counter) in [
            (&metric::ECC_SBE_VOL_TOTAL, 0, 0),
            (&metric::ECC_DBE_VOL_TOTAL, 1, 0),
            (&metric::ECC_SBE_AGG_TOTAL, 0, 1),
            (&metric::ECC_DBE_AGG_TOTAL, 1, 1),
        ] {
            self.put(metric, library.ecc(gpu, kind, counter).map(|value| value as f64));
        }
        self.put(&metric::RETIRED_SBE, library.retired(gpu, 0).map(f64::from));
        self.put(&metric::RETIRED_DBE, library.retired(gpu, 1).map(f64::from));
        self.put(&metric::RETIRED_PENDING, library.retired_pending(gpu).map(f64::from));
        if let Ok([correctable, uncorrectable, pending, failed]) = library.remapped(gpu) {
            self.put(&metric::CORRECTABLE_REMAPPED_ROWS, Ok(f64::from(correctable)));
            self.put(&metric::UNCORRECTABLE_REMAPPED_ROWS, Ok(f64::from(uncorrectable)));
            self.put(&metric::ROW_REMAP_PENDING, Ok(f64::from(pending)));
            self.put(&metric::ROW_REMAP_FAILURE, Ok(f64::from(failed)));
        }
    }

    /// PCIe and NVLink.
    fn links(&mut self, nvlinks: u32) {
        let (library, gpu) = (self.library, self.gpu);
        self.put(&metric::PCIE_LINK_WIDTH, library.width(gpu).map(f64::from));
        self.put(&metric::PCIE_MAX_LINK_WIDTH, library.max_width(gpu).map(f64::from));
        self.put(&metric::PCIE_LINK_GEN, library.generation(gpu).map(f64::from));
        self.put(&metric::PCIE_MAX_LINK_GEN, library.max_generation(gpu).map(f64::from));
        const ALL_LINKS: u32 = u32::MAX;
        let fields = [
            (82, 0),
            (230, 0),
            (38, ALL_LINKS),
            (45, ALL_LINKS),
            (52, ALL_LINKS),
            (59, ALL_LINKS),
            (138, ALL_LINKS),
            (139, ALL_LINKS),
        ];
        let Ok([memory_temperature, recovery, flit, data, replay, recoveries, sent, received]) =
            library.fields(gpu, fields)
        else {
            return;
        };
        // 0 is what boards without a sensor say.
        let memory_temperature = memory_temperature.filter(|value| *value > 0.0);
        for (metric, value) in [
            (&metric::MEMORY_TEMP, memory_temperature),
            (&metric::GPU_RECOVERY_ACTION, recovery),
            (&metric::NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, flit),
            (&metric::NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, data),
            (&metric::NVLINK_REPLAY_ERROR_COUNT_TOTAL, replay),
            (&metric::NVLINK_RECOVERY_ERROR_COUNT_TOTAL, recoveries),
            (&metric::NVLINK_BANDWIDTH_TOTAL, sent.zip(received).map(|(sent, received)| sent + received)),
        ] {
            self.put(metric, value.ok_or(Code::NOT_SUPPORTED));
        }
        if nvlinks > 0 {
            let is_up = |link: &u32| library.is_nvlink_up(gpu, *link) == Ok(true);
            self.put(&metric::NVLINKS_UP, Ok((0..MOST_NVLINKS).filter(is_up).count() as f64));
        }
    }

    /// What the GPU did since the last reading. The first reading has nothing to compare with.
    fn activity(&mut self, activity: &mut Activity) {
        let next = 1 - activity.newest;
        if self.library.fill_gpm(self.gpu, &mut activity.samples[next]).is_err() {
            activity.filled = 0;
            return;
        }
        let older = std::mem::replace(&mut activity.newest, next);
        activity.filled += 1;
        if activity.filled < 2 {
            return;
        }
        let ids = [1, 2, 3, 5, 10, 11, 12, 13, 20, 21];
        let samples = (&activity.samples[older], &activity.samples[next]);
        let Ok(values) = self.library.gpm(samples.0, samples.1, ids) else { return };
        let metrics = [
            &metric::PROF_GR_ENGINE_ACTIVE,
            &metric::PROF_SM_ACTIVE,
            &metric::PROF_SM_OCCUPANCY,
            &metric::PROF_PIPE_TENSOR_ACTIVE,
            &metric::PROF_DRAM_ACTIVE,
            &metric::PROF_PIPE_FP64_ACTIVE,
            &metric::PROF_PIPE_FP32_ACTIVE,
            &metric::PROF_PIPE_FP16_ACTIVE,
            &metric::PROF_PCIE_TX_BYTES,
            &metric::PROF_PCIE_RX_BYTES,
        ];
        for ((id, metric), value) in ids.into_iter().zip(metrics).zip(values) {
            // Percentages become ratios, MiB/s become bytes per second.
            let factor = if id < 20 { 0.01 } else { 1_048_576.0 };
            self.put(metric, value.map(|value| value * factor).ok_or(Code::NOT_SUPPORTED));
        }
    }
}

/// XIDs as the driver reports them.
pub(crate) struct Events {
    library: Library,
    set: Handle,
    devices: Vec<(Handle, u32)>,
}

impl Events {
    /// The GPU and the code of the next one; nothing when none came in time, an error when events cannot be had any more.
    pub(crate) fn wait(&self, timeout_ms: u32) -> Result<Option<(u32, u32)>, ()> {
        match self.library.wait(self.set, timeout_ms) {
            Ok((device, xid)) => {
                let gpu = self.devices.iter().find(|(handle, _)| *handle == device);
                Ok(gpu.map(|(_, index)| (*index, xid as u32)))
            }
            Err(Code::TIMEOUT) => Ok(None),
            // A GPU fell off the bus: the kernel log says which.
            Err(Code::GPU_IS_LOST) => Ok(None),
            Err(_) => Err(()),
        }
    }
}
