//! Two network namespaces with a slow link between them: two hosts on one machine. Needs root.

use std::process::Command;
use std::time::Duration;

use bedplate_comm::LocalRendezvous;
use bedplate_diag::{Diagnostic, Page};
use bedplate_kernels::DeviceChoice;
use bedplate_terminal::benchmarks::LINK;

use super::peers::{Ours, Transport, run_within};
use super::rank_set::{RankSet, RankSetError};

#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("only root can make network namespaces")]
    NotRoot,
    #[error("`{program}` is not installed")]
    Missing { program: &'static str },
    #[error("cannot make a limited link: `{command}` failed: {why}")]
    Command { command: String, why: String },
}

impl Diagnostic for LinkError {
    fn page(&self) -> &'static Page {
        &LINK
    }
}

/// Gone with its owner.
pub(super) struct Link {
    /// Namespaces; each has a device of the same name.
    ends: [String; 2],
}

const ADDRESSES: [&str; 2] = ["10.213.77.1", "10.213.77.2"];
const AT_MOST: Duration = Duration::from_secs(20);

impl Link {
    pub(super) fn make(rate: &str) -> Result<Self, LinkError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(LinkError::NotRoot);
        }
        for (program, flag) in [("ip", "-V"), ("tc", "-V")] {
            if run_within(Command::new(program).arg(flag), AT_MOST).is_err() {
                return Err(LinkError::Missing { program });
            }
        }
        let process = std::process::id();
        let link = Self { ends: [format!("bp{process}a"), format!("bp{process}b")] };
        link.build(rate)?;
        Ok(link)
    }

    fn build(&self, rate: &str) -> Result<(), LinkError> {
        let [a, b] = &self.ends;
        for end in [a, b] {
            run("ip", &["netns", "add", end])?;
        }
        run("ip", &["link", "add", a, "netns", a, "type", "veth", "peer", "name", b, "netns", b])?;
        for (end, address) in self.ends.iter().zip(ADDRESSES) {
            run("ip", &["-n", end, "addr", "add", &format!("{address}/30"), "dev", end])?;
            for device in [end.as_str(), "lo"] {
                run("ip", &["-n", end, "link", "set", device, "up"])?;
            }
            let tbf = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms"];
            run("tc", &[&["-n", end, "qdisc", "add", "dev", end], &tbf[..]].concat())?;
        }
        Ok(())
    }

    /// One rank of our own at each end.
    pub(super) fn start_ranks(&self) -> Result<RankSet, RankSetError> {
        let start = |source| RankSetError::Start { what: "ranks at both ends of a link".to_owned(), source };
        let meeting = LocalRendezvous::here().map_err(start)?.at(ADDRESSES[0]);
        let ours = Ours {
            transport: Transport::Auto,
            algorithm: None,
            is_private: false,
            device: DeviceChoice::Cpu,
        };
        RankSet::start("bedplate over a limited link", 2, |socket| {
            let mut commands = Vec::new();
            for (rank, end) in (0..).zip(&self.ends) {
                let inner = ours.command(socket, rank, 2, &meeting)?;
                let mut command = Command::new("ip");
                command.args(["netns", "exec", end]).arg(inner.get_program()).args(inner.get_args());
                command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
                commands.push(command);
            }
            Ok(commands)
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for end in &self.ends {
            // The device goes with its namespace.
            let _ = run("ip", &["netns", "del", end]);
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), LinkError> {
    let done = run_within(Command::new(program).args(arguments), AT_MOST);
    let command = || format!("{program} {}", arguments.join(" "));
    done.map(|_| ()).map_err(|why| LinkError::Command { command: command(), why })
}
