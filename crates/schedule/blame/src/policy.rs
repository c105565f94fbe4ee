//! How much evidence it takes, and how much patience there is.

use bedplate_gangs::Span;

#[derive(Debug, Clone, PartialEq)]
pub struct BlamePolicy {
    /// Evidence older than this is forgotten.
    pub window: Span,
    /// Different jobs that must fail on a node, and nowhere else, before the node checks itself; and different users of different
    /// programs whose jobs must, before the node is suspected.
    pub most_witnesses: usize,
    /// A node is not asked more often than this to check itself.
    pub check_pause: Span,
    /// Failures of one job on one node after which the job avoids the node.
    pub avoid_after: usize,
    /// Different nodes on which one job may fail before it is ended.
    pub most_nodes: usize,
    /// Restarts without a newer checkpoint or a steady run between them.
    pub most_restarts: u32,
    /// Restarts after a reported fault of a GPU, within [`window`](Self::window), that the budget does not pay for.
    pub most_excused: usize,
    /// Restarts that a diagnosis may cause for one job within [`window`](Self::window). They cost it nothing, and never end it.
    pub most_moves: usize,
    /// A run of this length fills the budget of restarts again.
    pub steady: Span,
    /// The pause before the second restart; it doubles with each further one. The first restart does not wait.
    pub first_pause: Span,
    pub longest_pause: Span,
    /// A node lost this often …
    pub most_losses: usize,
    /// … within this time stays out until an operator resumes it.
    pub flapping_window: Span,
    /// The part of the cluster that may be out of service before we stop taking out more on suspicion, at least one node.
    pub most_out: f64,
    /// The part of the cluster that may be out of service for what it found itself or for its own check, at least one node.
    pub most_proven: f64,
    /// More than this part of the cluster with findings at once accuses something that all have in common.
    pub most_accused: f64,
}

impl BlamePolicy {
    /// How long to wait before the restart of this number: not at all before the first, then longer and longer.
    pub fn pause(&self, restart: u32) -> Span {
        let Some(doublings) = restart.checked_sub(2) else {
            return Span::ZERO;
        };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        Span(self.first_pause.0.saturating_mul(factor)).min(self.longest_pause)
    }
}

impl Default for BlamePolicy {
    fn default() -> Self {
        Self {
            window: Span::hours(1),
            most_witnesses: 2,
            check_pause: Span::minutes(10),
            avoid_after: 2,
            most_nodes: 3,
            most_restarts: 10,
            most_excused: 2,
            most_moves: 2,
            steady: Span::hours(1),
            first_pause: Span::seconds(1),
            longest_pause: Span::minutes(5),
            most_losses: 3,
            flapping_window: Span::minutes(10),
            most_out: 0.25,
            most_proven: 0.5,
            most_accused: 0.5,
        }
    }
}
