//! Maps and sets of jobs that count how often an entry of theirs is looked at.
//!
//! An operation that goes through a whole list looks harmless in a test of ten jobs and stops a control plane at a hundred
//! thousand. Lists that grow with the queue are kept in these, so that a test can hold what each operation costs, however
//! fast the machine is.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Index, RangeBounds};

thread_local! {
    static LOOKED_AT: Cell<u64> = const { Cell::new(0) };
}

/// How many entries this thread has looked at so far.
pub fn looked_at() -> u64 {
    LOOKED_AT.get()
}

pub(crate) fn look<T>(entry: T) -> T {
    LOOKED_AT.set(LOOKED_AT.get() + 1);
    entry
}

/// A map in the order of its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedMap<K, V>(BTreeMap<K, V>);

/// A set in the order of its keys.
pub type CountedSet<K> = CountedMap<K, ()>;

impl<K, V> Default for CountedMap<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V> CountedMap<K, V> {
    pub fn get(&self, key: &K) -> Option<&V> {
        look(self.0.get(key))
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        look(self.0.get_mut(key))
    }

    pub fn contains_key(&self, key: &K) -> bool {
        look(self.0.contains_key(key))
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        look(self.0.insert(key, value))
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        look(self.0.remove(key))
    }

    pub fn pop_first(&mut self) -> Option<(K, V)> {
        look(self.0.pop_first())
    }

    pub fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        look(self.0.entry(key).or_default())
    }

    pub fn first(&self) -> Option<(&K, &V)> {
        look(self.0.first_key_value())
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.iter().map(look)
    }

    pub fn range(&self, range: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.range(range).map(look)
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.keys().map(look)
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.0.values().map(look)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Ord, V> Index<&K> for CountedMap<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        look(&self.0[key])
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for CountedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Self(entries.into_iter().map(look).collect())
    }
}
