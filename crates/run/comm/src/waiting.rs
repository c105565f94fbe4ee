//! What a call knows while it waits: the world's faults, how long it may wait, and how to name what goes wrong.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use crate::core::{Core, FAREWELL};
use crate::watch::OwnTime;
use crate::wire::Message;
use crate::{Call, Fault};

pub(crate) struct Waiting<'a> {
    pub(crate) core: &'a Core,
    pub(crate) patience: Duration,
    /// The ranks of the group.
    pub(crate) ranks: &'a [u32],
    pub(crate) group: &'a str,
    /// The same on all members, and different for every group.
    pub(crate) key: &'a str,
    pub(crate) number: u64,
    pub(crate) call: Call,
    /// Begun with the first real wait, and anew when something has moved.
    pub(crate) waited: RefCell<Option<OwnTime>>,
    /// Whether the others were told what this rank waits in.
    pub(crate) has_asked: Cell<bool>,
}

/// A wait this long may be one for ranks that make another call by other means: they are asked.
const ASK: Duration = Duration::from_secs(1);

impl Waiting<'_> {
    /// What a wait asks now and then. `missing` lists the ranks that are waited for; all, when it lists none.
    pub(crate) fn checks<'b>(
        &'b self,
        missing: &'b dyn Fn() -> Vec<u32>,
    ) -> impl FnMut(Duration) -> Result<(), Fault> + 'b {
        move |meant| {
            self.core.watch.check()?;
            if meant.is_zero() {
                return Ok(());
            }
            let mut waited = self.waited.borrow_mut();
            let time = waited.get_or_insert_with(OwnTime::start);
            time.look(meant);
            if time.lived() > FAREWELL && self.core.has_leavers() {
                let missing = missing();
                self.core.check_left(if missing.is_empty() { self.ranks } else { &missing })?;
            }
            if time.lived() > ASK && !self.has_asked.replace(true) && self.call.operation.is_collective() {
                self.ask();
            }
            if time.lived() < self.patience {
                return Ok(());
            }
            Err(Fault::Stalled {
                rank: self.core.rank,
                group: self.group.to_owned(),
                number: self.number,
                call: self.call,
                missing: missing(),
                seconds: time.lived().as_secs(),
            })
        }
    }

    /// Something has come or gone, so the others are there.
    pub(crate) fn note_movement(&self) {
        *self.waited.borrow_mut() = None;
    }

    /// Tells the members what this rank waits in; one that makes another call under this number says so.
    fn ask(&self) {
        let message = Message::Waits { group: self.key.to_owned(), number: self.number, call: self.call };
        self.core.tell(self.ranks, &message);
    }

    /// What this rank and a peer call, and the number of the peer's call.
    pub(crate) fn mismatch(&self, peer: u32, number: u64, theirs: Call) -> Fault {
        self.mismatch_of((self.number, self.call), peer, number, theirs)
    }

    /// As above, for a call of this rank that is over.
    pub(crate) fn mismatch_of(&self, (number, a): (u64, Call), b_rank: u32, b_number: u64, b: Call) -> Fault {
        Fault::Mismatch {
            group: self.group.to_owned(),
            number,
            a_rank: self.core.rank,
            a,
            b_rank,
            b_number,
            b,
        }
    }
}
