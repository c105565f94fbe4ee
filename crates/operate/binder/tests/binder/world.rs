//! A control plane, pods on it, and schedulers that run as threads and can be killed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bedplate_binder::{
    BinderError, BinderOptions, LeaseRules, ManifestOptions, SchedulerRemark, SiteRules, StopHandle,
    manifests,
};
use bedplate_kubernetes::k8s_openapi::api::batch::v1::Job;
use bedplate_kubernetes::k8s_openapi::api::core::v1::Pod;
use bedplate_kubernetes::kube::Api;
use bedplate_kubernetes::kube::api::{DeleteParams, ListParams, PostParams};
use bedplate_kubernetes::{ApiConnection, KubernetesPlace};
use bedplate_peers::{Kubernetes, KubernetesShape};
use serde_json::{Value, json};

pub(crate) const NODES: u32 = 8;
pub(crate) const GPUS: i64 = 8;
/// Nothing here takes long; a machine under load may.
const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) struct World {
    pub(crate) kubernetes: Kubernetes,
    pub(crate) admin: ApiConnection,
}

impl World {
    pub(crate) fn start() -> Option<Self> {
        let shape =
            KubernetesShape { nodes: NODES, jobset: true, scheduler: true, ..KubernetesShape::default() };
        if let Some(why) = shape.missing() {
            println!("SKIPPED: {why}");
            return None;
        }
        let kubernetes = Kubernetes::start(&shape).expect("a control plane");
        let admin = connect(&kubernetes.kubeconfig());
        Some(Self { kubernetes, admin })
    }

    pub(crate) fn pods(&self) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.admin.client(), "default");
        self.admin.ask(pods.list(&ListParams::default())).map(|list| list.items).unwrap_or_default()
    }

    pub(crate) fn of_gang(&self, gang: &str) -> Vec<Pod> {
        let mine = |pod: &Pod| label(pod, "story/gang").as_deref() == Some(gang);
        self.pods().into_iter().filter(mine).collect()
    }

    /// Pods of a gang that stand on nodes.
    pub(crate) fn bound(&self, gang: &str) -> usize {
        self.of_gang(gang).iter().filter(|pod| stands(pod)).count()
    }

    pub(crate) fn create(&self, pod: Value) {
        let pods: Api<Pod> = Api::namespaced(self.admin.client(), "default");
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        self.admin.ask(pods.create(&PostParams::default(), &pod)).expect("the pod is made");
    }

    pub(crate) fn gang(&self, gang: &Gang) {
        (0..gang.pods).for_each(|index| self.create(gang.pod(index)));
    }

    /// A Job whose pods say nothing of a gang: what they are is read from the Job.
    pub(crate) fn job(&self, gang: &Gang) {
        let template = gang.template();
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": gang.name},
            "spec": {"parallelism": gang.pods, "completions": gang.pods, "completionMode": "Indexed", "backoffLimit": 100, "template": template},
        });
        let jobs: Api<Job> = Api::namespaced(self.admin.client(), "default");
        let job: Job = serde_json::from_value(job).expect("a Job");
        self.admin.ask(jobs.create(&PostParams::default(), &job)).expect("the Job is made");
    }

    /// Says something of a node in a condition.
    pub(crate) fn condition(&self, node: &str, kind: &str, status: &str, reason: &str, message: &str) {
        let condition = json!({"type": kind, "status": status, "reason": reason, "message": message});
        let patch = json!({"status": {"conditions": [condition]}}).to_string();
        self.kubernetes.kubectl(&[
            "patch",
            "node",
            node,
            "--subresource=status",
            "--type=strategic",
            "-p",
            &patch,
        ]);
    }

    /// Puts a node back into service.
    pub(crate) fn trust(&self, node: &str) {
        self.kubernetes.kubectl(&["uncordon", node]);
        self.kubernetes.kubectl(&["taint", "node", node, "bedplate.dev/finding-"]);
        self.kubernetes.kubectl(&["annotate", "node", node, "bedplate.dev/drain-reason-"]);
    }

    /// Deletes everything and waits until it is gone.
    pub(crate) fn clear(&self) {
        self.kubernetes.kubectl(&["delete", "jobsets,jobs", "--all", "--wait=false"]);
        let pods: Api<Pod> = Api::namespaced(self.admin.client(), "default");
        self.until("everything is gone", || {
            for pod in self.pods() {
                let name = pod.metadata.name.unwrap_or_default();
                let _ = self.admin.ask(pods.delete(&name, &DeleteParams::default().grace_period(0)));
            }
            self.pods().is_empty()
        });
    }

    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}\n{}", self.described());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn described(&self) -> String {
        let shown = |what: &[&str]| self.kubernetes.try_kubectl(what).unwrap_or_default();
        shown(&["get", "pods", "-o", "wide"]) + &shown(&["get", "jobsets,jobs", "-o", "yaml"])
    }

    pub(crate) fn scheduler(&self) -> Running {
        self.scheduler_by(SchedulerOptions::default())
    }

    pub(crate) fn scheduler_by(&self, options: SchedulerOptions) -> Running {
        Running::start(self.kubernetes.kubeconfig(), options)
    }

    /// Lets the API server ask at an address before others bind.
    pub(crate) fn ask_at(&self, address: SocketAddr) {
        let is_hook = |object: &Value| object["kind"] == "ValidatingWebhookConfiguration";
        let hook = manifests(&manifest_options()).into_iter().find(is_hook);
        let mut hook = hook.expect("it is one of the manifests");
        hook["webhooks"][0]["clientConfig"] = json!({"url": format!("https://{address}")});
        self.kubernetes.apply(&hook.to_string());
    }

    /// Lets the API server ask there for the load of replicas.
    pub(crate) fn tell_load_at(&self, address: SocketAddr) {
        let objects = manifests(&manifest_options());
        self.kubernetes.apply(&objects[0].to_string());
        // The API server leads to no addresses of Services here, but to a name it does.
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "bedplate-scheduler", "namespace": "bedplate-system"},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        });
        self.kubernetes.apply(&service.to_string());
        let is_source = |object: &Value| object["kind"] == "APIService";
        let mut source = objects.into_iter().find(is_source).expect("it is one of the manifests");
        source["spec"]["service"]["port"] = address.port().into();
        self.kubernetes.apply(&source.to_string());
    }

    pub(crate) fn ask_no_more(&self) {
        self.kubernetes.kubectl(&["delete", "validatingwebhookconfiguration", "bedplate-scheduler"]);
    }
}

