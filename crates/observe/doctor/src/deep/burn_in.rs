//! Burn-in of GPUs: all of them work at once, each result is compared with the first one and with those of the other GPUs of the same kind, and clocks are
//! watched meanwhile.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_exporter::Exporter;
use bedplate_kernels::{BurnIn, BurnInPart, BurnInReport, CudaError, Device};
use bedplate_units::statistics::median;
use bedplate_units::{Bandwidth, Bytes, FlopRate};

use super::{Outcome, steadiness};
use crate::CheckVerdict;

/// How much slower than the median of its kind a GPU may be.
const SLOWER: f64 = 0.93;
/// Reasons of NVML for lower clocks that something is wrong behind: slowdown by hardware, by heat (two), by the power supply.
const BAD_REASONS: [(u64, &str); 4] =
    [(0x8, "hardware"), (0x20, "heat, by software"), (0x40, "heat, by hardware"), (0x80, "the power supply")];

/// How GPUs are burned in.
#[derive(Debug, Clone, Default)]
pub struct GpuBurnIn {
    /// The most memory of each that is tried; all that is free where there is no limit.
    pub memory: Option<usize>,
    /// A part of the first GPU that gets a wrong number, to see that it is found.
    pub planted: Option<BurnInPart>,
}

/// What one GPU did.
#[derive(Debug)]
struct Burned {
    ordinal: usize,
    kind: String,
    reports: Vec<BurnInReport>,
}

/// How long a part may take beyond its time before its GPU counts as hung: kernels are compiled first, and the last round ends late.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often clocks and temperatures are looked at.
const LOOKS_EVERY: Duration = Duration::from_millis(250);

/// What the thread of a GPU says.
enum Said {
    Begins(usize, BurnInPart),
    Ends(usize, Result<Burned, CudaError>),
}

/// How the burn-in of a GPU ended.
#[derive(Debug)]
enum Ending {
    Done(Result<Burned, CudaError>),
    /// Nothing was heard of it any more after this part had begun.
    Silent(Option<BurnInPart>),
}

/// Burns in every GPU that the driver shows; one outcome for each. The exporter reads their clocks and temperatures meanwhile. A GPU that hangs is left behind
/// with its thread: no call of the driver can be taken back.
pub(super) fn burn_in(options: &GpuBurnIn, lasts: Duration, exporter: Option<&Exporter>) -> Vec<Outcome> {
    let gpus = match Device::gpus() {
        Ok(gpus) => gpus.len(),
        Err(error) => {
            let remark = format!("the driver does not list its GPUs: {error}");
            return vec![outcome("GPUs".to_owned(), CheckVerdict::Fail, remark)];
        }
    };
    let (says, heard) = channel();
    for ordinal in 0..gpus {
        let (says, options) = (says.clone(), options.clone());
        thread::spawn(move || {
            let result = burn(ordinal, &options, lasts, |part| drop(says.send(Said::Begins(ordinal, part))));
            drop(says.send(Said::Ends(ordinal, result)));
        });
    }
    drop(says);
    let mut watched = Watched::default();
    let endings = listen(&heard, gpus, lasts + PATIENCE, || {
        if let Some(exporter) = exporter {
            watched.take(&exporter.text());
        }
    });
    let (mut outcomes, mut done) = (Vec::new(), Vec::new());
    for (ordinal, ending) in endings.into_iter().enumerate() {
        let name = format!("GPU {ordinal}");
        match ending {
            Ending::Done(Ok(burned)) => done.push(burned),
            // What computes is missing or broken: that is no word about the chip.
            Ending::Done(Err(error)) => {
                outcomes.push(outcome(name, CheckVerdict::Warn, format!("not burned in: {error}")));
            }
            Ending::Silent(part) => {
                let part = part.map_or("the beginning", BurnInPart::name);
                let remark = format!("it has not ended {part} in time, and does not answer");
                outcomes.push(outcome(name, CheckVerdict::Fail, remark));
            }
        }
    }
    outcomes.extend(done.iter().map(|gpu| judge(gpu, &done, &watched)));
    outcomes
}

