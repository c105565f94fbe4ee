//! `bedplate scrape-config`: how Prometheus finds what to scrape.

use bedplate_prometheus::{NodeDiscovery, Scrape, targets_file};
use bedplate_terminal::{CliError, Console, ProgramError};
use bedplate_topology::expand_hostlist;
use serde_json::json;

use crate::connection::Connection;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate scrape-config static 'n[01-16]' --daemon head:7431 > prometheus.yml
  bedplate scrape-config cluster --context site > prometheus.yml
  bedplate scrape-config cluster --context site --targets > /etc/prometheus/bedplate-nodes.json
  bedplate scrape-config ec2 --region us-east-1 --tag cluster=train --amp URL
  bedplate scrape-config kubernetes --namespace monitoring | kubectl apply -f -

`bedplate export` listens on port 9400. The daemon's metrics need a token of the role reader in
/etc/prometheus/bedplate.token, and its certificate.pem from the state directory as
/etc/prometheus/bedplate.pem.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Seconds between scrapes
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// The daemon of a cluster of our own
    #[arg(long, global = true, value_name = "HOST:PORT")]
    daemon: Option<String>,
    /// Replicas of vLLM; may be repeated
    #[arg(long, global = true, value_name = "HOST:PORT")]
    serving: Vec<String>,
    /// Training runs with output.metrics_address; may be repeated
    #[arg(long, global = true, value_name = "HOST:PORT")]
    training: Vec<String>,
    /// A rule file, such as `bedplate rules` prints; may be repeated
    #[arg(long, global = true, value_name = "FILE")]
    rules: Vec<String>,
    /// Where alerts go
    #[arg(long, global = true, value_name = "HOST:PORT")]
    alertmanager: Option<String>,
    /// Send everything to a workspace of Amazon Managed Service for Prometheus: its remote write address
    #[arg(long, global = true, value_name = "URL")]
    amp: Option<String>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Nodes by their names; `n[01-16]` is sixteen of them
    Static {
        #[arg(required = true, value_name = "NODES")]
        nodes: Vec<String>,
    },
    /// The nodes of a cluster of our own or of Slurm, through a file that a timer keeps current
    Cluster {
        /// Print that file instead of the configuration
        #[arg(long)]
        targets: bool,
        /// Where Prometheus finds the file
        #[arg(long, value_name = "FILE", default_value = "/etc/prometheus/bedplate-nodes.json")]
        file: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Instances of EC2 that have a tag
    Ec2 {
        #[arg(long)]
        region: String,
        /// As name=value
        #[arg(long, value_name = "NAME=VALUE")]
        tag: String,
    },
    /// Pods, as PodMonitors for the Prometheus operator
    Kubernetes {
        #[arg(long, default_value = "monitoring")]
        namespace: String,
    },
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let text = match &arguments.command {
        Command::Cluster { targets: true, connection, .. } => targets(connection)?,
        command => scrape(arguments, finding(command)?)?.to_yaml(),
    };
    if console.is_json() { console.json(&json!({ "text": text })) } else { console.text(&text) }
}

fn usage(message: String) -> CliError {
    ProgramError::Usage { message }.into()
}

fn finding(command: &Command) -> Result<NodeDiscovery, CliError> {
    Ok(match command {
        Command::Static { nodes } => {
            let mut all = Vec::new();
            for each in nodes {
                // An address of IPv6 has colons, which no list of hosts has.
                let is_address = each.contains(':');
                all.extend(if is_address { vec![each.clone()] } else { expand_hostlist(each)? });
            }
            NodeDiscovery::Static(all)
        }
        Command::Cluster { file, .. } => NodeDiscovery::File(file.clone()),
        Command::Ec2 { region, tag } => {
            let (tag, value) =
                tag.split_once('=').ok_or_else(|| usage(format!("`{tag}` is not of the form name=value")))?;
            NodeDiscovery::Ec2 { region: region.clone(), tag: tag.to_owned(), value: value.to_owned() }
        }
        Command::Kubernetes { namespace } => NodeDiscovery::Kubernetes { namespace: namespace.clone() },
    })
}

fn scrape(arguments: &Arguments, finding: NodeDiscovery) -> Result<Scrape, CliError> {
    Ok(Scrape {
        finding,
        interval_s: arguments.interval,
        daemon: arguments.daemon.clone(),
        serving: arguments.serving.clone(),
        training: arguments.training.clone(),
        remote_write: arguments.amp.as_deref().map(workspace).transpose()?,
        rule_files: arguments.rules.clone(),
        alertmanager: arguments.alertmanager.clone(),
    })
}

/// The region is in the address: `https://aps-workspaces.us-east-1.amazonaws.com/workspaces/ws-…/api/v1/remote_write`.
fn workspace(url: &str) -> Result<(String, String), CliError> {
    let region = url.strip_prefix("https://aps-workspaces.").and_then(|rest| rest.split('.').next());
    let region = region.filter(|region| !region.is_empty());
    let region = region.ok_or_else(|| {
        usage(format!("`{url}` is not the address of a workspace, such as https://aps-workspaces.us-east-1.amazonaws.com/workspaces/ws-1/api/v1/remote_write"))
    })?;
    Ok((url.to_owned(), region.to_owned()))
}

/// The nodes of a cluster, by the addresses that it knows or else by their names.
fn targets(connection: &Connection) -> Result<String, CliError> {
    let nodes = connection.driver()?.nodes()?;
    let address = |node: &bedplate_drivers::NodeSummary| match node.address.as_str() {
        "" => node.name.to_string(),
        address => address.to_owned(),
    };
    Ok(targets_file(&nodes.iter().map(address).collect::<Vec<_>>(), &[]))
}
