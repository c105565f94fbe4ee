//! The cluster of a plan: as it is named, or the nodes that a Slurm could give now.

use bedplate_catalog::Catalog;
use bedplate_drivers::{DriverError, NodeId, Slurm};
use bedplate_job::Job;
use bedplate_terminal::{CliError, Console, ProgramError};
use bedplate_topology::{Cluster, ImportOptions, compress_hostlist};

use super::train::Arguments;
use crate::clusters;

pub(super) fn cluster(
    arguments: &Arguments,
    job: Option<&Job>,
    catalog: &Catalog,
    console: &Console,
) -> Result<Cluster, CliError> {
    let slurm = match &arguments.question.cluster {
        Some(text) => clusters::slurm::named(text)?,
        None => arguments.connection()?.slurm()?,
    };
    match (slurm, &arguments.question.cluster) {
        (Some(slurm), _) => offered(&slurm, job, catalog, console),
        (None, Some(text)) => clusters::load(text, catalog),
        (None, None) => {
            let message = "the context is no Slurm, so say with --cluster what to plan for".to_owned();
            Err(ProgramError::Usage { message }.into())
        }
    }
}

/// As many nodes as the job asks for; without a job, all that take work.
fn offered(
    slurm: &Slurm,
    job: Option<&Job>,
    catalog: &Catalog,
    console: &Console,
) -> Result<Cluster, CliError> {
    let topology = slurm.topology()?;
    let usable = topology.nodes.iter().filter(|node| node.is_usable).count();
    let count = job.map_or(usable, |job| job.gang.nodes() as usize);
    let Some(nodes) = topology.offer(count) else {
        let message = format!("the job asks for {count} nodes, and {usable} of this Slurm take work");
        let reason = Some(bedplate_diag::Reason::new("too_large", message.clone()));
        return Err(
            DriverError::Refused { code: "slurm/too_large".into(), message, help: None, reason }.into()
        );
    };
    let is_free =
        |name: &NodeId| topology.nodes.iter().any(|node| node.name == name.as_str() && node.is_free);
    let free = nodes.iter().filter(|name| is_free(name)).count();
    let list = compress_hostlist(nodes.iter().map(NodeId::as_str));
    console.say(&match free == count {
        true => format!("planned for {list}, free now"),
        false => format!("planned for {list}: {free} of {count} are free now, so a job would wait"),
    });
    clusters::slurm::load(slurm, &nodes, ImportOptions::default(), catalog)
}
