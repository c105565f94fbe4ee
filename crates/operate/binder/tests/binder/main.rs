//! The scheduler on a real API server, with kube-scheduler beside it and nodes that kwok plays.
//!
//! One control plane serves all stories, one after the other; what every pod goes through is audited at each of its
//! revisions.

#![expect(clippy::print_stdout, reason = "a story says what it measured")]

mod audit;
mod fake;
mod troubles;
mod world;

use std::time::{Duration, Instant};

use audit::Audit;
use bedplate_binder::{BinderError, LeaseRules, manifests};
use bedplate_diag::Diagnostic;
use world::{Gang, Running, SchedulerOptions, World, free_address, message, node_of, phase, waits_for};

/// A gang may be half alive for 30 s; the machine may be slow.
const HALF_ALIVE: Duration = Duration::from_secs(40);

/// The one story in which a node may have more pods than room for a moment.
const UNASKED: &str = "beside kube-scheduler, unasked";

type Story = fn(&World, &Audit);

#[test]
fn gangs_are_bound_whole_on_a_real_server() {
    let Some(world) = World::start() else { return };
    let audit = Audit::start(world.kubernetes.kubeconfig());
    let stories: [(&str, Story); 18] = [
        ("binds a gang whole", binds_a_gang_whole),
        ("two gangs that do not fit together", two_gangs_that_do_not_fit_together),
        ("what cannot be honoured is said", what_cannot_be_honoured_is_said),
        ("a large gang behind small ones", a_large_gang_behind_small_ones),
        (UNASKED, beside_kube_scheduler_unasked),
        ("beside kube-scheduler, which asks", beside_kube_scheduler_that_asks),
        ("an urgent gang takes the room of others", an_urgent_gang_takes_the_room_of_others),
        ("by the rules of the site", by_the_rules_of_the_site),
        ("where its volume can be reached", where_its_volume_can_be_reached),
        ("nodes are asked for", nodes_are_asked_for),
        ("replicas follow their requests", replicas_follow_their_requests),
        ("a node is deleted under a gang", a_node_is_deleted_under_a_gang),
        ("a broken node is taken out", a_broken_node_is_taken_out),
        ("a node that fails two users' jobs", a_node_that_fails_two_users_jobs),
        ("a JobSet of two kinds of pods", a_job_set_of_two_kinds_of_pods),
        ("killed again and again", killed_again_and_again),
        ("the server goes and comes", the_server_goes_and_comes),
        ("with the rights of its account", with_the_rights_of_its_account),
    ];
    // `BEDPLATE_STORY=broken` plays what has that in its name.
    let chosen = std::env::var("BEDPLATE_STORY").unwrap_or_default();
    for (name, story) in stories.into_iter().filter(|(name, _)| name.contains(&chosen)) {
        let began = Instant::now();
        story(&world, &audit);
        world.clear();
        let found = audit.found();
        assert!(found.bound_twice.is_empty(), "{name}: bound twice: {:?}", found.bound_twice);
        assert!(found.longest_in_parts < HALF_ALIVE, "{name}: half alive for {:?}", found.longest_in_parts);
        println!(
            "{name}: {:.1} s, {} revisions, in parts for {:?} at most, {} times overdrawn for {:?} at most",
            began.elapsed().as_secs_f64(),
            found.revisions,
            found.longest_in_parts,
            found.times_overdrawn,
            found.longest_overdrawn,
        );
        assert!(found.times_overdrawn == 0 || name == UNASKED, "{name}: a node had more pods than room");
    }
}

fn binds_a_gang_whole(world: &World, _: &Audit) {
    let scheduler = world.scheduler();
    world.gang(&Gang::new("whole", 4, 8));
    world.until("all four pods stand", || world.bound("whole") == 4);
    let mut nodes: Vec<String> = world.of_gang("whole").iter().filter_map(node_of).collect();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), 4, "eight GPUs each are a node each: {nodes:?}");
    scheduler.stop();
}

