//! The order of a group's calls: one at a time, those that were started before those that are made now.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use bedplate_host::panics;

use crate::choice::Algorithm;
use crate::core::Core;
use crate::engine::{CallRequest, GroupEngine};
use crate::gpu::{GroupGpus, OnGpu};
use crate::pending::Completion;
use crate::shared::flag::WaitPace;
use crate::waiting::Waiting;
use crate::{Call, CommError, Fault, Operation};

/// A member's place in its group.
pub(crate) struct MemberPlace {
    pub(crate) core: Arc<Core>,
    pub(crate) name: String,
    /// The same on all members, and different for every group.
    pub(crate) key: String,
    pub(crate) ranks: Vec<u32>,
    pub(crate) me: usize,
    /// Its number in the flight recorder.
    pub(crate) recorded: usize,
    pub(crate) pace: WaitPace,
}

pub(crate) struct Turns {
    pub(crate) place: MemberPlace,
    turn: Mutex<Turn>,
    changed: Condvar,
}

/// Whose turn it is: the machinery is here, or with whoever carries out a call.
struct Turn {
    engine: Option<Box<GroupEngine>>,
    queue: VecDeque<Task>,
    has_worker: bool,
    /// Callers that wait for the machinery.
    waiters: u32,
    is_closing: bool,
}

struct Task {
    request: CallRequest,
    on: Option<OnGpu>,
    completion: Arc<Completion>,
}

impl Turns {
    pub(crate) fn new(place: MemberPlace, engine: GroupEngine) -> Self {
        let turn = Turn {
            engine: Some(Box::new(engine)),
            queue: VecDeque::new(),
            has_worker: false,
            waiters: 0,
            is_closing: false,
        };
        Self { place, turn: Mutex::new(turn), changed: Condvar::new() }
    }

    /// How a call of this size would be carried out.
    pub(crate) fn algorithm(&self, operation: Operation, bytes: u64) -> Algorithm {
        let turn = self.lock();
        let members = self.place.ranks.len();
        turn.engine.as_ref().map_or(Algorithm::Shared, |engine| engine.algorithm(operation, bytes, members))
    }

    /// Carries a call out here, after those that were started before.
    pub(crate) fn run(&self, request: &CallRequest, on: Option<OnGpu>) -> Result<(), CommError> {
        let mut engine = self.take_engine();
        let outcome = self.carry_out(&mut engine, request, on.as_ref(), self.place.pace);
        self.put_back(engine);
        outcome
    }

