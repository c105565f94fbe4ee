//! `GET /v1/jobs/{label}/logs`
//!
//! Logs lie on the nodes. A linked agent reads them; what a node that is away left in a directory of this machine is
//! read from there.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use bedplate_control::wire::{LogName, LogStream, RunId};
use bedplate_diag::Reason;
use bedplate_gangs::JobId;
use bedplate_host::{LinkPolicy, Opening, open_regular_for};
use bedplate_job::Job;
use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::answer::{self, Answer, Body, with_header};
use super::call::ApiCall;
use super::dispatch::App;
use super::error::ApiError;
use super::history;
use super::query::malformed;
use crate::links::LogChunk;
use crate::ranks;

/// What is asked of a node at a time.
const CHUNK: u64 = 256 << 10;
/// An answer without `follow` has no more; `Bedplate-Next-Offset` says where to go on.
const LONGEST: usize = 16 << 20;
const POLL: Duration = Duration::from_millis(200);
/// How long a file on this machine may take, and how many of them may do so at once.
const READ_TIME: Duration = Duration::from_secs(10);
pub(crate) const MOST_READS: usize = 16;

/// What is wanted.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    job: JobId,
    rank: u32,
    stream: LogStream,
    /// The newest when absent.
    run: Option<u32>,
}

/// A log and the node that has it.
#[derive(Debug, Clone)]
struct Located {
    log: LogName,
    node: String,
}

pub(crate) async fn logs(call: ApiCall) -> Result<Answer, ApiError> {
    let label = &call.parameters[0];
    let job = history::find_job(&call.app, label).await?;
    let owner = history::known(&call.app, job).await?.view.user;
    if !call.identity().owns(&owner) {
        return Err(ApiError::ForeignJob { label: label.clone(), owner });
    }
    let stream = match call.query.text("stream").unwrap_or("stdout") {
        "stdout" => LogStream::Stdout,
        "stderr" => LogStream::Stderr,
        _ => return Err(malformed("`stream` may be stdout or stderr".into())),
    };
    let rank = call.query.value("rank")?.unwrap_or(0);
    let wanted = Wanted { job, rank, stream, run: call.query.value("run")? };
    let offset = call.query.value("offset")?.unwrap_or(0);
    match call.query.flag("follow")? {
        false => whole(&call.app, wanted, offset).await,
        true => Ok(follow(call, wanted, offset)),
    }
}

/// All there is from the offset on, up to a limit.
async fn whole(app: &App, wanted: Wanted, offset: u64) -> Result<Answer, ApiError> {
    let located = locate(app, wanted).await?;
    let located = located
        .ok_or_else(|| ApiError::Refused { why: Reason::new("not_started", "the job has not run yet") })?;
    let mut bytes = Vec::new();
    let mut next = offset;
    loop {
        let chunk = read(app, &located, next).await?;
        let is_end = chunk.bytes.is_empty();
        bytes.extend(chunk.bytes);
        next = chunk.next_offset;
        if is_end || bytes.len() >= LONGEST {
            break;
        }
    }
    let answer = answer::typed(StatusCode::OK, "text/plain; charset=utf-8", Body::whole(bytes));
    Ok(with_header(answer, "bedplate-next-offset", &next.to_string()))
}

/// What there is and what comes, run after run unless one was named, until the job has ended.
fn follow(call: ApiCall, wanted: Wanted, offset: u64) -> Answer {
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        // The client may go, the node may fall silent, the daemon may stop: in each case there is no more to send.
        tokio::select! {
            _ = follow_runs(&call.app, wanted, offset, &sender) => {}
            () = call.app.tokens.lapses(call.identity()) => {}
        }
    });
    answer::typed(StatusCode::OK, "text/plain; charset=utf-8", Body::stream(receiver))
}

async fn follow_runs(
    app: &App,
    wanted: Wanted,
    mut offset: u64,
    sender: &mpsc::Sender<Bytes>,
) -> Result<(), ApiError> {
    let mut last_run = None;
    loop {
        let is_over = has_ended(app, wanted.job).await?;
        if let Some(located) = locate(app, wanted).await? {
            let run = located.log.run.number;
            if last_run.is_some_and(|last| last != run) {
                offset = 0;
            }
            last_run = Some(run);
            offset = copy(app, &located, offset, sender).await?;
        }
        if is_over || sender.is_closed() {
            return Ok(());
        }
        sleep(POLL).await;
    }
}