fn two_gangs_that_do_not_fit_together(world: &World, _: &Audit) {
    world.gang(&Gang::new("left", 5, 8));
    world.gang(&Gang::new("right", 5, 8));
    let scheduler = world.scheduler();
    world.until("one of them stands", || world.bound("left") + world.bound("right") == 5);
    let (runs, waits) = if world.bound("left") == 5 { ("left", "right") } else { ("right", "left") };
    assert_eq!(world.bound(runs), 5);
    world.until("all pods of the other ask for nodes", || {
        world.of_gang(waits).iter().all(|pod| waits_for(pod).as_deref() == Some("Unschedulable"))
    });
    world.kubernetes.kubectl(&["delete", "pods", "-l", &format!("story/gang={runs}"), "--wait=false"]);
    world.until("the other stands", || world.bound(waits) == 5);
    scheduler.stop();
}

fn what_cannot_be_honoured_is_said(world: &World, _: &Audit) {
    let scheduler = world.scheduler();
    world.gang(&Gang { selector: Some(("zone", "nowhere".to_owned())), ..Gang::new("nowhere", 2, 1) });
    world.gang(&Gang { pods: 1, ..Gang::new("later", 2, 1) });
    world.until("both say why", || {
        let says =
            |gang: &str, words: &str| world.of_gang(gang).iter().all(|pod| message(pod).contains(words));
        says("nowhere", "none of 8 nodes has the labels")
    });
    let events = world.kubernetes.kubectl(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
    assert!(events.contains("none of 8 nodes has the labels"), "{events}");
    scheduler.stop();
}

/// Kueue's issue 8309: small workloads keep coming and a large one that was first is never admitted.
fn a_large_gang_behind_small_ones(world: &World, _: &Audit) {
    let scheduler = world.scheduler();
    let mut made = 0;
    let mut small = |count: u32| {
        for _ in 0..count {
            made += 1;
            let limits = (Some("4s"), Some("20 s"));
            world.gang(&Gang {
                runs_for: limits.0,
                limit: limits.1,
                ..Gang::new(&format!("small{made}"), 1, 8)
            });
        }
    };
    small(12);
    world.until("the cluster is full", || {
        world.pods().iter().filter(|pod| node_of(pod).is_some()).count() >= 8
    });
    world.gang(&Gang { limit: Some("10 min"), ..Gang::new("large", 8, 8) });
    let waiting =
        || world.pods().iter().filter(|pod| node_of(pod).is_none() && phase(pod) == "Pending").count();
    world.until("the large gang stands although small ones never stop coming", || {
        if waiting() < 12 {
            small(4);
        }
        world.bound("large") == 8
    });
    assert!(waiting() > 0, "small gangs wait behind it");
    scheduler.stop();
}

fn beside_kube_scheduler_unasked(world: &World, audit: &Audit) {
    let scheduler = world.scheduler();
    both_bind(world, audit);
    scheduler.stop();
}

/// With the webhook nothing is ever bound twice over: every binding of the other is judged first.
fn beside_kube_scheduler_that_asks(world: &World, audit: &Audit) {
    let address = free_address();
    world.ask_at(address);
    let scheduler =
        world.scheduler_by(SchedulerOptions { listen: Some(address), ..SchedulerOptions::default() });
    world.until("the webhook knows the certificate", || {
        let bundle = "jsonpath={.webhooks[0].clientConfig.caBundle}";
        let name = "bedplate-scheduler";
        !world.kubernetes.kubectl(&["get", "validatingwebhookconfiguration", name, "-o", bundle]).is_empty()
    });
    both_bind(world, audit);
    let metrics =
        std::process::Command::new("curl").args(["-sk", &format!("https://{address}/metrics")]).output();
    let metrics = String::from_utf8_lossy(&metrics.expect("curl runs").stdout).into_owned();
    let counted = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        line.unwrap_or_else(|| panic!("no {name} in {metrics}"))
    };
    let judged =
        ["allowed", "refused"].map(|what| counted(&format!("bedplate_scheduler_{what}_bindings_total")));
    println!("bindings of kube-scheduler: {} allowed, {} refused", judged[0], judged[1]);
    assert!(judged[0] >= 20.0, "every pod of kube-scheduler was asked about: {judged:?}");
    scheduler.stop();
    world.ask_no_more();
}

