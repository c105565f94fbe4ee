//! Signals as events. They are caught, not blocked: what is blocked would stay blocked in the ranks.

use std::sync::mpsc;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

/// Signals that end a launch.
pub(crate) const ENDING: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];
/// Signals that are passed on to the ranks.
pub(crate) const PASSED_ON: [Signal; 3] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGHUP];

/// Calls back for each signal from now on, on a thread of its own.
pub(crate) fn watch(take: impl Fn(Signal) + Clone + Send + 'static) {
    let (caught, all_are_caught) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async move {
            for number in ENDING.into_iter().chain(PASSED_ON) {
                let Ok(mut stream) = signal(SignalKind::from_raw(number as i32)) else { continue };
                let take = take.clone();
                tokio::spawn(async move {
                    while stream.recv().await.is_some() {
                        take(number);
                    }
                });
            }
            drop(caught);
            std::future::pending::<()>().await;
        });
    });
    let _ = all_are_caught.recv();
}
