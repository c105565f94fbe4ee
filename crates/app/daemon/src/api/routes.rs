//! The table of all routes. The OpenAPI document and the tests are made from it.

use std::future::Future;
use std::pin::Pin;

use super::answer::Answer;
use super::call::ApiCall;
use super::error::ApiError;
use super::{cluster, events, history, jobs, logs, nodes, orders, status, submit, tokens, usage};
use crate::tokens::AccessRole;

type Handled = Pin<Box<dyn Future<Output = Result<Answer, ApiError>> + Send>>;

pub(crate) struct Route {
    pub(crate) method: &'static str,
    /// With `{name}` where a parameter stands.
    pub(crate) path: &'static str,
    /// Nobody needs to be known where it is absent.
    pub(crate) role: Option<AccessRole>,
    pub(crate) summary: &'static str,
    pub(crate) query: &'static [Parameter],
    pub(crate) body: &'static [Content],
    pub(crate) answer: Returned,
    pub(crate) handler: fn(ApiCall) -> Handled,
}

impl Route {
    pub(crate) fn is_upgrade(&self) -> bool {
        self.answer.status == 101
    }
}

/// A parameter of a query.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    /// A type of JSON Schema.
    pub(crate) kind: &'static str,
    pub(crate) description: &'static str,
}

/// What a body may be.
pub(crate) struct Content {
    pub(crate) media_type: &'static str,
    /// A schema of the document.
    pub(crate) schema: &'static str,
}

pub(crate) struct Returned {
    pub(crate) status: u16,
    pub(crate) content: Option<Content>,
}

const fn query(name: &'static str, kind: &'static str, description: &'static str) -> Parameter {
    Parameter { name, kind, description }
}

const fn content(media_type: &'static str, schema: &'static str) -> Content {
    Content { media_type, schema }
}

const fn json(status: u16, schema: &'static str) -> Returned {
    Returned { status, content: Some(content("application/json", schema)) }
}

const fn text(media_type: &'static str) -> Returned {
    Returned { status: 200, content: Some(content(media_type, "Text")) }
}

macro_rules! route {
    ($method:literal $path:literal $role:expr, $summary:literal, $query:expr, $body:expr, $answer:expr, $handler:path) => {
        Route {
            method: $method,
            path: $path,
            role: $role,
            summary: $summary,
            query: $query,
            body: $body,
            answer: $answer,
            handler: |call| Box::pin($handler(call)),
        }
    };
}

const LIST_JOBS: &[Parameter] = &[
    query("state", "string", "one of the states, or several with commas between"),
    query("user", "string", "of this user"),
    query("account", "string", "of this account"),
    query("name", "string", "with this name"),
    query("limit", "integer", "so many, 100 unless told, 1,000 at most"),
    query("after", "integer", "the `next` of the page before"),
    query("ended", "boolean", "those that have ended too, the newest first"),
];
const READ_LOG: &[Parameter] = &[
    query("rank", "integer", "0 unless told"),
    query("stream", "string", "stdout or stderr"),
    query("run", "integer", "the newest unless told"),
    query("offset", "integer", "from this byte on"),
    query("follow", "boolean", "until the job ends"),
];
const SUM_USAGE: &[Parameter] = &[
    query("by", "string", "user, account, day or job"),
    query("since", "integer", "milliseconds since 1970"),
    query("until", "integer", "milliseconds since 1970, not included"),
    query("user", "string", "of this user"),
    query("account", "string", "of this account"),
];
const WATCH: &[Parameter] =
    &[query("job", "string", "about this job or array"), query("node", "string", "about this node")];
const JOB_FILE: &[Content] = &[
    content("application/toml", "Text"),
    content("application/json", "JobFile"),
    content("text/x-shellscript", "Text"),
];
const DRAIN: &[Content] = &[content("application/json", "Drain")];
const CHAOS: &[Content] = &[content("application/json", "Chaos")];
const NEW_TOKEN: &[Content] = &[content("application/json", "NewToken")];
const PRUNE: &[Content] = &[content("application/json", "Prune")];
const SHUTDOWN: &[Content] = &[content("application/json", "Shutdown")];

