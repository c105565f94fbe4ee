//! Actions carried out: bindings, evictions, conditions, events. Each is one request or two, many at once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bedplate_kubernetes::k8s_openapi::api::core::v1::{Event, Node, Pod};
use bedplate_kubernetes::k8s_openapi::jiff::Timestamp;
use bedplate_kubernetes::kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use bedplate_kubernetes::kube::core::Status;
use bedplate_kubernetes::kube::{self, Api, Client};
use bedplate_kubernetes::names;
use bedplate_pods::{BindOutcome, PodAction};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;

use crate::lease::Fence;
use crate::provision::Provisioning;
use crate::run::News;

/// Bindings and evictions that are under way at once; the API server takes hundreds of requests.
const AT_ONCE: usize = 64;
/// Conditions and events at once: they must not hold up bindings.
const TOLD_AT_ONCE: usize = 8;

/// Bindings that are remembered.
const MOST_GIVEN: usize = 100_000;

/// What is said where no nodes can be asked for.
const ASKS_FOR_NODES: &str = "ask for nodes with a ProvisioningRequest";

/// Carries out actions as long as the fence stands.
#[derive(Clone)]
pub(crate) struct Hands {
    client: Client,
    name: Arc<str>,
    /// The class of requests for nodes.
    class: Option<Arc<str>>,
    news: UnboundedSender<News>,
    fence: Fence,
    /// Pods that bindings were asked for.
    given: Arc<Mutex<BTreeSet<String>>>,
    acts: Arc<Semaphore>,
    tells: Arc<Semaphore>,
}

