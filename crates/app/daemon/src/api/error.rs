//! What is answered when something is wrong, and the pages that explain it.

use bedplate_control::OrderRefusal;
use bedplate_diag::{Diagnostic, Page, Place, Reason, pages};
use bedplate_job::JobError;
use bedplate_journal::JournalError;
use hyper::StatusCode;

use crate::control_thread::Unavailable;
use crate::intake::Unreadable;
use crate::limits::TooMany;
use crate::retention::NotPruned;

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("the request carries no token, or one that is unknown, expired or revoked")]
    Unauthorized,
    #[error("{method} {path} needs the role {needed}; this token has the role {role}")]
    Forbidden { method: String, path: String, needed: &'static str, role: &'static str },
    #[error("only operators may raise a priority: `priority` above 0 or `nice` below 0")]
    RaisesPriority,
    #[error("job {label} belongs to {owner}")]
    ForeignJob { label: String, owner: String },
    #[error("there is nothing at {path}")]
    NoSuchPath { path: String },
    #[error("{path} does not take {method}; it takes {allowed}")]
    WrongMethod { method: String, path: String, allowed: String },
    #[error("{what} cannot be understood: {why}")]
    Malformed { what: &'static str, why: String },
    #[error("the body is of type `{found}`; it may be {allowed}")]
    WrongType { found: String, allowed: &'static str },
    #[error("the body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("{what} took longer than {seconds} s")]
    TooSlow { what: &'static str, seconds: u64 },
    #[error("{0}")]
    TooMany(String),
    #[error("the daemon has too many requests under way")]
    Busy,
    #[error("the control plane is busy with decisions")]
    Deciding,
    #[error("{why}")]
    NeverRuns { why: Reason },
    #[error("{why}")]
    Refused { why: Reason },
    #[error("there is no {what} `{name}`")]
    NotThere { what: &'static str, name: String },
    #[error("the log cannot be read: {why}")]
    NoLog { why: String },
    #[error("the journal cannot write at present")]
    JournalUnavailable,
    #[error("the daemon is shutting down")]
    Stopping,
    #[error("a bug in the daemon ended the request")]
    Panicked,
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

pages! { pub PAGES "api":
    UNAUTHORIZED "unauthorized" User
        "Every request but a few carries a token. This one had none, or one that the daemon does not know (any more)."
        "send `Authorization: Bearer TOKEN`; the administrator makes tokens with `bedplate token add`"
    FORBIDDEN "forbidden" User
        "The token is known, but its role is not enough for this, or the job belongs to somebody else."
        "ask an operator, or use a token with the role that is named"
    NO_SUCH_PATH "no-such-path" User
        "The API has no such path."
        "see `GET /openapi.json` or docs/api.md for the paths there are"
    WRONG_METHOD "wrong-method" User
        "The path exists, but not with this method."
        "use one of the methods named in the header `Allow`"
    MALFORMED "malformed" User
        "A part of the request is not what the API expects there."
        "compare the request with docs/api.md"
    WRONG_TYPE "wrong-type" User
        "The body has a content type that is not read here."
        "set `Content-Type` to one of the types that are named"
    TOO_LARGE "too-large" User
        "The body is larger than the daemon reads."
        "put data and long programs into files that the job reads"
    TOO_SLOW "too-slow" Transient
        "A part of the request did not arrive in time."
        "send the request again"
    TOO_MANY "too-many-requests" Transient
        "The client has too many requests under way, or sends too many per second."
        "wait as long as the header `Retry-After` says, and keep connections open instead of opening many"
    BUSY "busy" Transient
        "The daemon has too many requests under way from all clients together, or too many changes wait for the disk."
        "try again in a moment"
    DECIDING "deciding" Transient
        "The control plane is busy with decisions and has not looked at the request in time. A change may still be carried out."
        "try again in a moment, a submission with the same `Idempotency-Key`; `bedplate_control_turn_seconds` in /metrics says how long decisions take"
    NEVER_RUNS "never-runs" User
        "The job is well formed, but it can never run on this cluster by these rules."
        "change what the message names; `bedplate cluster show` says what there is"
    REFUSED "refused" User
        "The job's state does not permit this."
        "look at the job with `bedplate job show`"
    NOT_THERE "not-there" User
        "There is no job, node or token of that name."
        "list what there is with `bedplate queue` or `bedplate node list`"
    NO_LOG "no-log" Transient
        "The log is kept on the node where the rank runs, and cannot be read from there at present."
        "try again when the node is back; the message says where the log is"
    JOURNAL_UNAVAILABLE "journal-unavailable" Transient
        "Nothing is acknowledged before it is on disk, and the journal cannot write at present. The change may still be carried out once it can."
        "make room on the disk of the journal, then try again with the same `Idempotency-Key`"
    STOPPING "stopping" Transient
        "The daemon is shutting down and accepts nothing new."
        "try again when it is back"
    PANICKED "panicked" Bug
        "A bug ended this request. The daemon goes on."
        "report it with the request and the daemon's log"
}

impl ApiError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            ApiError::Malformed { .. } | ApiError::Job(_) => StatusCode::BAD_REQUEST,
            ApiError::Unauthorized => StatusCode::UNAUTHORIZED,
            ApiError::Forbidden { .. } | ApiError::RaisesPriority | ApiError::ForeignJob { .. } => {
                StatusCode::FORBIDDEN
            }
            ApiError::NoSuchPath { .. } | ApiError::NotThere { .. } => StatusCode::NOT_FOUND,
            ApiError::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            ApiError::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            ApiError::Refused { .. } => StatusCode::CONFLICT,
            ApiError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            ApiError::WrongType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ApiError::NeverRuns { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            ApiError::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
            ApiError::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
            ApiError::Busy
            | ApiError::Deciding
            | ApiError::NoLog { .. }
            | ApiError::JournalUnavailable
            | ApiError::Stopping
            | ApiError::Journal(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) fn no_such_job(label: &str) -> Self {
        ApiError::NotThere { what: "job", name: label.to_owned() }
    }
}

impl Diagnostic for ApiError {
    fn page(&self) -> &'static Page {
        match self {
            ApiError::Unauthorized => &UNAUTHORIZED,
            ApiError::Forbidden { .. } | ApiError::RaisesPriority | ApiError::ForeignJob { .. } => &FORBIDDEN,
            ApiError::NoSuchPath { .. } => &NO_SUCH_PATH,
            ApiError::WrongMethod { .. } => &WRONG_METHOD,
            ApiError::Malformed { .. } => &MALFORMED,
            ApiError::WrongType { .. } => &WRONG_TYPE,
            ApiError::TooLarge { .. } => &TOO_LARGE,
            ApiError::TooSlow { .. } => &TOO_SLOW,
            ApiError::TooMany(_) => &TOO_MANY,
            ApiError::Busy => &BUSY,
            ApiError::Deciding => &DECIDING,
            ApiError::NeverRuns { .. } => &NEVER_RUNS,
            ApiError::Refused { .. } => &REFUSED,
            ApiError::NotThere { .. } => &NOT_THERE,
            ApiError::NoLog { .. } => &NO_LOG,
            ApiError::JournalUnavailable => &JOURNAL_UNAVAILABLE,
            ApiError::Stopping => &STOPPING,
            ApiError::Panicked => &PANICKED,
            ApiError::Job(error) => error.page(),
            ApiError::Journal(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            ApiError::Job(error) => error.help(),
            _ => None,
        }
    }

    fn reason(&self) -> Option<&Reason> {
        match self {
            ApiError::NeverRuns { why } | ApiError::Refused { why } => Some(why),
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            ApiError::Job(error) => error.place(),
            _ => None,
        }
    }
}

impl From<Unavailable> for ApiError {
    fn from(why: Unavailable) -> Self {
        match why {
            Unavailable::Journal => ApiError::JournalUnavailable,
            Unavailable::Busy => ApiError::Busy,
            Unavailable::Deciding => ApiError::Deciding,
            Unavailable::Stopping => ApiError::Stopping,
        }
    }
}

impl From<NotPruned> for ApiError {
    fn from(why: NotPruned) -> Self {
        match why {
            NotPruned::Unavailable(why) => why.into(),
            NotPruned::Journal(error) => error.into(),
        }
    }
}

impl From<OrderRefusal> for ApiError {
    fn from(refusal: OrderRefusal) -> Self {
        match refusal {
            OrderRefusal::Never { .. }
            | OrderRefusal::UnknownDependency { .. }
            | OrderRefusal::TooManyDependencies { .. } => ApiError::NeverRuns { why: refusal.reason() },
            OrderRefusal::NoSuchJob { job } => ApiError::no_such_job(&job.0.to_string()),
            OrderRefusal::NoSuchNode { node } => ApiError::NotThere { what: "node", name: node },
            OrderRefusal::HasEnded { .. } | OrderRefusal::DoesNotRun { .. } => {
                ApiError::Refused { why: refusal.reason() }
            }
        }
    }
}

impl From<Unreadable> for ApiError {
    fn from(why: Unreadable) -> Self {
        match why {
            Unreadable::NotText => ApiError::Malformed { what: "the body", why: why.to_string() },
            Unreadable::Job(error) => ApiError::Job(error),
            Unreadable::TooManyTasks { tasks, limit } => ApiError::NeverRuns {
                why: Reason::new("too_many_tasks", why.to_string()).with("tasks", tasks).with("limit", limit),
            },
        }
    }
}

impl From<TooMany> for ApiError {
    fn from(why: TooMany) -> Self {
        ApiError::TooMany(match why {
            TooMany::AtOnce(limit) => format!("a client may have {limit} requests under way"),
            TooMany::PerSecond(limit) => format!("a client may ask {limit} times a second"),
        })
    }
}