/// Gangs of ours and pods of kube-scheduler come at the same time, more than there is room for.
fn both_bind(world: &World, audit: &Audit) {
    for index in 0..10 {
        world.gang(&Gang {
            runs_for: Some("6s"),
            limit: Some("60 s"),
            ..Gang::new(&format!("ours{index}"), 3, 4)
        });
        let theirs = Gang {
            scheduler: "default-scheduler",
            runs_for: Some("6s"),
            ..Gang::new(&format!("theirs{index}"), 2, 3)
        };
        world.gang(&Gang { name: format!("x-{}", theirs.name), ..theirs });
    }
    world.until("everything has run", || {
        let pods = world.pods();
        let ours = pods.iter().filter(|pod| phase(pod) == "Succeeded").count();
        // A gang that gave way is deleted, and bare pods are not made again.
        ours > 0 && pods.iter().all(|pod| phase(pod) == "Succeeded")
    });
    let found = audit.look();
    println!("beside kube-scheduler: {} times overdrawn, {:?} at most", found.times, found.longest);
    assert!(found.longest < HALF_ALIVE, "what both bound at once is undone: {:?}", found.longest);
}

/// A gang of a higher PriorityClass stops those that may be stopped, each as a whole.
fn an_urgent_gang_takes_the_room_of_others(world: &World, _: &Audit) {
    for (name, value) in [("urgent", 1000), ("patient", 10)] {
        let class = serde_json::json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value});
        world.kubernetes.apply(&class.to_string());
    }
    let scheduler = world.scheduler();
    let patient = |name: &str, pods| Gang {
        priority: Some("patient"),
        is_preemptible: true,
        ..Gang::new(name, pods, 8)
    };
    world.gang(&patient("first", 4));
    world.gang(&Gang { is_preemptible: false, ..patient("firm", 3) });
    world.until("the cluster is nearly full", || world.bound("first") + world.bound("firm") == 7);
    world.gang(&Gang { priority: Some("urgent"), ..Gang::new("urgent", 5, 8) });
    world.until("the urgent gang stands", || world.bound("urgent") == 5);
    assert_eq!(
        (world.bound("first"), world.bound("firm")),
        (0, 3),
        "all of one gang left, nothing of the other"
    );
    world.gang(&patient("first", 4));
    world.kubernetes.kubectl(&["delete", "pods", "-l", "story/gang=urgent", "--wait=false"]);
    world.until("what made room comes back as a whole", || world.bound("first") == 4);
    scheduler.stop();
}

fn by_the_rules_of_the_site(world: &World, _: &Audit) {
    let site = "[[qos]]\nname = \"normal\"\n\n[[qos]]\nname = \"small\"\nmost_gpus_per_user = 16\n";
    let scheduler = world.scheduler_by(SchedulerOptions { site: Some(site), ..SchedulerOptions::default() });
    let small = |name: &str| Gang { qos: Some("small"), ..Gang::new(name, 2, 8) };
    world.gang(&small("within"));
    world.until("the first stands", || world.bound("within") == 2);
    world.gang(&small("beyond"));
    world.gang(&Gang { qos: Some("huge"), ..Gang::new("misnamed", 1, 8) });
    world.gang(&Gang::new("normal", 2, 8));
    let told = |gang: &str, reason: &str| {
        world.of_gang(gang).iter().all(|pod| waits_for(pod).as_deref() == Some(reason))
    };
    world.until("each is told its rule", || told("beyond", "QuotaUsed") && told("misnamed", "UnknownName"));
    assert_eq!(world.bound("normal"), 2, "others are not held up");
    world.kubernetes.kubectl(&["delete", "pods", "-l", "story/gang=within", "--wait=false"]);
    world.until("what was beyond stands", || world.bound("beyond") == 2);
    scheduler.stop();
}

