//! Questions to the journal, in the background.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bedplate_journal::{JournalError, Reader};

use crate::background::Background;

/// Readers that are not in use.
#[derive(Clone)]
pub(crate) struct Readers {
    background: Background,
    path: PathBuf,
    idle: Arc<Mutex<Vec<Reader>>>,
}

/// Readers kept open when nobody asks.
const KEPT: usize = 4;

impl Readers {
    pub(crate) fn new(path: PathBuf, background: Background) -> Self {
        Self { background, path, idle: Arc::default() }
    }

    /// Asks when the user has a turn.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Reader) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let readers = self.clone();
        let asked = self.background.work(move || {
            let reader = readers.take()?;
            let answer = question(&reader)?;
            readers.put_back(reader);
            Ok(answer)
        });
        asked.await.unwrap_or(Err(JournalError::Stopped))
    }

    fn take(&self) -> Result<Reader, JournalError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| Reader::open(&self.path), Ok)
    }

    fn put_back(&self, reader: Reader) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(reader);
        }
    }
}
