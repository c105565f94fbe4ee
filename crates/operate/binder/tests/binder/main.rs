//! The scheduler on a real API server, with kube-scheduler beside it and nodes that kwok plays.
//!
//! One control plane serves all stories, one after the other; what every pod goes through is audited at each of its
//! revisions.

#![expect(clippy::print_stdout, reason = "a story says what it measured")]

mod audit;
mod world;

use std::time::{Duration, Instant};

use audit::Audit;
use bedplate_binder::{BinderError, LeaseRules, ManifestOptions, manifests};
use bedplate_diag::Diagnostic;
use world::{Gang, Running, World, message, node_of, phase, waits_for};

/// A gang may be half alive for 30 s; the machine may be slow.
const HALF_ALIVE: Duration = Duration::from_secs(40);

type Story = fn(&World, &Audit);

#[test]
fn gangs_are_bound_whole_on_a_real_server() {
    let Some(world) = World::start() else { return };
    let audit = Audit::start(world.kubernetes.kubeconfig());
    let stories: [(&str, Story); 12] = [
        ("binds a gang whole", binds_a_gang_whole),
        ("two gangs that do not fit together", two_gangs_that_do_not_fit_together),
        ("what cannot be honoured is said", what_cannot_be_honoured_is_said),
        ("a large gang behind small ones", a_large_gang_behind_small_ones),
        ("beside kube-scheduler", beside_kube_scheduler),
        ("a node is deleted under a gang", a_node_is_deleted_under_a_gang),
        ("a broken node is taken out", a_broken_node_is_taken_out),
        ("a node that fails two users' jobs", a_node_that_fails_two_users_jobs),
        ("a JobSet of two kinds of pods", a_job_set_of_two_kinds_of_pods),
        ("killed again and again", killed_again_and_again),
        ("the server goes and comes", the_server_goes_and_comes),
        ("with the rights of its account", with_the_rights_of_its_account),
    ];
    for (name, story) in stories {
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
        assert!(
            found.times_overdrawn == 0 || name == "beside kube-scheduler",
            "{name}: a node had more pods than room"
        );
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

fn beside_kube_scheduler(world: &World, audit: &Audit) {
    let scheduler = world.scheduler();
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
    let found = audit.found();
    println!(
        "beside kube-scheduler: {} times overdrawn, {:?} at most",
        found.times_overdrawn, found.longest_overdrawn
    );
    assert!(
        found.longest_overdrawn < HALF_ALIVE,
        "what both bound at once is undone: {:?}",
        found.longest_overdrawn
    );
    assert!(found.bound_twice.is_empty());
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
        world.kubernetes.kubectl(&["get", "node", &node, "-o", reason]).contains("2 jobs failed there")
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
        let scheduler = world.scheduler();
        world.gang(&Gang {
            runs_for: Some("1s"),
            ..Gang::new(&format!("killed{kill}"), 1 + (kill % 4) as u32 * 2, 8)
        });
        // Somewhere between nothing seen and everything bound; a different moment each time.
        std::thread::sleep(Duration::from_millis(20 + kill * 7919 % 400));
        scheduler.kill();
    }
    let scheduler = world.scheduler();
    world.until("every gang has run", || world.pods().iter().all(|pod| phase(pod) == "Succeeded"));
    scheduler.stop();
}

fn the_server_goes_and_comes(world: &World, _: &Audit) {
    let scheduler = world.scheduler();
    world.gang(&Gang { runs_for: Some("2s"), ..Gang::new("before", 4, 8) });
    world.kubernetes.stop_server().expect("it stops");
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
    let options = ManifestOptions {
        namespace: "bedplate-system".to_owned(),
        name: "bedplate".to_owned(),
        image: "example.com/bedplate:0".to_owned(),
        replicas: 2,
    };
    let objects = manifests(&options);
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
    let first = Running::start(kubeconfig.clone(), Some(lease("first")));
    world.job(&Gang { runs_for: Some("1s"), ..Gang::new("first", 3, 8) });
    world.until("the first schedules", || world.of_gang("first").iter().any(|pod| phase(pod) == "Succeeded"));
    let second = Running::start(kubeconfig.clone(), Some(lease("second")));
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
    second.stop();
    world.kubernetes.kubectl(&["delete", "clusterrolebinding", "bedplate-scheduler"]);
    let denied = Running::start(kubeconfig, Some(lease("third"))).ended();
    let error = denied.expect_err("it may not watch");
    assert!(matches!(error, BinderError::Kubernetes(_)), "{error:?}");
    assert_eq!(error.page().code, "kubernetes/forbidden");
    assert!(error.to_string().contains("cannot list resource"), "{error}");
}
