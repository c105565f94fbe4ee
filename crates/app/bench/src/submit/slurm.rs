//! The same load on a real Slurm of the same shape, by `sbatch` and by its REST server.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{Slurm as Driver, SlurmPlace};
use bedplate_job::Job;
use bedplate_peers::{Slurm, SlurmShape};

use super::load::{Measured, no_op};
use super::{CPUS, NODES};

const PATIENCE: Duration = Duration::from_secs(600);

/// How jobs reach Slurm.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Sbatch,
    Rest,
}

impl Transport {
    /// Those whose programs are here; `sbatch` was looked for before.
    pub(super) fn installed() -> Vec<Self> {
        let transports = [Transport::Sbatch, Transport::Rest];
        transports.into_iter().filter(|transport| shape(*transport).missing().is_none()).collect()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Transport::Sbatch => "sbatch",
            Transport::Rest => "REST",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Transport::Sbatch => "SLURM",
            Transport::Rest => "SLURM BY REST",
        }
    }

    /// In the names of figures.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Transport::Sbatch => "",
            Transport::Rest => "rest_",
        }
    }
}

fn shape(transport: Transport) -> SlurmShape {
    SlurmShape {
        nodes: NODES,
        cpus_per_node: CPUS,
        gpus_per_node: 0,
        per_leaf: None,
        forgets_after_s: 10,
        rest: transport == Transport::Rest,
        ..SlurmShape::default()
    }
}

/// Says what is missing.
pub(super) fn check_installed() -> Result<(), String> {
    match shape(Transport::Sbatch).missing() {
        Some(missing) => Err(format!("{missing} is not installed")),
        None => Ok(()),
    }
}

pub(super) fn measure(transport: Transport, jobs: u32, clients: u32) -> Result<Measured, String> {
    let slurm = Slurm::start(&shape(transport))?;
    let began = Instant::now();
    let draining = submit_all(&slurm, transport, jobs, clients)?;
    slurm.wait_until("its jobs did not end", PATIENCE, || {
        slurm.ask("squeue", &["-h", "-t", "PD,R,CF,CG"]).is_empty()
    })?;
    let drain_s = began.elapsed().as_secs_f64();
    let all = format!("--nodes={NODES}");
    slurm.ask("sbatch", &[&all, "--exclusive", "--output=/dev/null", "--wrap=sleep 600"]);
    thread::sleep(Duration::from_secs(2));
    let waiting = submit_all(&slurm, transport, jobs, clients)?;
    Ok(Measured {
        submissions_per_s: Some(waiting),
        drain_s: Some(drain_s),
        submissions_per_s_while_draining: Some(draining),
        ..Measured::default()
    })
}

/// Submissions per second.
fn submit_all(slurm: &Slurm, transport: Transport, jobs: u32, clients: u32) -> Result<f64, String> {
    let next = AtomicU32::new(0);
    let failures = AtomicU32::new(0);
    let place = SlurmPlace {
        rest: Some(format!("unix:{}", slurm.rest_socket().display())),
        has_commands: false,
        patience: Duration::from_secs(60),
        ..SlurmPlace::default()
    };
    let driver = place.driver().map_err(|error| error.to_string())?;
    let job = Job { working_directory: Some(slurm.root().display().to_string()), ..no_op() };
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..clients.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= jobs {
                        return;
                    }
                    let is_taken = match transport {
                        Transport::Sbatch => by_sbatch(slurm),
                        Transport::Rest => by_rest(&driver, &job, number),
                    };
                    failures.fetch_add(u32::from(!is_taken), Ordering::Relaxed);
                }
            });
        }
    });
    match failures.into_inner() {
        0 => Ok(f64::from(jobs) / began.elapsed().as_secs_f64()),
        failed => Err(format!("{failed} of {jobs} submissions failed")),
    }
}

fn by_sbatch(slurm: &Slurm) -> bool {
    slurm.ask("sbatch", &["--parsable", "--output=/dev/null", "--wrap=true"]).parse::<u64>().is_ok()
}

/// Without looking for the key first, which is what our driver adds and not Slurm.
fn by_rest(driver: &Driver, job: &Job, number: u32) -> bool {
    driver.submit_new(job, &number.to_string()).is_ok()
}
