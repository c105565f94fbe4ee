//! The options that say what a job asks for, and remarks on what no option says.

use std::fmt::Display;

use bedplate_document::slurm;
use bedplate_topology::{Level, compress_hostlist, expand_hostlist};
use bedplate_units::{Bytes, Seconds};

use super::{Setting, refusal, remark};
use crate::sbatch::Remark;
use crate::{
    Begin, CheckpointSignal, Closeness, Dependency, Environment, Inherited, Job, JobError, Placement, Policy,
    Preemption, Receiver, Role, Streams,
};

type Written = Result<(), JobError>;

/// What is written so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    pub(super) options: Vec<Setting>,
    pub(super) remarks: Vec<Remark>,
    /// Variables that `--export` cannot carry.
    pub(super) exports: Vec<(String, String)>,
}

impl Settings {
    pub(super) fn of(job: &Job) -> Result<Self, JobError> {
        let mut settings = Self::default();
        settings.put("name", "job-name", &job.name)?;
        settings.add_gang(job)?;
        settings.add_placement(&job.placement, job.gang.nodes())?;
        settings.add_waiting(&job.policy)?;
        settings.add_running(&job.policy)?;
        settings.add_files(job)?;
        settings.add_environment(&job.environment)?;
        settings.add_rest(job)?;
        Ok(settings)
    }

    /// An option, unless no line of a script can carry its value.
    fn put(&mut self, key: &str, option: &str, value: impl Display) -> Written {
        let value = value.to_string();
        if value.contains(char::is_control) {
            let reason =
                "it contains a line break or another control character, which no `#SBATCH` line can carry";
            return Err(refusal(key, reason));
        }
        self.options.push((option.to_owned(), Some(value)));
        Ok(())
    }

    fn put_some<V: Display>(&mut self, key: &str, option: &str, value: Option<V>) -> Written {
        value.map_or(Ok(()), |value| self.put(key, option, value))
    }

    fn flag(&mut self, option: &str) {
        self.options.push((option.to_owned(), None));
    }

    fn remark(&mut self, key: &str, text: impl Into<String>) {
        self.remarks.push(remark(key, text));
    }

    fn remark_if(&mut self, is_so: bool, key: &str, text: &str) {
        if is_so {
            self.remark(key, text);
        }
    }

    /// Whole seconds, the next larger number where there is a fraction.
    fn whole_seconds(&mut self, key: &str, duration: Seconds) -> u64 {
        let whole = duration.get().ceil();
        if whole != duration.get() {
            self.remark(key, format!("Slurm counts whole seconds; {whole} are asked for"));
        }
        whole as u64
    }

    fn add_gang(&mut self, job: &Job) -> Written {
        let [role] = job.gang.roles.as_slice() else {
            return Err(refusal(
                "role",
                "a job of several roles is not written for Slurm; submit each role as a job of its own",
            ));
        };
        if role.gpu_share.is_some() {
            return Err(refusal(
                "gpu_share",
                "how GPUs are shared differs from site to site in Slurm; ask for whole GPUs",
            ));
        }
        self.remark_if(role.name != Role::ONLY, "role.name", "Slurm has no names for the parts of a job");
        let spares = job.health.spare_nodes;
        self.put("nodes", "nodes", u64::from(role.nodes) + u64::from(spares))?;
        self.put("tasks_per_node", "ntasks-per-node", role.tasks_per_node)?;
        if spares > 0 || job.policy.survives {
            self.flag("no-kill");
        }
        if spares > 0 {
            self.remark("health.spare_nodes", format!("the job asks for {} nodes and lives on when one is lost; `bedplate launch` keeps {spares} as spares", u64::from(role.nodes) + u64::from(spares)));
        }
        self.add_resources(role)?;
        self.remark_if(
            role.elastic.is_some(),
            "elastic",
            "a job keeps its nodes in Slurm; the number under `nodes` is asked for",
        );
        Ok(())
    }

