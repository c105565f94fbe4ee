//! Jobs as manifests, and manifests as jobs.

mod arbitrary;

use bedplate_document::to_yaml;
use bedplate_job::kubernetes::{ManifestKind, PodGroup, RenderOptions, render};
use bedplate_job::{
    Begin, Closeness, Elastic, Gang, HealthPolicy, Inherited, Job, JobError, PodSettings, Policy, Preemption,
    Role, Streams, Workload,
};
use bedplate_topology::Level;
use bedplate_units::{Bytes, Seconds};
use expect_test::expect;
use proptest::prelude::*;
use serde_json::Value;

fn options(kind: ManifestKind) -> RenderOptions {
    RenderOptions { kind, image: Some("registry/train:1".into()), ..RenderOptions::default() }
}

fn small() -> Job {
    let role = Role { nodes: 2, gpus_per_node: 8, ..Role::named(Role::ONLY) };
    let mut job = Job::new("Pretrain 7B", Workload::command(["torchrun", "train.py"]), Gang::of(role));
    job.policy.time_limit = Some(Seconds::new(7200.0));
    job.policy.partition = Some("research".into());
    job
}

/// The manifests without the job file, which is on its own page.
fn yaml(job: &Job, options: &RenderOptions) -> String {
    let mut manifests = render(job, options).expect("it can be rendered");
    for object in &mut manifests.objects {
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.remove("bedplate.dev/job-file");
        }
    }
    let remarks: String = manifests.remarks.iter().map(|remark| format!("# {remark}\n")).collect();
    format!("{}{remarks}", to_yaml(&manifests.objects))
}

