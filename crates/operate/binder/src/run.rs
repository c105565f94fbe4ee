//! The loop: news in, decisions out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bedplate_catalog::Catalog;
use bedplate_gangs::Time;
use bedplate_host::clock::SlewedClock;
use bedplate_kubernetes::k8s_openapi::api::core::v1 as core;
use bedplate_kubernetes::kube::runtime::watcher::Event;
use bedplate_kubernetes::kube::{self, Client};
use bedplate_kubernetes::{ApiConnection, KubernetesError};
use bedplate_pods::{AskedBinding, BindOutcome, Judged, PodScheduler, SchedulerRemark, SiteRules};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::sync::watch as flag;

use crate::carry::Hands;
use crate::lease::{Fence, Holder, LeaseLook, LeaseRules};
use crate::lookup::{LookupAnswer, look_up};
use crate::read::{self, Lookup};
use crate::webhook_server::{Shown, WebhookServer, WebhookServerOptions};
use crate::{BinderError, watch};

/// Decisions are at least this far apart, and twice as far as the last one took: what comes together is decided together.
const BREATH: Duration = Duration::from_millis(10);
/// When something is looked up again that was not there.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// What is said where the Lease cannot be held.
const HOLDS_LEASE: &str = "hold the Lease";

pub struct BinderOptions {
    /// The `schedulerName` of its pods.
    pub name: String,
    pub site: Option<SiteRules>,
    /// Without it, it is the only one.
    pub lease: Option<LeaseRules>,
    /// The class of ProvisioningRequests for gangs that lack room; without it none are made.
    pub provisioning_class: Option<String>,
    /// Where the API server asks before others bind, and where metrics are.
    pub listen: Option<SocketAddr>,
    /// Whether autoscalers are told there how many requests replicas have under way.
    pub tells_load: bool,
    /// Where remarks go.
    pub remark: Box<dyn FnMut(SchedulerRemark)>,
}

/// How to end a scheduler from outside.
#[derive(Clone)]
pub struct StopHandle {
    asked: flag::Sender<Option<Ending>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Gently,
    AtOnce,
}

impl Default for StopHandle {
    fn default() -> Self {
        Self { asked: flag::Sender::new(None) }
    }
}

impl StopHandle {
    /// Gives the Lease back.
    pub fn gently(&self) {
        self.asked.send_replace(Some(Ending::Gently));
    }

    /// Leaves everything as it is, as when the process is killed.
    pub fn at_once(&self) {
        self.asked.send_replace(Some(Ending::AtOnce));
    }
}

/// Something that the loop is told.
pub(crate) enum News {
    Node(Box<Event<core::Node>>),
    Pod(Box<Event<core::Pod>>),
    Bound {
        uid: String,
        outcome: BindOutcome,
    },
    Found {
        lookup: Lookup,
        answer: LookupAnswer,
    },
    TakenOut {
        node: String,
        why: String,
    },
    AskedForNodes {
        gang: String,
        is_done: bool,
    },
    /// Somebody else is about to bind a pod. Without an answer we do not lead.
    Asked {
        asked: AskedBinding,
        answer: oneshot::Sender<Judged>,
    },
    /// The API server calls the webhook server by a name that its certificate does not have.
    CalledByOtherName {
        name: String,
    },
    Lease(LeaseLook),
    LeaseLost {
        why: String,
    },
    WatchFailed {
        what: &'static str,
        why: kube::Error,
    },
    Refused {
        what: &'static str,
        why: kube::Error,
    },
}

/// Schedules until it is stopped, or until something is wrong that will not become right by itself.
pub fn run(connection: &ApiConnection, options: BinderOptions, stop: &StopHandle) -> Result<(), BinderError> {
    connection.wait(Binder::new(connection, options).run(stop))
}

struct Binder {
    client: Client,
    server: String,
    name: String,
    lease: Option<LeaseRules>,
    provisioning_class: Option<String>,
    listen: Option<SocketAddr>,
    tells_load: bool,
    shown: Arc<Shown>,
    remark: Box<dyn FnMut(SchedulerRemark)>,
    said: BTreeSet<SchedulerRemark>,
    scheduler: PodScheduler,
    inbox: UnboundedReceiver<News>,
    news: UnboundedSender<News>,
    fence: Fence,
    leads: bool,
    nodes: Listing,
    pods: Listing,
    /// Pods with something to look up.
    read: BTreeMap<String, (core::Pod, Vec<Lookup>)>,
    answers: BTreeMap<Lookup, LookupAnswer>,
    asked: BTreeSet<Lookup>,
}