    fn add_resources(&mut self, role: &Role) -> Written {
        match (&role.accelerator, role.gpus_per_node) {
            (_, 0) => {}
            (None, gpus) => self.put("gpus_per_node", "gpus-per-node", gpus)?,
            (Some(kind), gpus) => {
                if kind.is_empty() || kind.contains([':', ',', '(', '=']) {
                    return Err(refusal("accelerator", "no type of GPU can have this name in Slurm"));
                }
                self.put("accelerator", "gpus-per-node", format!("{kind}:{gpus}"))?;
            }
        }
        self.put("cpus_per_task", "cpus-per-task", role.cpus_per_task)?;
        if role.is_exclusive {
            self.flag("exclusive");
        }
        match (role.memory_per_node, role.is_exclusive) {
            (Some(memory), _) => {
                let size = self.size(memory);
                self.put("memory_per_node", "mem", size)
            }
            // Slurm gives an exclusive job the nodes, but only the default memory of the partition.
            (None, true) => self.put("memory_per_node", "mem", 0),
            (None, false) => Ok(()),
        }
    }

    fn size(&mut self, size: Bytes) -> String {
        const UNITS: [(f64, &str); 3] = [(1_073_741_824.0, "G"), (1_048_576.0, "M"), (1024.0, "K")];
        let whole = |unit: f64| (size.get() / unit).fract() == 0.0 && size.get() / unit >= 1.0;
        if let Some((unit, letter)) = UNITS.into_iter().find(|(unit, _)| whole(*unit)) {
            return format!("{}{letter}", size.get() / unit);
        }
        let mebibytes = (size.get() / 1_048_576.0).ceil().max(1.0);
        self.remark("memory_per_node", format!("Slurm counts whole mebibytes; {mebibytes} are asked for"));
        format!("{mebibytes}M")
    }

    fn add_placement(&mut self, placement: &Placement, nodes: u64) -> Written {
        self.add_closeness(placement, nodes)?;
        self.remark_if(
            placement.spread.is_some(),
            "placement.spread",
            "Slurm has no option that puts nodes under different switches",
        );
        if !placement.features.is_empty() {
            let is_odd = |name: &&String| {
                name.is_empty() || name.contains(|c: char| "&|[](),*".contains(c) || c.is_whitespace())
            };
            if let Some(name) = placement.features.iter().find(is_odd) {
                return Err(refusal(
                    "placement.features",
                    format!("no feature can be called `{name}` in Slurm"),
                ));
            }
            self.put("placement.features", "constraint", placement.features.join("&"))?;
        }
        if !placement.avoid_nodes.is_empty() {
            self.put_nodes("placement.avoid_nodes", "exclude", &placement.avoid_nodes)?;
        }
        match placement.only_nodes.len() as u64 {
            0 => Ok(()),
            listed if listed == nodes => {
                self.put_nodes("placement.only_nodes", "nodelist", &placement.only_nodes)
            }
            listed => Err(refusal(
                "placement.only_nodes",
                format!(
                    "{listed} nodes are listed for {nodes}; Slurm takes all nodes of a list, so list exactly {nodes}, or name the others under `avoid_nodes`"
                ),
            )),
        }
    }

    fn put_nodes(&mut self, key: &str, option: &str, nodes: &[String]) -> Written {
        let list = compress_hostlist(nodes.iter().map(String::as_str));
        if list.contains('/') || expand_hostlist(&list).ok().as_deref() != Some(nodes) {
            return Err(refusal(key, "it lists a name that no node of Slurm can have"));
        }
        self.put(key, option, list)
    }

