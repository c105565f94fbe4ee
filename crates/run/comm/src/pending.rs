//! Calls that go on while their rank computes.

use std::sync::{Arc, Condvar, Mutex};

use crate::CommError;

/// Set when a call is over.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    outcome: Mutex<Option<Result<(), CommError>>>,
    set: Condvar,
}

impl Completion {
    pub(crate) fn complete(&self, outcome: Result<(), CommError>) {
        *self.outcome.lock().expect("no holder of this lock panics") = Some(outcome);
        self.set.notify_all();
    }

    fn wait(&self) -> Result<(), CommError> {
        let mut outcome = self.outcome.lock().expect("no holder of this lock panics");
        loop {
            match &*outcome {
                Some(outcome) => return outcome.clone(),
                None => outcome = self.set.wait(outcome).expect("no holder of this lock panics"),
            }
        }
    }

    fn is_set(&self) -> bool {
        self.outcome.lock().expect("no holder of this lock panics").is_some()
    }
}

/// A call under way, with the buffers that it works on. They come back when it is over, whatever its outcome.
///
/// Dropping it waits for the call. Every call ends: with its result, or with a fault of the world.
#[derive(Debug)]
#[must_use = "the call works on the buffers until it has been waited for"]
pub struct Pending<B> {
    buffers: Option<B>,
    completion: Arc<Completion>,
}

impl<B> Pending<B> {
    pub(crate) fn new(buffers: B, completion: Arc<Completion>) -> Self {
        Self { buffers: Some(buffers), completion }
    }

    pub fn is_over(&self) -> bool {
        self.completion.is_set()
    }

    /// Waits for the call and gives its buffers back.
    pub fn wait(mut self) -> (B, Result<(), CommError>) {
        let outcome = self.completion.wait();
        (self.buffers.take().expect("buffers are taken once"), outcome)
    }
}

impl<B> Drop for Pending<B> {
    fn drop(&mut self) {
        if self.buffers.is_some() {
            let _ = self.completion.wait();
        }
    }
}
