//! A real Kubernetes control plane on this machine: etcd, the API server, the controllers, kube-scheduler, and nodes and pods
//! that kwok plays.
//!
//! The programs are built once from Go modules by `kubernetes/control-plane build` into a folder that outlives them, and
//! `./test` does that; see the script for versions and parts.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::uses;

/// How many ports a control plane takes, one after the other.
const PORTS: u16 = 13;
/// Where ports are looked for: below those that the kernel gives to outgoing connections.
const FIRST_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesShape {
    /// Pretended nodes of 8 GPUs each, in racks and blocks.
    pub nodes: u32,
    /// With the controller of JobSets.
    pub jobset: bool,
    /// With Kueue.
    pub kueue: bool,
    /// With kube-scheduler.
    pub scheduler: bool,
    /// With the alpha of gang scheduling in kube-scheduler.
    pub gangs: bool,
}

impl Default for KubernetesShape {
    fn default() -> Self {
        Self { nodes: 8, jobset: false, kueue: false, scheduler: true, gangs: false }
    }
}

impl KubernetesShape {
    /// What this machine lacks for it.
    pub fn missing(&self) -> Option<String> {
        let wanted = [("kubeci", true), ("jobset", self.jobset), ("kueue", self.kueue)];
        let programs = programs();
        let absent =
            wanted.iter().find(|(name, is_wanted)| *is_wanted && !programs.join("bin").join(name).is_file());
        absent.map(|(name, _)| {
            format!("no `{name}` in {}: build it with {} build", programs.display(), script().display())
        })
    }
}

/// A control plane that ends with the value, or with the process.
#[derive(Debug)]
pub struct Kubernetes {
    state: PathBuf,
}

impl Kubernetes {
    pub fn start(shape: &KubernetesShape) -> Result<Self, String> {
        if let Some(missing) = shape.missing() {
            return Err(missing);
        }
        uses("kubernetes");
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("bedplate-kubernetes-{}-{number}", std::process::id());
        let kubernetes = Self { state: std::env::temp_dir().join(name) };
        let with = match (shape.jobset, shape.kueue) {
            (true, true) => "jobset,kueue",
            (true, false) => "jobset",
            (false, true) => "kueue",
            (false, false) => "none",
        };
        let (nodes, port) = (shape.nodes.to_string(), free_ports()?.to_string());
        let yes = |is_wanted: bool| if is_wanted { "yes" } else { "no" };
        let owner = std::process::id().to_string();
        let options = [
            ["--nodes", &nodes],
            ["--with", with],
            ["--base-port", &port],
            ["--scheduler", yes(shape.scheduler)],
            ["--gangs", yes(shape.gangs)],
            ["--owner", &owner],
        ];
        kubernetes.control("start", &options.concat())?;
        Ok(kubernetes)
    }

