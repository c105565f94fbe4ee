//! Memory that ranks of one host have registered, so that the others read and write it in place.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::mapping::Mapping;
use super::segment::MemoryWindow;
use crate::span::ByteSpan;

/// A place in a peer's window. The memory stays mapped while this lives, also when its owner has given it up: after a fault
/// owners do not wait for peers that still work on it.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) address: *mut u8,
    pub(crate) kept: Arc<Mapping>,
}

/// How long a look for what has been announced lasts.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct MemoryWindows {
    known: Mutex<Known>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct Known {
    last_id: u64,
    /// Own memory by the address of its end: identity and start.
    own: BTreeMap<usize, (u64, usize)>,
    /// Memory of peers, by rank and identity.
    theirs: BTreeMap<(u32, u64), Arc<Mapping>>,
}

impl MemoryWindows {
    /// Enters own memory and gives it an identity.
    pub(crate) fn add_own(&self, span: ByteSpan) -> u64 {
        let mut known = self.lock();
        known.last_id += 1;
        let id = known.last_id;
        known.own.insert(span.end(), (id, span.address.addr()));
        id
    }

    pub(crate) fn remove_own(&self, span: ByteSpan) {
        self.lock().own.remove(&span.end());
    }

    pub(crate) fn add_theirs(&self, rank: u32, id: u64, mapping: Mapping) {
        self.lock().theirs.insert((rank, id), Arc::new(mapping));
        self.came.notify_all();
    }

    pub(crate) fn remove_theirs(&self, rank: u32, id: u64) {
        self.lock().theirs.remove(&(rank, id));
    }

    /// The window in which a span lies, if it lies in one.
    pub(crate) fn find_own(&self, span: ByteSpan) -> Option<MemoryWindow> {
        let known = self.lock();
        let (_, (id, start)) = known.own.range(span.end()..).next()?;
        let offset = span.address.addr().checked_sub(*start)?;
        Some(MemoryWindow { id: *id, offset: offset as u64 })
    }

    /// The address of `bytes` of a peer's window. It was announced, so it comes, unless `check` says otherwise; none when the call
    /// is over without it, because then its owner may have given it up.
    pub(crate) fn find_theirs<E>(
        &self,
        rank: u32,
        window: MemoryWindow,
        bytes: usize,
        is_over: &dyn Fn() -> bool,
        mut check: impl FnMut(Duration) -> Result<(), E>,
    ) -> Result<Option<Reached>, E> {
        let mut known = self.lock();
        loop {
            if let Some(mapping) = known.theirs.get(&(rank, window.id)) {
                let address = mapping.at(window.offset as usize, bytes);
                return Ok(Some(Reached { address, kept: Arc::clone(mapping) }));
            }
            if is_over() {
                return Ok(None);
            }
            check(LOOK)?;
            known = self.came.wait_timeout(known, LOOK).expect("no holder of this lock panics").0;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn memory_that_its_owner_gives_up_stays_mapped_for_who_has_reached_it() {
        let windows = MemoryWindows::default();
        windows.add_theirs(1, 7, Mapping::new(4096).expect("the system shares memory"));
        let window = MemoryWindow { id: 7, offset: 100 };
        let find = || windows.find_theirs(1, window, 8, &|| true, |_| Ok::<(), Infallible>(()));
        let Ok(Some(reached)) = find() else { panic!("the window was announced") };
        windows.remove_theirs(1, 7);
        assert!(matches!(find(), Ok(None)));
        #[expect(unsafe_code, reason = "reads shared memory")]
        // SAFETY: the place lies in memory that is kept.
        let byte = unsafe { reached.address.read() };
        assert_eq!((byte, Arc::strong_count(&reached.kept)), (0, 1));
    }
}