    /// Has something done with the machinery that all members do at this place in the order of their calls.
    pub(crate) fn with_engine<R>(
        &self,
        call: Call,
        work: impl FnOnce(&mut GroupEngine, &Waiting<'_>) -> Result<R, Fault>,
    ) -> Result<R, CommError> {
        let mut engine = self.take_engine();
        let outcome = self.watched(&mut engine, (call, 0), self.place.pace, work);
        self.put_back(engine);
        outcome
    }

    /// Has the group's thread carry a call out.
    pub(crate) fn start(self: &Arc<Self>, request: CallRequest, on: Option<OnGpu>) -> Arc<Completion> {
        let completion = Arc::new(Completion::default());
        let mut turn = self.lock();
        turn.queue.push_back(Task { request, on, completion: Arc::clone(&completion) });
        if !turn.has_worker {
            let worker = Arc::clone(self);
            let name = format!("comm-{}", self.place.name);
            turn.has_worker = thread::Builder::new().name(name).spawn(move || worker.work()).is_ok();
        }
        let is_alone = !turn.has_worker;
        drop(turn);
        self.changed.notify_all();
        if is_alone {
            // The system gives no thread: the call is carried out here.
            self.work_off();
        }
        completion
    }

    /// Takes a way between the members' GPUs that was made elsewhere, and gives back what was there.
    pub(crate) fn replace_gpus(&self, gpus: GroupGpus) -> GroupGpus {
        let mut engine = self.take_engine();
        let before = std::mem::replace(&mut engine.gpus, gpus);
        self.put_back(engine);
        before
    }

    /// Lets the group's thread end once it has nothing more to do.
    pub(crate) fn close(&self) {
        self.lock().is_closing = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Turn> {
        self.turn.lock().expect("no holder of this lock panics")
    }

    /// The machinery, once all that was started has been carried out.
    fn take_engine(&self) -> Box<GroupEngine> {
        self.take_engine_when(|turn| turn.queue.is_empty())
    }

    fn take_engine_when(&self, is_due: impl Fn(&Turn) -> bool) -> Box<GroupEngine> {
        let mut turn = self.lock();
        loop {
            if is_due(&turn)
                && let Some(engine) = turn.engine.take()
            {
                return engine;
            }
            turn.waiters += 1;
            turn = self.changed.wait(turn).expect("no holder of this lock panics");
            turn.waiters -= 1;
        }
    }

    fn put_back(&self, engine: Box<GroupEngine>) {
        let mut turn = self.lock();
        turn.engine = Some(engine);
        let has_waiters = turn.has_worker || turn.waiters > 0;
        drop(turn);
        if has_waiters {
            self.changed.notify_all();
        }
    }

    /// Carries out what is started until the group is dropped.
    fn work(&self) {
        let mut turn = self.lock();
        loop {
            if !turn.queue.is_empty() {
                drop(turn);
                self.work_off();
                turn = self.lock();
            } else if turn.is_closing && turn.queue.is_empty() {
                return;
            } else {
                turn = self.changed.wait(turn).expect("no holder of this lock panics");
            }
        }
    }

    fn work_off(&self) {
        let mut engine = self.take_engine_when(|_| true);
        let mut turn = self.lock();
        while let Some(task) = turn.queue.pop_front() {
            drop(turn);
            task.completion.complete(self.carry_out(
                &mut engine,
                &task.request,
                task.on.as_ref(),
                WaitPace::BACKGROUND,
            ));
            turn = self.lock();
        }
        drop(turn);
        self.put_back(engine);
    }

    fn carry_out(
        &self,
        engine: &mut GroupEngine,
        request: &CallRequest,
        on: Option<&OnGpu>,
        pace: WaitPace,
    ) -> Result<(), CommError> {
        self.watched(engine, (request.call(), request.bytes()), pace, |engine, waiting| match on {
            Some(on) => engine.run_on_gpu(request, on, waiting),
            None => engine.run(request, waiting),
        })
    }

    /// Does what a call asks for, with the call in the flight recorder and its fault made known to all.
    fn watched<R>(
        &self,
        engine: &mut GroupEngine,
        (call, bytes): (Call, usize),
        pace: WaitPace,
        work: impl FnOnce(&mut GroupEngine, &Waiting<'_>) -> Result<R, Fault>,
    ) -> Result<R, CommError> {
        let MemberPlace { core, ranks, name, key, recorded, .. } = &self.place;
        core.watch.check()?;
        let number = engine.number;
        if call.operation.is_collective() {
            engine.number += 1;
        }
        let waiting = Waiting {
            core,
            patience: core.options.patience,
            ranks,
            group: name,
            key,
            number,
            call,
            waited: RefCell::new(None),
            has_asked: Cell::new(false),
        };
        let line = core.recorder.enter(*recorded, number, call, bytes);
        engine.set_pace(pace);
        // A bug of ours must not leave the others, or this rank's own threads, waiting.
        let outcome = panics::caught(|| work(engine, &waiting));
        match outcome.unwrap_or_else(|what| Err(panicked(core.rank, &call, &what))) {
            Ok(done) => {
                core.recorder.leave(line);
                Ok(done)
            }
            Err(fault) => Err(core.fail(fault).into()),
        }
    }
}

fn panicked(rank: u32, call: &Call, what: &str) -> Fault {
    Fault::Revoked { rank, reason: format!("a bug in this program ended its {call}: {what}") }
}
