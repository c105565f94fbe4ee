//! A real Slurm on this machine, of the same shape as our own cluster: one controller and a daemon for each node.
//!
//! Made for Debian's Slurm 22.05. Its daemons must be started under their own names, and keep everything in
//! a temporary folder.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::load::Measured;
use super::{CPUS, NODES};

const PROGRAMS: [&str; 5] =
    ["/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged", "/usr/bin/sbatch", "/usr/bin/squeue"];
const PATIENCE: Duration = Duration::from_secs(600);

/// Says what is missing.
pub(super) fn check_installed() -> Result<(), String> {
    match PROGRAMS.iter().find(|program| !Path::new(program).exists()) {
        Some(missing) => Err(format!("{missing} is not installed")),
        None => Ok(()),
    }
}

/// The same load as ours, by `sbatch`.
pub(super) fn measure(jobs: u32, clients: u32) -> Result<Measured, String> {
    let slurm = Slurm::start()?;
    let began = Instant::now();
    let draining = slurm.submit_all(jobs, clients)?;
    slurm.wait_until_done()?;
    let drain_s = began.elapsed().as_secs_f64();
    let all = format!("--nodes={NODES}");
    slurm.ask("sbatch", &[&all, "--exclusive", "--output=/dev/null", "--wrap=sleep 600"]);
    thread::sleep(Duration::from_secs(2));
    let waiting = slurm.submit_all(jobs, clients)?;
    Ok(Measured {
        submissions_per_s: Some(waiting),
        drain_s: Some(drain_s),
        submissions_per_s_while_draining: Some(draining),
        ..Measured::default()
    })
}

struct Slurm {
    root: PathBuf,
}