/// Sends what there is from the offset on; says how far that was.
async fn copy(
    app: &App,
    located: &Located,
    mut offset: u64,
    sender: &mpsc::Sender<Bytes>,
) -> Result<u64, ApiError> {
    loop {
        let chunk = read(app, located, offset).await?;
        offset = chunk.next_offset;
        if chunk.bytes.is_empty() {
            return Ok(offset);
        }
        sender.send(chunk.bytes.into()).await.map_err(|_| ApiError::Stopping)?;
    }
}

/// No run of it will write any more.
async fn has_ended(app: &App, job: JobId) -> Result<bool, ApiError> {
    Ok(app.control.ask(move |control, _| control.job(job).is_none()).await?)
}

/// Nothing while the job has not run.
async fn locate(app: &App, wanted: Wanted) -> Result<Option<Located>, ApiError> {
    let Wanted { job, rank, stream, run } = wanted;
    let text = history::known(app, job).await?.text;
    let runs = app.readers.ask(move |reader| reader.runs(job)).await?;
    let found = match run {
        Some(number) => {
            let named = runs.iter().find(|row| row.run.number == number);
            Some(named.ok_or_else(|| ApiError::NotThere { what: "run", name: number.to_string() })?)
        }
        None => runs.last(),
    };
    let Some(row) = found else {
        return Ok(None);
    };
    let places = ranks::places(&Job::from_toml(&text, "journal")?, row);
    let place = places.into_iter().find(|place| place.rank == rank);
    let place = place.ok_or_else(|| ApiError::NotThere { what: "rank", name: rank.to_string() })?;
    let log = LogName { run: RunId { job: job.0, number: place.run }, rank, stream };
    Ok(Some(Located { log, node: place.node }))
}

async fn read(app: &App, located: &Located, offset: u64) -> Result<LogChunk, ApiError> {
    let node = located.node.clone();
    let link = app.control.ask(move |control, _| control.link_of(&node)).await?;
    let from_node = match link {
        Some(link) => app.links.read_log(link, located.log.clone(), offset, CHUNK).await,
        None => None,
    };
    match from_node {
        Some(LogChunk { error: Some(why), .. }) => {
            Err(ApiError::Refused { why: Reason::new("unreadable_log", why) })
        }
        Some(chunk) => Ok(chunk),
        None => read_left_behind(app, located, offset).await,
    }
}

/// From a directory of this machine.
async fn read_left_behind(app: &App, located: &Located, offset: u64) -> Result<LogChunk, ApiError> {
    let Located { log, node } = located;
    let ending = match log.stream {
        LogStream::Stdout => "out",
        LogStream::Stderr => "err",
    };
    let name = format!("runs/{}.{}/{node}/rank-{}.{ending}", log.run.job, log.run.number, log.rank);
    let away = || ApiError::NoLog {
        why: format!("node {node} is away; there it is {name} in the agent's directory"),
    };
    // Names of nodes come from the cluster's description; still, they are no paths.
    if node.contains('/') || node.starts_with('.') {
        return Err(away());
    }
    let paths: Vec<_> = app.options.log_directories.iter().map(|directory| directory.join(&name)).collect();
    // Files that jobs wrote may lie on a mount that is dead by now, and a thread that reads there may never come back.
    let Ok(place) = app.left_behind.clone().try_acquire_owned() else {
        let why = format!("node {node} is away, and too many files that it left do not answer");
        return Err(ApiError::NoLog { why });
    };
    let reading = tokio::task::spawn_blocking(move || {
        let _place = place;
        let mut file = paths.iter().find_map(|path| open_left_behind(path).ok())?;
        file.seek(SeekFrom::Start(offset)).ok()?;
        let mut bytes = Vec::new();
        file.take(CHUNK).read_to_end(&mut bytes).ok()?;
        let next_offset = offset + bytes.len() as u64;
        Some(LogChunk { bytes, next_offset, error: None })
    });
    match timeout(READ_TIME, reading).await {
        Ok(read) => read.ok().flatten().ok_or_else(away),
        Err(_) => Err(ApiError::NoLog { why: format!("the disk with {name} does not answer") }),
    }
}

/// By now it may be a pipe, a link or a device, which are neither waited for nor followed.
fn open_left_behind(path: &Path) -> io::Result<File> {
    open_regular_for(Opening::Read, path, LinkPolicy::Refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_links_and_devices_are_not_logs() {
        let folder = std::env::temp_dir().join(format!("bedplate-left-behind-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [pipe, link, real] = ["pipe", "link", "real"].map(|name| folder.join(name));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(&real, "text").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        for path in [&pipe, &link, &folder, Path::new("/dev/zero")] {
            assert!(open_left_behind(path).is_err(), "{}", path.display());
        }
        assert!(open_left_behind(&real).is_ok());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
