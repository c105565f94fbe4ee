//! A real API server with pretended nodes passes the suite that every driver passes, takes every job that we can write, and
//! its refusals are told as what they are.

mod suite;

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use bedplate_diag::Diagnostic;
use bedplate_drivers::{
    Driver, DriverError, JobOrder, JobQuery, JobState, Kubernetes, KubernetesSite, LogQuery,
};
use bedplate_job::kubernetes::{
    ManifestKind, RenderOptions, SecretKey, Toleration, Volume, VolumeSource, render,
};
use bedplate_job::{Closeness, Gang, Job, Role, Workload};
use bedplate_kubernetes::KubernetesPlace;
use bedplate_peers::{Kubernetes as RealKubernetes, KubernetesShape};
use bedplate_testkit::wait_to_see;
use bedplate_topology::Level;
use bedplate_units::{Bytes, Seconds};

/// One control plane at a time: two would share the cores.
static ONE: Mutex<()> = Mutex::new(());

/// One control plane for all cases: a start takes long.
#[test]
fn a_real_api_server_conforms() {
    let shape = KubernetesShape { jobset: true, ..KubernetesShape::default() };
    if let Some(why) = shape.missing() {
        return println!("SKIPPED: a real Kubernetes: {why}");
    }
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = RealKubernetes::start(&shape).expect("its programs are there");
    let by_job_sets = driver(&site(&cluster));
    let by_jobs = driver(&KubernetesSite { has_plain_jobs: true, ..site(&cluster) });
    assert_eq!(by_job_sets.manifest_kind().expect("it answers"), ManifestKind::JobSet);
    assert_eq!(by_jobs.manifest_kind().expect("it answers"), ManifestKind::Job);
    every_job_is_valid(&by_job_sets, &by_jobs);
    kubeflow_takes_them_too(&cluster);
    suite::conforms(&by_job_sets);
    suite::conforms(&by_jobs);
    logs_are_read_by_rank(&cluster, &by_job_sets);
    a_node_that_is_put_back_has_no_taint_of_ours(&cluster, &by_job_sets);
    what_is_not_allowed_is_told_with_the_verb(&cluster);
    a_server_that_is_gone_is_transient(&cluster, &by_job_sets);
}

fn site(cluster: &RealKubernetes) -> KubernetesSite {
    let place = KubernetesPlace { kubeconfig: Some(cluster.kubeconfig()), ..KubernetesPlace::default() };
    KubernetesSite { place, image: Some("registry.test/image:1".into()), ..KubernetesSite::default() }
}

fn a_node_that_is_put_back_has_no_taint_of_ours(cluster: &RealKubernetes, driver: &Kubernetes) {
    let node = driver.nodes().expect("it lists").remove(0).name;
    let taints = || cluster.kubectl(&["get", "node", node.as_str(), "-o", "jsonpath={.spec.taints[*].key}"]);
    driver.drain(&node, "fan").expect("it can");
    cluster.kubectl(&[
        "taint",
        "node",
        node.as_str(),
        "bedplate.dev/finding=:NoSchedule",
        "site/own=:NoSchedule",
    ]);
    driver.resume(&node).expect("it can");
    assert_eq!(taints(), "site/own");
    cluster.kubectl(&["taint", "node", node.as_str(), "site/own-"]);
}

/// A reader who has seen enough after so many bytes.
struct Until(Vec<u8>, usize);

impl Write for Until {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        if self.0.len() >= self.1 { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logs_are_read_by_rank(cluster: &RealKubernetes, driver: &Kubernetes) {
    let written = "step 1 loss 3.2\nstep 2 loss 3.1\n";
    cluster.write_logs(&written.lines().collect::<Vec<&str>>()).expect("a file");
    let role = Role { nodes: 2, gpus_per_node: 8, ..Role::named(Role::ONLY) };
    let job = Job::new("speaks", Workload::command(["sleep", "3600"]), Gang::of(role));
    let id = driver.submit(&job, "speaks").expect("it can run here").id;
    suite::until(driver, &id, |job| job.life.state == JobState::Running);
    let ranks = driver.ranks(&id).expect("it runs").len() as u32;
    let read = |query: LogQuery| {
        let mut text = Vec::new();
        driver.logs(&id, &query, &mut text).map(|next| (next, String::from_utf8(text).expect("text")))
    };
    let whole = written.len() as u64;
    for rank in [0, ranks - 1] {
        let (next, text) = read(LogQuery { rank, ..LogQuery::default() }).expect("the server gives it");
        assert_eq!((next, text.as_str()), (whole, written));
    }
    let (next, text) = read(LogQuery { offset: 16, ..LogQuery::default() }).expect("the server gives it");
    assert_eq!((next, text.as_str()), (whole, "step 2 loss 3.1\n"));
    let error = read(LogQuery { rank: ranks, ..LogQuery::default() }).expect_err("there is none");
    assert!(error.to_string().contains("and no rank"), "{error}");
    let mut followed = Until(Vec::new(), written.len());
    let query = LogQuery { follow: true, ..LogQuery::default() };
    driver.logs(&id, &query, &mut followed).expect_err("the reader has gone");
    assert_eq!(followed.0, written.as_bytes());
    cluster.write_logs(&[]).expect("a file");
    driver.order(&id, JobOrder::Cancel).expect("it runs");
}

fn driver(site: &KubernetesSite) -> Kubernetes {
    Kubernetes::new(site).expect("the kubeconfig is good")
}

/// Two nodes of quota: what does not fit waits in Kueue's queue, and Kueue's words are translated.
const QUEUES: &str = r#"
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: any}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: all}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, nvidia.com/gpu]
    flavors:
    - name: any
      resources: [{name: cpu, nominalQuota: 1000}, {name: nvidia.com/gpu, nominalQuota: 16}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: research, namespace: default}
