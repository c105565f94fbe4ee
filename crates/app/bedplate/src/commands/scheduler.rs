//! `bedplate scheduler`: pods that name it are bound gang by gang; `bedplate scheduler manifests`: what a cluster needs to run it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use bedplate_binder::{BinderOptions, LeaseRules, ManifestOptions, SiteRules, StopHandle, manifests};
use bedplate_host::host_name;
use bedplate_kubernetes::{ApiConnection, KubernetesPlace};
use bedplate_terminal::present::printable_line;
use bedplate_terminal::{CliError, Console, ProgramError, files};
use nix::sys::signal::{SigSet, Signal};
use serde_json::json;

/// Until another scheduler may take over from one that is gone.
const LEASE_LASTS: Duration = Duration::from_secs(15);

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate scheduler
  bedplate scheduler --site site.toml --name gpu
  bedplate scheduler manifests --image IMAGE | kubectl apply -f -

It schedules pods with `schedulerName: bedplate`, or another --name, until
Ctrl-C. All pods of a gang are bound at once or none: those of one
`bedplate.dev/gang` label, of a JobSet, of a Kueue pod group, or of a Job.
Waiting pods say why in their PodScheduled condition and events.
docs/kubernetes-scheduler.md has the labels and annotations, and what is not
supported.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The kubeconfig for the API server [default: as kubectl has it, or the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig other than its current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Partitions, QOS, quotas and priorities of the site
    #[arg(long, value_name = "FILE")]
    site: Option<String>,
    /// The schedulerName of its pods
    #[arg(long, value_name = "NAME", default_value = "bedplate", global = true)]
    name: String,
    /// Where its Lease is [default: the context's namespace]
    #[arg(long, value_name = "NAMESPACE", global = true)]
    namespace: Option<String>,
    /// Serve the API server's webhook for other schedulers' bindings, and /metrics, over TLS
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// With --listen: serve HorizontalPodAutoscalers the number of requests that replicas have under way
    #[arg(long, global = true)]
    external_metrics: bool,
    /// Ask cluster-autoscaler for nodes with ProvisioningRequests of this class where gangs lack room,
    /// such as best-effort-atomic-scale-up.autoscaling.x-k8s.io
    #[arg(long, value_name = "CLASS", global = true)]
    provisioning_class: Option<String>,
    /// Act without a Lease; no other scheduler may have this name
    #[arg(long)]
    no_leader_election: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Print the namespace, the account with its rights, the Deployment, and the webhook by which the API server asks
    Manifests {
        /// The container image with this program as its entry point
        #[arg(long)]
        image: String,
        /// Number of schedulers; one of them acts
        #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10))]
        replicas: u32,
    },
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    match &arguments.command {
        Some(Command::Manifests { image, replicas }) => print_manifests(arguments, image, *replicas, console),
        None => schedule(arguments, console),
    }
}

fn print_manifests(
    arguments: &Arguments,
    image: &str,
    replicas: u32,
    console: &mut Console,
) -> Result<(), CliError> {
    let options = ManifestOptions {
        namespace: arguments.namespace.clone().unwrap_or_else(|| "bedplate-system".to_owned()),
        name: arguments.name.clone(),
        image: image.to_owned(),
        replicas,
        provisioning_class: arguments.provisioning_class.clone(),
        tells_load: arguments.external_metrics,
    };
    // A list is what `kubectl apply -f -` takes, and JSON is YAML.
    let list = json!({"apiVersion": "v1", "kind": "List", "items": manifests(&options)});
    if console.is_json() {
        return console.json(&list);
    }
    console.text(&format!("{list:#}\n"))
}

fn schedule(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    if arguments.external_metrics && arguments.listen.is_none() {
        let message = "--external-metrics are told where it listens: add --listen ADDRESS:PORT".to_owned();
        return Err(ProgramError::Usage { message }.into());
    }
    // Blocked before threads are started, which inherit it.
    let signals = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect::<SigSet>();
    let _ = signals.thread_block();
    let site = arguments
        .site
        .as_ref()
        .map(|path| files::read_text(path).map(|text| SiteRules { text, source: path.clone() }));
    let site = site.transpose()?;
    let connection = ApiConnection::open(&KubernetesPlace {
        kubeconfig: arguments.kubeconfig.clone(),
        context: arguments.context.clone(),
        namespace: arguments.namespace.clone(),
    })?;
    let lease = LeaseRules {
        namespace: connection.namespace().to_owned(),
        name: format!("{}-scheduler", arguments.name),
        holder: format!("{}-{}", host_name(), std::process::id()),
        lasts: LEASE_LASTS,
    };
    console.say(&format!("schedules pods of `{}` at {}", arguments.name, connection.server()));
    let options = BinderOptions {
        name: arguments.name.clone(),
        site,
        lease: (!arguments.no_leader_election).then_some(lease),
        provisioning_class: arguments.provisioning_class.clone(),
        listen: arguments.listen,
        tells_load: arguments.external_metrics,
        remark: Box::new(|remark| tracing::info!(node = remark.node, "{}", printable_line(&remark.text))),
    };
    let ending = StopHandle::default();
    let told = ending.clone();
    thread::spawn(move || {
        // Whatever this returns, the scheduler ends; a second signal ends it at once.
        let _ = signals.wait();
        told.gently();
        let _ = signals.wait();
        std::process::exit(1);
    });
    Ok(bedplate_binder::run(&connection, options, &ending)?)
}
