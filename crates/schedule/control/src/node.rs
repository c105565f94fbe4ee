//! A node as the control plane sees it: linked or not, heard when, in service or kept out.

use std::collections::BTreeSet;

use bedplate_diag::Reason;
use bedplate_finding::{Action, OpenFinding};
use bedplate_gangs::{JobId, Time};

use crate::reason;
use crate::record::NodeRow;
use crate::wire::{HostMachine, RunId};
use crate::{ControlRules, LinkId};

#[derive(Debug, Clone)]
pub(crate) struct ManagedNode {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) host: HostMachine,
    pub(crate) incarnation: u64,
    pub(crate) presence: Presence,
    /// Takes no work, and why; only people change it back.
    pub(crate) drained: Option<Reason>,
    /// What it found about itself.
    pub(crate) findings: Vec<OpenFinding>,
    /// Findings until then, by the node's clock, are known to an operator and call for nothing.
    pub(crate) acknowledged_ms: u64,
    /// When it was taken out of service for a finding.
    pub(crate) found_out: Option<Time>,
    /// An operator was told that it should go out and cannot.
    pub(crate) is_alarmed: bool,
    /// Runs that must end there before it works again.
    pub(crate) rests: BTreeSet<RunId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Its connection is open.
    Linked { link: LinkId, heard: Time },
    /// It closed; until then the agent may come back as if nothing had happened.
    Closed { until: Time },
    /// The control plane has started since it was last heard; what it holds is not known before it comes back, or is lost.
    Expected { until: Time },
    /// Lost, or never seen.
    Away,
}

impl ManagedNode {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            address: String::new(),
            host: HostMachine::default(),
            incarnation: 0,
            presence: Presence::Away,
            drained: None,
            findings: Vec::new(),
            acknowledged_ms: 0,
            found_out: None,
            is_alarmed: false,
            rests: BTreeSet::new(),
        }
    }

    pub(crate) fn link(&self) -> Option<LinkId> {
        match self.presence {
            Presence::Linked { link, .. } => Some(link),
            Presence::Closed { .. } | Presence::Expected { .. } | Presence::Away => None,
        }
    }

    /// The finding that calls for the strongest action; of several, the first.
    pub(crate) fn worst(&self) -> Option<&OpenFinding> {
        self.findings.iter().rev().max_by_key(|open| open.finding.action)
    }

    /// Whether something that it found calls for taking it out of service.
    pub(crate) fn is_accused(&self) -> bool {
        let action = self.worst().map(|open| open.finding.action);
        action.is_some_and(Action::takes_node_out_of_service)
    }

    /// Whether it is out of service for what it found or for its own check.
    pub(crate) fn is_proven_out(&self) -> bool {
        let code = self.drained.as_ref().map(|reason| &reason.code[..]);
        code.is_some_and(|code| [reason::FOUND, reason::CHECK_FAILED].contains(&code))
    }

    /// When it counts as lost if nothing is heard of it, and why.
    pub(crate) fn lost_at(&self, rules: &ControlRules) -> Option<(Time, &'static str)> {
        match self.presence {
            Presence::Linked { heard, .. } => Some((heard + rules.silence, "nothing was heard of it")),
            Presence::Closed { until } => Some((until, "its connection closed")),
            Presence::Expected { until } => Some((until, "it did not come back")),
            Presence::Away => None,
        }
    }

    /// Whether ranks that a job no longer counts on may still live there.
    pub(crate) fn may_hold_rests_of(&self, job: JobId) -> bool {
        match self.presence {
            Presence::Linked { .. } | Presence::Closed { .. } => {
                self.rests.iter().any(|run| run.job == job.0)
            }
            Presence::Expected { .. } => true,
            // Its agent has killed them.
            Presence::Away => false,
        }
    }

    /// What is recorded of it; when it was lost lately is known elsewhere.
    pub(crate) fn row(&self, losses: &[Time]) -> NodeRow {
        NodeRow {
            name: self.name.clone(),
            drained: self.drained.clone(),
            address: self.address.clone(),
            incarnation: self.incarnation,
            losses: losses.to_vec(),
            acknowledged_ms: self.acknowledged_ms,
            found_out: self.found_out,
        }
    }
}
