//! A real Slurm and a cluster of ours beside it, with the same nodes, and what ranks find on each.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate_peers::{Slurm, SlurmShape};
use bedplate_testkit::wait_to_see;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");
const NODES: u32 = 4;

/// Stands in for a trainer: writes what it finds into a file of its own.
const TRAINER: &str = r#"#!/bin/sh
case "$1" in preprocess) sleep 0.2;; esac
echo "$1 ${SLURM_ARRAY_TASK_ID:-}" >> "$FACTS/order"
{
  echo "arguments=$*"
  echo "folder=$(basename "$PWD")"
  env | grep -E '^(SLURM|SRUN|CUDA|GPU|ROCR|ZE_|NCCL_DEBUG|PYTHONF|HYDRA|TORCH|CUDA_DEVICE|WORLD_SIZE|GPUS_PER_NODE|HEAD)'
} | sort > "$FACTS/${SLURM_ARRAY_TASK_ID:-job}.${SLURM_STEP_ID:-batch}.$SLURM_PROCID"
"#;

/// The variables of one process, and its arguments and folder among them.
pub(crate) type Facts = BTreeMap<String, String>;

/// What a job left: the facts of each process by array index, step and rank, and the order in which they ran.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) processes: BTreeMap<String, Facts>,
    pub(crate) order: Vec<String>,
}

pub(crate) struct Both {
    pub(crate) slurm: Slurm,
    folder: PathBuf,
}

impl Both {
    /// Nothing, said out loud, where Slurm is not installed.
    pub(crate) fn start() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let shape = SlurmShape { nodes: NODES, ..SlurmShape::default() };
        if let Some(missing) = shape.missing() {
            println!("SKIPPED: a comparison with a real Slurm: {missing} is not installed");
            return None;
        }
        let slurm = Slurm::start(&shape).expect("what it takes is installed");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("bp-beside-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let both = Self { slurm, folder: fs::canonicalize(folder).expect("it was just made") };
        fs::write(both.trainer(), TRAINER).expect("the temporary folder can be written");
        fs::set_permissions(both.trainer(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        succeeded(&both.ours(&both.folder, &["up", "--nodes", "4", "--like", "p5.48xlarge"]));
        Some(both)
    }

    pub(crate) fn trainer(&self) -> PathBuf {
        self.folder.join("trainer")
    }

    fn ours(&self, folder: &Path, words: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(words).current_dir(folder).env("BEDPLATE_STATE", self.folder.join("state"));
        command.env_remove("BEDPLATE_SERVER").env_remove("SLURM_CONF");
        let command = command.env("TRAINER", self.trainer()).env("FACTS", folder.join("facts"));
        command.output().expect("the program was built before its tests")
    }

    /// A folder of this name for one job, in which its script stands.
    fn place(&self, system: &str, name: &str, script: &str) -> PathBuf {
        let folder = self.folder.join(system).join(name);
        fs::create_dir_all(folder.join("facts")).expect("the temporary folder can be written");
        fs::write(folder.join("job.sbatch"), script).expect("the temporary folder can be written");
        folder
    }

    /// Runs a script on the cluster of ours; what goes before it is submitted first.
    pub(crate) fn on_ours(&self, name: &str, script: &str, before: Option<&str>) -> Told {
        let folder = self.place("ours", name, script);
        let mut words = vec!["submit", "job.sbatch", "--wait"];
        let dependency = before.map(|first| {
            fs::write(folder.join("first.sbatch"), first).expect("the temporary folder can be written");
            let output = self.ours(&folder, &["submit", "first.sbatch"]);
            succeeded(&output);
            format!("--dependency=afterok:{}", String::from_utf8_lossy(&output.stdout).trim())
        });
        words.extend(dependency.as_deref());
        succeeded(&self.ours(&folder, &words));
        read(&folder)
    }

    /// Runs the same on Slurm.
    pub(crate) fn on_slurm(&self, name: &str, script: &str, before: Option<&str>) -> Told {
        let folder = self.place("slurm", name, script);
        let dependency = before.map(|first| {
            fs::write(folder.join("first.sbatch"), first).expect("the temporary folder can be written");
            format!("--dependency=afterok:{}", self.sbatch(&folder, &["first.sbatch"]))
        });
        let words: Vec<&str> = dependency.as_deref().into_iter().chain(["job.sbatch"]).collect();
        let job = self.sbatch(&folder, &words);
        let state = self.end_of(&job);
        assert!(state.contains("JobState=COMPLETED"), "{state}\n{}", outputs(&folder));
        self.slurm.wait_until_idle().expect("the job has ended");
        read(&folder)
    }

    /// What Slurm says of a job, and of all members of an array, once it has ended. No answer is none.
    fn end_of(&self, job: &str) -> String {
        const GOING: [&str; 4] = ["PENDING", "RUNNING", "COMPLETING", "CONFIGURING"];
        let is_over = |state: &String| !state.is_empty() && !GOING.iter().any(|going| state.contains(going));
        wait_to_see("the job ends", || self.slurm.ask("scontrol", &["show", "job", job]), is_over)
    }

    /// The number of a job given to Slurm, or what it says instead.
    pub(crate) fn sbatch(&self, folder: &Path, words: &[&str]) -> String {
        let mut command = self.slurm.command("sbatch");
        command.current_dir(folder).arg("--parsable").args(words);
        command.env("TRAINER", self.trainer()).env("FACTS", folder.join("facts"));
        let output = command.output().expect("it is installed");
        succeeded(&output);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A job file as a script for Slurm.
    pub(crate) fn rendered(&self, job: &str) -> String {
        let folder = self.place("ours", "rendering", job);
        let output = self.ours(&folder, &["job", "render", "--for", "slurm", "job.sbatch"]);
        succeeded(&output);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What submitting says that fails.
    pub(crate) fn refusal_of_ours(&self, name: &str, script: &str) -> String {
        let folder = self.place("ours", name, script);
        let output = self.ours(&folder, &["submit", "job.sbatch"]);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        self.ours(&self.folder, &["down", "--force"]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn succeeded(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

/// What jobs wrote, for complaints.
fn outputs(folder: &Path) -> String {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect::<Vec<String>>().join("\n")
}

fn read(folder: &Path) -> Told {
    let mut told = Told::default();
    for file in fs::read_dir(folder.join("facts")).expect("it was made").flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let text = fs::read_to_string(file.path()).expect("the trainer wrote it");
        if name == "order" {
            told.order = text.lines().map(str::to_owned).collect();
            told.order.dedup();
            continue;
        }
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        told.processes.insert(name, text.lines().filter_map(pair).collect());
    }
    told
}