impl Slurm {
    fn start() -> Result<Self, String> {
        let root = std::env::temp_dir().join(format!("bedplate-bench-slurm-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let slurm = Self { root };
        slurm.write_files().map_err(|error| error.to_string())?;
        slurm.start_daemons()?;
        slurm.wait_until_idle()?;
        Ok(slurm)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn write_files(&self) -> std::io::Result<()> {
        for folder in ["state", "spool", "log", "munge", "bin"] {
            fs::create_dir_all(self.path(folder))?;
        }
        // A key only for this measurement; it protects nothing.
        let key: Vec<u8> = (0..1024u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        fs::write(self.path("munge/key"), key)?;
        fs::set_permissions(self.path("munge/key"), fs::Permissions::from_mode(0o400))?;
        for daemon in ["slurmctld", "slurmd", "slurmstepd"] {
            let own = format!("/usr/sbin/{daemon}-wlm");
            let program = if Path::new(&own).exists() { own } else { format!("/usr/sbin/{daemon}") };
            symlink(program, self.path(&format!("bin/{daemon}")))?;
        }
        fs::write(self.path("cgroup.conf"), "CgroupAutomount=no\n")?;
        fs::write(self.path("slurm.conf"), self.configuration())
    }

    fn configuration(&self) -> String {
        let root = self.root.display();
        let host = output(Command::new("hostname").arg("-s"));
        let user = output(Command::new("id").arg("-un"));
        let controller = free_port();
        let first = 20_000 + (std::process::id() % 2_000) * 16;
        format!(
            "ClusterName=bench\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\n\
             SlurmUser={user}\nSlurmdUser={user}\nAuthType=auth/munge\nAuthInfo=socket={root}/munge/socket\nCredType=cred/munge\n\
             StateSaveLocation={root}/state\nSlurmdSpoolDir={root}/spool/%n\nSlurmctldPidFile={root}/slurmctld.pid\n\
             SlurmdPidFile={root}/slurmd-%n.pid\nSlurmctldLogFile={root}/log/slurmctld.log\nSlurmdLogFile={root}/log/slurmd-%n.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nSwitchType=switch/none\nMailProg=/bin/true\n\
             ReturnToService=2\nSlurmdParameters=config_overrides\nJobAcctGatherType=jobacct_gather/none\nJobCompType=jobcomp/none\n\
             SchedulerType=sched/backfill\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             PriorityType=priority/multifactor\nMinJobAge=10\nMaxJobCount=50000\nMessageTimeout=60\n\
             AccountingStorageType=accounting_storage/none\n\
             NodeName=n[1-{NODES}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{}] CPUs={CPUS} Boards=1 \
             SocketsPerBoard=1 CoresPerSocket={CPUS} ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN\n\
             PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
            first + NODES - 1
        )
    }

    fn start_daemons(&self) -> Result<(), String> {
        let root = self.root.display();
        let munged = ["key-file", "socket", "pid-file", "log-file", "seed-file"]
            .map(|name| format!("--{name}={root}/munge/{}", name.split('-').next().unwrap_or(name)));
        run(Command::new("/usr/sbin/munged").args(munged).args(["--num-threads=4", "--force"]))?;
        let configuration = self.path("slurm.conf");
        run(Command::new(self.path("bin/slurmctld")).arg("-f").arg(&configuration))?;
        for node in 1..=NODES {
            let name = format!("n{node}");
            fs::create_dir_all(self.path(&format!("spool/{name}"))).map_err(|error| error.to_string())?;
            let mut daemon = Command::new(self.path("bin/slurmd"));
            daemon.arg("-f").arg(&configuration).args(["-N", &name, "-d"]).arg(self.path("bin/slurmstepd"));
            run(&mut daemon)?;
        }
        Ok(())
    }

    fn wait_until_idle(&self) -> Result<(), String> {
        self.wait_until("its nodes did not become idle", || {
            self.ask("sinfo", &["-h", "-t", "idle", "-o", "%D"]) == NODES.to_string()
        })
    }

    fn wait_until_done(&self) -> Result<(), String> {
        let states = "PD,R,CF,CG";
        self.wait_until("its jobs did not end", || self.ask("squeue", &["-h", "-t", states]).is_empty())
    }

    fn wait_until(&self, complaint: &str, is_so: impl Fn() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if is_so() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(100));
        }
        let log = fs::read_to_string(self.path("log/slurmctld.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        Err(format!("{complaint}: {}", lines[lines.len().saturating_sub(3)..].join(" / ")))
    }

    /// Submissions per second.
    fn submit_all(&self, jobs: u32, clients: u32) -> Result<f64, String> {
        let next = AtomicU32::new(0);
        let failures = AtomicU32::new(0);
        let began = Instant::now();
        thread::scope(|scope| {
            for _ in 0..clients.max(1) {
                scope.spawn(|| {
                    while next.fetch_add(1, Ordering::Relaxed) < jobs {
                        let label = self.ask("sbatch", &["--parsable", "--output=/dev/null", "--wrap=true"]);
                        failures.fetch_add(u32::from(label.parse::<u64>().is_err()), Ordering::Relaxed);
                    }
                });
            }
        });
        match failures.into_inner() {
            0 => Ok(f64::from(jobs) / began.elapsed().as_secs_f64()),
            failed => Err(format!("{failed} of {jobs} submissions failed")),
        }
    }

    fn ask(&self, command: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(command);
        output(command.args(arguments).current_dir("/").env("SLURM_CONF", self.path("slurm.conf")))
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        self.ask("scancel", &["--partition=main"]);
        let mut files: Vec<PathBuf> =
            (1..=NODES).map(|node| self.path(&format!("slurmd-n{node}.pid"))).collect();
        files.extend([self.path("slurmctld.pid"), self.path("munge/pid")]);
        let pids: Vec<String> = files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
        for pid in &pids {
            let _ = Command::new("kill").arg(pid.trim()).stderr(Stdio::null()).status();
        }
        let is_alive = |pid: &String| Path::new("/proc").join(pid.trim()).exists();
        let deadline = Instant::now() + Duration::from_secs(10);
        while pids.iter().any(is_alive) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(100));
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Starts a daemon, which puts itself in the background.
fn run(command: &mut Command) -> Result<(), String> {
    match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map_or(26_817, |address| address.port())
}
