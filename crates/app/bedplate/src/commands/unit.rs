//! `bedplate unit daemon|agent`: systemd units for machines that are nodes for good; `bedplate unit export|serve|route|scheduler`: units of
//! services with any of their own options; `bedplate unit slurm-health`: a health check for Slurm.

mod health;
mod service;

use self::service::Service;
use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate unit daemon --cluster /etc/bedplate/cluster.toml --listen 10.0.0.1:7431 \\
      > /etc/systemd/system/bedplate-daemon.service
  bedplate unit agent --server 10.0.0.1:7431 --fingerprint HEX --node n7 --address 10.0.0.7 \\
      > /etc/systemd/system/bedplate-agent.service
  bedplate unit export > /etc/systemd/system/bedplate-export.service
  bedplate unit serve /srv/models/chat --listen 10.0.0.5:8000 --api-key-file /etc/bedplate/keys \\
      > /etc/systemd/system/bedplate-serve.service
  bedplate unit slurm-health --check 'nvidia-smi -L' > /etc/slurm/bedplate-health

The agent reads its token from /etc/bedplate/agent.env, a file of mode 0600 with
the line BEDPLATE_AGENT_TOKEN=…; `bedplate token add n7 --role agent` makes one.
Check a unit with `systemd-analyze verify FILE`.")]
pub(crate) enum Arguments {
    /// The control plane, as a user without rights
    Daemon {
        /// A whole cluster: INSTANCE:COUNT, or the file of a description
        #[arg(long, value_name = "CLUSTER")]
        cluster: String,
        /// Partitions, QOS, quotas and priorities of the scheduler
        #[arg(long, value_name = "FILE")]
        site: Option<String>,
        /// Where the daemon listens
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7431")]
        listen: String,
    },
    /// The agent of a node, as root, so that jobs run as their users
    Agent {
        /// The control plane, as host:port
        #[arg(long, value_name = "HOST:PORT")]
        server: String,
        /// SHA-256 of the control plane's certificate
        #[arg(long, value_name = "HEX")]
        fingerprint: String,
        /// The node's name in the cluster
        #[arg(long)]
        node: String,
        /// Where ranks of other nodes reach this one
        #[arg(long, default_value = "127.0.0.1")]
        address: String,
    },
    /// The metrics of a node, for Prometheus
    Export {
        /// Options of `bedplate export`
        #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// A model server
    Serve {
        /// The model's folder and options of `bedplate serve`
        #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        options: Vec<String>,
    },
    /// A router in front of model servers
    Route {
        /// Options of `bedplate route`
        #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        options: Vec<String>,
    },
    /// The scheduler of pods beside a Kubernetes cluster
    Scheduler {
        /// Options of `bedplate scheduler`
        #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// A health check for Slurm that drains a node with the reason
    SlurmHealth {
        /// A shell command that fails on an unhealthy node, or prints findings, one JSON object per line
        #[arg(long, value_name = "COMMAND")]
        check: String,
    },
    /// The reason to drain a node, from what a check printed
    #[command(hide = true)]
    DrainReason {
        #[arg(long)]
        node: String,
        /// The exit status of the check
        #[arg(long, default_value_t = 0)]
        status: i32,
    },
}

#[derive(Debug, thiserror::Error)]
enum UnitError {
    #[error("`{value}` cannot be written into a unit")]
    Value { value: String },
}

pub(crate) const PAGES: &[&Page] = &[&VALUE];

static VALUE: Page = Page {
    code: "unit/value",
    class: Class::User,
    meaning: "In a systemd unit, spaces, quotes, `%`, `$` and backslashes have a meaning of their own, so a value that has one of them would be read as something else.",
    remedy: "use names, addresses and paths without them",
};

impl Diagnostic for UnitError {
    fn page(&self) -> &'static Page {
        &VALUE
    }
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let program =
        std::env::current_exe().map_or("/usr/local/bin/bedplate".into(), |path| path.display().to_string());
    let text = match arguments {
        Arguments::Daemon { cluster, site, listen } => daemon(&program, cluster, site.as_deref(), listen)?,
        Arguments::Agent { server, fingerprint, node, address } => {
            agent(&program, server, fingerprint, node, address)?
        }
        Arguments::Export { options } => Service::Export.unit(&program, options)?,
        Arguments::Serve { options } => Service::Serve.unit(&program, options)?,
        Arguments::Route { options } => Service::Route.unit(&program, options)?,
        Arguments::Scheduler { options } => Service::Scheduler.unit(&program, options)?,
        Arguments::SlurmHealth { check } => health::script(&command_line(&[&program])?, check),
        Arguments::DrainReason { node, status } => {
            health::reason_from_input(node, *status).unwrap_or_default()
        }
    };
    match console.is_json() {
        true => console.json(&json!({ "unit": text })),
        false => console.line(text.trim_end()),
    }
}

/// A command line of words that mean themselves.
fn command_line(words: &[&str]) -> Result<String, UnitError> {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || "\"'%$\\;".contains(c);
    match words.iter().find(|word| word.is_empty() || word.contains(is_odd)) {
        Some(word) => Err(UnitError::Value { value: (*word).to_owned() }),
        None => Ok(words.join(" ")),
    }
}

fn daemon(program: &str, cluster: &str, site: Option<&str>, listen: &str) -> Result<String, UnitError> {
    let mut words = vec![program, "daemon", "--cluster", cluster, "--listen", listen];
    words.extend(site.into_iter().flat_map(|site| ["--site", site]));
    let command = command_line(&words)?;
    Ok(format!(
        "[Unit]
Description=Bedplate control plane
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
TimeoutStartSec=infinity
ExecStart={command} --state-dir %S/bedplate
Restart=always
RestartSec=1
DynamicUser=yes
StateDirectory=bedplate
StateDirectoryMode=0700
UMask=0077
LimitNOFILE=65536
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
"
    ))
}

/// Jobs inherit what the unit of the agent restricts, so it restricts only what no job needs. The agent ends its runs in
/// good order when it is told to end; what is left after that is killed.
fn agent(
    program: &str,
    server: &str,
    fingerprint: &str,
    node: &str,
    address: &str,
) -> Result<String, UnitError> {
    let words = [
        [program, "agent"],
        ["--server", server],
        ["--node", node],
        ["--address", address],
        ["--fingerprint", fingerprint],
    ];
    let command = command_line(words.as_flattened())?;
    Ok(format!(
        "[Unit]
Description=Bedplate agent of node {node}
Wants=network-online.target
After=network-online.target remote-fs.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command} --state %S/bedplate-agent
EnvironmentFile=/etc/bedplate/agent.env
Restart=always
RestartSec=1
KillMode=mixed
TimeoutStopSec=60
Delegate=yes
StateDirectory=bedplate-agent
StateDirectoryMode=0711
LimitNOFILE=1048576
LimitMEMLOCK=infinity
TasksMax=infinity
NoNewPrivileges=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes

[Install]
WantedBy=multi-user.target
"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_a_unit_would_read_otherwise_are_refused() {
        for odd in ["a b", "a\nExecStartPre=/bin/sh", "%H", "$HOME", "\"", "a;b", ""] {
            assert!(agent("/bin/true", "h:1", "ab", odd, "10.0.0.1").is_err(), "{odd:?}");
            assert!(daemon("/bin/true", odd, None, "127.0.0.1").is_err(), "{odd:?}");
        }
        let unit = agent("/bin/true", "h:1", "ab", "n7", "10.0.0.7").unwrap();
        let line = "ExecStart=/bin/true agent --server h:1 --node n7 --address 10.0.0.7 --fingerprint ab \
                    --state %S/bedplate-agent\n";
        assert!(unit.contains(line), "{unit}");
    }
}