fn where_its_volume_can_be_reached(world: &World, _: &Audit) {
    let scheduler = world.scheduler();
    let nodes = world.kubernetes.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]);
    let node = nodes.split(' ').nth(5).expect("there are eight");
    world.gang(&Gang { claim: Some("near"), ..Gang::new("bound-to-data", 1, 1) });
    world.until("it waits for its volume", || {
        world.of_gang("bound-to-data").iter().all(|pod| waits_for(pod).as_deref() == Some("NotSupported"))
    });
    let terms = serde_json::json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]);
    let (modes, size) = (serde_json::json!(["ReadWriteOnce"]), serde_json::json!({"storage": "1Gi"}));
    let volume = serde_json::json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "near"},
        "spec": {
            "capacity": size, "accessModes": modes, "storageClassName": "by-hand", "local": {"path": "/data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    });
    let claim = serde_json::json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "near"},
        "spec": {"accessModes": modes, "storageClassName": "by-hand", "volumeName": "near", "resources": {"requests": size}},
    });
    [volume, claim].iter().for_each(|object| world.kubernetes.apply(&object.to_string()));
    world.until("it stands", || world.bound("bound-to-data") == 1);
    assert_eq!(world.of_gang("bound-to-data").iter().find_map(node_of).as_deref(), Some(node));
    scheduler.stop();
}

/// A gang that is larger than the cluster asks cluster-autoscaler for all its nodes; what it would do is done by hand.
fn nodes_are_asked_for(world: &World, _: &Audit) {
    world.kubernetes.install("autoscaler").expect("ProvisioningRequests can be defined");
    let scheduler =
        world.scheduler_by(SchedulerOptions { class: Some(world::CLASS), ..SchedulerOptions::default() });
    world.gang(&Gang::new("grows", world::NODES + 1, 8));
    let asked = |what: &str| {
        let path = format!("jsonpath={{range .items[*]}}{what} {{end}}");
        world.kubernetes.kubectl(&["get", "provisioningrequests", "-o", &path])
    };
    world.until("it asks for nodes", || asked("{.spec.podSets[0].count}").trim() == "9");
    assert_eq!(asked("{.spec.provisioningClassName}").trim(), world::CLASS);
    let name = asked("{.metadata.name}").trim().to_owned();
    world.until("its pods name the request", || {
        let notes = |pod: &_| world::annotation(pod, "autoscaling.x-k8s.io/consume-provisioning-request");
        world.of_gang("grows").iter().all(|pod| notes(pod).as_deref() == Some(&name))
    });
    world.until("now autoscalers may hear of it", || {
        world.of_gang("grows").iter().all(|pod| waits_for(pod).as_deref() == Some("Unschedulable"))
    });
    let template = asked("{.spec.podSets[0].podTemplateRef.name}").trim().to_owned();
    let gpus = "jsonpath={.template.spec.containers[0].resources.requests.nvidia\\.com/gpu}";
    assert_eq!(world.kubernetes.kubectl(&["get", "podtemplate", &template, "-o", gpus]), "8");
    world.kubernetes.grow(world::NODES + 1).expect("a node is added");
    world.until("it stands", || world.bound("grows") == world::NODES as usize + 1);
    world.until("nothing is asked for any more", || asked("{.metadata.name}").trim().is_empty());
    scheduler.stop();
    let nodes = world.kubernetes.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]);
    let last = nodes.split(' ').max().expect("there are nodes");
    world.kubernetes.kubectl(&["delete", "node", last]);
}

