//! The task that makes a back-up of the journal every day.

use std::time::Duration;

use bedplate_journal::keep_backups;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::api::App;

/// A cluster that lives shorter than this needs none.
const FIRST: Duration = Duration::from_secs(600);
const EVERY: Duration = Duration::from_secs(600);

/// Never returns. What fails is said, and tried again.
pub(crate) async fn keep(app: &App) {
    sleep(FIRST).await;
    loop {
        let (state, rules) = (app.options.state_directory.clone(), app.options.backups);
        match tokio::task::spawn_blocking(move || keep_backups(&state, &rules)).await {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(folder))) => info!("a back-up of the journal is in {}", folder.display()),
            Ok(Err(error)) => warn!("no back-up of the journal could be made: {error}"),
            // Its panic has been printed where it happened.
            Err(_) => {}
        }
        sleep(EVERY).await;
    }
}
