//! The rows of a step, put together from what the scheduler planned.

use std::ops::Range;

use bedplate_batching::{Scheduler, SequenceId};
use bedplate_network::StepRows;

/// Consecutive tokens of one sequence.
#[derive(Debug, Clone)]
pub(crate) struct TokenRun {
    pub(crate) sequence: SequenceId,
    /// The position of the first.
    pub(crate) first: usize,
    pub(crate) tokens: Vec<u32>,
    /// The last so many rows are followed by a token that is sampled.
    pub(crate) wanted: usize,
    pub(crate) adapter: Option<usize>,
    /// A block behind the sequence's own.
    pub(crate) spare: Option<u32>,
}

/// A step in the form that the network takes. Its lists keep their memory.
#[derive(Debug, Default)]
pub(crate) struct Composed {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    starts: Vec<u32>,
    contexts: Vec<u32>,
    table_starts: Vec<u32>,
    tables: Vec<u32>,
    wanted: Vec<u32>,
    /// Where the wanted rows of each sequence begin.
    places: Vec<(SequenceId, usize)>,
    /// Rows of each adapter.
    pub(crate) adapted: Vec<(Range<usize>, usize)>,
}

impl Composed {
    pub(crate) fn fill(&mut self, scheduler: &Scheduler, runs: &mut [TokenRun]) {
        self.clear();
        // Rows through one adapter lie together.
        runs.sort_by_key(|run| run.adapter.map_or(0, |adapter| adapter + 1));
        for run in runs {
            self.push(scheduler, run);
        }
        self.starts.push(self.tokens.len() as u32);
        self.table_starts.push(self.tables.len() as u32);
    }

    fn clear(&mut self) {
        let Self { tokens, positions, starts, contexts, table_starts, tables, wanted, .. } = self;
        for list in [tokens, positions, starts, contexts, table_starts, tables, wanted] {
            list.clear();
        }
        self.places.clear();
        self.adapted.clear();
    }

    fn push(&mut self, scheduler: &Scheduler, run: &TokenRun) {
        let row = self.tokens.len();
        let rows = row..row + run.tokens.len();
        self.starts.push(row as u32);
        self.contexts.push(run.first as u32);
        self.table_starts.push(self.tables.len() as u32);
        self.tables.extend(scheduler.table(run.sequence).iter().map(|block| block.0));
        self.tables.extend(run.spare);
        self.tokens.extend_from_slice(&run.tokens);
        self.positions.extend((run.first..).take(run.tokens.len()).map(|position| position as u32));
        if run.wanted > 0 {
            self.places.push((run.sequence, self.wanted.len()));
            self.wanted.extend((rows.end - run.wanted..rows.end).map(|row| row as u32));
        }
        match (run.adapter, self.adapted.last_mut()) {
            (None, _) => {}
            (Some(adapter), Some((range, last))) if *last == adapter => range.end = rows.end,
            (Some(adapter), _) => self.adapted.push((rows, adapter)),
        }
    }

    /// Rows after which a token is wanted.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(crate) fn rows(&self) -> StepRows<'_> {
        StepRows {
            tokens: &self.tokens,
            positions: &self.positions,
            starts: &self.starts,
            contexts: &self.contexts,
            table_starts: &self.table_starts,
            tables: &self.tables,
            wanted: &self.wanted,
        }
    }

    /// Where the logits after a sequence's wanted rows are among all of the step.
    pub(crate) fn place(&self, sequence: SequenceId) -> Option<usize> {
        self.places.iter().find(|(of, _)| *of == sequence).map(|(_, place)| *place)
    }
}