/// Kubernetes' own autoscaler asks for the requests under way, and the replicas are asked for their metrics.
fn replicas_follow_their_requests(world: &World, _: &Audit) {
    let busy = |_: bedplate_http::Request| async {
        let metrics =
            "vllm:num_requests_running{model_name=\"m\"} 7\nvllm:num_requests_waiting{model_name=\"m\"} 3\n";
        let body = bedplate_http::Body::whole(metrics);
        bedplate_http::typed(bedplate_http::StatusCode::OK, "text/plain", body)
    };
    let anywhere = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let engine = bedplate_http::Background::start(anywhere, bedplate_http::Limits::default(), busy)
        .expect("it starts");
    let address = free_address();
    world.tell_load_at(address);
    let scheduler =
        world.scheduler_by(SchedulerOptions { listen: Some(address), ..SchedulerOptions::default() });
    let template = serde_json::json!({
        "metadata": {"labels": {"app": "chat"}},
        "spec": {"containers": [{"name": "engine", "image": "none", "ports": [{"name": "http", "containerPort": engine.address().port()}]}]},
    });
    let deployment = serde_json::json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "chat"}}, "template": template},
    });
    world.kubernetes.apply(&deployment.to_string());
    let replicas =
        || world.pods().into_iter().filter(|pod| world::label(pod, "app").as_deref() == Some("chat"));
    world.until("two replicas run", || replicas().filter(|pod| phase(pod) == "Running").count() == 2);
    for pod in replicas() {
        let here = serde_json::json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}})
            .to_string();
        let name = pod.metadata.name.unwrap_or_default();
        world.kubernetes.kubectl(&[
            "patch",
            "pod",
            &name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &here,
        ]);
    }
    let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/bedplate_requests_under_way?labelSelector=app%3Dchat";
    world.until("the metric is there", || {
        let told = world.kubernetes.try_kubectl(&["get", "--raw", path]).unwrap_or_default();
        told.contains("\"value\":\"20000m\"") || told.contains("\"value\":\"20\"")
    });
    let metric = serde_json::json!({"name": "bedplate_requests_under_way", "selector": {"matchLabels": {"app": "chat"}}});
    let scaler = serde_json::json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "chat"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
            "minReplicas": 2, "maxReplicas": 5,
            "metrics": [{"type": "External", "external": {"metric": metric, "target": {"type": "AverageValue", "averageValue": "4"}}}],
        },
    });
    world.kubernetes.apply(&scaler.to_string());
    world.until("there are as many replicas as the requests need", || {
        world.kubernetes.kubectl(&["get", "deployment", "chat", "-o", "jsonpath={.spec.replicas}"]) == "5"
    });
    world.kubernetes.kubectl(&["delete", "hpa,deployment", "chat"]);
    world.kubernetes.kubectl(&["delete", "apiservice", "v1beta1.external.metrics.k8s.io"]);
    scheduler.stop();
}

fn a_node_is_deleted_under_a_gang(world: &World, _: &Audit) {
    let scheduler = world.scheduler();
    world.job(&Gang::new("struck", 4, 8));
    world.until("it stands", || world.bound("struck") == 4);
    let node = world.of_gang("struck").iter().find_map(node_of).expect("it stands");
    let saved = world.kubernetes.kubectl(&["get", "node", &node, "-o", "json"]);
    world.kubernetes.kubectl(&["delete", "node", &node, "--wait=false"]);
    world.until("it stands whole elsewhere", || {
        let stands = |pod: &_| world::stands(pod) && node_of(pod).as_ref() != Some(&node);
        world.of_gang("struck").iter().filter(|pod| stands(pod)).count() == 4
    });
    let mut saved: serde_json::Value = serde_json::from_str(&saved).expect("JSON");
    saved["metadata"] = serde_json::json!({
        "name": saved["metadata"]["name"], "labels": saved["metadata"]["labels"], "annotations": saved["metadata"]["annotations"],
    });
    world.kubernetes.apply(&saved.to_string());
    scheduler.stop();
}