    /// Slurm speaks of switches (the lowest level) and, in segments, of blocks, which are NVLink domains.
    fn add_closeness(&mut self, placement: &Placement, nodes: u64) -> Written {
        let without = format!(
            "Slurm has no option for the level; its own topology plugin packs the {nodes} nodes as it can"
        );
        match (placement.closeness, placement.segment) {
            (Closeness::Any, None) => {}
            (Closeness::Required(Level::Domain), Some(_)) => {}
            (Closeness::Required(Level::LEAF), _) => self.put("placement.required", "switches", 1)?,
            (Closeness::Preferred(Level::LEAF), _) => {
                self.put("placement.preferred", "switches", "1@00:01")?;
                self.remark("placement.preferred", "Slurm waits at most a second for nodes under one switch");
            }
            (Closeness::Any, Some(_)) => {}
            (Closeness::Required(level), _) => match level {
                Level::Switch(_) | Level::Domain if nodes > 1 => {
                    return Err(refusal(
                        "placement.required",
                        format!(
                            "Slurm has no option that keeps a job inside one {level}; ask for `leaf`, or prefer it"
                        ),
                    ));
                }
                _ => self.remark("placement.required", without),
            },
            (Closeness::Preferred(_), _) => self.remark("placement.preferred", without),
        }
        if let Some(segment) = placement.segment {
            self.put("placement.segment", "segment", segment)?;
            self.remark(
                "placement.segment",
                "Slurm has segments from version 24.05 on, with its topology of blocks",
            );
        }
        Ok(())
    }

    fn add_waiting(&mut self, policy: &Policy) -> Written {
        if policy.partition.as_ref().is_some_and(|name| name.contains(',')) {
            return Err(refusal("partition", "Slurm would read its commas as a choice of partitions"));
        }
        self.put_some("partition", "partition", policy.partition.as_ref())?;
        self.put_some("account", "account", policy.account.as_ref())?;
        self.put_some("qos", "qos", policy.qos.as_ref())?;
        match u32::try_from(policy.priority) {
            Ok(0) => {}
            Ok(priority) => {
                self.put("priority", "priority", priority)?;
                self.remark(
                    "priority",
                    "Slurm takes it as the whole priority of the job and adds nothing to it",
                );
            }
            Err(_) => self.remark(
                "priority",
                "Slurm has no such priority, and the job has the one that Slurm works out",
            ),
        }
        if policy.nice != 0 {
            self.put("nice", "nice", policy.nice)?;
        }
        if policy.is_held {
            self.flag("hold");
        }
        match policy.begin {
            None => {}
            Some(Begin::After(wait)) => {
                let seconds = self.whole_seconds("begin", wait);
                self.put("begin", "begin", format!("now+{seconds}"))?;
            }
            // A date would be read in the time zone of the machine that submits.
            Some(Begin::At { unix_seconds }) => self.put("begin", "begin", format!("uts{unix_seconds}"))?,
        }
        self.put_some("array", "array", policy.array.as_ref())?;
        self.add_dependencies(&policy.dependencies)
    }

    fn add_dependencies(&mut self, dependencies: &[Dependency]) -> Written {
        let is_number = |job: &&String| job.bytes().all(|b| b.is_ascii_digit() || b == b'_');
        let mut jobs = dependencies.iter().flat_map(|dependency| &dependency.jobs);
        if let Some(job) = jobs.find(|job| !is_number(job)) {
            return Err(refusal("dependencies", format!("`{job}` is not the number of a job of Slurm")));
        }
        if dependencies.is_empty() {
            return Ok(());
        }
        let written: Vec<String> = dependencies.iter().map(ToString::to_string).collect();
        self.put("dependencies", "dependency", written.join(","))
    }

    fn add_running(&mut self, policy: &Policy) -> Written {
        if let Some(limit) = policy.time_limit {
            let seconds = self.whole_seconds("time_limit", limit);
            self.put("time_limit", "time", slurm::time(seconds))?;
        }
        // Sites differ in what they do with jobs that say neither.
        self.flag(if policy.is_requeued { "requeue" } else { "no-requeue" });
        if let Some(signal) = policy.checkpoint_signal {
            self.add_signal(signal)?;
        }
        let usual = Policy::default();
        self.remark_if(policy.grace != usual.grace, "grace", "the site sets it in Slurm (KillWait)");
        self.remark_if(
            policy.preemption != Preemption::Requeue,
            "preemption",
            "the site sets it in Slurm, by partition or QOS",
        );
        self.remark_if(
            policy.minimum_run_time != usual.minimum_run_time,
            "minimum_run_time",
            "the site sets it in Slurm (PreemptExemptTime)",
        );
        Ok(())
    }

