//! One run of a gang, from the first order to prepare until nothing of it is left on any node.

use std::collections::BTreeMap;

use bedplate_diag::Reason;
use bedplate_gangs::{GangOutcome, JobId, NodeShare, Span, Time};
use bedplate_job::RankBlocks;
use bedplate_report::{FaultReport, StepHistory};
use bedplate_topology::NodeId;

use crate::record::{JobState, Joined};
use crate::wire::{NodeEnd, RunId};

#[derive(Debug, Clone)]
pub(crate) struct ManagedRun {
    pub(crate) id: RunId,
    /// The number of the run in which its ranks first met; newcomers join them.
    pub(crate) began: u32,
    pub(crate) shares: Vec<NodeShare>,
    pub(crate) members: BTreeMap<NodeId, Member>,
    pub(crate) phase: LaunchPhase,
    pub(crate) started: Time,
    pub(crate) running: Option<Time>,
    /// What comes once nothing is left of it.
    pub(crate) then: Then,
    /// What its job becomes, where its end was ordered.
    pub(crate) stops_as: Option<JobState>,
    /// How it ended, as far as is known.
    pub(crate) verdict: RunVerdict,
    /// How far each rank that said so is, and when it said so.
    pub(crate) progress: BTreeMap<u32, RunProgress>,
    /// What its ranks reported about their training steps, and when that was last recorded.
    pub(crate) history: StepHistory,
    pub(crate) steps_recorded: Time,
    /// The first fault of a GPU that one of its ranks reported, until a restart has followed from it.
    pub(crate) fault: Option<(u32, FaultReport)>,
    /// Steps that scripts have started inside it.
    pub(crate) steps: u32,
    /// Whether its ranks were told that their time is nearly up.
    pub(crate) was_signalled: bool,
    /// Where its ranks meet; unknown until they are let go.
    pub(crate) master_port: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaunchPhase {
    Preparing,
    Running,
    Suspended,
    /// Every node has been told to end it within `grace` from then on.
    Stopping {
        since: Time,
        grace: Span,
    },
}

/// What a node of a run was last known to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    /// What the node knows the run by: nodes that stay keep the number while others come.
    pub(crate) id: RunId,
    pub(crate) state: MemberState,
    /// When it was last told something; without an answer it is told again.
    pub(crate) told: Time,
    /// Ranks that start here.
    pub(crate) ranks: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MemberState {
    Asked,
    Prepared { master_port: Option<u16> },
    Running,
    Released(NodeEnd),
    Lost,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Then {
    /// The scheduler hears how it ended.
    Report,
    /// The gang goes on with other nodes, in a new run; the scheduler hears of nodes that it left.
    Restart { shares: Vec<NodeShare>, left: Vec<NodeId> },
    /// Its end is of no interest any more.
    Discard,
}

/// Why a run ended, for the scheduler and for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RunVerdict {
    pub(crate) outcome: Option<GangOutcome>,
    pub(crate) exit_status: Option<i32>,
    pub(crate) reason: Option<Reason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunProgress {
    pub(crate) step: u64,
    pub(crate) at: Time,
}

impl ManagedRun {
    /// A run whose nodes are to be asked; ranks are numbered in the order of the shares.
    pub(crate) fn new(id: RunId, shares: Vec<NodeShare>, ranks: &RankBlocks, now: Time) -> Self {
        let asked = Member::asked(id, Vec::new(), now);
        let mut members: BTreeMap<NodeId, Member> = BTreeMap::new();
        for (share, block) in shares.iter().zip(ranks.iter()) {
            // Two roles of a gang may stand on one node.
            let member = members.entry(share.node).or_insert_with(|| asked.clone());
            member.ranks.extend(block);
        }
        Self {
            id,
            began: id.number,
            shares,
            members,
            phase: LaunchPhase::Preparing,
            started: now,
            running: None,
            then: Then::Report,
            stops_as: None,
            verdict: RunVerdict::default(),
            progress: BTreeMap::new(),
            history: StepHistory::default(),
            steps_recorded: now,
            fault: None,
            steps: 0,
            was_signalled: false,
            master_port: None,
        }
    }

    pub(crate) fn job(&self) -> JobId {
        JobId(self.id.job)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        matches!(self.phase, LaunchPhase::Stopping { .. })
    }

    pub(crate) fn is_all_prepared(&self) -> bool {
        self.members.values().all(|member| matches!(member.state, MemberState::Prepared { .. }))
    }

    /// Whether nothing of it is left on any node that can be asked.
    pub(crate) fn is_gone(&self) -> bool {
        self.members.values().all(Member::is_gone)
    }

    /// Whether every rank has ended by itself and only nodes without ranks still hold it.
    pub(crate) fn has_no_ranks_left(&self) -> bool {
        self.phase == LaunchPhase::Running
            && self.members.values().all(|member| member.is_gone() || member.ranks.is_empty())
    }

    pub(crate) fn gpus_on(&self, node: NodeId) -> u32 {
        let shares = self.shares.iter().filter(|share| share.node == node);
        shares.map(|share| share.devices.count_ones()).sum()
    }

    /// The port that ranks meet at, named by the first node.
    pub(crate) fn named_port(&self) -> u16 {
        let port = |member: &Member| match member.state {
            MemberState::Prepared { master_port } => master_port,
            _ => None,
        };
        self.shares.first().and_then(|share| port(&self.members[&share.node])).unwrap_or(0)
    }

    /// The nodes that still hold something of it.
    pub(crate) fn holders(&self) -> Vec<NodeId> {
        self.members.iter().filter(|(_, member)| !member.is_gone()).map(|(node, _)| *node).collect()
    }

    /// The shares that it has, or will have once it starts again.
    pub(crate) fn future_shares(&self) -> Vec<NodeShare> {
        match &self.then {
            Then::Restart { shares, .. } => shares.clone(),
            Then::Report | Then::Discard => self.shares.clone(),
        }
    }

    /// How it ended: as ordered, or by what its nodes say.
    pub(crate) fn outcome(&self) -> GangOutcome {
        self.verdict.outcome.unwrap_or(GangOutcome::Succeeded)
    }

    /// Whether a node has a part in it that is not lost.
    pub(crate) fn holds(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(|member| member.state != MemberState::Lost)
    }

    /// Whether one of its nodes knows it by this name.
    pub(crate) fn is_known_as(&self, id: RunId) -> bool {
        self.id == id || self.members.values().any(|member| member.id == id)
    }

    /// How a node takes part, where the ranks did not begin together.
    pub(crate) fn joined(&self, node: NodeId) -> Option<Joined> {
        let member = self.members.get(&node).filter(|_| self.has_lost_nodes())?;
        Some(Joined { run: member.id.number, first_rank: *member.ranks.first()? })
    }

    /// Takes up how nodes took part, as it was recorded.
    pub(crate) fn rejoin(&mut self, began: u32, joined: impl IntoIterator<Item = (NodeId, Joined)>) {
        self.began = began;
        for (node, Joined { run, first_rank }) in joined {
            if let Some(member) = self.members.get_mut(&node) {
                member.id.number = run;
                member.ranks = (first_rank..).take(member.ranks.len()).collect();
            }
        }
    }

    /// Whether its ranks have gone on without nodes that they had.
    pub(crate) fn has_lost_nodes(&self) -> bool {
        self.id.number > self.began
    }

    /// The nodes that have been asked and are not ready.
    pub(crate) fn asked(&self) -> Vec<NodeId> {
        let asked = self.members.iter().filter(|(_, member)| member.state == MemberState::Asked);
        asked.map(|(node, _)| *node).collect()
    }

    /// The lowest numbers that no rank has.
    pub(crate) fn free_ranks(&self, count: u32) -> Vec<u32> {
        let is_free = |rank: &u32| self.members.values().all(|member| !member.ranks.contains(rank));
        (0..).filter(is_free).take(count as usize).collect()
    }

    pub(crate) fn node_of_rank(&self, rank: u32) -> Option<NodeId> {
        self.members.iter().find(|(_, member)| member.ranks.contains(&rank)).map(|(node, _)| *node)
    }
}

impl Member {
    /// One that has been asked to make its part ready.
    pub(crate) fn asked(id: RunId, ranks: Vec<u32>, now: Time) -> Self {
        Self { id, state: MemberState::Asked, told: now, ranks }
    }

    pub(crate) fn end(&self) -> Option<&NodeEnd> {
        match &self.state {
            MemberState::Released(end) => Some(end),
            _ => None,
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, MemberState::Released(_) | MemberState::Lost)
    }
}
