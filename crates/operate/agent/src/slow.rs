//! Work that may never end: reading and checking files that a job names, on mounts that may be dead.
//!
//! Each piece has a thread of its own that is lost when it hangs. So there are some dozens of places for them, and what finds
//! none free waits: user by user in turn, a user having as many as are still free for others, a run a few of its own. Waiting has
//! no limit, for a job must not fail because of others; only where all places of its own user have not answered for as long as
//! the work may take is it answered with an error.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bedplate_control::wire::RunId;
use bedplate_host::FairQueue;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::identity::Identity;

const MOST: usize = 64;
const MOST_OF_A_RUN: usize = 4;
/// Pieces of one run that may wait; a run has few files at a time that anybody waits for.
const MOST_WAITING: usize = 64;
const STACK: usize = 256 << 10;

/// Whose work it is.
#[derive(Debug, Clone)]
pub(crate) struct Claimant {
    pub(crate) run: RunId,
    pub(crate) user: String,
}

/// The places and what waits for them.
#[derive(Clone, Default)]
pub(crate) struct SlowWork(Arc<Mutex<Places>>);

#[derive(Default)]
struct Places {
    taken: BTreeMap<u64, Taken>,
    waiting: FairQueue<String, Waiting>,
    last: u64,
}

struct Taken {
    by: Claimant,
    /// When it should have answered.
    due: Instant,
}

struct Waiting {
    number: u64,
    run: RunId,
    limit: Duration,
    go: Box<dyn FnOnce(Result<Place, String>) + Send>,
}

impl SlowWork {
    /// Has `work` done on a thread with the rights of `identity`, and hands its outcome to `done`, or why there is none.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        by: Claimant,
        identity: Option<Identity>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
        done: impl FnOnce(Result<T, String>) + Send + 'static,
    ) {
        let runtime = Handle::current();
        let go = move |place: Result<Place, String>| match place {
            Ok(place) => start(&runtime, place, identity, limit, work, done),
            Err(why) => done(Err(why)),
        };
        let mut places = self.places();
        places.last += 1;
        let (number, run) = (places.last, by.run);
        if places.waiting_of(&by) >= MOST_WAITING {
            drop(places);
            return go(Err("too many of the job's files do not answer".to_owned()));
        }
        places.waiting.push(by.user.clone(), Waiting { number, run, limit, go: Box::new(go) });
        drop(places);
        self.serve();
        if self.places().waits(&by, number) {
            tokio::spawn(self.clone().watch(by, number, limit));
        }
    }

    /// Hands out what places there are.
    fn serve(&self) {
        loop {
            let mut places = self.places();
            let Places { taken, waiting, .. } = &mut *places;
            let Some((user, piece)) = waiting.take(|user, piece| may_begin(taken, user, piece.run)) else {
                return;
            };
            let by = Claimant { run: piece.run, user };
            taken.insert(piece.number, Taken { by, due: Instant::now() + piece.limit });
            drop(places);
            (piece.go)(Ok(Place { work: self.clone(), number: piece.number }));
        }
    }

    /// Ends the wait of a piece whose user holds places that will not come free.
    async fn watch(self, by: Claimant, number: u64, limit: Duration) {
        loop {
            tokio::time::sleep(limit).await;
            let mut places = self.places();
            if !places.waits(&by, number) {
                return;
            }
            let mut own = places.taken.values().filter(|taken| taken.by.user == by.user).peekable();
            let now = Instant::now();
            if own.peek().is_none() || own.any(|taken| taken.due > now) {
                continue;
            }
            let piece = places.waiting.take(|_, piece| piece.number == number);
            drop(places);
            if let Some((_, piece)) = piece {
                (piece.go)(Err("too many of the user's files do not answer".to_owned()));
            }
            return;
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn waits(&self, by: &Claimant, number: u64) -> bool {
        self.waiting.of(&by.user).any(|piece| piece.number == number)
    }

    fn waiting_of(&self, by: &Claimant) -> usize {
        self.waiting.of(&by.user).filter(|piece| piece.run == by.run).count()
    }
}

/// A user may have as many places as are free beside them, so that another one finds some, however many they have work for.
fn may_begin(taken: &BTreeMap<u64, Taken>, user: &str, run: RunId) -> bool {
    let of_user = taken.values().filter(|taken| taken.by.user == user);
    let of_run = of_user.clone().filter(|taken| taken.by.run == run).count();
    of_run < MOST_OF_A_RUN && of_user.count() < MOST - taken.len()
}

fn start<T: Send + 'static>(
    runtime: &Handle,
    place: Place,
    identity: Option<Identity>,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
    done: impl FnOnce(Result<T, String>) + Send + 'static,
) {
    let (tell, told) = oneshot::channel();
    let place = Arc::new(place);
    let held = place.clone();
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let _place = held;
        let assumed = identity.map_or(Ok(()), |identity| identity.assume_for_files());
        let outcome =
            assumed.map(|()| work()).map_err(|error| format!("cannot become the job's user: {error}"));
        let _ = tell.send(outcome);
    });
    if let Err(error) = thread {
        // Not here: what waits next would fail just so, one inside the other.
        runtime.spawn(async move { drop(place) });
        return done(Err(format!("no thread can be started: {error}")));
    }
    runtime.spawn(async move {
        let late = || format!("the file system has not answered for {} s", limit.as_secs());
        done(match tokio::time::timeout(limit, told).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err("it failed".to_owned()),
            Err(_) => Err(late()),
        });
    });
}

