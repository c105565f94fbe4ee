//! A node as Slurm tells of it.

use bedplate_diag::Reason;
use serde_json::Value;

use super::value::{device_indices, devices, field, number, text, words};
use crate::{HostView, NodeId, NodeState, NodeSummary};

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodeRecord {
    pub(super) name: String,
    /// In Slurm's words: `IDLE`, with flags such as `DRAIN` behind.
    pub(super) states: Vec<String>,
    pub(super) reason: String,
    pub(super) reason_by: String,
    pub(super) address: String,
    pub(super) host: String,
    pub(super) cpus: u64,
    pub(super) memory_mib: u64,
    /// `gpu:h100:8(S:0-1)`.
    pub(super) gres: String,
    /// `gpu:h100:4(IDX:0-3)`.
    pub(super) gres_used: String,
    pub(super) features: Vec<String>,
    pub(super) partitions: Vec<String>,
}

impl NodeRecord {
    /// From an entry of REST's `nodes`; nothing without a name.
    pub(super) fn from_json(node: &Value) -> Option<Self> {
        let name = text(&node["name"]);
        let mut states = words(&node["state"]);
        states.extend(words(&node["state_flags"]));
        Some(Self {
            states,
            reason: text(&node["reason"]),
            reason_by: text(&node["reason_set_by_user"]),
            address: text(&node["address"]),
            host: text(&node["hostname"]),
            cpus: number(&node["cpus"]).unwrap_or(0),
            memory_mib: number(&node["real_memory"]).unwrap_or(0),
            gres: text(&node["gres"]),
            gres_used: text(&node["gres_used"]),
            features: list(field(node, &["active_features", "features"])),
            partitions: list(&node["partitions"]),
            name,
        })
        .filter(|node| !node.name.is_empty())
    }

    /// From a line of `scontrol --oneliner --details show node`.
    pub(super) fn from_line(line: &str) -> Option<Self> {
        let value = |key: &str| pair(line, key);
        let (reason, by) = reason_of(line);
        Some(Self {
            name: value("NodeName")?,
            states: words(&Value::from(
                value("State")?.trim_end_matches(['*', '~', '#', '!', '%', '$', '@', '^', '-']),
            )),
            reason,
            reason_by: by,
            address: value("NodeAddr").unwrap_or_default(),
            host: value("NodeHostName").unwrap_or_default(),
            cpus: value("CPUTot").and_then(|count| count.parse().ok()).unwrap_or(0),
            memory_mib: value("RealMemory").and_then(|count| count.parse().ok()).unwrap_or(0),
            gres: value("Gres").filter(|gres| gres != "(null)").unwrap_or_default(),
            gres_used: value("GresUsed").unwrap_or_default(),
            features: list(&Value::from(value("ActiveFeatures").unwrap_or_default())),
            partitions: list(&Value::from(value("Partitions").unwrap_or_default())),
        })
        .map(|mut node| {
            if value("State").is_some_and(|state| state.ends_with('*')) {
                node.states.push("NOT_RESPONDING".to_owned());
            }
            node
        })
    }

    pub(super) fn has(&self, word: &str) -> bool {
        self.states.iter().any(|state| state == word)
    }

    pub(super) fn state(&self) -> NodeState {
        let is_busy = ["ALLOCATED", "MIXED", "COMPLETING"].into_iter().any(|word| self.has(word));
        let is_out =
            ["DRAIN", "DRAINING", "DRAINED", "FAIL", "FAILING"].into_iter().any(|word| self.has(word));
        match () {
            () if self.has("DOWN") || self.has("ERROR") || self.has("FUTURE") => NodeState::Down,
            () if is_out && is_busy => NodeState::Draining,
            () if is_out => NodeState::Drained,
            () if self.has("MAINTENANCE") || self.has("MAINT") => NodeState::Maintenance,
            () if is_busy => NodeState::Allocated,
            () if self.has("PLANNED") => NodeState::Planned,
            () if self.has("IDLE") => NodeState::Idle,
            () => NodeState::Unknown,
        }
    }

    /// It hears and could take work now.
    pub(super) fn is_free(&self) -> bool {
        let is_bound = ["RESERVED", "NOT_RESPONDING", "REBOOT_REQUESTED", "POWERING_DOWN"]
            .into_iter()
            .any(|word| self.has(word));
        matches!(self.state(), NodeState::Idle | NodeState::Planned) && !is_bound
    }

    pub(super) fn gpus(&self) -> u64 {
        devices(&self.gres).1
    }

    /// Those that no job has; a version that does not tell is taken at its state.
    pub(super) fn gpus_free(&self) -> u64 {
        let used = match self.gres_used.is_empty() {
            false => devices(&self.gres_used).1.max(device_indices(&self.gres_used).len() as u64),
            true if self.has("ALLOCATED") => self.gpus(),
            true => 0,
        };
        self.gpus().saturating_sub(used)
    }

    pub(super) fn summary(&self, jobs: Vec<crate::JobId>) -> NodeSummary {
        let (kind, gpus) = devices(&self.gres);
        NodeSummary {
            name: NodeId(self.name.clone()),
            state: self.state(),
            reason: self.why(),
            address: self.address.clone(),
            host: HostView {
                name: self.host.clone(),
                cores: self.cpus as u32,
                memory_mib: self.memory_mib,
                gpus: gpus as u32,
                enforced: Vec::new(),
            },
            kind,
            gpus: gpus as u32,
            gpus_free: self.gpus_free() as u32,
            cpus: self.cpus as u32,
            memory_mib: self.memory_mib,
            jobs,
            is_linked: !self.has("NOT_RESPONDING") && self.state() != NodeState::Down,
            heard_ms: None,
            losses: 0,
            findings: Vec::new(),
        }
    }

