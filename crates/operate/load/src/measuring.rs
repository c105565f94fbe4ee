//! Sending a plan's requests at their pace.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bedplate_replay::requests::seconds;
use bytes::Bytes;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::asking::{AskedOutcome, Client};
use crate::content;
use crate::error::LoadError;
use crate::plan::{Api, LoadPace, Plan};
use crate::summary::LoadSummary;
use crate::target::LoadTarget;

/// Sends all requests of a plan to a server and says what they took.
pub fn measure(target: &LoadTarget, plan: &Plan) -> Result<LoadSummary, LoadError> {
    bedplate_http::raise_file_limit();
    let threads = |source| LoadError::Threads { source };
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("load")
        .enable_all()
        .build()
        .map_err(threads)?;
    let measured = runtime.block_on(drive(target, plan));
    runtime.shutdown_background();
    measured
}

async fn drive(target: &LoadTarget, plan: &Plan) -> Result<LoadSummary, LoadError> {
    let model = model(target).await?;
    let order = Arc::new(Order { target: target.clone(), plan: plan.clone(), model });
    let began = Instant::now();
    let (asked, late) = match plan.pace {
        LoadPace::Closed { users } => (closed(&order, users).await, Vec::new()),
        LoadPace::Open { speed } => open(&order, began, speed).await,
    };
    let summary = LoadSummary::of(order.model.clone(), &asked, began.elapsed(), late);
    if summary.finished == 0 {
        let why =
            summary.failures.first().map_or_else(|| "there were none".to_owned(), |(why, _)| why.clone());
        return Err(LoadError::NothingFinished { url: target.url.clone(), requests: summary.requests, why });
    }
    Ok(summary)
}

/// What all tasks share.
struct Order {
    target: LoadTarget,
    plan: Plan,
    model: String,
}

impl Order {
    /// The body of a request, made before its time begins.
    fn body(&self, number: usize) -> Bytes {
        content::body(&self.plan, number, &self.model).to_string().into()
    }

    fn path(&self) -> &'static str {
        match self.plan.api {
            Api::Completions => "/v1/completions",
            Api::Chat => "/v1/chat/completions",
        }
    }
}

/// The model that is asked: the one that was named, or the server's first.
async fn model(target: &LoadTarget) -> Result<String, LoadError> {
    if let Some(model) = &target.model {
        return Ok(model.clone());
    }
    let no_model = |why: String| LoadError::NoModel { url: target.url.clone(), why };
    let listed = Client::new(target).get("/v1/models").await;
    let listed = listed.map_err(|why| match why.starts_with("status") {
        true => no_model(why),
        false => LoadError::Unreachable { url: target.url.clone(), why },
    })?;
    let first = listed["data"][0]["id"].as_str().map(str::to_owned);
    first.ok_or_else(|| no_model("its list has none".into()))
}

/// Every user takes the next request when the last one is answered.
async fn closed(order: &Arc<Order>, users: u32) -> Vec<AskedOutcome> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..users {
        let (order, next) = (order.clone(), next.clone());
        tasks.spawn(async move {
            let mut client = Client::new(&order.target);
            let mut all = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= order.plan.requests.len() {
                    return all;
                }
                let asked = client.ask(order.path(), order.body(number), order.plan.patience).await;
                let has_failed = asked.failure.is_some();
                all.push(asked);
                // A server that refuses at once is not run down.
                if has_failed {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        });
    }
    collect(tasks).await.into_iter().flatten().collect()
}

/// Every request at its time, over connections that others have left.
async fn open(order: &Arc<Order>, began: Instant, speed: f64) -> (Vec<AskedOutcome>, Vec<f64>) {
    let mut tasks = JoinSet::new();
    let mut numbers: Vec<usize> = (0..order.plan.requests.len()).collect();
    numbers.sort_by_key(|number| order.plan.requests[*number].at);
    for number in numbers {
        let body = order.body(number);
        let due = began + Duration::from_secs_f64(seconds(order.plan.requests[number].at) / speed.max(1e-9));
        sleep_until(due).await;
        let late = due.elapsed().as_secs_f64();
        let order = order.clone();
        tasks.spawn(async move {
            let mut client = Client::new(&order.target);
            (client.ask(order.path(), body, order.plan.patience).await, late)
        });
    }
    collect(tasks).await.into_iter().unzip()
}

async fn collect<T: 'static>(mut tasks: JoinSet<T>) -> Vec<T> {
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        all.extend(ended.ok());
    }
    all
}
