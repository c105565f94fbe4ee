//! All alerts: of nodes, from the health rules and the XID catalog; of jobs and of the cluster, written here.

mod cluster;
mod jobs;
mod node;
mod xid;

use bedplate_health::Rules;

use crate::alert::Alert;

/// Alerts that belong together; Prometheus evaluates a group in order.
pub struct Group {
    pub name: &'static str,
    pub alerts: Vec<Alert>,
}

/// Every alert of the health rules under their profile, and those on jobs and the cluster.
pub fn groups(rules: &Rules) -> Vec<Group> {
    let profile = rules.profile;
    vec![
        Group { name: "bedplate-xid", alerts: xid::alerts(profile) },
        Group { name: "bedplate-node", alerts: node::alerts(rules.all(), profile) },
        Group { name: "bedplate-jobs", alerts: jobs::alerts() },
        Group { name: "bedplate-cluster", alerts: cluster::alerts() },
    ]
}
