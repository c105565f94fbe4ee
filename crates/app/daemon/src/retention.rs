//! How much history is kept, and the task that lets the rest go.
//!
//! Old jobs leave the journal a few at a time, between commits, so that nobody waits for it.

use std::time::Duration;

use bedplate_gangs::{JobId, Span, Time};
use bedplate_journal::{JournalError, Pruned};
use tokio::time::sleep;

use crate::api::App;
use crate::control_thread::Unavailable;

/// How long ended jobs stay in the history, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Since their end; for ever when absent.
    pub age: Option<Span>,
    /// All when absent.
    pub jobs: Option<u64>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { age: Some(Span::days(365)), jobs: Some(1_000_000) }
    }
}

/// Jobs that go at once; commits wait for so long.
const STEP: u32 = 100;
/// Between two steps, for commits.
const PAUSE: Duration = Duration::from_millis(5);
const FIRST: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_secs(600);

/// Why history could not be pruned.
#[derive(Debug)]
pub(crate) enum NotPruned {
    Unavailable(Unavailable),
    Journal(JournalError),
}

impl From<Unavailable> for NotPruned {
    fn from(why: Unavailable) -> Self {
        NotPruned::Unavailable(why)
    }
}

impl From<JournalError> for NotPruned {
    fn from(why: JournalError) -> Self {
        NotPruned::Journal(why)
    }
}

/// Keeps the history within its limits for as long as the daemon runs.
pub(crate) async fn keep_within_limits(app: &App) {
    sleep(FIRST).await;
    loop {
        // A disk that refuses now is tried again later.
        let _ = prune(app, app.options.retention, false).await;
        sleep(EVERY).await;
    }
}

/// What went, or would go, and everything up to when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PruneOutcome {
    pub(crate) pruned: Pruned,
    pub(crate) before: Time,
}

/// Removes what is beyond the limits, or only counts it.
pub(crate) async fn prune(
    app: &App,
    retention: Retention,
    only_counts: bool,
) -> Result<PruneOutcome, NotPruned> {
    let now = app.clock.now();
    let by_age = retention.age.map_or(Time::ZERO, |age| now - age);
    let by_count = match retention.jobs {
        Some(jobs) => app.readers.ask(move |reader| reader.end_of_newest(jobs)).await?.unwrap_or_default(),
        None => Time::ZERO,
    };
    let before = by_age.max(by_count);
    // Jobs that are submitted from now on depend on none of these: they are told how it ended.
    let awaited = app.control.ask(|control, _| control.awaited()).await?;
    if only_counts {
        let pruned = app.readers.ask(move |reader| reader.prunable(before, &awaited)).await?;
        return Ok(PruneOutcome { pruned, before });
    }
    let pruned = remove_all(app, before, awaited).await?;
    if pruned.jobs > 0 {
        let ended = app.readers.ask(|reader| reader.ended_count()).await?;
        app.control.tell(move |control, _| control.set_ended_count(ended)).await;
    }
    Ok(PruneOutcome { pruned, before })
}

async fn remove_all(app: &App, before: Time, awaited: Vec<JobId>) -> Result<Pruned, NotPruned> {
    let mut all = Pruned::default();
    loop {
        let (writer, awaited) = (app.writer.clone(), awaited.clone());
        let step = move || writer.perform(move |journal| journal.prune(before, &awaited, STEP));
        let removed = tokio::task::spawn_blocking(step).await.map_err(|_| JournalError::Stopped)???;
        if removed == Pruned::default() {
            return Ok(all);
        }
        all += removed;
        sleep(PAUSE).await;
    }
}