/// Whether everything that there is has been listed, and what the list that comes now has so far.
#[derive(Default)]
struct Listing {
    is_complete: bool,
    coming: Option<BTreeSet<String>>,
}

impl Listing {
    fn note(&mut self, is_whole: Option<bool>) -> Option<BTreeSet<String>> {
        match is_whole? {
            false => {
                self.coming = Some(BTreeSet::new());
                None
            }
            true => {
                self.is_complete = true;
                self.coming.take()
            }
        }
    }

    fn saw(&mut self, name: &str) {
        if let Some(coming) = &mut self.coming {
            coming.insert(name.to_owned());
        }
    }
}

impl Binder {
    fn new(connection: &ApiConnection, options: BinderOptions) -> Self {
        let (news, inbox) = unbounded_channel();
        let mut scheduler = PodScheduler::new(Catalog::builtin(), options.site);
        if options.provisioning_class.is_some() {
            scheduler = scheduler.with_requests_for_nodes();
        }
        Self {
            client: connection.client(),
            server: connection.server().to_owned(),
            name: options.name,
            fence: Fence::new(options.lease.is_some()),
            leads: options.lease.is_none(),
            lease: options.lease,
            provisioning_class: options.provisioning_class,
            listen: options.listen,
            tells_load: options.tells_load,
            shown: Arc::default(),
            remark: options.remark,
            said: BTreeSet::new(),
            scheduler,
            inbox,
            news,
            nodes: Listing::default(),
            pods: Listing::default(),
            read: BTreeMap::new(),
            answers: BTreeMap::new(),
            asked: BTreeSet::new(),
        }
    }

    async fn run(mut self, stop: &StopHandle) -> Result<(), BinderError> {
        let mut tasks = vec![
            tokio::spawn(watch::nodes(self.client.clone(), self.news.clone())),
            tokio::spawn(watch::pods(self.client.clone(), self.news.clone())),
            tokio::spawn(keep(self.holder(), self.fence.clone(), self.news.clone())),
        ];
        if let Some(address) = self.listen {
            let options = WebhookServerOptions {
                client: self.client.clone(),
                name: self.name.clone(),
                namespace: self.namespace(),
                tells_load: self.tells_load,
            };
            let webhook_server = WebhookServer::open(address, &options).await?;
            tasks.push(tokio::spawn(webhook_server.keep(options, self.news.clone(), self.shown.clone())));
        }
        let ended = self.turn(stop).await;
        tasks.iter().for_each(|task| task.abort());
        if let (Ok(Ending::Gently), Some(holder)) = (&ended, self.holder()) {
            let _ = tokio::time::timeout(Duration::from_secs(5), holder.release()).await;
        }
        ended.map(drop)
    }

    /// Where its Lease and its Service are.
    fn namespace(&self) -> String {
        let of_lease = self.lease.as_ref().map(|lease| lease.namespace.clone());
        of_lease.unwrap_or_else(|| self.client.default_namespace().to_owned())
    }

    fn holder(&self) -> Option<Holder> {
        let rules = self.lease.clone()?;
        Some(Holder::new(self.client.clone(), rules, self.fence.clone()))
    }

    async fn turn(&mut self, stop: &StopHandle) -> Result<Ending, BinderError> {
        let hands = Hands::new(
            self.client.clone(),
            &self.name,
            self.provisioning_class.as_deref(),
            self.news.clone(),
            self.fence.clone(),
        );
        let mut stopped = stop.asked.subscribe();
        let mut is_checked = false;
        let mut is_news = false;
        // Not before: news that never stop coming must not put decisions off.
        let mut earliest = Instant::now();
        loop {
            let due = if is_news { earliest } else { earliest.max(Instant::now() + self.patience()) };
            tokio::select! {
                asked = stopped.wait_for(Option::is_some) => {
                    let ending = asked.ok().and_then(|asked| *asked).unwrap_or(Ending::Gently);
                    if ending == Ending::Gently {
                        self.fence.fall();
                        hands.finish().await;
                    }
                    return Ok(ending);
                }
                told = self.inbox.recv() => {
                    let Some(told) = told else { return Ok(Ending::Gently) };
                    is_news |= self.take_in(told)?;
                    while let Ok(told) = self.inbox.try_recv() {
                        is_news |= self.take_in(told)?;
                    }
                }
                () = tokio::time::sleep_until(due.into()) => {
                    earliest = Instant::now() + BREATH;
                    let acts = self.acts();
                    self.shown.leads.store(acts, Ordering::Relaxed);
                    if !acts {
                        is_news = false;
                        continue;
                    }
                    if !is_checked {
                        self.scheduler.check_site().map_err(BinderError::Site)?;
                        is_checked = true;
                    }
                    is_news = false;
                    let began = Instant::now();
                    let actions = self.scheduler.decide(now()).map_err(BinderError::Nodes)?;
                    let took = began.elapsed();
                    earliest = Instant::now() + BREATH.max(took * 2);
                    self.shown.figures.decided(took, self.scheduler.waiting(), &actions);
                    actions.into_iter().for_each(|action| hands.begin(action));
                    self.scheduler.remarks().into_iter().for_each(|remark| self.say_once(remark));
                }
            }
        }
    }

