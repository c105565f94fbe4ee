//! An agent that is root starts each job as the user who submitted it, for good, and keeps its secrets from it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers fail and say what is skipped as tests do"
)]

mod fixture;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bedplate_control::wire::*;
use fixture::{Cluster, NOBODY, gang, script};

/// A cluster whose agent can become others.
fn as_root() -> Option<Cluster> {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: only root can become another user");
        return None;
    }
    Some(Cluster::start(&["n1"]))
}

fn of_nobody(mut launches: Vec<Launch>) -> Vec<Launch> {
    launches.iter_mut().for_each(|launch| launch.user = "nobody".to_owned());
    launches
}

/// What a job of `nobody` writes.
fn output(cluster: &Cluster, job: u64, command: &str) -> String {
    let launches = of_nobody(gang(job, &["n1"], command));
    cluster.start_gang(&launches);
    let run = launches[0].run;
    assert_eq!(cluster.released(run, "n1").failed, None, "{}", cluster.log(run, "n1", 0, LogStream::Stderr));
    cluster.log(run, "n1", 0, LogStream::Stdout)
}

fn why_not(cluster: &Cluster, launches: &[Launch]) -> String {
    cluster.tell("n1", &ToAgent::Prepare(Box::new(launches[0].clone())));
    cluster.hear("a refusal", "n1", |message| match message {
        FromAgent::NotPrepared { run, why: Unready::Job { why } } if *run == launches[0].run => {
            Some(why.clone())
        }
        FromAgent::Prepared { run, .. } if *run == launches[0].run => panic!("it was not refused"),
        _ => None,
    })
}

#[test]
fn a_job_has_its_users_rights_and_no_way_back() {
    let Some(cluster) = as_root() else { return };
    let facts = "id -u; id -ru; grep -E 'NoNewPrivs|CapEff|CapPrm' /proc/self/status; echo $USER $HOME; touch here && pwd";
    let told = output(&cluster, 1, facts);
    let lines: Vec<&str> = told.lines().map(str::trim).collect();
    let uid = NOBODY.to_string();
    assert_eq!(lines[..2], [&uid, &uid], "{told}");
    for line in
        ["NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "nobody /nonexistent"]
    {
        assert!(lines.contains(&line), "{line}: {told}");
    }
    assert!(told.trim_end().ends_with("/runs/1.1/n1/work"), "{told}");
    assert!(cluster.hello("n1").host.enforced.iter().any(|each| each.contains("as the user")));
}

#[test]
fn secrets_and_other_jobs_cannot_be_read_by_a_job() {
    let Some(cluster) = as_root() else { return };
    let secret = cluster.state.join("secret");
    fs::write(&secret, "token").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let own = gang(1, &["n1"], "echo of root");
    cluster.start_gang(&own);
    cluster.released(own[0].run, "n1");
    let state = cluster.state.display();
    let tries = format!(
        "cat {state}/secret || echo no secret; cat {state}/runs/1.1/n1/rank-0.out || echo no log; \
         ls {state} || echo no list; cat /proc/1/environ || echo no environment; kill -9 1 || echo no kill"
    );
    let told = output(&cluster, 2, &tries);
    assert_eq!(told, "no secret\nno log\nno list\nno environment\nno kill\n");
}

#[test]
fn files_that_a_job_names_are_opened_with_its_users_rights() {
    let Some(cluster) = as_root() else { return };
    let secret = cluster.state.join("secret");
    fs::write(&secret, "token").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let mut launches = of_nobody(gang(1, &["n1"], "true"));
    launches[0].stdout = Some(secret.display().to_string());
    let why = why_not(&cluster, &launches);
    assert!(why.contains("cannot write") && why.contains("denied"), "{why}");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "token");
    // One that is swapped for a link later is not shown either.
    let folder = cluster.state.join("open");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let named = folder.join("log");
    let mut launches =
        of_nobody(gang(2, &["n1"], &format!("ln -sf {} {}", secret.display(), named.display())));
    launches[0].stdout = Some(named.display().to_string());
    cluster.start_gang(&launches);
    assert_eq!(cluster.released(launches[0].run, "n1").failed, None);
    let why = cluster.try_log(launches[0].run, "n1", 0, LogStream::Stdout).unwrap_err();
    assert!(why.contains("denied"), "{why}");
}

#[test]
fn a_log_that_is_swapped_for_a_link_again_and_again_shows_no_secret() {
    let Some(cluster) = as_root() else { return };
    let secret = cluster.state.join("secret");
    fs::write(&secret, "token").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let folder = cluster.state.join("open");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let swaps = format!(
        "cd {}; touch ready; while :; do ln -sf {} link; mv -f link log; echo own > file; mv -f file log; done",
        folder.display(),
        secret.display()
    );
    let mut launches = of_nobody(gang(1, &["n1"], &swaps));
    launches[0].stdout = Some(folder.join("log").display().to_string());
    let run = launches[0].run;
    cluster.start_gang(&launches);
    fixture::wait_until("the swaps", || folder.join("ready").exists());
    for _ in 0..300 {
        if let Ok(text) = cluster.try_log(run, "n1", 0, LogStream::Stdout) {
            assert!(!text.contains("token"), "{text}");
        }
    }
    cluster.tell("n1", &ToAgent::Stop { run, grace_ms: 0 });
    cluster.released(run, "n1");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "token");
}

