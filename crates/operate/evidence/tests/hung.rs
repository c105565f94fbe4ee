//! Four ranks of PyTorch of which one never comes: who, in which collective the others wait, and where its program stands.
//!
//! The ranks are real, on Gloo, with the Python package; what they print is all that is known of them. PyTorch is where `./test`
//! installs it, and without it the test is skipped out loud.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::SystemTime;

use bedplate_diagnose::{Culprit, JobVerdict, ProblemKind, diagnose};
use bedplate_evidence::gather;
use bedplate_logs::Recognizer;
use bedplate_testkit::{root, wait_to_see};

const RANKS: u32 = 4;
const STUCK: u32 = 2;
const PROGRAM: &str = r#"
import os, time, pathlib, bedplate, torch, torch.distributed as dist
bedplate.install_flight()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def wait_for_a_sample_that_never_comes():
    pathlib.Path("hangs").touch()
    time.sleep(3600)

def train_step(batch, number):
    if number == 40 and dist.get_rank() == 2:
        wait_for_a_sample_that_never_comes()
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)

for number, batch in enumerate(bedplate.Steps([torch.randn(4, 32)] * 1000, model=model, optimizer=optimizer)):
    train_step(batch, number)
"#;

struct Ranks(Vec<Child>);

impl Ranks {
    fn start(python: &Path, folder: &Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|held| held.local_addr())
            .expect("a port is free")
            .port();
        fs::write(folder.join("program.py"), PROGRAM).expect("there is room for a program");
        let start = |rank: u32| {
            let log = File::create(folder.join(format!("rank_{rank}.log"))).expect("there is room for a log");
            Command::new(python)
                .arg("program.py")
                .current_dir(folder)
                .env("PYTHONPATH", root().join("python/src"))
                .env("BEDPLATE_REPORT", folder.join(format!("report-{rank}")))
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("WORLD_SIZE", RANKS.to_string())
                .env("LOCAL_WORLD_SIZE", RANKS.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .env("OMP_NUM_THREADS", "1")
                .env("CUDA_VISIBLE_DEVICES", "")
                .stderr(log)
                .spawn()
                .expect("the interpreter was found before")
        };
        Self((0..RANKS).map(start).collect())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What the ranks' logs come to.
fn verdict(folder: &Path, recognizer: &Recognizer) -> Option<JobVerdict> {
    let logs: Vec<PathBuf> = (0..RANKS).map(|rank| folder.join(format!("rank_{rank}.log"))).collect();
    let gathered = gather(&logs, recognizer, &mut |_| {}).expect("logs are there");
    diagnose(&gathered.case, recognizer).verdicts.into_iter().next()
}

#[test]
fn a_hung_job_of_pytorch_is_named_with_rank_collective_and_stack() {
    let python = root().join("target/torch/bin/python");
    let has_torch = Command::new(&python).args(["-c", "import torch"]).output();
    if !has_torch.is_ok_and(|output| output.status.success()) {
        return println!("SKIPPED: a hung job of PyTorch: ./test installs it into target/torch");
    }
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let recognizer = Recognizer::built_in();
    let _ranks = Ranks::start(&python, folder.path());
    let named = |found: &Option<JobVerdict>| {
        found.as_ref().is_some_and(|verdict| verdict.culprits.contains(&Culprit::Rank(STUCK)))
    };
    let found = wait_to_see("the rank is named", || verdict(folder.path(), &recognizer), named);
    let found = found.expect("it is named");
    let hangs = fs::metadata(folder.path().join("hangs")).and_then(|file| file.modified()).expect("it hangs");
    let after = SystemTime::now().duration_since(hangs).unwrap_or_default();
    println!("named {:.1} s after it hung: {found}", after.as_secs_f64());
    assert_eq!((found.kind, &found.culprits[..]), (ProblemKind::Stall, &[Culprit::Rank(STUCK)][..]));
    let evidence = &found.evidence[0].what;
    assert!(
        evidence.contains("all_reduce") && evidence.contains("wait_for_a_sample_that_never_comes"),
        "{evidence}"
    );
}