const READER: Option<AccessRole> = Some(AccessRole::Reader);
const USER: Option<AccessRole> = Some(AccessRole::User);
const OPERATOR: Option<AccessRole> = Some(AccessRole::Operator);
const ADMIN: Option<AccessRole> = Some(AccessRole::Admin);
const AGENT: Option<AccessRole> = Some(AccessRole::Agent);

pub(crate) const ROUTES: &[Route] = &[
    route!("POST" "/v1/jobs" USER, "takes a job in", &[], JOB_FILE, json(201, "Submitted"), submit::submit),
    route!("GET" "/v1/jobs" READER, "jobs", LIST_JOBS, &[], json(200, "Jobs"), jobs::list),
    route!("GET" "/v1/jobs/{label}" READER, "one job with its runs and notes", &[], &[], json(200, "JobDetail"), jobs::show),
    route!("DELETE" "/v1/jobs/{label}" USER, "cancels", &[], &[], json(200, "Ordered"), orders::cancel),
    route!("POST" "/v1/jobs/{label}/hold" USER, "keeps it from starting", &[], &[], json(200, "Ordered"), orders::hold),
    route!("POST" "/v1/jobs/{label}/release" USER, "lets it start again", &[], &[], json(200, "Ordered"), orders::release),
    route!("POST" "/v1/jobs/{label}/requeue" USER, "stops it and puts it back into the queue", &[], &[], json(200, "Ordered"), orders::requeue),
    route!("GET" "/v1/jobs/{label}/explain" READER, "why it waits", &[], &[], json(200, "Explanation"), jobs::explain),
    route!("GET" "/v1/jobs/{label}/logs" USER, "what a rank has written", READ_LOG, &[], text("text/plain"), logs::logs),
    route!("GET" "/v1/jobs/{label}/ranks" USER, "where each rank runs", &[], &[], json(200, "Ranks"), jobs::rank_places),
    route!("GET" "/v1/nodes" READER, "nodes", &[], &[], json(200, "Nodes"), nodes::list),
    route!("GET" "/v1/nodes/{name}" READER, "one node with its notes", &[], &[], json(200, "NodeDetail"), nodes::show),
    route!("POST" "/v1/nodes/{name}/drain" OPERATOR, "lets it finish and gives it nothing new", &[], DRAIN, json(200, "Node"), nodes::drain),
    route!("POST" "/v1/nodes/{name}/resume" OPERATOR, "puts it back into service", &[], &[], json(200, "Node"), nodes::resume),
    route!("POST" "/v1/nodes/{name}/chaos" OPERATOR, "breaks something on purpose", &[], CHAOS, json(200, "Broken"), nodes::chaos),
    route!("GET" "/v1/usage" READER, "who used how much", SUM_USAGE, &[], json(200, "Usage"), usage::usage),
    route!("POST" "/v1/history/prune" ADMIN, "lets old jobs go", &[], PRUNE, json(200, "Pruned"), history::prune),
    route!("GET" "/v1/events" READER, "what happens, as it happens", WATCH, &[], text("text/event-stream"), events::events),
    route!("GET" "/v1/cluster" READER, "what there is", &[], &[], json(200, "Cluster"), cluster::cluster),
    route!("GET" "/v1/tokens" ADMIN, "tokens without their secrets", &[], &[], json(200, "Tokens"), tokens::list),
    route!("POST" "/v1/tokens" ADMIN, "makes a token and shows it once", &[], NEW_TOKEN, json(201, "MadeToken"), tokens::make),
    route!("DELETE" "/v1/tokens/{id}" ADMIN, "revokes a token", &[], &[], json(200, "Revoked"), tokens::revoke),
    route!("POST" "/v1/shutdown" ADMIN, "ends the daemon", &[], SHUTDOWN, json(202, "Shutdown"), status::shutdown),
    route!("POST" "/v1/agents/link" AGENT, "changes to the protocol of agents", &[], &[], Returned { status: 101, content: None }, status::link),
    route!("GET" "/metrics" READER, "figures of the daemon for Prometheus", &[], &[], text("text/plain"), status::metrics),
    route!("GET" "/healthz" None, "whether it is up", &[], &[], json(200, "Health"), status::health),
    route!("GET" "/version" None, "which version it is", &[], &[], json(200, "Version"), status::version),
    route!("GET" "/openapi.json" None, "this document", &[], &[], json(200, "Document"), status::contract),
];
