//! Units of services that need no more than their own options, which are checked as a command line before they are written.

use bedplate_terminal::CliError;
use clap::Parser;

use super::command_line;
use crate::cli::Cli;

/// A command that runs until it is told to end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Service {
    Export,
    Serve,
    Route,
    Scheduler,
}

/// What no service of ours needs.
const HARDENED: &str = "\
DynamicUser=yes
UMask=0077
LimitNOFILE=65536
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
";

impl Service {
    fn command(self) -> &'static str {
        match self {
            Service::Export => "export",
            Service::Serve => "serve",
            Service::Route => "route",
            Service::Scheduler => "scheduler",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Service::Export => "metrics of this node",
            Service::Serve => "model server",
            Service::Route => "router of model servers",
            Service::Scheduler => "scheduler of pods",
        }
    }

    /// What it needs beside that, or can do without.
    fn special(self) -> &'static str {
        match self {
            // It reads counters of every device.
            Service::Export => "ProtectHome=yes\n",
            // GPUs compile kernels in memory and pin host memory; a server ends the requests that it has.
            Service::Serve => {
                "ProtectHome=read-only\nLimitMEMLOCK=infinity\nTimeoutStartSec=infinity\nTimeoutStopSec=120\nCacheDirectory=bedplate-serve\nEnvironment=XDG_CACHE_HOME=%C/bedplate-serve\n"
            }
            Service::Route => {
                "ProtectHome=yes\nPrivateDevices=yes\nMemoryDenyWriteExecute=yes\nTimeoutStopSec=120\n"
            }
            Service::Scheduler => "ProtectHome=read-only\nPrivateDevices=yes\nMemoryDenyWriteExecute=yes\n",
        }
    }

    /// The unit, with the program's own options.
    pub(super) fn unit(self, program: &str, options: &[String]) -> Result<String, CliError> {
        let name = self.command();
        let own = ["bedplate", name].into_iter().chain(options.iter().map(String::as_str));
        Cli::try_parse_from(own).map_err(CliError::from_clap)?;
        let words: Vec<&str> =
            [program, name].into_iter().chain(options.iter().map(String::as_str)).collect();
        let (command, credentials) = with_credentials(&command_line(&words)?);
        Ok(format!(
            "[Unit]
Description=Bedplate {}
Wants=network-online.target
After=network-online.target remote-fs.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
{credentials}EnvironmentFile=-/etc/bedplate/{name}.env
Restart=always
RestartSec=2
{}{HARDENED}
[Install]
WantedBy=multi-user.target
",
            self.description(),
            self.special()
        ))
    }
}

/// Options that name a file with secrets, which only root reads.
const SECRET_FILES: [&str; 4] = ["--api-key-file", "--kv-secret-file", "--replica-key-file", "--kubeconfig"];

/// The command with such files as systemd hands them to a service without rights, and the lines that make it do so.
fn with_credentials(command: &str) -> (String, String) {
    let (mut words, mut lines) = (Vec::new(), String::new());
    let mut given = command.split(' ');
    while let Some(word) = given.next() {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (word, None),
        };
        let path = SECRET_FILES.contains(&option).then(|| value.or_else(|| given.next())).flatten();
        let Some(path) = path else {
            words.push(word.to_owned());
            continue;
        };
        let name = option.trim_start_matches('-');
        words.extend([option.to_owned(), format!("%d/{name}")]);
        lines += &format!("LoadCredential={name}:{path}\n");
    }
    (words.join(" "), lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_has_the_options_of_its_command_and_refuses_others() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let unit =
            Service::Serve.unit("/usr/bin/bedplate", &words("/srv/model --listen 10.0.0.5:8000")).unwrap();
        assert!(
            unit.contains("ExecStart=/usr/bin/bedplate serve /srv/model --listen 10.0.0.5:8000\n"),
            "{unit}"
        );
        assert!(Service::Serve.unit("/usr/bin/bedplate", &words("/srv/model --lisen x")).is_err());
        assert!(Service::Serve.unit("/usr/bin/bedplate", &words("/srv/%H")).is_err());
        let secret =
            Service::Serve.unit("/usr/bin/bedplate", &words("/srv/model --api-key-file /etc/bedplate/keys"));
        let secret = secret.unwrap();
        assert!(secret.contains("/srv/model --api-key-file %d/api-key-file\n"), "{secret}");
        assert!(secret.contains("LoadCredential=api-key-file:/etc/bedplate/keys\n"), "{secret}");
        assert!(Service::Export.unit("/usr/bin/bedplate", &[]).unwrap().contains("bedplate export\n"));
    }
}
