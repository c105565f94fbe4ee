//! What runs in a pod, and what its ranks find in their environment.
//!
//! A pod that has one rank runs the command itself. Otherwise a small script (`start.sh`) starts the ranks, passes
//! signals on and ends with the exit code of the first that failed. Both set what our own clusters set.

use serde_json::{Value, json};

use super::{ManifestKind, PlacedRole, Rendering, refusal};
use crate::kubernetes::names;

use crate::{JobError, Workload, shell};

/// The script that starts the ranks of a node.
pub(in crate::kubernetes) const START: &str = include_str!("../start.sh");
/// Pods have addresses of their own, so one port serves all.
const MASTER_PORT: u16 = 29_500;
/// Variables that say which rank a process is. What a job sets under these names is not honoured, as on our clusters.
pub(in crate::kubernetes) const OWN: [&str; 20] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "BEDPLATE_JOB",
    "BEDPLATE_NODE",
    "BEDPLATE_ADDRESS",
    "BEDPLATE_ROLE",
    "BEDPLATE_RESTARTS",
    "BEDPLATE_SURVIVE",
    "BEDPLATE_FIRST_NODE",
    "BEDPLATE_FIRST_RANK",
    "BEDPLATE_WORLD_SIZE",
    "BEDPLATE_PROLOG",
    "BEDPLATE_EPILOG",
    "JOB_COMPLETION_INDEX",
];

impl Rendering<'_> {
    /// The words that a container runs.
    pub(super) fn command(&self, placed: &PlacedRole<'_>) -> Result<Vec<String>, JobError> {
        let arguments = self.arguments()?;
        let words = match self.needs_start(placed) {
            false => arguments,
            true => {
                ["/bin/sh", "-c", START, "start"].into_iter().map(str::to_owned).chain(arguments).collect()
            }
        };
        Ok(words.iter().map(|word| escaped(word)).collect())
    }

    fn arguments(&self) -> Result<Vec<String>, JobError> {
        match &self.job.workload {
            Workload::Command { arguments } => Ok(arguments.clone()),
            Workload::Native { kind, configuration } => {
                let words = ["bedplate", kind, configuration];
                Ok(words.into_iter().filter(|word| !word.is_empty()).map(str::to_owned).collect())
            }
            Workload::Script { text } => self.script(text),
        }
    }

    fn script(&self, text: &str) -> Result<Vec<String>, JobError> {
        if self.job.gang.nodes() > 1 {
            return Err(refusal(
                "script",
                "a script starts on the first node and reaches the others with `srun`, which pods do not have; write what runs on every node as `command`",
            ));
        }
        let first = text.lines().next().filter(|line| line.starts_with("#!")).unwrap_or("#!/bin/sh");
        if !shell::is_shell(first) {
            return Err(refusal(
                "script",
                "only scripts of a shell can be handed to a container; put others into its image",
            ));
        }
        let program = first.trim_start_matches("#!").split_whitespace().map(str::to_owned);
        Ok(program.chain(["-c".to_owned(), text.to_owned()]).collect())
    }

    /// Whether ranks are started by the script, and not by the container itself.
    pub(super) fn needs_start(&self, placed: &PlacedRole<'_>) -> bool {
        let hooks = &self.job.hooks;
        let is_script = matches!(self.job.workload, Workload::Script { .. });
        (placed.role.tasks_per_node > 1 && !is_script)
            || placed.first_node > 0
            || !hooks.prolog.is_empty()
            || !hooks.epilog.is_empty()
    }

    /// The variables of a container: the job's own, those from secrets, and those that say which rank it is.
    pub(super) fn variables(&self, placed: &PlacedRole<'_>) -> Vec<Value> {
        let settings = &self.job.kubernetes;
        let is_free = |name: &&String| !OWN.contains(&name.as_str());
        let set = self
            .job
            .environment
            .set
            .iter()
            .filter(|(name, _)| is_free(name) && !settings.secret_environment.contains_key(*name));
        let mut list: Vec<Value> =
            set.map(|(name, value)| json!({ "name": name, "value": escaped(value) })).collect();
        let secrets = settings.secret_environment.iter().filter(|(name, _)| is_free(name));
        list.extend(secrets.map(|(name, from)| {
            let from = json!({ "secretKeyRef": { "name": from.secret, "key": from.key } });
            json!({ "name": name, "valueFrom": from })
        }));
        list.extend(self.own_variables(placed));
        list
    }

    fn own_variables(&self, placed: &PlacedRole<'_>) -> Vec<Value> {
        let tasks = if self.world() == 1 { 1 } else { placed.role.tasks_per_node };
        let text = |name: &str, value: String| json!({ "name": name, "value": escaped(&value) });
        let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
        let index = format!("metadata.annotations['{}']", names::JOB_COMPLETION_INDEX);
        let mut list = vec![text("LOCAL_WORLD_SIZE", tasks.to_string())];
        if self.options.kind != ManifestKind::PyTorchJob {
            list.push(text("MASTER_ADDR", self.master()));
            list.push(text("MASTER_PORT", MASTER_PORT.to_string()));
        }
        if self.needs_start(placed) {
            list.push(text("BEDPLATE_FIRST_NODE", placed.first_node.to_string()));
            list.push(text("BEDPLATE_FIRST_RANK", placed.first_rank.to_string()));
            list.push(text("BEDPLATE_WORLD_SIZE", self.world().to_string()));
            list.push(text("BEDPLATE_PROLOG", shell::hook(&self.job.hooks.prolog)));
            list.push(text("BEDPLATE_EPILOG", shell::hook(&self.job.hooks.epilog)));
        } else {
            list.push(text("LOCAL_RANK", "0".to_owned()));
            // The training operator sets its own.
            if self.options.kind != ManifestKind::PyTorchJob {
                list.push(text("WORLD_SIZE", self.world().to_string()));
                list.extend(["RANK", "NODE_RANK", "GROUP_RANK"].map(|name| field(name, &index)));
            }
        }
        list.push(text("BEDPLATE_JOB", self.name.clone()));
        list.push(text("BEDPLATE_ROLE", placed.role.name.clone()));
        list.push(field("BEDPLATE_NODE", "spec.nodeName"));
        list.push(field("BEDPLATE_ADDRESS", "status.podIP"));
        if self.options.kind == ManifestKind::JobSet {
            let attempt = format!("metadata.annotations['{}']", names::JOBSET_RESTART_ATTEMPT);
            list.push(field("BEDPLATE_RESTARTS", &attempt));
        }
        if self.job.policy.survives {
            list.push(text("BEDPLATE_SURVIVE", "1".to_owned()));
        }
        list
    }

    /// Where ranks meet: the first pod of the first role, by its name in the gang's service.
    fn master(&self) -> String {
        let name = &self.name;
        match (self.options.kind, self.roles.first()) {
            (ManifestKind::JobSet, Some(first)) => format!("{name}-{}-0-0.{name}", first.name),
            (ManifestKind::TrainJob, _) => format!("{name}-node-0-0.{name}"),
            _ => format!("{name}-0.{name}"),
        }
    }
}

/// Kubernetes reads `$(NAME)` as a variable and `$$` as one dollar sign; a text that should stay has more of them.
pub(in crate::kubernetes) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        escaped.push(letter);
        if letter == '$' && matches!(letters.peek(), Some('$' | '(')) {
            escaped.push('$');
        }
    }
    escaped
}