fn outcome(name: String, verdict: CheckVerdict, remark: String) -> Outcome {
    Outcome { name, verdict: Some(verdict), rate: None, remark }
}

/// Waits until every GPU has ended, or has said nothing for longer than a part may take.
fn listen(
    heard: &Receiver<Said>,
    gpus: usize,
    patience: Duration,
    mut meanwhile: impl FnMut(),
) -> Vec<Ending> {
    let mut endings: Vec<Ending> = (0..gpus).map(|_| Ending::Silent(None)).collect();
    let mut last = vec![Instant::now(); gpus];
    loop {
        let waits = |(ending, last): (&Ending, &Instant)| {
            matches!(ending, Ending::Silent(_)) && last.elapsed() <= patience
        };
        if !endings.iter().zip(&last).any(waits) {
            return endings;
        }
        match heard.recv_timeout(LOOKS_EVERY) {
            Ok(Said::Begins(gpu, part)) => {
                (endings[gpu], last[gpu]) = (Ending::Silent(Some(part)), Instant::now())
            }
            Ok(Said::Ends(gpu, result)) => endings[gpu] = Ending::Done(result),
            Err(RecvTimeoutError::Timeout) => meanwhile(),
            // Those of which nothing was heard have broken off.
            Err(RecvTimeoutError::Disconnected) => return endings,
        }
    }
}

fn burn(
    ordinal: usize,
    options: &GpuBurnIn,
    lasts: Duration,
    begins: impl FnMut(BurnInPart),
) -> Result<Burned, CudaError> {
    let device = Device::cuda(ordinal)?;
    let planted = options.planted.filter(|_| ordinal == 0);
    let reports = BurnIn { lasts, memory: options.memory, planted }.run(&device, begins);
    Ok(Burned { ordinal, kind: device.gpu_name().unwrap_or_default().to_owned(), reports })
}

impl Burned {
    fn report(&self, part: BurnInPart) -> Option<&BurnInReport> {
        self.reports.iter().find(|report| report.part == part)
    }
}

fn judge(gpu: &Burned, all: &[Burned], watched: &Watched) -> Outcome {
    let peers: Vec<&Burned> =
        all.iter().filter(|other| other.kind == gpu.kind && other.ordinal != gpu.ordinal).collect();
    let faults = gpu
        .reports
        .iter()
        .filter_map(|report| report.fault.as_ref().map(|fault| format!("{}: {fault}", report.part.name())));
    let mut bad: Vec<String> = faults.collect();
    bad.extend(gpu.reports.iter().filter_map(|report| differs(report, &peers)));
    let mut doubts: Vec<String> = gpu.reports.iter().filter_map(|report| slows(report, &peers)).collect();
    doubts.extend(
        watched.reasons(gpu.ordinal).into_iter().map(|reason| format!("clocks held down by {reason}")),
    );
    let verdict = match (bad.is_empty(), doubts.is_empty()) {
        (false, _) => CheckVerdict::Fail,
        (true, false) => CheckVerdict::Warn,
        (true, true) => CheckVerdict::Pass,
    };
    let told = [bad, doubts, done(gpu), watched.told(gpu.ordinal)].concat();
    Outcome {
        name: format!("GPU {} ({})", gpu.ordinal, gpu.kind),
        verdict: Some(verdict),
        rate: gpu.report(BurnInPart::ProductBf16).map(rate),
        remark: told.join("; "),
    }
}

/// Where other GPUs of the same kind agree on other bits; two that disagree are both in doubt.
fn differs(report: &BurnInReport, peers: &[&Burned]) -> Option<String> {
    let own = report.digest?;
    let digests: Vec<u64> = peers.iter().filter_map(|peer| peer.report(report.part)?.digest).collect();
    let alike = digests.iter().filter(|digest| **digest == own).count();
    let apart = digests.len() - alike;
    // One of several that agree is right, and the others hear of it.
    (apart > alike).then(|| {
        format!("{}: other bits than {apart} of {} GPUs of its kind", report.part.name(), digests.len())
    })
}

