//! What follows from a diagnosis, as far as it may.
//!
//! A diagnosis rests on what a job says of itself, and its site may want the job moved for it. That is done only to a job that has a
//! checkpoint and may be requeued, a few times at most (`blame`), and away from nodes only while spare ones are idle: a slow job
//! is better than one that waits. The nodes are accused like by a failure of that job: others must confirm it, or the node's own
//! check, before they go out of service.

use bedplate_blame::FaultKind;
use bedplate_gangs::{Event, JobId, NodeState, Time};
use bedplate_topology::NodeId;

use crate::Control;
use crate::run::LaunchPhase;
use crate::wire::{RunId, ToAgent};

/// What is to be done about a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobRemedy {
    /// What its processes do now is written down.
    Dump,
    /// It starts again from its newest checkpoint.
    Restart,
    /// The same, without the nodes of these ranks and these nodes.
    Replace { ranks: Vec<u32>, nodes: Vec<String> },
}

/// If more nodes than this hold up a job, the reason is not in the nodes.
const MOST_REPLACED: usize = 2;
const LONGEST_NOTE: usize = 1_000;

impl Control {
    /// Does about a run what its site wants after a diagnosis, or notes why not.
    pub fn remedy(&mut self, run: RunId, remedy: &JobRemedy, why: &str, now: Time) {
        let now = self.advance(now);
        let job = JobId(run.job);
        let is_running = self
            .runs
            .get(&job)
            .is_some_and(|known| known.is_known_as(run) && known.phase == LaunchPhase::Running);
        if !is_running {
            return;
        }
        match remedy {
            JobRemedy::Dump => self.dump(job, now),
            JobRemedy::Restart => self.move_away(job, &[], why, now),
            JobRemedy::Replace { ranks, nodes } => {
                let nodes = self.nodes_of_culprits(job, ranks, nodes);
                self.move_away(job, &nodes, why, now);
            }
        }
        self.settle(now);
    }

    fn dump(&mut self, job: JobId, now: Time) {
        let members = self.runs[&job].members.iter();
        let held: Vec<(NodeId, RunId)> = members.map(|(node, member)| (*node, member.id)).collect();
        self.note_job(job, "what its processes do is written down".to_owned(), now);
        held.into_iter().for_each(|(node, run)| self.send(node, ToAgent::Dump { run }));
    }

    pub(crate) fn dumped(&mut self, node: NodeId, run: RunId, what: &str, now: Time) {
        // The run may be over by now, which is what its job was moved for.
        if self.jobs.get(&JobId(run.job)).is_none() {
            return;
        }
        let what: String = what.chars().take(LONGEST_NOTE).collect();
        let text = format!("{}: {what}", self.nodes[node.0 as usize].name);
        self.note_job(JobId(run.job), text, now);
    }

    fn nodes_of_culprits(&self, job: JobId, ranks: &[u32], names: &[String]) -> Vec<NodeId> {
        let run = &self.runs[&job];
        let named = names.iter().filter_map(|name| self.scheduler.cluster().find_node(name));
        let of_ranks = ranks.iter().filter_map(|rank| run.node_of_rank(*rank));
        let mut nodes: Vec<NodeId> =
            named.chain(of_ranks).filter(|node| run.members.contains_key(node)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    fn move_away(&mut self, job: JobId, from: &[NodeId], why: &str, now: Time) {
        if let Some(obstacle) = self.obstacle(job, from.len(), now) {
            return self.note_job(job, format!("is not moved for its diagnosis: {obstacle}"), now);
        }
        self.blame.moved(job, now);
        self.charge_move(job, now);
        for node in from {
            self.accuse(job, *node, FaultKind::HeldUp, why, now);
        }
        let place = match from {
            [] => String::new(),
            from => format!(" without {}", self.names_of(from)),
        };
        self.note_job(job, format!("starts again from its checkpoint{place}: {why}"), now);
        self.news.push_back(Event::Postpone { job, until: now, avoid: from.to_vec() });
        self.news.push_back(Event::Requeue(job));
    }

    /// Why a job stays where it is.
    fn obstacle(&mut self, job: JobId, nodes: usize, now: Time) -> Option<String> {
        let live = self.jobs.get(&job)?;
        if !live.job.policy.is_requeued {
            return Some("it may not be requeued".to_owned());
        }
        if live.row.life.checkpoint.is_none() {
            return Some("it has announced no checkpoint, and would begin anew".to_owned());
        }
        if nodes > MOST_REPLACED {
            return Some(format!("{nodes} nodes hold it up, so the reason is not in them"));
        }
        let idle = (0..self.nodes.len())
            .filter(|at| self.scheduler.node_state(NodeId(*at as u32), now) == NodeState::Idle);
        let idle = idle.count();
        if idle < nodes {
            return Some(format!("{nodes} spare nodes are needed and {idle} are idle"));
        }
        let most = self.blame.policy().most_moves;
        (!self.blame.may_move(job, now)).then(|| format!("it was moved {most} times lately"))
    }
}
