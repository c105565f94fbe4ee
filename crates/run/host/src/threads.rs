//! Threads that belong to the one who starts them: they have a name, and what they log has the caller's fields.

use std::io;
use std::thread::{Builder, JoinHandle};

use tracing::Span;

/// Starts a thread whose events are inside the caller's span, so that they name the rank or request that it works for.
pub fn spawn_within<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let around = Span::current();
    Builder::new().name(name.to_owned()).spawn(move || around.in_scope(work))
}

#[cfg(test)]
mod tests {
    use bedplate_testkit::{has_logged, keep_logs};

    use super::*;

    #[test]
    fn what_a_thread_logs_has_the_fields_of_the_one_who_started_it() {
        keep_logs();
        let work = || tracing::warn!("the disk is slow");
        let started = tracing::info_span!("rank", rank = 3).in_scope(|| spawn_within("helper", work));
        started.unwrap().join().unwrap();
        assert!(has_logged("rank{rank=3}: bedplate_host::threads::tests: the disk is slow"));
    }
}