    /// Whether it leads, and knows all that there is.
    fn acts(&self) -> bool {
        self.leads && self.fence.stands() && self.nodes.is_complete && self.pods.is_complete
    }

    /// How long until the next decision, if nothing comes.
    fn patience(&self) -> Duration {
        let due = self.scheduler.wakeup().map(|at| Duration::from_millis(at.since(now()).0));
        due.unwrap_or(Duration::from_secs(1)).clamp(BREATH, Duration::from_secs(1))
    }

    /// Takes in what happened; says whether anything is different now.
    fn take_in(&mut self, news: News) -> Result<bool, BinderError> {
        match news {
            News::Node(event) => return Ok(self.node(*event)),
            News::Pod(event) => return Ok(self.pod(*event)),
            News::Bound { uid, outcome } => {
                self.shown.figures.bound(outcome);
                self.scheduler.bound(&uid, outcome, now());
            }
            News::AskedForNodes { gang, is_done } => self.scheduler.asked_for_nodes(&gang, is_done),
            News::Asked { asked, answer } => {
                if self.acts() {
                    // Whoever asked may be gone.
                    let _ = answer.send(self.scheduler.judge(&asked, now()));
                }
                return Ok(false);
            }
            News::Found { lookup, answer } => self.found(lookup, answer),
            News::TakenOut { node, why } => {
                let text = format!("took {node} out of service: {why}");
                self.say_once(SchedulerRemark { text, node: Some(node) });
            }
            News::CalledByOtherName { name } => {
                self.say(format!("the API server calls {name}, and the certificate was made before that was known: start again"));
            }
            News::Lease(LeaseLook::ByUs) => {
                if !std::mem::replace(&mut self.leads, true) {
                    self.say("holds the Lease and schedules".to_owned());
                }
            }
            News::Lease(LeaseLook::ByOther { holder }) => {
                if self.leads {
                    return Err(self.lost(format!("{holder} holds it")));
                }
                self.say(format!("waits: {holder} holds the Lease"));
            }
            News::LeaseLost { why } => return Err(self.lost(why)),
            News::WatchFailed { what, why } => self.failed(&format!("watch {what}"), why)?,
            News::Refused { what, why } => self.failed(what, why)?,
        }
        Ok(true)
    }

    fn lost(&self, why: String) -> BinderError {
        let (namespace, name) =
            self.lease.clone().map(|lease| (lease.namespace, lease.name)).unwrap_or_default();
        BinderError::LeaseLost { namespace, name, why }
    }

    /// What we may not see is an end. What we may not do may be for one pod only, as where its namespace is being deleted.
    fn failed(&mut self, what: &str, why: kube::Error) -> Result<(), BinderError> {
        match KubernetesError::of(why, &self.server) {
            error @ (KubernetesError::Forbidden { .. } | KubernetesError::Unknown { .. })
                if what.starts_with("watch") || what == HOLDS_LEASE =>
            {
                Err(error.into())
            }
            error => {
                self.say(format!("cannot {what}: {error}"));
                Ok(())
            }
        }
    }

    fn say(&mut self, text: String) {
        self.say_once(SchedulerRemark { text, node: None });
    }

    /// Says something once; after many things it may say them again.
    fn say_once(&mut self, remark: SchedulerRemark) {
        if self.said.len() > 1000 {
            self.said.clear();
        }
        if self.said.insert(remark.clone()) {
            (self.remark)(remark);
        }
    }

