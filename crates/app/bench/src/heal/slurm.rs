//! A node of a gang is lost under a real Slurm: how long until `bedplate launch` has it running again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_peers::{NodeLoss, Slurm, SlurmShape};
use bedplate_terminal::{CliError, Console, ProgramError};
use nix::unistd::User;

use super::Figure;
use crate::product;
use crate::submit::SubmitBenchError;

const PATIENCE: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_millis(5);
/// Ranks of the gang: two nodes with two each.
const RANKS: usize = 4;

/// Takes steps, announces checkpoints, and writes down when and from where it started.
const TRAINER: &str = r#"#!/bin/sh
step=${BEDPLATE_CHECKPOINT_STEP:-0}
echo "$BEDPLATE_RESTARTS $RANK $step $SLURMD_NODENAME" >> starts
while :; do
  sleep 0.1
  step=$((step + 1))
  echo "progress $step" >> "$BEDPLATE_REPORT"
  if [ "$RANK" = 0 ]; then echo "checkpoint $step" >> "$BEDPLATE_REPORT"; fi
done
"#;

/// How a node is lost, and what there is instead of it.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    loss: NodeLoss,
    spares: u32,
    limit: f64,
}

/// Slurm itself lets a job that was put back wait for two minutes; that is the limit named for the last one.
const CASES: [Case; 3] = [
    Case { name: "killed_s", loss: NodeLoss::Killed, spares: 1, limit: 10.0 },
    Case { name: "stopped_s", loss: NodeLoss::Stopped, spares: 1, limit: 10.0 },
    Case { name: "requeued_s", loss: NodeLoss::Killed, spares: 0, limit: 121.0 },
];

pub(super) fn measure(repeats: u32, user: Option<&str>, console: &Console) -> Result<Vec<Figure>, CliError> {
    let shape = SlurmShape { nodes: 4, ..SlurmShape::default() };
    let slurm = Slurm::start(&shape).map_err(|what| failed(&what))?;
    // Another user may not be let into the folder where the program stands.
    let program = slurm.root().join("bedplate");
    fs::copy(product::program()?, &program).map_err(|error| failed(&error.to_string()))?;
    let mut figures = Vec::new();
    for case in CASES {
        let mut seconds = Vec::new();
        for round in 0..repeats {
            console.say(&format!("{}, round {} of {repeats}", case.name, round + 1));
            seconds.push(Round::prepare(&slurm, case, user)?.run(console)?);
        }
        figures.push(Figure { name: case.name, seconds, limit: case.limit });
    }
    Ok(figures)
}

fn failed(what: &str) -> CliError {
    SubmitBenchError::Slurm { why: what.to_owned() }.into()
}

/// One gang that loses one node.
struct Round<'a> {
    slurm: &'a Slurm,
    case: Case,
    user: Option<User>,
    folder: PathBuf,
}

impl<'a> Round<'a> {
    fn prepare(slurm: &'a Slurm, case: Case, user: Option<&str>) -> Result<Self, CliError> {
        let folder = slurm.root().join("gang");
        let _ = fs::remove_dir_all(&folder);
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(&folder)?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
            fs::write(folder.join("trainer"), TRAINER)?;
            fs::set_permissions(folder.join("trainer"), fs::Permissions::from_mode(0o755))?;
            fs::write(folder.join("job.sbatch"), script(case.spares, &slurm.root().join("bedplate")))
        };
        write().map_err(|error| failed(&error.to_string()))?;
        let user = match user {
            None => None,
            Some(name) => {
                let found = User::from_name(name).ok().flatten();
                Some(found.ok_or_else(|| failed(&format!("there is no user {name}")))?)
            }
        };
        Ok(Self { slurm, case, user, folder })
    }

    /// From the loss to the moment when every rank has started again.
    fn run(&self, console: &Console) -> Result<f64, CliError> {
        let job = self.submit()?;
        self.wait("the gang does not start", || self.starts(0).len() == RANKS && self.has_checkpoint())?;
        let lost = self.starts(0).iter().map(|start| start.node.clone()).max().unwrap_or_default();
        let began = Instant::now();
        self.slurm.lose_node(&lost, self.case.loss);
        self.wait("the gang does not start again", || self.starts(1).len() == RANKS)?;
        let seconds = began.elapsed().as_secs_f64();
        let again = self.starts(1);
        let is_right = again.iter().all(|start| start.step > 0 && start.node != lost);
        self.slurm.ask("scancel", &[&job]);
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        for line in log.lines().filter(|line| line.contains("drained")) {
            console.say(line);
        }
        if !is_right {
            let starts = fs::read_to_string(self.folder.join("starts")).unwrap_or_default();
            return Err(failed(&format!("the gang came back wrongly without {lost}:\n{starts}{log}")));
        }
        self.slurm.find_node_again(&lost, self.case.loss).map_err(|what| failed(&what))?;
        self.tidy(&lost)?;
        Ok(seconds)
    }

    /// All nodes are idle again. Slurm asks a node only now and then whether it is rid of a job; setting it down and up asks at once.
    fn tidy(&self, lost: &str) -> Result<(), CliError> {
        let idle = || self.slurm.ask("sinfo", &["-h", "-p", "main", "-t", "idle", "-o", "%D"]) == "4";
        self.wait("the nodes do not become idle", || {
            let node = format!("nodename={lost}");
            if !idle() {
                thread::sleep(Duration::from_secs(1));
            }
            if !idle() {
                self.slurm.ask("scontrol", &["update", &node, "state=down", "reason=bench"]);
                self.slurm.ask("scontrol", &["update", &node, "state=resume"]);
            }
            idle()
        })
    }

    fn submit(&self) -> Result<String, CliError> {
        let mut command = self.slurm.command("sbatch");
        command.current_dir(&self.folder).args(["--parsable", "job.sbatch"]);
        if let Some(user) = &self.user {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        let output = command.output().map_err(|error| failed(&error.to_string()))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(failed(&String::from_utf8_lossy(&output.stderr))),
        }
    }

    fn starts(&self, restarts: u32) -> Vec<StartLine> {
        let text = fs::read_to_string(self.folder.join("starts")).unwrap_or_default();
        let all = text.lines().filter_map(StartLine::read);
        all.filter(|start| start.restarts == restarts).collect()
    }

    /// The launcher knows of a checkpoint.
    fn has_checkpoint(&self) -> bool {
        let files = fs::read_dir(self.folder.join(".bedplate")).into_iter().flatten().flatten();
        let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
        texts.into_iter().any(|text| text.contains("\"step\""))
    }

    fn wait(&self, what: &str, is_so: impl Fn() -> bool) -> Result<(), CliError> {
        let began = Instant::now();
        while !is_so() {
            if began.elapsed() > PATIENCE {
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                return Err(ProgramError::Bug { what: format!("{what}\n{log}") }.into());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// A line of the trainer.
struct StartLine {
    restarts: u32,
    step: u64,
    node: String,
}

impl StartLine {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let restarts = words.next()?.parse().ok()?;
        let step = words.nth(1)?.parse().ok()?;
        Some(Self { restarts, step, node: words.next()?.to_owned() })
    }
}

fn script(spares: u32, program: &Path) -> String {
    format!(
        "#!/bin/sh\n#SBATCH --nodes={} --no-kill --requeue --output=log --open-mode=append --gpus-per-node=8 --job-name=heals\n\
         # What a killed helper leaves behind goes with the folder.\n\
         export TMPDIR=$PWD\n\
         exec {} launch --spares {spares} --ranks-per-node 2 --grace 500ms -- ./trainer\n",
        2 + spares,
        program.display()
    )
}
