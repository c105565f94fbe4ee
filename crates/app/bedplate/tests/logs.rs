//! What is never logged: tokens, secrets and environments, however much is asked for.

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

use bedplate_testkit::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn the_most_talkative_log_of_a_daemon_says_what_happens_and_no_secret() {
    let folder = std::env::temp_dir().join(format!("bedplate-logs-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let state = folder.join("state");
    let command = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate"));
        command.args(arguments).env("BEDPLATE_STATE", &state).env("A_SECRET", "secret-of-the-environment");
        command
    };
    let path = state.display().to_string();
    let mut daemon =
        command(&["daemon", "--state-dir", &path, "--cluster", "p5.48xlarge:2", "--log", "trace"]);
    let log = folder.join("log");
    let mut daemon = daemon.stdout(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap();
    wait_until("the daemon", || fs::exists(state.join("daemon.json")).unwrap());
    let run = |arguments: &[&str]| -> Output { command(arguments).output().unwrap() };
    let drained = run(&["node", "drain", "n1", "--reason", "its fan is loud"]);
    let made = run(&["token", "add", "ada", "--role", "user"]);
    let own = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let refused = command(&["queue"]).env("BEDPLATE_TOKEN", "a-token-that-is-wrong").output().unwrap();
    kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
    daemon.wait().unwrap();
    let log = fs::read_to_string(log).unwrap();
    let admin = fs::read_to_string(state.join("admin.token")).unwrap();
    assert!(own.len() > 16 && admin.trim().len() > 16, "{own:?} {drained:?} {refused:?}");
    for secret in [own.as_str(), admin.trim(), "a-token-that-is-wrong", "secret-of-the-environment"] {
        assert!(!log.contains(secret), "{secret} is logged: {log}");
    }
    assert!(log.contains("its fan is loud") && log.contains("node=\"n1\""), "{drained:?} {log}");
    fs::remove_dir_all(folder).unwrap();
}
