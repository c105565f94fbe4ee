//! Collectives between the ranks of a host, in the times that `bedplate bench comm` measured.

use bedplate_catalog::{CollectiveCurve, CollectiveTimes};
use bedplate_units::Bytes;

/// An operation of a training step between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Exchange,
}

impl Collective {
    const ALL: [Collective; 5] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Exchange,
    ];

    /// As `bench comm` names it.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Exchange => "exchange",
        }
    }
}

/// What was measured between some ranks of a host, with nothing on the heap.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LocalCollectives {
    known: [Option<Known>; LocalCollectives::MOST],
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Known {
    operation: Collective,
    ranks: u32,
    curve: CollectiveCurve,
}

impl LocalCollectives {
    /// Five operations in groups of four sizes.
    const MOST: usize = 20;

    /// Those that `ranks` ranks of a host can use: in groups that divide them.
    pub fn of(times: &[CollectiveTimes], ranks: u32) -> Self {
        let operation = |name: &str| Collective::ALL.into_iter().find(|known| known.name() == name);
        let usable = times.iter().filter(|times| times.ranks > 1 && ranks.is_multiple_of(times.ranks));
        let found = usable.filter_map(|times| {
            let operation = operation(&times.operation)?;
            Some(Known { operation, ranks: times.ranks, curve: times.curve })
        });
        let mut all = Self::default();
        all.known.iter_mut().zip(found).for_each(|(place, found)| *place = Some(found));
        all
    }

    pub fn has(&self, operation: Collective, ranks: u32) -> bool {
        self.curve(operation, ranks).is_some()
    }

    fn curve(&self, operation: Collective, ranks: u32) -> Option<&CollectiveCurve> {
        let is_it = |known: &&Known| known.operation == operation && known.ranks == ranks;
        self.known.iter().flatten().find(is_it).map(|known| &known.curve)
    }

    /// Seconds of one call in a group; the size is that of the larger buffer of a rank, as `bench comm` counts it.
    pub(super) fn seconds(&self, operation: Collective, ranks: u32, bytes: f64) -> Option<f64> {
        Some(self.curve(operation, ranks)?.seconds(Bytes::new(bytes)).get())
    }
}