#[test]
fn a_user_has_so_many_processes_and_cannot_raise_that() {
    let Some(cluster) = as_root() else { return };
    let of_kernel: u64 = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
    let told = output(
        &cluster,
        1,
        "grep processes /proc/self/limits; prlimit --nproc=unlimited: 2> /dev/null || echo no more",
    );
    let limits: Vec<u64> = told.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(limits.len() == 2 && limits.iter().all(|most| *most <= of_kernel / 4), "{told}");
    assert!(told.ends_with("no more\n"), "{told}");
    let enforced = cluster.hello("n1").host.enforced;
    if enforced.iter().any(|each| each.contains("cgroup v1") && each.contains("turns")) {
        let groups = output(&cluster, 2, "cat /proc/self/cgroup");
        assert!(
            groups.lines().any(|line| line.contains(":cpu") && line.contains("bedplate-n1-")),
            "{groups}"
        );
    }
}

#[test]
fn a_user_that_the_node_does_not_know_is_refused() {
    let Some(cluster) = as_root() else { return };
    let mut launches = gang(1, &["n1"], "true");
    launches[0].user = "no-such-user".to_owned();
    assert_eq!(why_not(&cluster, &launches), "user `no-such-user` does not exist on this node");
}

#[test]
fn scripts_hooks_and_steps_work_for_users() {
    let Some(cluster) = as_root() else { return };
    let mut launches = of_nobody(script(1, &["n1"], "#!/bin/sh\nsrun sh -c 'echo task of $(id -un)'\n"));
    launches[0].prolog = Some("id -un > prepared".to_owned());
    launches[0].epilog = Some("test -s prepared".to_owned());
    cluster.start_gang(&launches);
    let end = cluster.released(launches[0].run, "n1");
    assert_eq!((end.failed, end.epilog_failed), (None, None));
    assert_eq!(cluster.log(launches[0].run, "n1", 0, LogStream::Stdout), "task of nobody\n");
}

#[test]
fn a_job_inherits_a_clean_environment() {
    let cluster = Cluster::start_unprivileged(&["n1"]);
    let launches = gang(1, &["n1"], "env | cut -d= -f1 | grep -vE '^(SLURM|BEDPLATE)' | sort");
    cluster.start_gang(&launches);
    assert_eq!(cluster.released(launches[0].run, "n1").failed, None);
    let known = "CUDA_VISIBLE_DEVICES GLOO_SOCKET_IFNAME GROUP_RANK HOME LANG LOCAL_RANK LOCAL_WORLD_SIZE LOGNAME \
                 MASTER_ADDR MASTER_PORT NCCL_SOCKET_IFNAME NODE_RANK PATH PWD RANK SHELL SHLVL TMPDIR TZ USER WORLD_SIZE _";
    let names = cluster.log(launches[0].run, "n1", 0, LogStream::Stdout);
    let odd: Vec<&str> =
        names.lines().filter(|name| !known.split_whitespace().any(|each| each == *name)).collect();
    assert!(odd.is_empty(), "{odd:?}");
    assert!(names.contains("PATH\n"));
}

#[test]
fn what_lies_in_the_state_directory_is_its_owners_alone() {
    for cluster in [Cluster::start_unprivileged(&["n1"]), Cluster::start(&["n1"])] {
        let mut launches = script(1, &["n1"], "echo out; echo report >> $BEDPLATE_REPORT; sleep 1000");
        launches[0].stderr = Some(cluster.state.join("own-errors").display().to_string());
        cluster.start_gang(&launches);
        fixture::wait_until("output", || cluster.log(launches[0].run, "n1", 0, LogStream::Stdout) == "out\n");
        check_modes(&cluster.state.join("runs"));
        check_modes(&cluster.state.join("programs-n1"));
    }
}

/// Nothing can be read by others. Directories may be passed through where jobs have other users.
fn check_modes(path: &Path) {
    let metadata = fs::symlink_metadata(path).unwrap();
    let open = metadata.permissions().mode() & 0o077;
    match metadata.file_type() {
        kind if kind.is_dir() => {
            assert!(open & 0o066 == 0, "{} is {open:o}", path.display());
            fs::read_dir(path).unwrap().flatten().for_each(|entry| check_modes(&entry.path()));
        }
        kind if kind.is_symlink() => {}
        // In a directory that only its owner can enter, files may have the mode that the job gave them.
        _ if fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o077 == 0 => {}
        _ => assert_eq!(open, 0, "{}", path.display()),
    }
}
