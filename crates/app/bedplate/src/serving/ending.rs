//! Serving until a signal says otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use bedplate_terminal::Console;
use nix::sys::signal::{SigSet, Signal};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    End,
    /// `SIGHUP`
    Update,
}

/// Whether there is anything to finish; until then a signal to end does so at once.
pub(crate) struct Loading(Arc<AtomicBool>);

impl Loading {
    pub(crate) fn done(self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Takes signals from here on; to be called before threads are started, which inherit that they are blocked.
pub(crate) fn block() -> Receiver<Told> {
    let (told, loading) = block_while_loading();
    loading.done();
    told
}

/// The same where a model is read first, which may take minutes.
pub(crate) fn block_while_loading() -> (Receiver<Told>, Loading) {
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect::<SigSet>();
    let _ = signals.thread_block();
    let (sender, told) = mpsc::channel();
    let is_loading = Arc::new(AtomicBool::new(true));
    let loading = Loading(is_loading.clone());
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            let what = if signal == Signal::SIGHUP { Told::Update } else { Told::End };
            if what == Told::End && is_loading.load(Ordering::Acquire) {
                std::process::exit(1);
            }
            if sender.send(what).is_err() {
                return;
            }
        }
    });
    (told, loading)
}

/// Leaves the end to rank 0, which lets running requests finish; a second signal ends at once.
pub(crate) fn end_with_first_rank(told: Receiver<Told>) {
    thread::spawn(move || {
        if told.iter().filter(|told| *told == Told::End).nth(1).is_some() {
            std::process::exit(1);
        }
    });
}

/// Finishes running requests; a second signal ends at once.
pub(crate) fn end(told: Receiver<Told>, console: &Console, stop: impl FnOnce() + Send + 'static) {
    console.say("finishes running requests; Ctrl-C again ends at once");
    let ending = thread::spawn(stop);
    thread::spawn(move || {
        while let Ok(told) = told.recv() {
            if told == Told::End {
                std::process::exit(1);
            }
        }
    });
    let _ = ending.join();
}