    fn add_signal(&mut self, signal: CheckpointSignal) -> Written {
        let before = self.whole_seconds("checkpoint_signal", signal.before);
        if before > u64::from(u16::MAX) {
            return Err(refusal(
                "checkpoint_signal",
                format!("Slurm sends a signal at most {} seconds before the end", u16::MAX),
            ));
        }
        let receiver = if signal.receiver == Receiver::Script { "B:" } else { "" };
        let name =
            CheckpointSignal::name_of(signal.signal).map_or_else(|| signal.signal.to_string(), str::to_owned);
        self.put("checkpoint_signal", "signal", format!("{receiver}{name}@{before}"))
    }

    fn add_files(&mut self, job: &Job) -> Written {
        self.put_some("working_directory", "chdir", job.working_directory.as_ref())?;
        let Streams { stdin, stdout, stderr, is_appended } = &job.streams;
        self.put_some("stdin", "input", stdin.as_ref())?;
        self.put_some("stdout", "output", stdout.as_ref())?;
        self.put_some("stderr", "error", stderr.as_ref())?;
        match is_appended {
            true => self.put("append", "open-mode", "append"),
            // A job that comes back would otherwise continue its file where the site says so.
            false => Ok(()),
        }
    }

    /// Variables that `--export` can carry stand there; the others become lines of the script.
    fn add_environment(&mut self, environment: &Environment) -> Written {
        let (plain, odd): (Vec<_>, Vec<_>) =
            environment.set.iter().partition(|(name, value)| is_name(name) && is_plain(value));
        if let Some((name, _)) = odd.iter().find(|(name, _)| !is_name(name)) {
            return Err(refusal("environment", format!("no shell can set a variable called `{name}`")));
        }
        if !odd.is_empty() {
            let names: Vec<&str> = odd.iter().map(|(name, _)| name.as_str()).collect();
            self.remark("environment", format!("{} set in the script itself, because `--export` cannot carry commas, quotations and line breaks", be(&names)));
        }
        self.exports = odd.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let mut items: Vec<String> = match &environment.inherited {
            Inherited::All if plain.is_empty() => return Ok(()),
            Inherited::All => vec!["ALL".to_owned()],
            Inherited::Nothing => Vec::new(),
            Inherited::Only(names) => names.clone(),
        };
        let is_word = |name: &&String| {
            !is_name(name) || ["all", "none", "nil"].contains(&name.to_ascii_lowercase().as_str())
        };
        if let Inherited::Only(names) = &environment.inherited
            && let Some(name) = names.iter().find(is_word)
        {
            return Err(refusal(
                "inherit_environment",
                format!("`--export` cannot name the variable `{name}`"),
            ));
        }
        items.extend(plain.iter().map(|(name, value)| format!("{name}={value}")));
        let list = if items.is_empty() { "NONE".to_owned() } else { items.join(",") };
        self.put("environment", "export", list)
    }

    fn add_rest(&mut self, job: &Job) -> Written {
        self.put_some("labels", "comment", job.labels.get("comment"))?;
        let others = job.labels.len() - usize::from(job.labels.contains_key("comment"));
        self.remark_if(others > 0, "labels", "only the label `comment` has a place in Slurm");
        self.remark_if(
            job.expected.is_some(),
            "expected",
            "Slurm keeps no prediction; it stays in the job file",
        );
        if job.health.spare_nodes == 0 {
            self.remark_if(job.policy.retries > 0, "retries", "Slurm does not bring back a job that failed by itself; `bedplate launch --retries` inside the job does");
            self.remark_if(
                job.health.stuck_after.is_some(),
                "health.stuck_after",
                "Slurm does not watch progress; `bedplate launch --stuck-after` inside the job does",
            );
            self.remark_if(
                job.health.probe.is_some(),
                "health.probe",
                "Slurm runs no probes for a job; `bedplate launch --check` inside the job does",
            );
        }
        Ok(())
    }
}

fn be(names: &[&str]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}

fn is_name(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(is_inner) && name.starts_with(|c: char| !c.is_ascii_digit())
}

fn is_plain(value: &str) -> bool {
    !value.contains(|c: char| c.is_control() || ",'\"\\".contains(c))
}