#[test]
fn a_gang_is_a_job_set_whose_ranks_find_each_other() {
    expect![[r#"
        apiVersion: jobset.x-k8s.io/v1alpha2
        kind: JobSet
        metadata:
          name: pretrain-7b
          labels:
            app.kubernetes.io/managed-by: bedplate
            bedplate.dev/job: Pretrain-7B
            kueue.x-k8s.io/queue-name: research
          annotations:
            bedplate.dev/name: "Pretrain 7B"
        spec:
          suspend: false
          ttlSecondsAfterFinished: 604800
          network:
            enableDNSHostnames: true
            publishNotReadyAddresses: true
          failurePolicy:
            maxRestarts: 0
            rules:
            - name: time
              action: FailJobSet
              onJobFailureReasons:
              - DeadlineExceeded
            - name: lost
              action: RestartJobSetAndIgnoreMaxRestarts
              onJobFailureReasons:
              - PodFailurePolicy
          replicatedJobs:
          - name: main
            replicas: 1
            template:
              spec:
                parallelism: 2
                completions: 2
                completionMode: Indexed
                backoffLimit: 0
                activeDeadlineSeconds: 7200
                podFailurePolicy:
                  rules:
                  - action: FailJob
                    onPodConditions:
                    - type: DisruptionTarget
                      status: "True"
                template:
                  metadata:
                    labels:
                      app.kubernetes.io/managed-by: bedplate
                      bedplate.dev/job: Pretrain-7B
                      bedplate.dev/gang: pretrain-7b
                    annotations:
                      bedplate.dev/gang-size: "2"
                      bedplate.dev/preemptible: "true"
                      bedplate.dev/time-limit: "2h"
                      bedplate.dev/partition: research
                  spec:
                    restartPolicy: Never
                    terminationGracePeriodSeconds: 30
                    affinity:
                      podAntiAffinity:
                        requiredDuringSchedulingIgnoredDuringExecution:
                        - labelSelector:
                            matchLabels:
                              bedplate.dev/gang: pretrain-7b
                          topologyKey: kubernetes.io/hostname
                    containers:
                    - name: pytorch
                      image: "registry/train:1"
                      command:
                      - torchrun
                      - train.py
                      env:
                      - name: LOCAL_WORLD_SIZE
                        value: "1"
                      - name: MASTER_ADDR
                        value: pretrain-7b-main-0-0.pretrain-7b
                      - name: MASTER_PORT
                        value: "29500"
                      - name: LOCAL_RANK
                        value: "0"
                      - name: WORLD_SIZE
                        value: "2"
                      - name: RANK
                        valueFrom:
                          fieldRef:
                            fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"
                      - name: NODE_RANK
                        valueFrom:
                          fieldRef:
                            fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"
                      - name: GROUP_RANK
                        valueFrom:
                          fieldRef:
                            fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"
                      - name: BEDPLATE_JOB
                        value: pretrain-7b
                      - name: BEDPLATE_ROLE
                        value: main
                      - name: BEDPLATE_NODE
                        valueFrom:
                          fieldRef:
                            fieldPath: spec.nodeName
                      - name: BEDPLATE_ADDRESS
                        valueFrom:
                          fieldRef:
                            fieldPath: status.podIP
                      - name: BEDPLATE_RESTARTS
                        valueFrom:
                          fieldRef:
                            fieldPath: "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']"
                      resources:
                        requests:
                          cpu: "1"
                        limits:
                          nvidia.com/gpu: "8"
    "#]]
    .assert_eq(&yaml(&small(), &options(ManifestKind::JobSet)));
}

#[test]
fn a_plain_job_brings_its_service() {
    let mut job = small();
    job.gang.roles[0].tasks_per_node = 8;
    job.policy.retries = 2;
    let text = yaml(&job, &options(ManifestKind::Job));
    assert!(text.contains("kind: Service") && text.contains("clusterIP: None"), "{text}");
    assert!(
        text.contains("subdomain: pretrain-7b") && text.contains("value: pretrain-7b-0.pretrain-7b"),
        "{text}"
    );
    assert!(text.contains("# retries: a Job starts single pods again"), "{text}");
}

#[test]
fn kubeflow_and_other_schedulers_of_gangs_are_served_on_request() {
    let text = yaml(&small(), &options(ManifestKind::PyTorchJob));
    assert!(text.contains("kind: PyTorchJob") && text.contains("Worker:\n      replicas: 1\n"), "{text}");
    let text = yaml(&small(), &options(ManifestKind::TrainJob));
    assert!(text.contains("kind: TrainJob") && text.contains("numNodes: 2"), "{text}");
    assert!(text.contains("# time_limit: a TrainJob leaves it to its runtime"), "{text}");
    for (group, version, scheduler) in [
        (PodGroup::Volcano, "scheduling.volcano.sh/v1beta1", "volcano"),
        (PodGroup::Kai, "scheduling.run.ai/v2alpha2", "kai-scheduler"),
    ] {
        let text = yaml(&small(), &RenderOptions { pod_group: Some(group), ..options(ManifestKind::JobSet) });
        assert!(text.starts_with(&format!("apiVersion: {version}\nkind: PodGroup\n")), "{text}");
        assert!(text.contains("minMember: 2\n  queue: research\n"), "{text}");
        assert!(text.contains(&format!("schedulerName: {scheduler}")) && !text.contains("kueue"), "{text}");
    }
}

#[test]
fn what_would_be_another_job_is_refused_by_its_key() {
    let refused = |change: &dyn Fn(&mut Job)| {
        let mut job = small();
        change(&mut job);
        match render(&job, &options(ManifestKind::JobSet)).unwrap_err() {
            JobError::NotForKubernetes { key, .. } => key,
            other => panic!("{other}"),
        }
    };
    assert_eq!(refused(&|job| job.policy.array = Some("1-3".parse().unwrap())), "array");
    assert_eq!(refused(&|job| job.policy.begin = Some(Begin::After(Seconds::new(60.0)))), "begin");
    assert_eq!(refused(&|job| job.policy.dependencies = vec!["afterok:1".parse().unwrap()]), "dependencies");
    assert_eq!(refused(&|job| job.streams.stdin = Some("x".into())), "stdin");
    assert_eq!(
        refused(&|job| job.workload = Workload::Script { text: "#!/bin/sh\nsrun x\n".into() }),
        "script"
    );
    let no_image = render(&small(), &RenderOptions::default()).unwrap_err().to_string();
    assert!(no_image.contains("kubernetes.image"), "{no_image}");
}

#[test]
fn a_manifest_that_others_wrote_is_read_with_remarks() {
    let replica = "
      restartPolicy: OnFailure
      template:
        spec:
          hostNetwork: true
          containers:
          - name: pytorch
            image: nvcr.io/nvidia/pytorch:25.01
            command: [torchrun, train.py]
            args: [--steps, \"100\"]
            env: [{name: NCCL_DEBUG, value: INFO}]
            resources: {limits: {nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 32, memory: 1Ti}, requests: {cpu: 96}}
            volumeMounts: [{name: shm, mountPath: /dev/shm}]
          volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}]";
    let text = format!(
        "\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: llama, namespace: team}}
spec:
  nprocPerNode: \"8\"
  runPolicy: {{backoffLimit: 3, activeDeadlineSeconds: 3600}}
  pytorchReplicaSpecs:
    Master:
      replicas: 1{replica}
    Worker:
      replicas: 3{replica}
"
    );
    assert!(Job::is_manifest(&text) && !Job::is_manifest("name = 'x'") && !Job::is_manifest("#!/bin/sh\n"));
    let imported = Job::from_manifest(&text, "llama.yaml").unwrap();
    let remarks: String = imported.remarks.iter().map(|remark| format!("# {remark}\n")).collect();
    expect![[r#"
        name = "llama"
        command = ["torchrun", "train.py", "--steps", "100"]
        nodes = 4
        gpus_per_node = 8
        cpus_per_task = 96
        memory_per_node = "1 TiB"
        time_limit = "1h"
        retries = 3
        inherit_environment = "none"

        [environment]
        NCCL_DEBUG = "INFO"

        [kubernetes]
        image = "nvcr.io/nvidia/pytorch:25.01"
        namespace = "team"

        [kubernetes.resources]
        "vpc.amazonaws.com/efa" = 32

        [[kubernetes.volume]]
        mount = "/dev/shm"
        memory = "64 GiB"
        # spec.pytorchReplicaSpecs.Master.template.spec.hostNetwork: it is not taken over
        # spec.nprocPerNode: the command is started once on each node, and `torchrun` in it starts the rest
    "#]]
    .assert_eq(&format!("{}{remarks}", imported.job.to_toml()));
    for bad in [
        "kind: Pod\n",
        "kind: Job\n",
        "kind: [",
        "{\"kind\": 1}",
        "kind: Job\nspec: {template: {spec: {containers: [{}]}}}\n",
    ] {
        assert!(matches!(Job::from_manifest(bad, "x.yaml"), Err(JobError::Manifest { .. })), "{bad}");
    }
}

/// A job of which a JobSet can say everything.
fn sayable(mut job: Job) -> Job {
    job.workload = match job.workload {
        Workload::Command { arguments } if !arguments.is_empty() => Workload::Command { arguments },
        _ => Workload::command(["true"]),
    };
    if job.gang.roles.is_empty() {
        job.gang.roles.push(Role::named(Role::ONLY));
    }
    for role in &mut job.gang.roles {
        role.nodes = role.nodes % 1000 + 1;
        role.tasks_per_node = role.tasks_per_node.max(1);
        role.cpus_per_task = role.cpus_per_task.max(1);
        (role.gpu_share, role.accelerator, role.elastic) = (None, None, None::<Elastic>);
        role.memory_per_node = role.memory_per_node.map(|size| Bytes::new(size.get().ceil().max(1.0)));
        role.is_exclusive = false;
    }
    job.policy = Policy {
        partition: job.policy.partition.filter(|name| !name.is_empty()),
        account: job.policy.account,
        qos: job.policy.qos,
        time_limit: job.policy.time_limit.filter(|limit| !limit.is_zero()),
        grace: Seconds::new(job.policy.grace.get().ceil().max(1.0)),
        retries: job.policy.retries,
        is_requeued: job.policy.is_requeued,
        survives: job.policy.survives,
        is_held: job.policy.is_held,
        preemption: if job.policy.preemption == Preemption::Requeue {
            Preemption::Requeue
        } else {
            Preemption::Never
        },
        ..Policy::default()
    };
    job.placement.segment = None;
    job.placement.spread = None;
    job.placement.closeness = match job.placement.closeness {
        Closeness::Any | Closeness::Preferred(_) => Closeness::Any,
        Closeness::Required(level) => Closeness::Required(level),
    };
    job.placement.features.retain(|feature| !feature.starts_with("kubernetes.io/hostname"));
    job.environment.inherited = Inherited::Nothing;
    job.streams = Streams::default();
    job.hooks.prolog.truncate(1);
    job.hooks.epilog.truncate(1);
    job.hooks.prolog.retain(|line| !line.is_empty());
    job.hooks.epilog.retain(|line| !line.is_empty());
    job.health = HealthPolicy::default();
    job.expected = None;
    job.labels.clear();
    let kubernetes = std::mem::take(&mut job.kubernetes);
    job.kubernetes = PodSettings {
        image: Some(kubernetes.image.filter(|image| !image.is_empty()).unwrap_or_else(|| "image".into())),
        gpu_resource: None,
        queue: kubernetes.queue.filter(|queue| Some(queue) != job.policy.partition.as_ref()),
        ..kubernetes
    };
    job.kubernetes.resources.retain(|name, _| name != "cpu" && name != "memory");
    for name in job.kubernetes.secret_environment.keys() {
        job.environment.set.remove(name);
    }
    for volume in &mut job.kubernetes.volumes {
        if let bedplate_job::kubernetes::VolumeSource::Memory(size) = &mut volume.source {
            *size = Bytes::new(size.get().ceil().max(1.0));
        }
    }
    // What both a partition and our own scheduler would decide.
    if job.kubernetes.scheduler.as_deref() == Some("bedplate") {
        job.kubernetes.scheduler = None;
    }
    job
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_job_that_became_a_job_set_reads_back_as_the_same_job(job in arbitrary::job()) {
        let job = sayable(job);
        let manifests = render(&job, &RenderOptions::default()).unwrap();
        let text = to_yaml(&manifests.objects);
        let back = Job::from_manifest(&text, "job.yaml").unwrap();
        prop_assert_eq!(back.job.to_toml(), job.to_toml(), "{}", text);
        prop_assert_eq!(back.remarks, vec![]);
    }

    #[test]
    fn manifests_are_the_same_in_yaml_and_in_json(job in arbitrary::job()) {
        let Ok(manifests) = render(&sayable(job), &RenderOptions::default()) else { return Ok(()) };
        let read: Vec<Value> = serde_saphyr::from_multiple(&to_yaml(&manifests.objects)).unwrap();
        prop_assert_eq!(read, manifests.objects);
    }

    #[test]
    fn rendering_never_panics(job in arbitrary::job()) {
        for kind in [ManifestKind::JobSet, ManifestKind::Job, ManifestKind::PyTorchJob, ManifestKind::TrainJob] {
            if let Ok(manifests) = render(&job, &options(kind)) {
                prop_assert!(!manifests.objects.is_empty());
            }
        }
    }
}

#[test]
fn levels_of_closeness_become_annotations_of_kueue() {
    let mut job = small();
    job.placement.closeness = Closeness::Preferred(Level::LEAF);
    let text = yaml(&job, &options(ManifestKind::JobSet));
    assert!(
        text.contains("kueue.x-k8s.io/podset-preferred-topology: network.topology.nvidia.com/leaf"),
        "{text}"
    );
    job.kubernetes.scheduler = Some("bedplate".into());
    job.placement.closeness = Closeness::Required(Level::Switch(2));
    let text = yaml(&job, &options(ManifestKind::JobSet));
    assert!(text.contains("bedplate.dev/within: spine") && !text.contains("kueue"), "{text}");
}
