//! GPUs through NVML: which there are, and what each says. Units are those of dcgm-exporter.

mod ffi;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::metrics::Metric;
use crate::metrics::gpu as metric;

use ffi::{Code, GpmSample, Handle, NvmlLibrary};

pub(crate) use ffi::NoLibrary;

/// Where the driver puts NVML.
pub(crate) const LIBRARY: &str = "libnvidia-ml.so.1";

/// Values that mean "blank" in NVIDIA's interfaces begin here; they are never passed on.
const BLANK_64: f64 = 9.0e18;

/// What takes long to read or seldom changes is read in one of so many samples, but at least this often. On an H200 with
/// driver 580 a reading of the energy counter takes 4 ms of a processor, of one violation counter 0.7 ms, of the replay counter
/// 0.4 ms, of remapped rows 0.2 ms and of the PCIe link 0.15 ms; what is read every second takes 0.2 ms together.
const SLOW_SAMPLES: u32 = 60;
const SLOW_AT_LEAST: Duration = Duration::from_secs(60);

/// Activity counters by the numbers that GPM has for them. All but the first take 0.03 ms together; the first takes 1.9 ms alone,
/// so it is the mean of several samples.
const GRAPHICS_SAMPLES: u32 = 10;
const GRAPHICS: [(u32, &Metric); 1] = [(1, &metric::PROF_GR_ENGINE_ACTIVE)];
const ACTIVITY: [(u32, &Metric); 9] = [
    (2, &metric::PROF_SM_ACTIVE),
    (3, &metric::PROF_SM_OCCUPANCY),
    (5, &metric::PROF_PIPE_TENSOR_ACTIVE),
    (10, &metric::PROF_DRAM_ACTIVE),
    (11, &metric::PROF_PIPE_FP64_ACTIVE),
    (12, &metric::PROF_PIPE_FP32_ACTIVE),
    (13, &metric::PROF_PIPE_FP16_ACTIVE),
    (20, &metric::PROF_PCIE_TX_BYTES),
    (21, &metric::PROF_PCIE_RX_BYTES),
];

/// NVML, open.
pub(crate) struct Nvml {
    library: NvmlLibrary,
    slow_every: Duration,
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
    activities: Vec<Activity>,
    nvlinks: u32,
    slow: Slow,
}

/// Counters that take long to read, as of the last reading.
struct Slow {
    next: Option<Instant>,
    said: Said,
}

/// Counters of activity between two samples, taken every so many readings.
struct Activity {
    counters: &'static [(u32, &'static Metric)],
    every: u32,
    readings: u32,
    samples: [GpmSample; 2],
    newest: usize,
    filled: u32,
    said: Said,
}

/// What a GPU said, in a list that is used again and again.
pub(crate) type Said = Vec<(&'static Metric, f64)>;

/// The GPU does not answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost;

impl Nvml {
    /// For samples in this interval.
    pub(crate) fn open(path: &Path, interval: Duration) -> Result<Self, NoLibrary> {
        let library = NvmlLibrary::open(path)?;
        let slow_every = (interval * SLOW_SAMPLES).min(SLOW_AT_LEAST);
        let mut nvml = Self { library, slow_every, driver: library.driver().ok(), gpus: Vec::new() };
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
            gpu.slow.next = Some(began + self.slow_every + turn);
            let from = reader.said.len();
            reader.slow();
            reader.rows();
            reader.links(gpu.nvlinks);
            gpu.slow.said = reader.said.split_off(from);
        }
        reader.said.extend_from_slice(&gpu.slow.said);
        reader.errors();
        reader.fields();
        gpu.activities.iter_mut().for_each(|activity| reader.activity(activity));
        if reader.is_lost { Err(Lost) } else { Ok(()) }
    }

    /// Events of all GPUs, where the driver has them.
    pub(crate) fn events(&self) -> Option<XidEvents> {
        let set = self.library.event_set().ok()?;
        let devices: Vec<(Handle, u32)> = self.gpus.iter().map(|gpu| (gpu.handle, gpu.index)).collect();
        let registered =
            devices.iter().filter(|(device, _)| self.library.register_xids(*device, set).is_ok()).count();
        (registered > 0).then_some(XidEvents { library: self.library, set, devices })
    }
}