/// Where it becomes slower with time, or is slower than others of its kind.
fn slows(report: &BurnInReport, peers: &[&Burned]) -> Option<String> {
    let name = report.part.name();
    // The first rounds compile kernels; copies depend on what else the host does.
    if report.part == BurnInPart::Copies {
        return None;
    }
    let (verdict, told) = steadiness(report.rates.get(1..)?);
    if verdict != CheckVerdict::Pass {
        return Some(format!("{name} {told}"));
    }
    let others: Vec<f64> = peers.iter().filter_map(|peer| usual_rate(peer.report(report.part)?)).collect();
    let share = usual_rate(report)? / median(&others);
    (share < SLOWER).then(|| format!("{name} at {:.0} % of its peers", 100.0 * share))
}

/// In words, what was done.
fn done(gpu: &Burned) -> Vec<String> {
    let each = gpu.reports.iter().map(|report| {
        let rounds = report.rounds;
        match report.bytes {
            Some(bytes) => {
                format!("{} {} {rounds}x, {}", report.part.name(), Bytes::new(bytes as f64), rate(report))
            }
            None => format!("{} {rounds}x, {}", report.part.name(), rate(report)),
        }
    });
    each.collect()
}

/// Of the rounds behind the first, which compiles kernels.
fn usual_rate(report: &BurnInReport) -> Option<f64> {
    report.rates.get(1..).filter(|rates| !rates.is_empty()).map(median)
}

fn rate(report: &BurnInReport) -> String {
    match (usual_rate(report), report.part.is_product()) {
        (None, _) => "-".to_owned(),
        (Some(rate), true) => FlopRate::new(rate).to_string(),
        (Some(rate), false) => Bandwidth::new(rate).to_string(),
    }
}

/// Clocks, temperatures and reasons of each GPU under load.
#[derive(Debug, Default)]
struct Watched(BTreeMap<usize, Readings>);

#[derive(Debug, Default, PartialEq)]
struct Readings {
    clocks: Option<(f64, f64)>,
    hottest: Option<f64>,
    reasons: u64,
}

impl Watched {
    /// Takes what an exporter says.
    fn take(&mut self, text: &str) {
        for line in text.lines() {
            let Some((name, gpu, value)) = sample(line) else { continue };
            let readings = self.0.entry(gpu).or_default();
            match name {
                "DCGM_FI_DEV_SM_CLOCK" => {
                    let (low, high) = readings.clocks.unwrap_or((value, value));
                    readings.clocks = Some((low.min(value), high.max(value)));
                }
                "DCGM_FI_DEV_GPU_TEMP" => {
                    readings.hottest = Some(readings.hottest.map_or(value, |hottest| hottest.max(value)));
                }
                "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" => readings.reasons |= value as u64,
                _ => {}
            }
        }
    }

    fn reasons(&self, gpu: usize) -> Vec<&'static str> {
        let seen = self.0.get(&gpu).map_or(0, |readings| readings.reasons);
        BAD_REASONS.iter().filter(|(bit, _)| seen & bit != 0).map(|(_, name)| *name).collect()
    }

    fn told(&self, gpu: usize) -> Vec<String> {
        let Some(readings) = self.0.get(&gpu) else { return Vec::new() };
        let clocks = readings.clocks.map(|(low, high)| match low == high {
            true => format!("{low:.0} MHz"),
            false => format!("{low:.0} to {high:.0} MHz"),
        });
        let hottest = readings.hottest.map(|hottest| format!("at most {hottest:.0} °C"));
        clocks.into_iter().chain(hottest).collect()
    }
}

