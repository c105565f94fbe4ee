//! Breaking things on purpose.

use std::time::Duration;

use bedplate_control::wire::{Chaos, RunId};
use nix::sys::signal::Signal;
use tracing::warn;

use super::{Node, Purpose};
use crate::fork_server::orders::ToRunShim;
use crate::processes;

impl Node {
    pub(super) fn break_on_purpose(&mut self, chaos: Chaos) {
        warn!(node = self.options.node, "asked to break something: {chaos:?}");
        match chaos {
            Chaos::Die => processes::kill_one(std::process::id() as i32, Signal::SIGKILL),
            Chaos::Cut { for_ms } => self.fault_injection.cut(Duration::from_millis(for_ms)),
            Chaos::Delay { by_ms, for_ms } => {
                self.fault_injection.delay(Duration::from_millis(by_ms), Duration::from_millis(for_ms));
            }
            Chaos::KillRank { run, rank } => self.kill_rank(run, rank),
            Chaos::Xid { gpu, xid } => self.pretend_xid(gpu, xid),
            Chaos::Probe { fails } => self.force_probe(fails),
        }
    }

    fn kill_rank(&mut self, run: Option<RunId>, rank: Option<u32>) {
        let is_meant = |purpose: &Purpose| match purpose {
            Purpose::Rank(of, number) => {
                run.is_none_or(|run| run == *of) && rank.is_none_or(|rank| rank == *number)
            }
            _ => false,
        };
        let found = self.processes.iter().find(|(_, purpose)| is_meant(purpose));
        if let Some((id, Purpose::Rank(run, _))) = found {
            self.order_for(*run, ToRunShim::SignalOne { id: *id, signal: libc::SIGKILL });
        }
    }
}
