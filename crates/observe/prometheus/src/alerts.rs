//! All alerts: of nodes, from the health rules and the XID catalog; of jobs and of the cluster, written here.

mod cluster;
mod jobs;
mod node;
mod xid;

use bedplate_health::Rules;

use crate::alert::Alert;

/// Alerts that belong together; Prometheus evaluates a group in order.
pub struct AlertGroup {
    pub name: &'static str,
    pub alerts: Vec<Alert>,
}

/// Every alert of the health rules under their profile, and those on jobs and the cluster.
pub fn groups(rules: &Rules) -> Vec<AlertGroup> {
    let profile = rules.profile;
    vec![
        AlertGroup { name: "bedplate-xid", alerts: xid::alerts(profile) },
        AlertGroup { name: "bedplate-node", alerts: node::alerts(rules.all(), profile) },
        AlertGroup { name: "bedplate-jobs", alerts: jobs::alerts() },
        AlertGroup { name: "bedplate-cluster", alerts: cluster::alerts() },
    ]
}
