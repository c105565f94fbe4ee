//! What a site has made of its Slurm: partitions, QOS, accounts and shares.

use serde::Serialize;
use serde_json::Value;

use super::node::pair;
use super::table::minutes;
use super::value::{field, number, text, words};

/// A partition and its bounds; nothing where it has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Partition {
    pub(super) name: String,
    pub(super) is_default: bool,
    pub(super) is_up: bool,
    /// As a list: `n[1-8]`.
    pub(super) nodes: String,
    pub(super) node_count: u64,
    pub(super) longest_min: Option<u64>,
    pub(super) most_nodes: Option<u64>,
    pub(super) tier: u64,
    /// Everyone when empty.
    pub(super) accounts: String,
    /// Every one when empty.
    pub(super) qos: String,
}

impl Partition {
    pub(super) fn from_json(partition: &Value) -> Option<Self> {
        let nodes = &partition["nodes"];
        let bounds = &partition["maximums"];
        let anyone = |value: &Value| Some(text(value)).filter(|text| text != "ALL").unwrap_or_default();
        let state = field(&partition["partition"], &["state"]);
        let state = if state.is_null() { &partition["state"] } else { state };
        Some(Self {
            name: text(&partition["name"]),
            is_default: words(&partition["flags"]).iter().any(|flag| flag == "DEFAULT"),
            is_up: words(state).iter().any(|word| word == "UP"),
            nodes: text(if nodes.is_object() { &nodes["configured"] } else { nodes }),
            node_count: number(if nodes.is_object() { &nodes["total"] } else { &partition["total_nodes"] })
                .unwrap_or(0),
            longest_min: number(if bounds.is_object() {
                &bounds["time"]
            } else {
                &partition["max_time_limit"]
            }),
            most_nodes: number(if bounds.is_object() {
                &bounds["nodes"]
            } else {
                &partition["maximum_nodes_per_job"]
            }),
            tier: number(if partition["priority"].is_object() {
                &partition["priority"]["tier"]
            } else {
                &partition["priority_tier"]
            })
            .unwrap_or(0),
            accounts: anyone(if partition["accounts"].is_object() {
                &partition["accounts"]["allowed"]
            } else {
                &partition["allowed_accounts"]
            }),
            qos: anyone(if partition["qos"].is_object() {
                &partition["qos"]["allowed"]
            } else {
                &partition["allowed_qos"]
            }),
        })
        .filter(|partition| !partition.name.is_empty())
    }

    /// From a line of `scontrol --oneliner show partition`.
    pub(super) fn from_line(line: &str) -> Option<Self> {
        let value =
            |key: &str| pair(line, key).filter(|value| !["ALL", "N/A", "(null)"].contains(&value.as_str()));
        Some(Self {
            name: value("PartitionName")?,
            is_default: value("Default").is_some_and(|word| word == "YES"),
            is_up: value("State").is_some_and(|word| word == "UP"),
            nodes: pair(line, "Nodes").unwrap_or_default(),
            node_count: value("TotalNodes").and_then(|count| count.parse().ok()).unwrap_or(0),
            longest_min: value("MaxTime").and_then(|time| minutes(&time)),
            most_nodes: value("MaxNodes").and_then(|count| count.parse().ok()),
            tier: value("PriorityTier").and_then(|tier| tier.parse().ok()).unwrap_or(0),
            accounts: value("AllowAccounts").unwrap_or_default(),
            qos: value("AllowQos").unwrap_or_default(),
        })
    }
}

/// A quality of service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Qos {
    pub(super) name: String,
    pub(super) priority: u64,
    /// Its limits in Slurm's words: `MaxTRESPU=gres/gpu=16`.
    pub(super) limits: Vec<String>,
}

/// What `sacctmgr show qos` is asked for.
pub(super) const QOS: [&str; 8] =
    ["Name", "Priority", "MaxWall", "MaxTRESPU", "MaxTRESPA", "MaxJobsPU", "GrpTRES", "GrpJobs"];

