//! Which replica's step ends next: a tournament tree over their ends.

use super::engine::Picoseconds;

/// No step runs.
const NEVER: Picoseconds = Picoseconds::MAX;

#[derive(Debug, Clone)]
pub(crate) struct NextEnd {
    /// Inner nodes first, then one leaf per replica; each inner node has the smaller of its two.
    least: Vec<Picoseconds>,
    leaves: usize,
}

impl NextEnd {
    pub(crate) fn new(replicas: usize) -> Self {
        let leaves = replicas.next_power_of_two();
        Self { least: vec![NEVER; 2 * leaves], leaves }
    }

    /// Sets when the step of a replica ends; `None` when none runs. New replicas may be named.
    pub(crate) fn set(&mut self, replica: usize, end: Option<Picoseconds>) {
        if replica >= self.leaves {
            self.grow(replica + 1);
        }
        let mut at = self.leaves + replica;
        self.least[at] = end.unwrap_or(NEVER);
        while at > 1 {
            at /= 2;
            self.least[at] = self.least[2 * at].min(self.least[2 * at + 1]);
        }
    }

    pub(crate) fn time(&self) -> Option<Picoseconds> {
        let time = self.least[1];
        (time != NEVER).then_some(time)
    }

    /// The first replica whose step ends at the next time.
    pub(crate) fn replica(&self) -> usize {
        let mut at = 1;
        while at < self.leaves {
            at = if self.least[2 * at] == self.least[at] { 2 * at } else { 2 * at + 1 };
        }
        at - self.leaves
    }

    fn grow(&mut self, replicas: usize) {
        let ends: Vec<Picoseconds> = self.least[self.leaves..].to_vec();
        *self = Self::new(replicas);
        for (replica, end) in ends.into_iter().enumerate() {
            self.set(replica, Some(end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_end_wins_and_the_first_replica_among_equals() {
        let mut next = NextEnd::new(3);
        assert_eq!(next.time(), None);
        next.set(2, Some(30));
        next.set(1, Some(30));
        next.set(0, Some(50));
        assert_eq!((next.time(), next.replica()), (Some(30), 1));
        next.set(1, None);
        assert_eq!((next.time(), next.replica()), (Some(30), 2));
        next.set(9, Some(10));
        assert_eq!((next.time(), next.replica()), (Some(10), 9));
        next.set(9, None);
        next.set(2, None);
        assert_eq!((next.time(), next.replica()), (Some(50), 0));
    }
}
