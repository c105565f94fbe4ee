//! A real Slurm on this host: one controller and a daemon per node, in a folder of its own.
//!
//! Made for Debian's Slurm 22.05. The daemons must be started under their own names: as `slurmd-wlm` they
//! silently ignore GPUs. GPUs are links to `/dev/null`.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Slurm {
    root: PathBuf,
    nodes: u32,
}

impl Slurm {
    /// Starts one, or says why it cannot.
    pub(crate) fn start(nodes: u32, per_leaf: u32) -> Result<Self, String> {
        for program in ["/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged", "/usr/bin/sbatch"] {
            if !Path::new(program).exists() {
                return Err(format!("{program} is not installed"));
            }
        }
        let root = std::env::temp_dir().join(format!("bedplate-slurm-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let slurm = Self { root, nodes };
        slurm.write_files(per_leaf).map_err(|error| error.to_string())?;
        slurm.start_daemons()?;
        slurm.wait_until_idle()?;
        Ok(slurm)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn write_files(&self, per_leaf: u32) -> std::io::Result<()> {
        for folder in ["state", "spool", "log", "dev", "munge", "bin"] {
            fs::create_dir_all(self.path(folder))?;
        }
        // A key for this test alone; it protects nothing.
        let key: Vec<u8> =
            (0..1024u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        fs::write(self.path("munge/key"), key)?;
        fs::set_permissions(self.path("munge/key"), fs::Permissions::from_mode(0o400))?;
        for gpu in 0..8 {
            symlink("/dev/null", self.path(&format!("dev/gpu{gpu}")))?;
        }
        for daemon in ["slurmctld", "slurmd", "slurmstepd"] {
            let own = format!("/usr/sbin/{daemon}-wlm");
            let program = if Path::new(&own).exists() { own } else { format!("/usr/sbin/{daemon}") };
            symlink(program, self.path(&format!("bin/{daemon}")))?;
        }
        fs::write(self.path("cgroup.conf"), "CgroupAutomount=no\n")?;
        fs::write(self.path("gres.conf"), self.gres())?;
        fs::write(self.path("topology.conf"), self.topology(per_leaf))?;
        fs::write(self.path("slurm.conf"), self.configuration())
    }

    fn gres(&self) -> String {
        let line = |devices: &str, cores: &str| {
            let root = self.root.display();
            format!(
                "NodeName=n[1-{}] Name=gpu Type=h100 File={root}/dev/gpu[{devices}] Cores={cores}\n",
                self.nodes
            )
        };
        format!("AutoDetect=off\n{}{}", line("0-3", "0-7"), line("4-7", "8-15"))
    }

    fn topology(&self, per_leaf: u32) -> String {
        let mut text = String::new();
        let leaves = self.nodes.div_ceil(per_leaf);
        for leaf in 0..leaves {
            let (first, last) = (leaf * per_leaf + 1, ((leaf + 1) * per_leaf).min(self.nodes));
            text.push_str(&format!("SwitchName=leaf{} Nodes=n[{first}-{last}]\n", leaf + 1));
        }
        format!("{text}SwitchName=spine Switches=leaf[1-{leaves}]\n")
    }

    fn configuration(&self) -> String {
        let (root, nodes) = (self.root.display(), self.nodes);
        let host = output(Command::new("hostname").arg("-s"));
        let user = output(Command::new("id").arg("-un"));
        let controller = free_port();
        let first = 20_000 + (std::process::id() % 2_000) * 16;
        format!(
            "ClusterName=story\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\n\
             SlurmUser={user}\nSlurmdUser={user}\nAuthType=auth/munge\nAuthInfo=socket={root}/munge/socket\nCredType=cred/munge\n\
             StateSaveLocation={root}/state\nSlurmdSpoolDir={root}/spool/%n\nSlurmctldPidFile={root}/slurmctld.pid\n\
             SlurmdPidFile={root}/slurmd-%n.pid\nSlurmctldLogFile={root}/log/slurmctld.log\nSlurmdLogFile={root}/log/slurmd-%n.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nSwitchType=switch/none\nMailProg=/bin/true\n\
             ReturnToService=2\nSlurmdParameters=config_overrides\nJobAcctGatherType=jobacct_gather/none\nJobCompType=jobcomp/none\n\
             SchedulerType=sched/backfill\nSchedulerParameters=bf_interval=1,bf_continue,bf_window=2880,bf_resolution=60,sched_interval=1\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nTopologyPlugin=topology/tree\n\
             PriorityType=priority/multifactor\nPriorityWeightJobSize=1000\nPriorityWeightPartition=10000\nPriorityMaxAge=1-0\n\
             PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nGresTypes=gpu\nMinJobAge=300\nMessageTimeout=60\n\
             AccountingStorageType=accounting_storage/none\n\
             NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{}] CPUs=16 Boards=1 SocketsPerBoard=2 \
             CoresPerSocket=8 ThreadsPerCore=1 RealMemory=2000 Gres=gpu:h100:8 State=UNKNOWN\n\
             PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=requeue\n\
             PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=off\n",
            first + nodes - 1
        )
    }

    fn start_daemons(&self) -> Result<(), String> {
        let root = self.root.display();
        let munge = |name: &str, file: &str| format!("--{name}={root}/munge/{file}");
        let munged = ["key-file", "socket", "pid-file", "log-file", "seed-file"]
            .map(|name| munge(name, name.split('-').next().unwrap_or(name)));
        run(Command::new("/usr/sbin/munged").args(munged).args(["--num-threads=2", "--force"]))?;
        let configuration = self.path("slurm.conf");
        run(Command::new(self.path("bin/slurmctld")).arg("-f").arg(&configuration))?;
        for node in 1..=self.nodes {
            let name = format!("n{node}");
            fs::create_dir_all(self.path(&format!("spool/{name}"))).map_err(|error| error.to_string())?;
            let mut daemon = Command::new(self.path("bin/slurmd"));
            run(daemon
                .arg("-f")
                .arg(&configuration)
                .args(["-N", &name, "-d"])
                .arg(self.path("bin/slurmstepd")))?;
        }
        Ok(())
    }

    fn wait_until_idle(&self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if self.ask("sinfo", &["-h", "-p", "main", "-t", "idle", "-o", "%D"]).trim()
                == self.nodes.to_string()
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let log = fs::read_to_string(self.path("log/slurmctld.log")).unwrap_or_default();
        Err(format!("its nodes did not become idle; the end of its log:\n{}", tail(&log)))
    }

    /// What one of Slurm's commands prints.
    pub(crate) fn ask(&self, command: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(command);
        output(command.args(arguments).env("SLURM_CONF", self.path("slurm.conf")))
    }

    /// Cancels everything and waits until all nodes are idle again.
    pub(crate) fn clear(&self) -> Result<(), String> {
        self.ask("scancel", &["--partition=high"]);
        self.ask("scancel", &["--partition=main"]);
        self.wait_until_idle()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let mut files: Vec<PathBuf> =
            (1..=self.nodes).map(|node| self.path(&format!("slurmd-n{node}.pid"))).collect();
        files.extend([self.path("slurmctld.pid"), self.path("munge/pid")]);
        let pids: Vec<String> = files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
        for pid in &pids {
            let _ = Command::new("kill").arg(pid.trim()).stderr(Stdio::null()).status();
        }
        let is_alive = |pid: &String| Path::new("/proc").join(pid.trim()).exists();
        let deadline = Instant::now() + Duration::from_secs(10);
        while pids.iter().any(is_alive) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Starts a daemon, which puts itself in the background.
fn run(command: &mut Command) -> Result<(), String> {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match quiet.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string()).unwrap_or_default()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map_or(26_817, |address| address.port())
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
