//! Under a real Slurm a gang that loses a node runs again from its checkpoint, and a node that is not well is drained.

#![allow(clippy::print_stdout, reason = "a test that is skipped says so, and measured times are shown")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use bedplate_peers::{Slurm, SlurmShape};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");

fn is_installed() -> bool {
    let missing = SlurmShape::default().missing();
    if let Some(missing) = missing {
        println!("SKIPPED: healing on a real Slurm: {missing} is not installed");
    }
    missing.is_none()
}

/// The bench fails where the gang does not come back, or elsewhere than from its checkpoint, or on the lost node.
fn heal(user: &[&str]) -> (Value, String) {
    let mut command = Command::new(bedplate_testkit::beside(PROGRAM, "bedplate-bench"));
    command.args(["heal", "--on", "slurm", "--repeats", "1", "--json"]).args(user);
    let output = command.output().expect("the program was built before its tests");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let figures: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    println!("{figures:#}");
    for name in ["killed_s", "stopped_s", "requeued_s"] {
        assert!(figures[name].as_f64().is_some_and(|seconds| seconds > 0.0), "{figures}");
    }
    (figures, said)
}

#[test]
fn a_gang_that_loses_a_node_runs_again_on_a_spare_and_through_the_queue() {
    if !is_installed() {
        return;
    }
    let (_, said) = heal(&[]);
    assert!(said.contains("is drained"), "{said}");
}

#[test]
fn a_gang_of_a_user_without_rights_heals_too_and_says_whom_to_tell() {
    if !is_installed() {
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        return println!("SKIPPED: healing for a second user: only root can start a job for another user");
    }
    let (_, said) = heal(&["--user", "nobody"]);
    assert!(said.contains("cannot be drained") && said.contains("tell an administrator"), "{said}");
}

#[test]
fn the_health_check_for_administrators_drains_a_node_with_the_finding() {
    if !is_installed() {
        return;
    }
    let slurm = Slurm::start(&SlurmShape { nodes: 2, ..SlurmShape::default() }).expect("it is installed");
    let finding = r#"{"rule":"gpu/xid-79","action":"replace","summary":"GPU 4 has fallen off the bus"}"#;
    let check = format!("test $SLURMD_NODENAME = n1 || echo '{finding}'");
    let script = Command::new(PROGRAM).args(["unit", "slurm-health", "--check", &check]).output();
    let path = slurm.root().join("health");
    fs::write(&path, script.expect("the program was built before its tests").stdout)
        .expect("it can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    for node in ["n1", "n2"] {
        let mut health = slurm.command("sh");
        let status = health.arg(&path).env("SLURMD_NODENAME", node).env_remove("SLURM_JOB_ID").status();
        assert!(status.expect("there is a shell").success());
    }
    let reasons = slurm.ask("sinfo", &["-h", "-N", "-p", "main", "-o", "%N %T %E"]);
    assert!(reasons.contains("n1 idle none"), "{reasons}");
    assert!(
        reasons.contains("n2 drained bedplate: GPU 4 has fallen off the bus (gpu/xid-79, replace)"),
        "{reasons}"
    );
}

/// A launch on this machine, in a folder of its own: exit code, standard output, standard error.
fn launch_here(name: &str, words: &[&str]) -> (Option<i32>, String, String) {
    let folder = std::env::temp_dir().join(format!("bp-launch-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the temporary folder can be written");
    let mut command = Command::new(PROGRAM);
    let command = command
        .current_dir(&folder)
        .arg("launch")
        .args(words)
        .env_remove("BEDPLATE_REPORT")
        .env("TMPDIR", &folder);
    let output = command.output().expect("the program was built before its tests");
    assert!(
        fs::read_dir(folder.join(".bedplate")).is_ok_and(|mut left| left.next().is_none()),
        "a record is left"
    );
    fs::remove_dir_all(&folder).expect("it is ours");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_gang_on_this_machine_whose_helper_dies_goes_on_from_its_checkpoint_on_a_spare() {
    let rank = "echo checkpoint 7 /c/7 >> $BEDPLATE_REPORT; sleep 0.5; \
                if [ $RANK.$BEDPLATE_RESTARTS = 1.0 ]; then kill -9 $PPID; sleep 60; fi; \
                if [ $BEDPLATE_RESTARTS = 0 ]; then sleep 60; fi; \
                echo $RANK of $WORLD_SIZE on $BEDPLATE_NODE from $BEDPLATE_CHECKPOINT_STEP $BEDPLATE_CHECKPOINT_PATH";
    let words = ["--here", "3", "--spares", "1", "--ranks-per-node", "1", "--", "sh", "-c", rank];
    let (code, said, remarks) = launch_here("spare", &words);
    assert_eq!(code, Some(0), "{said}{remarks}");
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 of 2 on here1 from 7 /c/7", "1 of 2 on here3 from 7 /c/7"], "{remarks}");
}

#[test]
fn a_node_whose_check_fails_is_not_used_and_too_few_nodes_end_the_launch() {
    let check = ["--check", "test $BEDPLATE_NODE != here1 || { echo GPU 3 is gone; false; }"];
    let words = ["--here", "2", "--spares", "1", "--ranks-per-node", "1"];
    let rank = ["--", "sh", "-c", "echo on $BEDPLATE_NODE"];
    let (code, said, remarks) = launch_here("check", &[&words[..], &check, &rank].concat());
    assert_eq!((code, said.as_str()), (Some(0), "on here2\n"), "{remarks}");
    assert!(remarks.contains("node here1 is not well: GPU 3 is gone"), "{remarks}");
    let words = ["--here", "1", "--ranks-per-node", "1", "--check", "false", "--", "true"];
    let folder_of =
        |name: &str| std::env::temp_dir().join(format!("bp-launch-{name}-{}", std::process::id()));
    fs::create_dir_all(folder_of("few")).expect("the temporary folder can be written");
    let output = Command::new(PROGRAM).current_dir(folder_of("few")).arg("launch").args(words).output();
    fs::remove_dir_all(folder_of("few")).expect("it is ours");
    let output = output.expect("the program was built before its tests");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("0 of the 1 nodes that the gang needs are left"), "{said}");
}

#[test]
fn the_exit_code_of_a_launch_is_that_of_the_rank_that_failed() {
    let words =
        ["--here", "1", "--ranks-per-node", "2", "--retries", "1", "--", "sh", "-c", "exit $((RANK * 7))"];
    let (code, _, remarks) = launch_here("code", &words);
    assert_eq!(code, Some(7), "{remarks}");
    assert!(remarks.contains("run 2 starts"), "{remarks}");
}
