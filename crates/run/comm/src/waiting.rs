//! What a call knows while it waits: the world's faults, how long it may wait, and how to name what goes wrong.

use std::cell::RefCell;
use std::time::Duration;

use crate::core::Core;
use crate::watch::OwnTime;
use crate::{Call, Fault};

pub(crate) struct Waiting<'a> {
    pub(crate) core: &'a Core,
    pub(crate) patience: Duration,
    /// The ranks of the group.
    pub(crate) ranks: &'a [u32],
    pub(crate) group: &'a str,
    pub(crate) number: u64,
    pub(crate) call: Call,
    /// Begun with the first real wait.
    pub(crate) waited: RefCell<Option<OwnTime>>,
}

impl Waiting<'_> {
    /// What a wait asks now and then. `missing` lists the ranks that have not come, for the message.
    pub(crate) fn checks<'b>(
        &'b self,
        missing: &'b dyn Fn() -> Vec<u32>,
    ) -> impl FnMut(Duration) -> Result<(), Fault> + 'b {
        move |meant| {
            self.core.watch.check()?;
            if meant.is_zero() {
                return Ok(());
            }
            self.core.check_left(self.ranks)?;
            let mut waited = self.waited.borrow_mut();
            let time = waited.get_or_insert_with(OwnTime::start);
            time.look(meant);
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

    /// What this rank and a peer call, and the number of the peer's call.
    pub(crate) fn mismatch(&self, peer: u32, number: u64, theirs: Call) -> Fault {
        Fault::Mismatch {
            group: self.group.to_owned(),
            number: self.number,
            a_rank: self.core.rank,
            a: self.call,
            b_rank: peer,
            b_number: number,
            b: theirs,
        }
    }
}