impl Qos {
    pub(super) fn from_row(row: &str) -> Option<Self> {
        let fields: Vec<&str> = row.split('|').collect();
        let limits = QOS.iter().zip(&fields).skip(2).filter(|(_, value)| !value.is_empty());
        Some(Self {
            name: (*fields.first()?).to_owned(),
            priority: fields.get(1).and_then(|priority| priority.parse().ok()).unwrap_or(0),
            limits: limits.map(|(name, value)| format!("{name}={value}")).collect(),
        })
        .filter(|qos| !qos.name.is_empty())
    }

    pub(super) fn from_json(qos: &Value) -> Option<Self> {
        let name = text(&qos["name"]);
        let priority = number(&qos["priority"]).unwrap_or(0);
        (!name.is_empty()).then_some(Self { name, priority, limits: Vec::new() })
    }
}

/// What a user or an account may use, and has used.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Share {
    pub(super) account: String,
    /// Empty for the account as a whole.
    pub(super) user: String,
    pub(super) shares: f64,
    pub(super) usage: f64,
    /// From 0, has used far too much, to 1.
    pub(super) fair_share: Option<f64>,
}

/// What `sshare` is asked for.
pub(super) const SHARE: [&str; 5] = ["Account", "User", "NormShares", "EffectvUsage", "FairShare"];

impl Share {
    pub(super) fn from_row(row: &str) -> Option<Self> {
        let fields: Vec<&str> = row.split('|').map(str::trim).collect();
        let real = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
        Some(Self {
            account: (*fields.first()?).to_owned(),
            user: (*fields.get(1)?).to_owned(),
            shares: real(2).unwrap_or(0.0),
            usage: real(3).unwrap_or(0.0),
            fair_share: real(4).filter(|share| share.is_finite()),
        })
        .filter(|share| !share.account.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn partitions_of_all_transports_are_the_same() {
        let line = "PartitionName=main AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE DisableRootJobs=NO MaxNodes=4 MaxTime=1-00:00:00 MinNodes=0 LLN=NO Nodes=n[1-8] PriorityJobFactor=1 PriorityTier=10 State=UP TotalCPUs=128 TotalNodes=8";
        let old = json!({ "name": "main", "flags": ["default"], "state": "UP", "nodes": "n[1-8]", "total_nodes": 8, "max_time_limit": 1440, "maximum_nodes_per_job": 4, "priority_tier": 10, "allowed_accounts": "", "allowed_qos": "" });
        let new = json!({ "name": "main", "flags": ["DEFAULT"], "partition": { "state": ["UP"] }, "nodes": { "configured": "n[1-8]", "total": 8 }, "maximums": { "time": { "set": true, "infinite": false, "number": 1440 }, "nodes": { "set": true, "infinite": false, "number": 4 } }, "priority": { "tier": 10 }, "accounts": { "allowed": "" }, "qos": { "allowed": "ALL" } });
        let from_line = Partition::from_line(line).unwrap();
        assert_eq!(Partition::from_json(&old), Some(from_line.clone()));
        assert_eq!(Partition::from_json(&new), Some(from_line.clone()));
        assert_eq!(
            (from_line.longest_min, from_line.most_nodes, from_line.is_default),
            (Some(1440), Some(4), true)
        );
    }

    #[test]
    fn rows_of_qos_and_shares_are_read() {
        let qos = Qos::from_row("urgent|1000|1-00:00:00|gres/gpu=16||||").unwrap();
        assert_eq!(
            (qos.priority, qos.limits),
            (1000, vec!["MaxWall=1-00:00:00".to_owned(), "MaxTRESPU=gres/gpu=16".into()])
        );
        let share = Share::from_row("  prod|root|1.000000|0.250000|0.500000").unwrap();
        assert_eq!(
            (share.account.as_str(), share.user.as_str(), share.fair_share),
            ("prod", "root", Some(0.5))
        );
        assert_eq!(
            Share::from_row("root||0.0|1.0|"),
            Some(Share { account: "root".into(), usage: 1.0, ..Share::default() })
        );
    }
}