impl Hands {
    pub(crate) fn new(
        client: Client,
        name: &str,
        class: Option<&str>,
        news: UnboundedSender<News>,
        fence: Fence,
    ) -> Self {
        let (acts, tells) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Semaphore::new(TOLD_AT_ONCE)));
        Self {
            client,
            name: name.into(),
            class: class.map(Arc::from),
            news,
            fence,
            given: Arc::default(),
            acts,
            tells,
        }
    }

    /// Begins an action and returns at once.
    pub(crate) fn begin(&self, action: PodAction) {
        let hands = self.clone();
        if let PodAction::Bind { uid, .. } = &action {
            let mut given = self.given();
            if given.len() > MOST_GIVEN {
                given.clear();
            }
            given.insert(uid.clone());
        }
        tokio::spawn(async move {
            let turns = if matches!(action, PodAction::Tell { .. }) { &hands.tells } else { &hands.acts };
            let Ok(turn) = turns.acquire().await else { return };
            let event = hands.carry_out(action).await;
            drop(turn);
            if let Some(event) = event {
                hands.write(event).await;
            }
        });
    }

    fn given(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once nothing that changes nodes or pods is under way, or after a while.
    pub(crate) async fn finish(&self) {
        let all = self.acts.acquire_many(AT_ONCE as u32);
        let _ = tokio::time::timeout(Duration::from_secs(2), all).await;
    }

    /// What happened, for people who read events.
    async fn carry_out(&self, action: PodAction) -> Option<(String, Value)> {
        match action {
            PodAction::Bind { uid, namespace, pod, node } => {
                let outcome = self.bind(&uid, &namespace, &pod, &node).await;
                if outcome != BindOutcome::Done {
                    self.given().remove(&uid);
                }
                let _ = self.news.send(News::Bound { uid: uid.clone(), outcome });
                let about = About { namespace, pod, uid };
                let message = format!("assigned {}/{} to {node} with its gang", about.namespace, about.pod);
                (outcome == BindOutcome::Done).then(|| self.event(&about, "Normal", "Scheduled", &message))
            }
            PodAction::Evict { uid, namespace, pod, grace, why } => {
                let seconds = grace.map(|grace| (grace.0 / 1000) as u32);
                self.mark_as_disrupted(&uid, &namespace, &pod, &why).await;
                self.delete(&uid, &namespace, &pod, seconds)
                    .await
                    .then(|| self.event(&About { namespace, pod, uid }, "Normal", "Evicted", &why))
            }
            PodAction::TakeOut { node, why } => {
                let _ = tokio::time::timeout(self.fence.patience(), self.take_out(&node, &why)).await;
                None
            }
            PodAction::AskForNodes { gang, namespace, kinds } => {
                let asked =
                    self.ask_for_nodes(&namespace, async |nodes| nodes.ask(&gang, &kinds).await).await;
                if let Some(is_done) = asked {
                    let _ = self.news.send(News::AskedForNodes { gang, is_done });
                }
                None
            }
            PodAction::AskNoMore { gang, namespace } => {
                self.ask_for_nodes(&namespace, async |nodes| nodes.ask_no_more(&gang).await).await;
                None
            }
            // What is bound now waits no more, whatever was decided before.
            PodAction::Tell { uid, .. } if self.given().contains(&uid) => None,
            PodAction::Tell { uid, namespace, pod, waiting } => {
                self.tell(&uid, &namespace, &pod, waiting.reason, &waiting.message).await;
                let about = About { namespace, pod, uid };
                Some(self.event(&about, "Warning", "FailedScheduling", &waiting.message))
            }
        }
    }

    async fn bind(&self, uid: &str, namespace: &str, pod: &str, node: &str) -> BindOutcome {
        if !self.fence.stands() {
            return BindOutcome::Unknown;
        }
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let how = PostParams::default();
        let asked = pods.create_subresource::<Value, Status>("binding", pod, &how, &binding);
        match tokio::time::timeout(self.fence.patience(), asked).await {
            Ok(Ok(_)) => BindOutcome::Done,
            Ok(Err(error)) => self.refused("bind pods", error),
            Err(_) => BindOutcome::Unknown,
        }
    }

    /// A refusal is an outcome; one that will not change by itself is also told to people.
    fn refused(&self, what: &'static str, error: kube::Error) -> BindOutcome {
        let code = match &error {
            kube::Error::Api(status) => status.code,
            _ => 0,
        };
        // A conflict may be our own binding of a moment ago: the pod itself will tell.
        let is_final = (400..500).contains(&code) && ![408, 409, 429].contains(&code);
        if !matches!(code, 404 | 409) {
            let _ = self.news.send(News::Refused { what, why: error });
        }
        if is_final { BindOutcome::Refused } else { BindOutcome::Unknown }
    }

    async fn delete(&self, uid: &str, namespace: &str, pod: &str, grace: Option<u32>) -> bool {
        if !self.fence.stands() {
            return false;
        }
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let how = DeleteParams {
            grace_period_seconds: grace,
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(self.fence.patience(), pods.delete(pod, &how)).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                self.refused("delete pods", error);
                false
            }
            Err(_) => false,
        }
    }

    /// By this condition a Job knows that the pod's end is not its own failure, as when kube-scheduler preempts it.
    async fn mark_as_disrupted(&self, uid: &str, namespace: &str, pod: &str, why: &str) {
        // Without its time the condition counts as stale, and Kubernetes takes it back.
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": why,
            "lastTransitionTime": now(),
        });
        self.set_condition(uid, namespace, pod, &condition).await;
    }

    async fn set_condition(&self, uid: &str, namespace: &str, pod: &str, condition: &Value) {
        if !self.fence.stands() {
            return;
        }
        let patch =
            Patch::Strategic(json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}}));
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let how = PatchParams::default();
        let asked = pods.patch_status(pod, &how, &patch);
        if let Ok(Err(error)) = tokio::time::timeout(self.fence.patience(), asked).await {
            self.refused("patch the status of pods", error);
        }
    }

    /// Cordons and taints a node, with the reason where `bedplate node list` and `kubectl describe` show it.
    async fn take_out(&self, node: &str, why: &str) {
        if !self.fence.stands() {
            return;
        }
        match self.cordon(node, why).await {
            Ok(()) => drop(self.news.send(News::TakenOut { node: node.to_owned(), why: why.to_owned() })),
            Err(error) => drop(self.refused("get and patch nodes", error)),
        }
    }

    /// Taints are one list to the server, so the node must not have changed since it was read; if it has, the scheduler asks again.
    async fn cordon(&self, name: &str, why: &str) -> kube::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(name).await?;
        let mut taints = json!(node.spec.and_then(|spec| spec.taints).unwrap_or_default());
        if let Some(taints) = taints.as_array_mut() {
            taints.retain(|taint| taint["key"] != names::FINDING_TAINT);
            taints.push(json!({"key": names::FINDING_TAINT, "effect": "NoSchedule"}));
        }
        let patch = Patch::Merge(json!({
            "metadata": {"annotations": {names::DRAIN_REASON: why}, "resourceVersion": node.metadata.resource_version},
            "spec": {"unschedulable": true, "taints": taints},
        }));
        nodes.patch(name, &PatchParams::default(), &patch).await.map(drop)
    }

    /// Says something to the autoscaler, where there is one; gives whether that was done.
    async fn ask_for_nodes(
        &self,
        namespace: &str,
        say: impl AsyncFnOnce(&Provisioning) -> kube::Result<()>,
    ) -> Option<bool> {
        let class = self.class.as_ref().filter(|_| self.fence.stands())?;
        let nodes = Provisioning::new(self.client.clone(), class, namespace);
        let said = tokio::time::timeout(self.fence.patience(), say(&nodes)).await;
        match said {
            Ok(Ok(())) => return Some(true),
            Ok(Err(why)) => drop(self.news.send(News::Refused { what: ASKS_FOR_NODES, why })),
            Err(_) => {
                let why = kube::Error::Service("the API server does not answer".into());
                let _ = self.news.send(News::Refused { what: ASKS_FOR_NODES, why });
            }
        }
        Some(false)
    }

    async fn tell(&self, uid: &str, namespace: &str, pod: &str, reason: &str, message: &str) {
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": now(),
        });
        self.set_condition(uid, namespace, pod, &condition).await;
    }

    fn event(&self, about: &About, kind: &str, reason: &str, message: &str) -> (String, Value) {
        let now = now();
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": format!("{}.", about.pod), "namespace": about.namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": about.pod, "namespace": about.namespace, "uid": about.uid},
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": &*self.name},
            "reportingComponent": &*self.name,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        (about.namespace.clone(), event)
    }

    /// An event is a courtesy: one that cannot be written is not written again.
    async fn write(&self, (namespace, event): (String, Value)) {
        let Ok(_turn) = self.tells.acquire().await else { return };
        let Ok(event) = serde_json::from_value::<Event>(event) else { return };
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let how = PostParams::default();
        let written = tokio::time::timeout(self.fence.patience(), events.create(&how, &event)).await;
        if let Ok(Err(kube::Error::Api(status))) = written
            && status.code == 403
        {
            let _ = self.news.send(News::Refused { what: "write events", why: kube::Error::Api(status) });
        }
    }
}

/// As the API server writes times: in whole seconds.
fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

struct About {
    namespace: String,
    pod: String,
    uid: String,
}