    fn why(&self) -> Option<Reason> {
        let takes_work = matches!(self.state(), NodeState::Idle | NodeState::Allocated | NodeState::Planned);
        match (takes_work, self.reason.is_empty()) {
            (false, false) => {
                let by =
                    if self.reason_by.is_empty() { String::new() } else { format!(" ({})", self.reason_by) };
                Some(Reason::new("out_of_service", format!("{}{by}", self.reason)))
            }
            (_, _) if self.has("NOT_RESPONDING") => {
                Some(Reason::new("not_responding", "slurmctld does not hear from its slurmd"))
            }
            _ => None,
        }
    }
}

/// The value of a key in a line of `Key=value` pairs, up to the next blank.
pub(super) fn pair(line: &str, key: &str) -> Option<String> {
    let mut rest = line;
    while let Some(at) = rest.find(key) {
        let is_begin = at == 0 || rest[..at].ends_with([' ', '\n', '\t']);
        let after = &rest[at + key.len()..];
        if let Some(value) = after.strip_prefix('=').filter(|_| is_begin) {
            return Some(value.split_whitespace().next().unwrap_or_default().to_owned())
                .filter(|_| !value.starts_with(' '));
        }
        rest = after;
    }
    None
}

/// `Reason=fan is loud [root@1794809099]`: it stands last and may have blanks.
fn reason_of(line: &str) -> (String, String) {
    let Some((_, text)) = line.split_once(" Reason=") else { return Default::default() };
    match text.rsplit_once(" [") {
        Some((reason, by)) => {
            let user = by.split('@').next().unwrap_or_default();
            (reason.trim().to_owned(), user.to_owned())
        }
        None => (text.trim().to_owned(), String::new()),
    }
}

fn list(value: &Value) -> Vec<String> {
    let known = |text: &&str| !text.is_empty() && *text != "(null)";
    match value {
        Value::Array(list) => {
            list.iter().filter_map(Value::as_str).filter(known).map(str::to_owned).collect()
        }
        Value::String(text) => text.split(',').filter(known).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LINE: &str = "NodeName=n1 Arch=x86_64 CoresPerSocket=8  CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.36 AvailableFeatures=(null) ActiveFeatures=a,b Gres=gpu:h100:8(S:0-1) GresDrain=N/A GresUsed=gpu:h100:3(IDX:0-2) NodeAddr=127.0.0.1 NodeHostName=vm Port=27154 Version=22.05.8 OS=Linux 6.18 #1 SMP @0  RealMemory=4000 AllocMem=0 FreeMem=7348 Sockets=2 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=main,high  BootTime=1 SlurmdStartTime=2 LastBusyTime=1794809099 CfgTRES=cpu=16,mem=4000M AllocTRES= CapWatts=n/a Reason=fan is loud [root@1794809099]";

    #[test]
    fn a_line_and_the_json_of_two_versions_say_the_same() {
        let line = NodeRecord::from_line(LINE).unwrap();
        let old = NodeRecord::from_json(&json!({
            "name": "n1", "state": "idle", "state_flags": ["DRAIN"], "reason": "fan is loud", "reason_set_by_user": "root",
            "address": "127.0.0.1", "hostname": "vm", "cpus": 16, "real_memory": 4000, "gres": "gpu:h100:8(S:0-1)",
            "gres_used": "gpu:h100:3(IDX:0-2)", "active_features": "a,b", "partitions": ["main", "high"],
        }));
        let new = NodeRecord::from_json(&json!({
            "name": "n1", "state": ["IDLE", "DRAIN"], "reason": "fan is loud", "reason_set_by_user": "root",
            "address": "127.0.0.1", "hostname": "vm", "cpus": 16, "real_memory": 4000, "gres": "gpu:h100:8(S:0-1)",
            "gres_used": "gpu:h100:3(IDX:0-2)", "active_features": ["a", "b"], "partitions": ["main", "high"],
        }));
        assert_eq!(old.as_ref(), Some(&line));
        assert_eq!(new, old);
        let summary = line.summary(Vec::new());
        assert_eq!((summary.state, summary.gpus, summary.gpus_free), (NodeState::Drained, 8, 5));
        assert_eq!(summary.reason.unwrap().text, "fan is loud (root)");
    }

    #[test]
    fn states_with_flags_become_one_word() {
        let state = |text: &str| {
            let line = format!("NodeName=n State={text} Reason=x [a@1]");
            let node = NodeRecord::from_line(&line).unwrap();
            (node.state(), node.summary(Vec::new()).is_linked)
        };
        assert_eq!(state("IDLE"), (NodeState::Idle, true));
        assert_eq!(state("IDLE*"), (NodeState::Idle, false));
        assert_eq!(state("MIXED+DRAIN"), (NodeState::Draining, true));
        assert_eq!(state("DOWN*"), (NodeState::Down, false));
        assert_eq!(state("IDLE+PLANNED"), (NodeState::Planned, true));
        assert_eq!(state("MIXED+PLANNED"), (NodeState::Allocated, true));
        assert_eq!(state("SINGING"), (NodeState::Unknown, true));
    }
}