spec: {clusterQueue: all}
"#;

#[test]
fn kueue_admits_and_its_reasons_are_told() {
    let shape = KubernetesShape { nodes: 4, jobset: true, kueue: true, ..KubernetesShape::default() };
    if let Some(why) = shape.missing() {
        return println!("SKIPPED: a real Kueue: {why}");
    }
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = RealKubernetes::start(&shape).expect("its programs are there");
    cluster.apply(QUEUES);
    let driver = driver(&site(&cluster));
    let queued = |name: &str, nodes: u32, is_held: bool| {
        let role = Role { nodes, gpus_per_node: 8, ..Role::named(Role::ONLY) };
        let mut job = Job::new(name, Workload::command(["sleep", "3600"]), Gang::of(role));
        job.policy.partition = Some("research".into());
        job.policy.is_held = is_held;
        driver.submit(&job, name).expect("it can run here").id
    };
    let first = queued("first", 2, false);
    suite::until(&driver, &first, |job| job.life.state == JobState::Running);
    let second = queued("second", 1, false);
    let explain = || driver.explain(&second).expect("it can").expect("it waits");
    let explained =
        wait_to_see("it waits for its quota", explain, |explained| explained.wait.code == "quota");
    let text = &explained.wait.text;
    assert!(text.contains("research") && text.contains("nvidia.com/gpu"), "{explained:?}");
    let view = driver.cluster().expect("it tells");
    assert_eq!(view.rest["partitions"][0]["name"], "research", "{view:?}");
    // Held, it does not take the quota that becomes free; released, it does.
    driver.order(&second, JobOrder::Hold).expect("it waits");
    assert_eq!(
        driver.explain(&second).expect("it can").map(|explained| explained.wait.code).as_deref(),
        Some("held")
    );
    driver.order(&first, JobOrder::Cancel).expect("it runs");
    suite::until(&driver, &first, |job| job.life.state == JobState::Cancelled);
    driver.order(&second, JobOrder::Release).expect("it is held");
    suite::until(&driver, &second, |job| job.life.state == JobState::Running);
    driver.order(&second, JobOrder::Requeue).expect("it runs");
    suite::until(&driver, &second, |job| job.life.state == JobState::Running && job.life.runs == 2);
    driver.order(&second, JobOrder::Cancel).expect("it runs");
    suite::until(&driver, &second, |job| job.life.state == JobState::Cancelled);
}

/// The server's own validation, by a dry run, of jobs of every shape.
fn every_job_is_valid(by_job_sets: &Kubernetes, by_jobs: &Kubernetes) {
    let jobs: Vec<Job> = (0..40).map(generated).collect();
    for job in &jobs {
        by_job_sets.check(job).unwrap_or_else(|error| panic!("{error}\n{}", job.to_toml()));
        if job.gang.roles.len() == 1 {
            by_jobs.check(job).unwrap_or_else(|error| panic!("{error}\n{}", job.to_toml()));
        }
    }
    assert!(by_job_sets.jobs(&JobQuery::default()).expect("it lists").is_empty(), "nothing was made");
}

/// Kubeflow's kinds are defined and its controllers do not run, so the server's validation is by their definitions.
fn kubeflow_takes_them_too(cluster: &RealKubernetes) {
    for (project, kind) in
        [("training-operator", ManifestKind::PyTorchJob), ("trainer", ManifestKind::TrainJob)]
    {
        cluster.install(project).expect("its kinds can be defined");
        let mut taken = 0;
        for job in (0..40).map(generated).filter(|job| job.gang.roles.len() == 1) {
            let image = Some("registry.test/image:1".to_owned());
            let options = RenderOptions { kind, image, ..RenderOptions::default() };
            let Ok(manifests) = render(&job, &options) else { continue };
            let text: Vec<String> = manifests.objects.iter().map(ToString::to_string).collect();
            let text = text.join("\n---\n");
            cluster.dry_run(&text).unwrap_or_else(|why| panic!("{kind:?}: {why}\n{text}"));
            taken += 1;
        }
        assert!(taken >= 10, "{kind:?}: only {taken} of 40 jobs can be written so");
    }
}