    /// Of an administrator, who may do everything.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("pki/admin.kubeconfig")
    }

    /// Of a service account that is there, by a token of its own: what its rules do not allow is denied.
    pub fn kubeconfig_of(&self, namespace: &str, account: &str) -> PathBuf {
        let token = self.kubectl(&["create", "token", account, "-n", namespace, "--duration", "8h"]);
        let path = self.state.join(format!("{namespace}.{account}.kubeconfig"));
        let server = self.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"]);
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
             clusters: [{{name: it, cluster: {{server: '{server}', certificate-authority: '{}'}}}}]\n\
             users: [{{name: it, user: {{token: '{}'}}}}]\n\
             contexts: [{{name: it, context: {{cluster: it, user: it, namespace: {namespace}}}}}]\n",
            self.state.join("pki/ca.crt").display(),
            token.trim(),
        );
        fs::write(&path, text).expect("temporary files can be written");
        path
    }

    /// What `kubectl` answers to an administrator.
    ///
    /// # Panics
    ///
    /// Where it fails, with what it said.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments).unwrap_or_else(|why| panic!("kubectl {}: {why}", arguments.join(" ")))
    }

    /// The same; a failure is what it said.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        said(self.kubectl_command().args(arguments).stdin(Stdio::null()))
    }

    /// Makes or changes what a manifest describes.
    ///
    /// # Panics
    ///
    /// Where the server refuses it.
    pub fn apply(&self, manifest: &str) {
        let path = self.state.join("applied.yaml");
        fs::write(&path, manifest).expect("temporary files can be written");
        let path = path.display().to_string();
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &path]);
    }

    /// What the server would make of a manifest, an object on a line; as an error, why it would not.
    pub fn dry_run(&self, manifest: &str) -> Result<String, String> {
        let path = self.state.join("tried.yaml");
        fs::write(&path, manifest).map_err(|error| error.to_string())?;
        let path = path.display().to_string();
        self.try_kubectl(&["create", "--dry-run=server", "--validate=strict", "-o", "name", "-f", &path])
    }

    /// Defines the kinds of a project whose controller does not run: `lws`, LeaderWorkerSets; `autoscaler`, ProvisioningRequests;
    /// `training-operator`, PyTorchJobs; `trainer`, TrainJobs.
    pub fn install(&self, project: &str) -> Result<(), String> {
        self.control("kinds", &[project])
    }

    /// Lets every pod have written these lines; none of them runs anything.
    pub fn write_logs(&self, lines: &[&str]) -> std::io::Result<()> {
        let entry = |line: &&str| format!("2026-01-01T00:00:00.000000000Z stdout F {line}\n");
        fs::write(self.state.join("pods.log"), lines.iter().map(entry).collect::<String>())
    }

    /// Adds nodes until there are so many.
    pub fn grow(&self, nodes: u32) -> Result<(), String> {
        self.control("nodes", &[&nodes.to_string()])
    }

    /// Stops the API server; the rest goes on without it.
    pub fn stop_server(&self) -> Result<(), String> {
        self.control("server", &["stop"])
    }

    /// Starts the API server again, and waits until it answers.
    pub fn start_server(&self) -> Result<(), String> {
        self.control("server", &["start"])
    }

    /// The processor time that one of its programs has used, such as `kube-scheduler`, in seconds.
    pub fn processor_seconds(&self, program: &str) -> Option<f64> {
        let pid = fs::read_to_string(self.state.join("pid").join(program)).ok()?;
        let pid = pid.split_whitespace().next()?.to_owned();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        Some(ticks / 100.0)
    }

    fn kubectl_command(&self) -> Command {
        let mut command = Command::new(programs().join("bin/kubectl"));
        command
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", self.state.join("kubectl-cache"))
            .env("KUBERC", "off");
        command
    }

    fn control(&self, what: &str, arguments: &[&str]) -> Result<(), String> {
        let mut command = Command::new(script());
        command.arg(what).arg(programs()).arg(&self.state).args(arguments).stdin(Stdio::null());
        said(&mut command).map(|_| ())
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        let _ = said(Command::new(script()).arg("stop").arg(&self.state).arg("--purge").stdin(Stdio::null()));
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/control-plane")
}

/// Where the programs are built: outside of any checkout, since that takes minutes.
fn programs() -> PathBuf {
    let home = || std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
    let caches = std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home().join(".cache"), PathBuf::from);
    caches.join("bedplate/kube")
}

/// The first of as many ports as it takes, all free.
fn free_ports() -> Result<u16, String> {
    let span = usize::from(PORTS);
    let starts: Vec<u16> = FIRST_PORTS.step_by(span + 3).collect();
    // Where two look at once, they begin at different places.
    let skipped = std::process::id() as usize % starts.len();
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let found = starts.iter().cycle().skip(skipped).take(starts.len());
    found
        .copied()
        .find(|start| (*start..*start + PORTS).all(is_free))
        .ok_or_else(|| format!("no {PORTS} free ports in a row"))
}

/// What a program writes; as an error, what it complains about.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{}{}", text(&output.stdout), text(&output.stderr))),
    }
}