/// Of cluster-autoscaler: all nodes that are asked for, or none.
pub(crate) const CLASS: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";

pub(crate) fn manifest_options() -> ManifestOptions {
    ManifestOptions {
        namespace: "bedplate-system".to_owned(),
        name: "bedplate".to_owned(),
        image: "example.com/bedplate:0".to_owned(),
        replicas: 2,
        provisioning_class: Some(CLASS.to_owned()),
        tells_load: true,
    }
}

/// An address that nobody listens on.
pub(crate) fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there are free ports");
    listener.local_addr().expect("it is bound")
}

pub(crate) fn connect(kubeconfig: &std::path::Path) -> ApiConnection {
    let place = KubernetesPlace { kubeconfig: Some(kubeconfig.to_owned()), ..KubernetesPlace::default() };
    ApiConnection::open(&place).expect("the kubeconfig is good")
}

pub(crate) fn label(pod: &Pod, key: &str) -> Option<String> {
    pod.metadata.labels.as_ref()?.get(key).cloned()
}

pub(crate) fn annotation(pod: &Pod, key: &str) -> Option<String> {
    pod.metadata.annotations.as_ref()?.get(key).cloned()
}

pub(crate) fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

pub(crate) fn phase(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default()
}

/// On a node, not ended, not told to go.
pub(crate) fn stands(pod: &Pod) -> bool {
    let has_ended = matches!(phase(pod).as_str(), "Succeeded" | "Failed");
    node_of(pod).is_some() && !has_ended && pod.metadata.deletion_timestamp.is_none()
}

/// The reason of PodScheduled=False.
pub(crate) fn waits_for(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|each| each.type_ == "PodScheduled" && each.status == "False")?;
    scheduled.reason.clone()
}

pub(crate) fn message(pod: &Pod) -> String {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    conditions
        .into_iter()
        .filter(|each| each.type_ == "PodScheduled")
        .filter_map(|each| each.message)
        .collect()
}

#[derive(Clone)]
pub(crate) struct Gang {
    pub(crate) name: String,
    pub(crate) pods: u32,
    pub(crate) gpus: i64,
    pub(crate) scheduler: &'static str,
    pub(crate) runs_for: Option<&'static str>,
    pub(crate) limit: Option<&'static str>,
    pub(crate) selector: Option<(&'static str, String)>,
    /// It ends with an error, and belongs to this user.
    pub(crate) fails_as: Option<&'static str>,
    pub(crate) priority: Option<&'static str>,
    pub(crate) is_preemptible: bool,
    pub(crate) qos: Option<&'static str>,
    /// A volume claim that its pods use.
    pub(crate) claim: Option<&'static str>,
}

impl Gang {
    pub(crate) fn new(name: &str, pods: u32, gpus: i64) -> Self {
        Self {
            name: name.to_owned(),
            pods,
            gpus,
            scheduler: "bedplate",
            runs_for: None,
            fails_as: None,
            limit: None,
            selector: None,
            priority: None,
            is_preemptible: false,
            qos: None,
            claim: None,
        }
    }

