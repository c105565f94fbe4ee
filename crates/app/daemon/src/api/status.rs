//! The daemon about itself: health, version, contract, metrics; its end; and the way in for agents.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use bedplate_control::Counts;
use bedplate_diag::Diagnostic;
use bedplate_journal::DiskHealth;
use bedplate_record::Exposition;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;

use super::answer::{self, Answer, Body};
use super::call::ApiCall;
use super::dispatch::Shutdown;
use super::error::ApiError;
use super::openapi;

/// The protocol that agents ask for.
const LINK: &str = "bedplate-link";

/// `GET /healthz`
pub(crate) async fn health(call: ApiCall) -> Result<Answer, ApiError> {
    let (journal, why) = match call.app.writer.health() {
        DiskHealth::Healthy => ("healthy", None),
        // `disk-full` and `read-only` are told apart.
        DiskHealth::Failing { error, .. } => {
            let (code, state) = (error.page().code, call.app.options.state_directory.clone());
            let why = tokio::task::spawn_blocking(move || why(code, &state)).await;
            ("failing", Some(why.unwrap_or(code)))
        }
        DiskHealth::Broken { error } => ("broken", Some(error.page().code)),
    };
    let health = match why {
        None => json!({ "status": "up", "journal": journal }),
        Some(why) => json!({ "status": "up", "journal": journal, "why": why }),
    };
    Ok(answer::ok(&health))
}

/// SQLite says of a file system that has become read-only under it only that it does not write, and the system may still call it writable: a
/// file that cannot be made tells.
fn why(code: &'static str, state: &Path) -> &'static str {
    let probe = state.join("writable.probe");
    let is_read_only = || match File::create(&probe) {
        Ok(_) => {
            let _ = std::fs::remove_file(&probe);
            false
        }
        Err(error) => error.kind() == io::ErrorKind::ReadOnlyFilesystem,
    };
    if code == "journal/disk" && is_read_only() { "journal/read-only" } else { code }
}

/// `GET /version`
pub(crate) async fn version(_call: ApiCall) -> Result<Answer, ApiError> {
    Ok(answer::ok(&json!({ "version": env!("CARGO_PKG_VERSION"), "api": 1 })))
}

/// `GET /openapi.json`
pub(crate) async fn contract(_call: ApiCall) -> Result<Answer, ApiError> {
    Ok(answer::ok(&openapi::document()))
}

/// `GET /metrics`
pub(crate) async fn metrics(call: ApiCall) -> Result<Answer, ApiError> {
    let app = &call.app;
    let counts = app.control.ask(|control, now| control.counts(now)).await?;
    let mut text = Exposition::default();
    write_counts(&mut text, &counts);
    text.gauge("bedplate_links", "Agents that are linked.", app.links.count() as f64);
    text.gauge("bedplate_event_watchers", "Clients that watch events.", app.hub.watchers() as f64);
    text.gauge(
        "bedplate_control_queue_requests",
        "Requests that wait for the control plane.",
        app.control.queued() as f64,
    );
    text.head("bedplate_job_problem", "gauge", "Jobs with which something is wrong, by what and why.");
    for (job, kind, cause) in app.diagnosing.all() {
        text.sample(
            "bedplate_job_problem",
            &format!("hpc_job=\"{job}\",kind=\"{kind}\",cause=\"{cause}\""),
            1.0,
        );
    }
    write_journal(&mut text, app);
    app.metrics.write(&mut text, app.server.connections());
    Ok(answer::typed(StatusCode::OK, "text/plain; version=0.0.4", Body::whole(text.into_string())))
}

fn write_counts(text: &mut Exposition, counts: &Counts) {
    text.head("bedplate_jobs", "gauge", "Jobs that have not ended, by state.");
    for (state, count) in &counts.jobs_by_state {
        text.sample("bedplate_jobs", &format!("state=\"{state}\""), *count as f64);
    }
    text.gauge("bedplate_jobs_ended", "Jobs that have ended.", counts.jobs_ended as f64);
    text.head("bedplate_nodes", "gauge", "Nodes by state.");
    for (state, count) in &counts.nodes_by_state {
        text.sample("bedplate_nodes", &format!("state=\"{state}\""), *count as f64);
    }
    text.gauge("bedplate_gpus", "GPUs of the cluster.", counts.gpus as f64);
    text.head("bedplate_node_findings", "gauge", "Open findings of nodes by severity.");
    for (severity, count) in &counts.findings_by_severity {
        text.sample("bedplate_node_findings", &format!("severity=\"{severity}\""), *count as f64);
    }
    text.gauge(
        "bedplate_common_cause_nodes",
        "Nodes with grave findings while more than half of the cluster has such; 0 otherwise.",
        counts.common_cause_nodes as f64,
    );
    text.gauge("bedplate_gpus_free", "GPUs that are in service and not taken.", counts.gpus_free as f64);
}

fn write_journal(text: &mut Exposition, app: &super::App) {
    let figures = app.writer.statistics();
    text.gauge(
        "bedplate_journal_healthy",
        "1 while the journal can write.",
        f64::from(u8::from(app.writer.is_healthy())),
    );
    text.counter("bedplate_journal_commits_total", "Waits for the disk.", figures.commits);
    text.counter(
        "bedplate_journal_batches_total",
        "Batches, of which a commit takes several.",
        figures.batches,
    );
    text.counter("bedplate_journal_records_total", "Records written.", figures.records);
    text.counter("bedplate_journal_failures_total", "Commits that failed.", figures.failures);
    text.head(
        "bedplate_journal_commit_seconds",
        "histogram",
        "Time for a commit, the wait for the disk included.",
    );
    let time = &figures.commit_time;
    text.histogram("bedplate_journal_commit_seconds", "", &time.cumulative(), time.sum().as_secs_f64());
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShutdownRequest {
    #[serde(default)]
    jobs: Fate,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Fate {
    Stop,
    #[default]
    Leave,
}

/// `POST /v1/shutdown`
pub(crate) async fn shutdown(mut call: ApiCall) -> Result<Answer, ApiError> {
    let ShutdownRequest { jobs } = call.take_json().await?;
    let (how, name) = match jobs {
        Fate::Stop => (Shutdown::StopJobs, "stop"),
        Fate::Leave => (Shutdown::LeaveJobs, "leave"),
    };
    call.app.shutdown.send_replace(Some(how));
    Ok(answer::json(StatusCode::ACCEPTED, &json!({ "jobs": name })))
}

/// `POST /v1/agents/link`
pub(crate) async fn link(mut call: ApiCall) -> Result<Answer, ApiError> {
    const WITHIN: Duration = Duration::from_secs(10);
    let wanted = call.header("upgrade").is_some_and(|protocol| protocol.eq_ignore_ascii_case(LINK));
    let (Some(upgrade), true) = (call.upgrade.take(), wanted) else {
        return Err(ApiError::Malformed { what: "the header Upgrade", why: format!("it must be `{LINK}`") });
    };
    tokio::spawn(async move {
        let Ok(Ok(stream)) = tokio::time::timeout(WITHIN, upgrade).await else { return };
        let app = &call.app;
        tokio::select! {
            () = app.links.converse(TokioIo::new(stream), call.identity(), &app.tokens, &app.control) => {}
            () = app.ends() => {}
        }
    });
    let mut answer = Response::new(Body::whole(""));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(UPGRADE, HeaderValue::from_static(LINK));
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    Ok(answer)
}
