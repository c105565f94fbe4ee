//! The socket at which an `srun` inside a job finds the agent of its node.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::error::AgentError;
use crate::event::{AgentEvent, StepAnswer};
use crate::identity::JobUsers;

/// An environment may be long, but not longer.
const LONGEST_REQUEST: u64 = 2 << 20;
/// Requests of one user that are read at once, so that no job takes the agent's memory; others wait for their turn.
const AT_ONCE: usize = 16;
/// Connections of one user; more are closed, so that no job takes the agent's files.
const MOST_CONNECTIONS: usize = 256;
const REQUEST_TIME: Duration = Duration::from_secs(10);

/// Answers on the socket for as long as the runtime lives. Where jobs have the agent's own user, only that user may
/// connect; elsewhere all may, and who asks is told along.
pub(crate) fn listen(
    path: &Path,
    users: JobUsers,
    events: UnboundedSender<AgentEvent>,
) -> Result<(), AgentError> {
    let failed = |source| AgentError::Socket { path: path.to_owned(), source };
    let mode = if users == JobUsers::Own { 0o600 } else { 0o666 };
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
    tokio::spawn(async move {
        let mut turns: BTreeMap<u32, Arc<Semaphore>> = BTreeMap::new();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let Ok(uid) = stream.peer_cred().map(|peer| peer.uid()) else { continue };
                    let turn = turns.entry(uid).or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE)));
                    // Each that waits or is read holds the semaphore too.
                    if Arc::strong_count(turn) <= MOST_CONNECTIONS {
                        let (turn, events) = (Arc::clone(turn), events.clone());
                        tokio::spawn(timeout(REQUEST_TIME, async move {
                            if let Ok(_turn) = turn.acquire().await {
                                answer(stream, uid, events).await;
                            }
                        }));
                    }
                }
                // Out of files, most likely; some will be free again.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    });
    Ok(())
}

async fn answer(stream: UnixStream, uid: u32, events: UnboundedSender<AgentEvent>) {
    let (reading, mut writing) = stream.into_split();
    let mut line = String::new();
    if BufReader::new(reading.take(LONGEST_REQUEST)).read_line(&mut line).await.is_err() {
        return;
    }
    let answer = match serde_json::from_str(&line) {
        Ok(request) => {
            let (answer, answered) = oneshot::channel();
            let _ = events.send(AgentEvent::StepAsked { request: Box::new(request), uid, answer });
            answered.await.unwrap_or(StepAnswer::Later)
        }
        Err(error) => StepAnswer::Refused(format!("the request cannot be read: {error}")),
    };
    let mut text = serde_json::to_vec(&answer).expect("an answer is plain data");
    text.push(b'\n');
    let _ = writing.write_all(&text).await;
}