/// A finding takes the node out of service; its gang starts again as a whole on other nodes, and that costs the JobSet nothing.
fn a_broken_node_is_taken_out(world: &World, _: &Audit) {
    let scheduler = world.scheduler();
    let gang = Gang::new("healed", 3, 8);
    let lost = serde_json::json!({"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
    let spec = serde_json::json!({
        "parallelism": 3, "completions": 3, "completionMode": "Indexed", "backoffLimit": 0,
        "podFailurePolicy": {"rules": [lost]}, "template": gang.template(),
    });
    let again = serde_json::json!({"name": "lost", "action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]});
    let set = serde_json::json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "healed"},
        "spec": {
            "failurePolicy": {"maxRestarts": 0, "rules": [again]},
            "replicatedJobs": [{"name": "ranks", "replicas": 1, "template": {"spec": spec}}],
        },
    });
    world.kubernetes.apply(&set.to_string());
    // Until they run, kwok writes whole lists of conditions, which a kubelet never does.
    world.until("it runs", || {
        world.of_gang("healed").iter().filter(|pod| phase(pod) == "Running").count() == 3
    });
    let node = world.of_gang("healed").iter().find_map(node_of).expect("it stands");
    world.kubernetes.kubectl(&["taint", "node", &node, "site/own=:PreferNoSchedule"]);
    world.condition(&node, "BedplateFinding", "True", "replace", "a GPU has fallen off the bus");
    world.until("it stands whole on other nodes", || {
        let stands = |pod: &_| world::stands(pod) && node_of(pod).as_ref() != Some(&node);
        world.of_gang("healed").iter().filter(|pod| stands(pod)).count() == 3
    });
    let shown =
        |what: &str| world.kubernetes.kubectl(&["get", "node", &node, "-o", &format!("jsonpath={what}")]);
    assert_eq!(shown("{.spec.unschedulable}"), "true");
    let taints = shown("{.spec.taints[*].key}");
    assert!(taints.contains("bedplate.dev/finding") && taints.contains("site/own"), "{taints}");
    world.kubernetes.kubectl(&["taint", "node", &node, "site/own-"]);
    let reason = shown("{.metadata.annotations.bedplate\\.dev/drain-reason}");
    assert_eq!(reason, "a GPU has fallen off the bus [BedplateFinding]");
    let counted = world.kubernetes.kubectl(&[
        "get",
        "jobset",
        "healed",
        "-o",
        "jsonpath={.status.restarts}/{.status.restartsCountTowardsMax}",
    ]);
    assert!(matches!(counted.as_str(), "1/0" | "1/"), "restarts, and those that count: {counted}");
    world.condition(&node, "BedplateFinding", "False", "none", "");
    world.trust(&node);
    scheduler.stop();
}

fn a_node_that_fails_two_users_jobs(world: &World, _: &Audit) {
    let scheduler = world.scheduler();
    let node = world.kubernetes.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    for user in ["anna", "berta"] {
        world.gang(&Gang {
            runs_for: Some("1s"),
            fails_as: Some(user),
            selector: Some(("kubernetes.io/hostname", node.clone())),
            ..Gang::new(&format!("failed-{user}"), 1, 8)
        });
        world.until("it has failed", || {
            world.of_gang(&format!("failed-{user}")).iter().any(|pod| phase(pod) == "Failed")
        });
    }
    world.until("the node is out of service", || {
        let reason = "jsonpath={.metadata.annotations.bedplate\\.dev/drain-reason}";
        world
            .kubernetes
            .kubectl(&["get", "node", &node, "-o", reason])
            .contains("jobs of 2 users failed there")
    });
    world.trust(&node);
    scheduler.stop();
}

/// Its size is in no annotation: it is read from the JobSet.
fn a_job_set_of_two_kinds_of_pods(world: &World, _: &Audit) {
    let scheduler = world.scheduler();
    let gang = |gpus: i64| Gang { runs_for: Some("3s"), pods: 4, ..Gang::new("set", 4, gpus) };
    let job = |name: &str, pods: u32, gpus: i64| {
        let spec = serde_json::json!({"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": gang(gpus).template()});
        serde_json::json!({"name": name, "replicas": 1, "template": {"spec": spec}})
    };
    let set = serde_json::json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "set"},
        "spec": {"replicatedJobs": [job("driver", 1, 0), job("workers", 3, 8)]},
    });
    world.kubernetes.apply(&set.to_string());
    world.until("all four stand or have run", || {
        let there = |pod: &&_| world::stands(pod) || phase(pod) == "Succeeded";
        world.of_gang("set").iter().filter(there).count() == 4
    });
    scheduler.stop();
}

/// As often as `BEDPLATE_KILLS` says; ten times without it.
fn killed_again_and_again(world: &World, _: &Audit) {
    let kills: u64 = std::env::var("BEDPLATE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    for kill in 0..kills {
        let mut scheduler = world::Process::start(&world.kubernetes.kubeconfig());
        world.gang(&Gang {
            runs_for: Some("1s"),
            ..Gang::new(&format!("killed{kill}"), 1 + (kill % 4) as u32 * 2, 8)
        });
        // Somewhere between nothing seen and everything bound; a different moment each time.
        std::thread::sleep(Duration::from_millis(50 + kill * 7919 % 800));
        scheduler.kill();
    }
    let scheduler = world.scheduler();
    world.until("every gang has run", || world.pods().iter().all(|pod| phase(pod) == "Succeeded"));
    scheduler.stop();
}

