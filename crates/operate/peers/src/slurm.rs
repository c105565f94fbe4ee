//! A real Slurm on this machine: one controller and a daemon for each node, in a folder of its own.
//!
//! Made for Debian's Slurm 22.05. The daemons must be started under their own names: as `slurmd-wlm` they silently
//! ignore GPUs. GPUs are links to `/dev/null`. Each daemon can be stopped and started again by itself.

mod accounting;
mod configuration;
mod loss;
mod process;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::uses;

pub use loss::NodeLoss;
use process::{Ports, kill_group, output, run, stop, tail};

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmShape {
    pub nodes: u32,
    pub cpus_per_node: u32,
    /// Pretended ones: 0 or 8 of the type `h100`.
    pub gpus_per_node: u32,
    pub memory_mib: u32,
    /// Nodes below a leaf switch; without it there are no switches.
    pub per_leaf: Option<u32>,
    /// With slurmdbd and a database: the accounts `research` and `prod`, the QOS `urgent`.
    pub accounting: bool,
    /// With slurmrestd on a socket of its own and, by JWT, on a port.
    pub rest: bool,
    /// How long the controller remembers jobs that have ended.
    pub forgets_after_s: u32,
    /// How long a job that was requeued must wait; Slurm's own pause is two minutes, and 5 the least.
    pub requeue_pause_s: u32,
    /// Users beside the one that starts it who may submit, where there is accounting.
    pub users: Vec<String>,
    /// Further lines of `slurm.conf`.
    pub settings: String,
}

impl Default for SlurmShape {
    fn default() -> Self {
        Self {
            nodes: 8,
            cpus_per_node: 16,
            gpus_per_node: 8,
            memory_mib: 4000,
            per_leaf: Some(4),
            accounting: false,
            rest: false,
            forgets_after_s: 300,
            requeue_pause_s: 120,
            users: Vec::new(),
            settings: String::new(),
        }
    }
}

impl SlurmShape {
    /// The programs it takes.
    fn programs(&self) -> Vec<&'static str> {
        let mut programs = vec![
            "/usr/sbin/slurmctld",
            "/usr/sbin/slurmd",
            "/usr/sbin/munged",
            "/usr/bin/sbatch",
            "/usr/bin/squeue",
        ];
        if self.rest {
            programs.push("/usr/sbin/slurmrestd");
        }
        if self.accounting {
            programs.extend(["/usr/sbin/slurmdbd", "/usr/sbin/mariadbd", "/usr/bin/mariadb-install-db"]);
        }
        programs
    }

    /// What of it is not installed.
    pub fn missing(&self) -> Option<&'static str> {
        self.programs().into_iter().find(|program| !Path::new(program).exists())
    }
}

/// A Slurm that runs until the value is dropped.
pub struct Slurm {
    root: PathBuf,
    shape: SlurmShape,
    ports: Ports,
    /// Of the REST servers, which stay in the foreground.
    rest: Mutex<Vec<u32>>,
}

impl Slurm {
    /// Starts one, or says why it cannot.
    pub fn start(shape: &SlurmShape) -> Result<Self, String> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        if let Some(missing) = shape.missing() {
            return Err(format!("{missing} is not installed"));
        }
        uses("slurm");
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("bedplate-slurm-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let ports = Ports::find(shape.nodes, number)?;
        let slurm = Self { root, shape: shape.clone(), ports, rest: Mutex::default() };
        slurm.write_files().map_err(|error| error.to_string())?;
        slurm.start_munge()?;
        if shape.accounting {
            slurm.start_database()?;
            slurm.start_accounting()?;
            slurm.add_accounts()?;
        }
        slurm.start_controller()?;
        for node in slurm.nodes() {
            slurm.start_node(&node)?;
        }
        slurm.wait_until_idle()?;
        if shape.rest {
            slurm.start_rest()?;
        }
        Ok(slurm)
    }

    /// The folder that holds everything, `slurm.conf` among it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What `SLURM_CONF` must name.
    pub fn configuration_path(&self) -> PathBuf {
        self.path("slurm.conf")
    }

    /// The socket on which slurmrestd trusts the user who connects.
    pub fn rest_socket(&self) -> PathBuf {
        self.path("rest.sock")
    }