impl Gpu {
    fn found(library: NvmlLibrary, index: u32, handle: Handle) -> Self {
        let activities = if library.has_gpm(handle) { Activity::all(library) } else { Vec::new() };
        let is_up = |link: &u32| library.is_nvlink_up(handle, *link) == Ok(true);
        Self {
            index,
            handle,
            uuid: library.uuid(handle).unwrap_or_default(),
            bus_id: library.bus_id(handle).unwrap_or_default(),
            name: library.name(handle).unwrap_or_default(),
            activities,
            nvlinks: (0..MOST_NVLINKS).filter(is_up).count() as u32,
            slow: Slow { next: None, said: Said::new() },
        }
    }
}

const MOST_NVLINKS: u32 = 18;

impl Activity {
    fn all(library: NvmlLibrary) -> Vec<Self> {
        let of = |counters, every| Self::new(library, counters, every);
        [of(&ACTIVITY, 1), of(&GRAPHICS, GRAPHICS_SAMPLES)].into_iter().flatten().collect()
    }

    fn new(library: NvmlLibrary, counters: &'static [(u32, &'static Metric)], every: u32) -> Option<Self> {
        let samples = [library.gpm_sample().ok()?, library.gpm_sample().ok()?];
        Some(Self { counters, every, readings: 0, samples, newest: 0, filled: 0, said: Said::new() })
    }

    /// What the GPU did since the sample before. The first one has nothing to compare with.
    fn sample(&mut self, library: NvmlLibrary, gpu: Handle) {
        self.said.clear();
        let next = 1 - self.newest;
        if library.fill_gpm(gpu, &mut self.samples[next]).is_err() {
            self.filled = 0;
            return;
        }
        let older = std::mem::replace(&mut self.newest, next);
        self.filled += 1;
        if self.filled < 2 {
            return;
        }
        let ids = self.counters.iter().map(|(id, _)| *id);
        let Ok(values) = library.gpm(&self.samples[older], &self.samples[next], ids) else { return };
        for ((id, metric), value) in self.counters.iter().zip(values) {
            // Percentages become ratios, MiB/s become bytes per second.
            let factor = if *id < 20 { 0.01 } else { 1_048_576.0 };
            self.said.extend(value.map(|value| (*metric, value * factor)));
        }
    }
}

/// Asks one GPU for everything.
struct Reader<'a> {
    library: NvmlLibrary,
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
        let limit = library.power_limit_mw(gpu);
        self.put(&metric::POWER_MGMT_LIMIT, limit.map(|value| f64::from(value) / 1000.0));
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
    }

    /// Memory that was taken out of use.
    fn rows(&mut self) {
        let (library, gpu) = (self.library, self.gpu);
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

    /// The PCIe link, and which of NVLink's are up.
    fn links(&mut self, nvlinks: u32) {
        let (library, gpu) = (self.library, self.gpu);
        self.put(&metric::PCIE_LINK_WIDTH, library.width(gpu).map(f64::from));
        self.put(&metric::PCIE_MAX_LINK_WIDTH, library.max_width(gpu).map(f64::from));
        self.put(&metric::PCIE_LINK_GEN, library.generation(gpu).map(f64::from));
        self.put(&metric::PCIE_MAX_LINK_GEN, library.max_generation(gpu).map(f64::from));
        if nvlinks > 0 {
            let is_up = |link: &u32| library.is_nvlink_up(gpu, *link) == Ok(true);
            self.put(&metric::NVLINKS_UP, Ok((0..MOST_NVLINKS).filter(is_up).count() as f64));
        }
    }

    /// The temperature of the memory, what the driver wants done, errors and bytes of NVLink.
    fn fields(&mut self) {
        let (library, gpu) = (self.library, self.gpu);
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
    }

    fn activity(&mut self, activity: &mut Activity) {
        if activity.readings.is_multiple_of(activity.every) {
            activity.sample(self.library, self.gpu);
        }
        activity.readings = activity.readings.wrapping_add(1);
        for (metric, value) in &activity.said {
            self.put(metric, Ok(*value));
        }
    }
}

/// XIDs as the driver reports them.
pub(crate) struct XidEvents {
    library: NvmlLibrary,
    set: Handle,
    devices: Vec<(Handle, u32)>,
}

impl XidEvents {
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
