//! The script that starts the ranks of a pod, run by the shell of this machine.

use std::process::{Command, Output, Stdio};

use bedplate_job::kubernetes::{RenderOptions, render};
use bedplate_job::{Gang, Job, Role, Workload};

/// The container of the second of two pods with three ranks each, as a command of this machine.
fn pod(script: &str, change: impl Fn(&mut Job)) -> Command {
    let role = Role { nodes: 2, tasks_per_node: 3, ..Role::named(Role::ONLY) };
    let mut job = Job::new("ranks", Workload::command(["/bin/sh", "-c", script]), Gang::of(role));
    change(&mut job);
    let options = RenderOptions { image: Some("image".into()), ..RenderOptions::default() };
    let manifests = render(&job, &options).expect("it can be written");
    let pod = &manifests.objects[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    // As a kubelet expands them.
    let expanded = |text: &str| text.replace("$$", "$");
    let words: Vec<String> = container["command"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|word| expanded(word.as_str().expect("a text")))
        .collect();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("JOB_COMPLETION_INDEX", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    for variable in container["env"].as_array().expect("a list") {
        if let Some(value) = variable["value"].as_str() {
            command.env(variable["name"].as_str().expect("a text"), expanded(value));
        }
    }
    command
}

fn lines(output: &Output) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn ranks_know_their_places_and_hooks_run_around_them() {
    let output = pod("echo $RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE '$(RANK)' $$", |job| {
        job.hooks.prolog = vec!["echo a prolog".into()];
        job.hooks.epilog = vec!["echo an epilog".into()];
    });
    let output = {
        let mut command = output;
        command.output().expect("there is a shell")
    };
    let found = lines(&output);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(found.len(), 5, "{output:?}");
    for (line, begin) in found.iter().zip([
        "3 0 1 6 3 $(RANK) ",
        "4 1 1 6 3 $(RANK) ",
        "5 2 1 6 3 $(RANK) ",
        "a prolog",
        "an epilog",
    ]) {
        assert!(line.starts_with(begin), "{line} {begin}");
    }
}

#[test]
fn the_first_rank_that_fails_ends_the_others_and_gives_its_code() {
    let script = "if [ $LOCAL_RANK = 2 ]; then exit 7; fi; exec sleep 600";
    let output = pod(script, |_| {}).output().expect("there is a shell");
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let fails =
        pod("true", |job| job.hooks.prolog = vec!["exit 5".into()]).output().expect("there is a shell");
    assert_eq!(fails.status.code(), Some(5), "{fails:?}");
}

#[test]
fn a_signal_to_the_pod_reaches_every_rank() {
    let script = "trap 'echo stopped; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let mut child = pod(script, |_| {}).spawn().expect("there is a shell");
    let mut output = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    for _ in 0..3 {
        std::io::BufRead::read_line(&mut output, &mut line).expect("they write");
    }
    assert_eq!(line, "up\nup\nup\n");
    let pid = child.id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().expect("every system has it");
    std::io::Read::read_to_string(&mut output, &mut line).expect("they write");
    assert_eq!(line, "up\nup\nup\nstopped\nstopped\nstopped\n");
    assert_eq!(child.wait().expect("it is ours").code(), Some(0));
}