    /// `http://127.0.0.1:PORT`, where slurmrestd takes a JWT.
    pub fn rest_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.rest)
    }

    /// A JWT of a user.
    pub fn token(&self, user: &str) -> String {
        let text = self.ask("scontrol", &["token", &format!("username={user}"), "lifespan=3600"]);
        text.trim_start_matches("SLURM_JWT=").to_owned()
    }

    /// `n1`, `n2` …
    pub fn nodes(&self) -> Vec<String> {
        (1..=self.shape.nodes).map(|node| format!("n{node}")).collect()
    }

    /// One of Slurm's commands, which talks to this Slurm.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir("/").env("SLURM_CONF", self.configuration_path());
        command
    }

    /// What one of Slurm's commands prints.
    pub fn ask(&self, command: &str, arguments: &[&str]) -> String {
        output(self.command(command).args(arguments))
    }

    /// Cancels everything and waits until all nodes are idle again.
    pub fn clear(&self) -> Result<(), String> {
        self.ask("scancel", &["--partition=high"]);
        self.ask("scancel", &["--partition=main"]);
        self.wait_until_idle()
    }

    pub fn wait_until_idle(&self) -> Result<(), String> {
        let all = self.shape.nodes.to_string();
        self.wait_until("its nodes did not become idle", Duration::from_secs(120), || {
            self.ask("sinfo", &["-h", "-p", "main", "-t", "idle", "-o", "%D"]) == all
        })
    }

    /// Asks every so often until it is so; the end of the controller's log goes with the complaint.
    pub fn wait_until(
        &self,
        complaint: &str,
        patience: Duration,
        is_so: impl Fn() -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        while !is_so() {
            if Instant::now() > deadline {
                let log = fs::read_to_string(self.path("log/slurmctld.log")).unwrap_or_default();
                return Err(format!("{complaint}; the end of its log:\n{}", tail(&log)));
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    pub fn start_controller(&self) -> Result<(), String> {
        run(Command::new(self.path("bin/slurmctld")).arg("-f").arg(self.configuration_path()))
    }

    pub fn stop_controller(&self) {
        stop(&[self.path("slurmctld.pid")]);
    }

    pub fn start_node(&self, node: &str) -> Result<(), String> {
        fs::create_dir_all(self.path(&format!("spool/{node}"))).map_err(|error| error.to_string())?;
        let mut daemon = Command::new(self.path("bin/slurmd"));
        daemon.arg("-f").arg(self.configuration_path()).args(["-N", node, "-d"]);
        run(daemon.arg(self.path("bin/slurmstepd")))
    }

    /// Where the daemon of a node says its process id.
    pub fn node_pid_path(&self, node: &str) -> PathBuf {
        self.path(&format!("slurmd-{node}.pid"))
    }

    /// Starts slurmrestd on its socket and its port.
    pub fn start_rest(&self) -> Result<(), String> {
        let socket = self.rest_socket();
        let _ = fs::remove_file(&socket);
        let mut pids = self.rest.lock().expect("no panic while it is held");
        pids.push(self.serve_rest("rest_auth/local", &format!("unix:{}", socket.display()))?);
        pids.push(self.serve_rest("rest_auth/jwt", &format!("127.0.0.1:{}", self.ports.rest))?);
        drop(pids);
        self.wait_until("slurmrestd does not listen", Duration::from_secs(60), || {
            let port = std::net::TcpStream::connect(("127.0.0.1", self.ports.rest));
            port.is_ok() && std::os::unix::net::UnixStream::connect(&socket).is_ok()
        })
    }

    fn serve_rest(&self, authentication: &str, listens: &str) -> Result<u32, String> {
        let mut command = self.command("/usr/sbin/slurmrestd");
        // It refuses the user of the controller otherwise, and here there is no other.
        command.env("SLURMRESTD_SECURITY", "disable_user_check");
        if authentication.ends_with("jwt") {
            command.env("SLURM_JWT", "daemon");
        }
        command.arg("-f").arg(self.configuration_path()).args(["-a", authentication]);
        if !self.shape.accounting {
            // Those for accounting do not start without it.
            command.args(["-s", &rest_plugins().join(",")]);
        }
        process::spawn(command.args(["-t", "4", listens]), &self.path("log/slurmrestd.log"))
    }

    pub fn stop_rest(&self) {
        for pid in self.rest.lock().expect("no panic while it is held").drain(..) {
            kill_group(pid);
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn write_files(&self) -> std::io::Result<()> {
        for folder in ["state", "spool", "log", "dev", "munge", "bin"] {
            fs::create_dir_all(self.path(folder))?;
        }
        for folder in ["", "munge"] {
            fs::set_permissions(self.path(folder), fs::Permissions::from_mode(0o755))?;
        }
        // Keys for this one Slurm; they protect nothing.
        self.write_secret("munge/key", 1024)?;
        self.write_secret("jwt.key", 32)?;
        for gpu in 0..self.shape.gpus_per_node {
            symlink("/dev/null", self.path(&format!("dev/gpu{gpu}")))?;
        }
        for daemon in ["slurmctld", "slurmd", "slurmstepd"] {
            let own = format!("/usr/sbin/{daemon}-wlm");
            let program = if Path::new(&own).exists() { own } else { format!("/usr/sbin/{daemon}") };
            symlink(program, self.path(&format!("bin/{daemon}")))?;
        }
        self.write_configuration()
    }

    fn write_secret(&self, name: &str, length: u32) -> std::io::Result<()> {
        let seed = std::process::id().wrapping_mul(2_654_435_761);
        let bytes = (0..length).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8);
        fs::write(self.path(name), bytes.collect::<Vec<u8>>())?;
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o400))
    }

    fn start_munge(&self) -> Result<(), String> {
        let root = self.root.display();
        let files = ["key-file", "socket", "pid-file", "log-file", "seed-file"]
            .map(|name| format!("--{name}={root}/munge/{}", name.split('-').next().unwrap_or(name)));
        run(Command::new("/usr/sbin/munged").args(files).args(["--num-threads=4", "--force"]))
    }
}

/// `openapi/v0.0.38` for each file `openapi_v0_0_38.so`.
fn rest_plugins() -> Vec<String> {
    let libraries = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let files =
        libraries.flat_map(|folder| fs::read_dir(folder.path().join("slurm-wlm"))).flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let versions = names.filter_map(|name| {
        let version = name.strip_prefix("openapi_v")?.strip_suffix(".so")?;
        Some(format!("openapi/v{}", version.replace('_', ".")))
    });
    versions.collect()
}

impl Drop for Slurm {
    fn drop(&mut self) {
        self.ask("scancel", &["--partition=high"]);
        self.ask("scancel", &["--partition=main"]);
        self.stop_rest();
        let mut files: Vec<PathBuf> = self.nodes().iter().map(|node| self.node_pid_path(node)).collect();
        files.push(self.path("slurmctld.pid"));
        stop(&files);
        stop(&[self.path("slurmdbd.pid")]);
        stop(&[self.path("database/pid")]);
        stop(&[self.path("munge/pid")]);
        process::kill_everything_of(&self.root);
        let _ = fs::remove_dir_all(&self.root);
    }
}