/// The name, the GPU and the value of a line such as `NAME{gpu="0",…} 1980`.
fn sample(line: &str) -> Option<(&str, usize, f64)> {
    let (name, rest) = line.split_once('{')?;
    let (labels, value) = rest.rsplit_once("} ")?;
    let gpu = labels.split(',').find_map(|label| label.strip_prefix("gpu=\"")?.strip_suffix('"'))?;
    Some((name, gpu.parse().ok()?, value.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(ordinal: usize, digest: u64, rate: f64) -> Burned {
        let report = BurnInReport {
            part: BurnInPart::ProductBf16,
            rounds: 7,
            digest: Some(digest),
            bytes: None,
            rates: vec![rate; 7],
            fault: None,
        };
        Burned { ordinal, kind: "NVIDIA H200".to_owned(), reports: vec![report] }
    }

    fn verdicts(gpus: &[Burned], watched: &Watched) -> Vec<(CheckVerdict, String)> {
        let outcomes = gpus.iter().map(|gpu| judge(gpu, gpus, watched));
        outcomes.map(|outcome| (outcome.verdict.unwrap(), outcome.remark)).collect()
    }

    #[test]
    fn a_gpu_that_hangs_is_named_with_the_part_that_it_hangs_in() {
        let (says, heard) = channel();
        says.send(Said::Begins(0, BurnInPart::Memory)).unwrap();
        says.send(Said::Begins(1, BurnInPart::Copies)).unwrap();
        says.send(Said::Ends(1, Ok(gpu(1, 7, 8e14)))).unwrap();
        // The sender stays, as that of a thread which hangs does.
        let endings = listen(&heard, 2, LOOKS_EVERY, || {});
        assert!(matches!(endings[0], Ending::Silent(Some(BurnInPart::Memory))), "{endings:?}");
        assert!(matches!(endings[1], Ending::Done(Ok(_))), "{endings:?}");
        drop(says);
        let (says, heard) = channel();
        drop(says);
        assert!(
            matches!(listen(&heard, 1, PATIENCE, || {})[..], [Ending::Silent(None)]),
            "a thread broke off"
        );
    }

    #[test]
    fn a_gpu_that_gives_other_bits_than_its_peers_fails_alone() {
        let gpus = [gpu(0, 7, 8e14), gpu(1, 7, 8e14), gpu(2, 9, 8e14)];
        let found = verdicts(&gpus, &Watched::default());
        assert_eq!(
            found.iter().map(|found| found.0).collect::<Vec<_>>(),
            [CheckVerdict::Pass, CheckVerdict::Pass, CheckVerdict::Fail]
        );
        assert!(
            found[2].1.starts_with("products of bf16: other bits than 2 of 2 GPUs of its kind"),
            "{}",
            found[2].1
        );
        // Of two, nobody knows which one is right.
        let two = verdicts(&[gpu(0, 7, 8e14), gpu(1, 8, 8e14)], &Watched::default());
        assert!(two.iter().all(|found| found.0 == CheckVerdict::Fail));
        let mut other = gpu(1, 8, 8e14);
        other.kind = "NVIDIA H100".to_owned();
        let kinds = verdicts(&[gpu(0, 7, 8e14), other], &Watched::default());
        assert!(kinds.iter().all(|found| found.0 == CheckVerdict::Pass));
    }

    #[test]
    fn a_gpu_slower_than_its_peers_or_held_down_is_in_doubt() {
        let gpus = [gpu(0, 7, 8e14), gpu(1, 7, 8e14), gpu(2, 7, 7e14)];
        let mut watched = Watched::default();
        watched.take(
            "# HELP x\nDCGM_FI_DEV_SM_CLOCK{gpu=\"1\",UUID=\"a\"} 1980\nDCGM_FI_DEV_SM_CLOCK{gpu=\"1\",UUID=\"a\"} 1200\n\
             DCGM_FI_DEV_GPU_TEMP{gpu=\"1\"} 88\nDCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu=\"1\"} 68\n\
             DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu=\"0\"} 4\nnode_load1 3",
        );
        let found = verdicts(&gpus, &watched);
        assert_eq!(found[0].0, CheckVerdict::Pass, "a limit of power under load is usual: {}", found[0].1);
        assert_eq!(found[1].0, CheckVerdict::Warn);
        assert!(found[1].1.contains("held down by heat, by hardware"), "{}", found[1].1);
        assert!(found[1].1.ends_with("1200 to 1980 MHz; at most 88 °C"), "{}", found[1].1);
        assert_eq!(found[2].0, CheckVerdict::Warn);
        assert!(found[2].1.contains("at 88 % of its peers"), "{}", found[2].1);
    }
}