/// The bits of the number choose what the job has.
fn generated(number: u32) -> Job {
    let has = |bit: u32| number >> bit & 1 == 1;
    let mut role =
        Role { nodes: 1 + number % 5, gpus_per_node: 8 * u32::from(has(0)), ..Role::named(Role::ONLY) };
    role.tasks_per_node = if has(1) { 8 } else { 1 };
    role.memory_per_node = has(2).then(|| Bytes::gib(64.0));
    role.accelerator = (has(0) && has(3)).then(|| "mi300x".to_owned());
    role.is_exclusive = has(4);
    let mut roles = vec![role.clone()];
    if number.is_multiple_of(3) {
        roles.push(Role { nodes: 2, ..Role::named("Rollout worker, which has a very long name") });
    }
    let mut job = Job::new(
        format!("Job №{number}: \"quoted\" {}", "long ".repeat(number as usize % 30)),
        Workload::command(["sh", "-c", "echo $(hostname) $$ '$(RANK)' | cat\n"]),
        Gang { roles },
    );
    job.policy.time_limit = has(1).then(|| Seconds::new(5400.5));
    job.policy.retries = number % 4;
    job.policy.is_held = has(2);
    job.policy.is_requeued = has(3);
    job.policy.survives = has(4);
    job.policy.partition = has(5).then(|| "research".to_owned());
    job.policy.account = has(0).then(|| "physics & chemistry".to_owned());
    job.placement.closeness = if has(2) { Closeness::Required(Level::LEAF) } else { Closeness::Any };
    job.placement.spread = (number % 7 == 3).then_some(Level::LEAF);
    job.placement.avoid_nodes = if has(3) { vec!["node-00001".into()] } else { Vec::new() };
    job.placement.features = if has(4) { vec!["type=kwok".into(), "fast".into()] } else { Vec::new() };
    job.environment.set.insert("WORD".into(), "it's $(RANK), \"hello\"\n".into());
    job.environment.set.insert("RANK".into(), "not this one".into());
    job.labels.insert("team".into(), "a".into());
    job.labels.insert("not a label".into(), "é".into());
    job.hooks.prolog = if has(5) { vec!["nvidia-smi".into()] } else { Vec::new() };
    if has(1) {
        let pods = &mut job.kubernetes;
        pods.pull_secrets = vec!["registry".into()];
        pods.service_account = Some("default".into());
        pods.resources.insert("vpc.amazonaws.com/efa".into(), 32);
        pods.node_labels.insert("type".into(), "kwok".into());
        let token = SecretKey { secret: "hugging-face".into(), key: "token".into() };
        pods.secret_environment.insert("HF_TOKEN".into(), token);
        pods.tolerations = vec![
            Toleration { key: "nvidia.com/gpu".into(), value: None, effect: None },
            Toleration { key: "team".into(), value: Some("a".into()), effect: Some("NoSchedule".into()) },
        ];
        pods.volumes = [
            VolumeSource::Claim("data".into()),
            VolumeSource::HostPath("/fsx".into()),
            VolumeSource::Secret("keys".into()),
            VolumeSource::ConfigMap("settings".into()),
            VolumeSource::Memory(Bytes::gib(16.0)),
            VolumeSource::Empty,
        ]
        .into_iter()
        .enumerate()
        .map(|(at, source)| Volume {
            mount: format!("/mnt/{at}"),
            source,
            sub_path: (at == 0).then(|| "sets".to_owned()),
            is_read_only: at % 2 == 0,
        })
        .collect();
    }
    job
}

fn what_is_not_allowed_is_told_with_the_verb(cluster: &RealKubernetes) {
    cluster.kubectl(&["create", "serviceaccount", "nobody"]);
    let place = KubernetesPlace {
        kubeconfig: Some(cluster.kubeconfig_of("default", "nobody")),
        ..KubernetesPlace::default()
    };
    let nobody = driver(&KubernetesSite { place, ..site(cluster) });
    let job = generated(0);
    let refusals = [
        (nobody.submit(&job, "nobody").map(drop), "create"),
        (nobody.jobs(&JobQuery::default()).map(drop), "list"),
        (nobody.job(&"default/x".into()).map(drop), "get"),
        (nobody.order(&"default/x".into(), JobOrder::Cancel), "get"),
        (nobody.nodes().map(drop), "list"),
        (nobody.drain(&"node-00000".into(), "fan"), "patch"),
    ];
    for (outcome, verb) in refusals {
        let error = outcome.expect_err("no rule allows it");
        assert!(error.is_refusal(), "{error:?}");
        assert_eq!(error.page().code, "kubernetes/forbidden", "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("cannot {verb} resource")) && text.contains("nobody"), "{text}");
    }
}

fn a_server_that_is_gone_is_transient(cluster: &RealKubernetes, driver: &Kubernetes) {
    cluster.stop_server().expect("it ran");
    let error = driver.jobs(&JobQuery::default()).expect_err("it is gone");
    assert!(matches!(&error, DriverError::Kubernetes(_)), "{error:?}");
    assert_eq!(error.page().class, bedplate_diag::Class::Transient, "{error:?}");
    assert!(!error.is_refusal(), "{error:?}");
    cluster.start_server().expect("it ran before");
    assert!(driver.jobs(&JobQuery { with_ended: true, ..JobQuery::default() }).is_ok(), "it is back");
}