    fn node(&mut self, event: Event<core::Node>) -> bool {
        if let Some(listed) = self.nodes.note(watch::is_whole(&event)) {
            let gone = self.scheduler.known().0.into_iter().filter(|name| !listed.contains(name));
            gone.collect::<Vec<String>>().iter().for_each(|name| self.scheduler.node_gone(name));
            return true;
        }
        match event {
            Event::Apply(node) | Event::InitApply(node) => {
                let node = read::node(&node);
                self.nodes.saw(&node.name);
                self.scheduler.node(node)
            }
            Event::Delete(node) => {
                self.scheduler.node_gone(&node.metadata.name.unwrap_or_default());
                true
            }
            Event::Init | Event::InitDone => false,
        }
    }

    fn pod(&mut self, event: Event<core::Pod>) -> bool {
        if let Some(listed) = self.pods.note(watch::is_whole(&event)) {
            let gone = self.scheduler.known().1.into_iter().filter(|uid| !listed.contains(uid));
            gone.collect::<Vec<String>>().iter().for_each(|uid| self.pod_gone(uid));
            return true;
        }
        match event {
            Event::Apply(pod) | Event::InitApply(pod) => {
                self.pods.saw(pod.metadata.uid.as_deref().unwrap_or_default());
                self.pod_is(pod)
            }
            Event::Delete(pod) => {
                self.pod_gone(&pod.metadata.uid.unwrap_or_default());
                true
            }
            Event::Init | Event::InitDone => false,
        }
    }

    fn pod_is(&mut self, object: core::Pod) -> bool {
        let reading = read::pod(&object, &self.name);
        let lookups: Vec<Lookup> = reading.lookups().cloned().collect();
        for lookup in &lookups {
            if !self.answers.contains_key(lookup) && self.asked.insert(lookup.clone()) {
                self.look_up(lookup.clone(), Duration::ZERO);
            }
        }
        if !lookups.is_empty() {
            self.read.insert(reading.pod.uid.clone(), (object, lookups));
        }
        self.scheduler.pod(reading.complete(&self.answers))
    }

    fn pod_gone(&mut self, uid: &str) {
        self.scheduler.pod_gone(uid);
        let Some((_, lookups)) = self.read.remove(uid) else { return };
        for lookup in lookups {
            let is_wanted = self.read.values().any(|(_, wanted)| wanted.contains(&lookup));
            if !is_wanted {
                self.answers.remove(&lookup);
                self.asked.remove(&lookup);
            }
        }
    }

    fn look_up(&self, lookup: Lookup, after: Duration) {
        let (client, news) = (self.client.clone(), self.news.clone());
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let answer = look_up(client, lookup.clone()).await;
            let _ = news.send(News::Found { lookup, answer });
        });
    }

    fn found(&mut self, lookup: Lookup, answer: LookupAnswer) {
        if !self.asked.contains(&lookup) {
            return;
        }
        if let LookupAnswer::NotYet(why) = &answer {
            self.say(format!("looks again for {why}"));
            self.look_up(lookup.clone(), LOOK_AGAIN);
        }
        self.answers.insert(lookup.clone(), answer);
        let concerned = self.read.values().filter(|(_, wanted)| wanted.contains(&lookup));
        let concerned: Vec<core::Pod> = concerned.map(|(object, _)| object.clone()).collect();
        for object in concerned {
            let reading = read::pod(&object, &self.name);
            self.scheduler.pod(reading.complete(&self.answers));
        }
    }
}

/// Takes the Lease and renews it.
async fn keep(holder: Option<Holder>, fence: Fence, news: UnboundedSender<News>) {
    let Some(mut holder) = holder else { return };
    let mut leads = false;
    loop {
        match tokio::time::timeout(holder.rhythm() * 2, holder.hold()).await {
            Ok(Ok(held)) => {
                leads |= held == LeaseLook::ByUs;
                let _ = news.send(News::Lease(held));
            }
            Ok(Err(error @ kube::Error::Api(_))) if !leads => {
                let _ = news.send(News::Refused { what: HOLDS_LEASE, why: error });
            }
            Ok(Err(_)) | Err(_) => {}
        }
        if leads && !fence.stands() {
            let _ = news.send(News::LeaseLost { why: "it could not be renewed in time".to_owned() });
            return;
        }
        tokio::time::sleep(holder.rhythm()).await;
    }
}

/// The wall clock's time without its jumps: a step forward must not end the leases of gangs that are being bound.
fn now() -> Time {
    static CLOCK: LazyLock<SlewedClock> = LazyLock::new(SlewedClock::start);
    Time(CLOCK.now_ms())
}