/// A thread under way.
struct Place {
    work: SlowWork,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.work.places().taken.remove(&self.number);
        self.work.serve();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    fn by(user: &str, job: u64) -> Claimant {
        Claimant { run: RunId { job, number: 1 }, user: user.to_owned() }
    }

    const LONG: Duration = Duration::from_secs(600);

    /// Work that does not end before the answer is dropped, one piece for each job of the user.
    fn hang(
        work: &SlowWork,
        user: &str,
        jobs: std::ops::Range<u64>,
        limit: Duration,
    ) -> (mpsc::Sender<()>, UnboundedReceiver<Result<(), String>>) {
        let (hold, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let (tell, told) = unbounded_channel();
        for job in jobs {
            let (held, tell) = (held.clone(), tell.clone());
            let hang = move || held.lock().unwrap_or_else(PoisonError::into_inner).recv().unwrap_or_default();
            work.begin(by(user, job), None, limit, hang, move |outcome| drop(tell.send(outcome)));
        }
        (hold, told)
    }

    async fn works_for(work: &SlowWork, user: &str) {
        let (tell, told) = oneshot::channel();
        work.begin(by(user, 1), None, LONG, || 7, move |outcome| drop(tell.send(outcome)));
        assert_eq!(told.await.expect("it is answered"), Ok(7));
    }

    #[tokio::test]
    async fn a_burst_waits_for_places_and_none_of_it_fails() {
        let work = SlowWork::default();
        let (tell, mut told) = unbounded_channel();
        for job in 0..3_000 {
            let tell = tell.clone();
            work.begin(by("ada", job), None, LONG, move || job, move |outcome| drop(tell.send(outcome)));
        }
        for _ in 0..3_000 {
            assert!(told.recv().await.expect("each is answered").is_ok());
        }
    }

    #[tokio::test]
    async fn whoevers_files_hang_others_find_places() {
        let work = SlowWork::default();
        let (hold, mut told) = hang(&work, "mallory", 0..200, Duration::from_millis(50));
        works_for(&work, "ada").await;
        let (more, _) = hang(&work, "eve", 0..200, LONG);
        works_for(&work, "ada").await;
        // Those that wait behind hanging ones of their own user are told so, in the end.
        for _ in 0..200 {
            let why = told.recv().await.expect("each is answered").expect_err("it hangs");
            assert!(why.contains("answer"), "{why}");
        }
        works_for(&work, "ada").await;
        drop((hold, more));
        while !work.places().taken.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_run_has_a_few_places_of_its_users() {
        let work = SlowWork::default();
        let (hold, _told) = hang(&work, "mallory", 5..6, LONG);
        let (tell, mut told) = unbounded_channel();
        for _ in 0..MOST_OF_A_RUN + MOST_WAITING {
            let tell = tell.clone();
            let hang = || std::thread::sleep(LONG);
            work.begin(by("mallory", 5), None, LONG, hang, move |outcome| drop(tell.send(outcome)));
        }
        assert_eq!(told.recv().await, Some(Err("too many of the job's files do not answer".to_owned())));
        works_for(&work, "mallory").await;
        drop(hold);
    }
}