    pub(crate) fn template(&self) -> Value {
        let mut pod = self.pod(0);
        let mut without = |part: &str, key: &str| {
            drop(pod["metadata"][part].as_object_mut().and_then(|all| all.remove(key)))
        };
        without("labels", "bedplate.dev/gang");
        without("annotations", "bedplate.dev/gang-size");
        json!({"metadata": {"labels": pod["metadata"]["labels"], "annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]})
    }

    pub(crate) fn pod(&self, index: u32) -> Value {
        let size = self.pods.to_string();
        let mut annotations = json!({"bedplate.dev/gang-size": size, "story/size": size});
        if let Some(limit) = self.limit {
            annotations["bedplate.dev/time-limit"] = limit.into();
        }
        if let Some(runs_for) = self.runs_for {
            annotations["kubeci/run-for"] = runs_for.into();
        }
        if let Some(user) = self.fails_as {
            annotations["kubeci/exit-code"] = "1".into();
            annotations["bedplate.dev/user"] = user.into();
        }
        if self.is_preemptible {
            annotations["bedplate.dev/preemptible"] = "true".into();
        }
        if let Some(qos) = self.qos {
            annotations["bedplate.dev/qos"] = qos.into();
        }
        let volume = |claim: &str| json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
        let mut selector = json!({});
        if let Some((key, value)) = &self.selector {
            selector[*key] = value.clone().into();
        }
        let amount = json!({"nvidia.com/gpu": self.gpus.to_string(), "cpu": "1"});
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{}-{index}", self.name), "labels": {"bedplate.dev/gang": self.name, "story/gang": self.name}, "annotations": annotations},
            "spec": {
                "schedulerName": self.scheduler,
                "restartPolicy": "Never",
                "nodeSelector": selector,
                "volumes": self.claim.iter().map(|claim| volume(claim)).collect::<Vec<Value>>(),
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "none", "resources": {"requests": amount, "limits": amount}}],
            },
        });
        if let Some(priority) = self.priority {
            pod["spec"]["priorityClassName"] = priority.into();
        }
        pod
    }
}

/// A scheduler in a thread of its own, with a connection of its own.
pub(crate) struct Running {
    stop: StopHandle,
    thread: Option<JoinHandle<Result<(), BinderError>>>,
    pub(crate) remarks: Arc<Mutex<Vec<String>>>,
}

/// A scheduler in a process of its own, which ends with the value.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) const KUBECONFIG: &str = "BEDPLATE_STORY_KUBECONFIG";

    pub(crate) fn start(kubeconfig: &std::path::Path) -> Self {
        let program = std::env::current_exe().expect("this program has a file");
        let child = Command::new(program)
            .args(["--exact", "a_scheduler_in_a_process_of_its_own"])
            .env(Self::KUBECONFIG, kubeconfig)
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("it starts"))
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("it was there");
        self.0.wait().expect("it is gone");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is not the same for all schedulers of the stories.
#[derive(Default)]
pub(crate) struct SchedulerOptions {
    pub(crate) lease: Option<LeaseRules>,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) site: Option<&'static str>,
    /// Of requests for nodes.
    pub(crate) class: Option<&'static str>,
}

impl Running {
    pub(crate) fn start(kubeconfig: PathBuf, options: SchedulerOptions) -> Self {
        let stop = StopHandle::default();
        let remarks: Arc<Mutex<Vec<String>>> = Arc::default();
        let (handle, said) = (stop.clone(), Arc::clone(&remarks));
        let thread = std::thread::spawn(move || {
            let connection = connect(&kubeconfig);
            let remark = move |remark: SchedulerRemark| {
                println!("scheduler: {}", remark.text);
                said.lock().expect("nothing panics under it").push(remark.text);
            };
            let options = BinderOptions {
                name: "bedplate".to_owned(),
                site: options
                    .site
                    .map(|text| SiteRules { text: text.to_owned(), source: "site.toml".to_owned() }),
                lease: options.lease,
                provisioning_class: options.class.map(str::to_owned),
                listen: options.listen,
                tells_load: options.listen.is_some(),
                remark: Box::new(remark),
            };
            bedplate_binder::run(&connection, options, &handle)
        });
        Self { stop, thread: Some(thread), remarks }
    }

    /// Everything that it was doing is torn off.
    pub(crate) fn kill(mut self) {
        self.stop.at_once();
        let ended = self.thread.take().expect("it runs").join().expect("no panic");
        ended.expect("it was well until it was killed");
    }

    /// Waits until it ends by itself.
    pub(crate) fn ended(mut self) -> Result<(), BinderError> {
        self.thread.take().expect("it runs").join().expect("no panic")
    }

    pub(crate) fn stop(mut self) {
        self.stop.gently();
        self.thread.take().expect("it runs").join().expect("no panic").expect("it ends well");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.at_once();
    }
}