/// Not a test: the scheduler of [`killed_again_and_again`], which runs this program again.
#[test]
fn a_scheduler_in_a_process_of_its_own() {
    if let Some(kubeconfig) = std::env::var_os(world::Process::KUBECONFIG) {
        let _ = Running::start(kubeconfig.into(), SchedulerOptions::default()).ended();
    }
}

fn the_server_goes_and_comes(world: &World, _: &Audit) {
    let scheduler = world.scheduler();
    world.gang(&Gang { runs_for: Some("2s"), ..Gang::new("before", 4, 8) });
    world.kubernetes.stop_server().expect("it stops");
    // An outage lasts: watches break, and connections are refused again and again.
    std::thread::sleep(Duration::from_secs(2));
    world.kubernetes.start_server().expect("it starts");
    world.gang(&Gang { runs_for: Some("2s"), ..Gang::new("after", 8, 8) });
    world.until("both have run", || {
        let pods = world.pods();
        pods.len() == 12 && pods.iter().all(|pod| phase(pod) == "Succeeded")
    });
    scheduler.stop();
}

fn with_the_rights_of_its_account(world: &World, _: &Audit) {
    let objects = manifests(&world::manifest_options());
    world.kubernetes.apply(&objects[0].to_string());
    for object in &objects {
        let file = std::env::temp_dir().join(format!("bedplate-manifest-{}.json", std::process::id()));
        std::fs::write(&file, object.to_string()).expect("a file");
        let path = file.display().to_string();
        world.kubernetes.kubectl(&[
            "apply",
            "--server-side",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            &path,
        ]);
        if object["kind"] != "Deployment" {
            world.kubernetes.apply(&object.to_string());
        }
        std::fs::remove_file(&file).expect("it was there");
    }
    let kubeconfig = world.kubernetes.kubeconfig_of("bedplate-system", "bedplate-scheduler");
    let lease = |holder: &str| LeaseRules {
        namespace: "bedplate-system".to_owned(),
        name: "bedplate-scheduler".to_owned(),
        holder: holder.to_owned(),
        lasts: Duration::from_secs(6),
    };
    let addresses = [free_address(), free_address()];
    world.ask_at(addresses[1]);
    let options = |holder: &str, listen| SchedulerOptions {
        lease: Some(lease(holder)),
        listen,
        ..SchedulerOptions::default()
    };
    let first = Running::start(kubeconfig.clone(), options("first", Some(addresses[0])));
    world.job(&Gang { runs_for: Some("1s"), ..Gang::new("first", 3, 8) });
    world.until("the first schedules", || world.of_gang("first").iter().any(|pod| phase(pod) == "Succeeded"));
    let second = Running::start(kubeconfig.clone(), options("second", Some(addresses[1])));
    world.until("the second waits", || {
        second
            .remarks
            .lock()
            .expect("nothing panics under it")
            .iter()
            .any(|said| said.contains("first holds"))
    });
    first.kill();
    world.gang(&Gang { runs_for: Some("1s"), ..Gang::new("second", 2, 8) });
    world.gang(&Gang { selector: Some(("zone", "nowhere".to_owned())), ..Gang::new("told", 1, 1) });
    world.until("the second takes over", || {
        world.of_gang("second").iter().any(|pod| phase(pod) == "Succeeded")
    });
    world.until("it may say why", || world.of_gang("told").iter().all(|pod| waits_for(pod).is_some()));
    assert!(
        second.remarks.lock().expect("nothing panics under it").iter().all(|said| !said.contains("cannot")),
        "it may do all that it does"
    );
    world.gang(&Gang { scheduler: "default-scheduler", ..Gang::new("theirs", 1, 1) });
    world.until("others bind", || world.bound("theirs") == 1);
    world.ask_no_more();
    second.stop();
    world.kubernetes.kubectl(&["delete", "clusterrolebinding", "bedplate-scheduler"]);
    let denied = Running::start(kubeconfig, options("third", None)).ended();
    let error = denied.expect_err("it may not watch");
    assert!(matches!(error, BinderError::Kubernetes(_)), "{error:?}");
    assert_eq!(error.page().code, "kubernetes/forbidden");
    assert!(error.to_string().contains("cannot list resource"), "{error}");
}
