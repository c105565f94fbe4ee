//! The openai package of Python as a client.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Fixture, Parrot};

/// A Python that has the package: the one that `./test` installs, or the system's.
fn python() -> Option<PathBuf> {
    let installed = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../target/openai/bin/python");
    let has_package = |python: &PathBuf| {
        let imported = Command::new(python).args(["-c", "import openai"]).stderr(Stdio::null()).status();
        imported.is_ok_and(|status| status.success())
    };
    [installed, PathBuf::from("python3")].into_iter().find(has_package)
}

#[test]
fn the_openai_package_finds_what_it_expects() {
    let Some(python) = python() else {
        println!("SKIPPED: the openai package for Python is not installed");
        return;
    };
    let parrot = Parrot::new(|prompt| {
        let asked = prompt.rsplit("<|im_start|>user\n").next().unwrap_or_default();
        match asked.split("<|im_end|>").next().unwrap_or_default() {
            "Weather in Oslo?" if !prompt.contains("<|im_start|>tool") => {
                "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>"
                    .to_owned()
            }
            asked => asked.to_owned(),
        }
    });
    let fixture = Fixture::start_with(parrot, |options| options.keys = vec!["secret".into()]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/api/client.py");
    let mut client = Command::new(python);
    client
        .arg(script)
        .arg(format!("http://{}", fixture.address))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    client.env_remove("OPENAI_API_KEY").env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
    let mut client = client.spawn().unwrap();
    let began = Instant::now();
    while client.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(300) {
            client.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = client.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.ends_with("conforms\n"), "{out}\n{err}");
}
