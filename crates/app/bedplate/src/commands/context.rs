//! `bedplate context …`: the clusters that commands talk to, by name.

use std::path::PathBuf;

use bedplate_drivers::Driver as _;
use bedplate_drivers::{
    Capability, ClusterKind, ClusterPlace, Context as ClusterContext, Contexts, DriverError, Kubernetes,
    KubernetesPlace, KubernetesSite, Token, TransportFound,
};
use bedplate_job::kubernetes::ManifestKind;
use bedplate_local::{state_directory, variable};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console, choice};
use serde_json::{Value, json};

use crate::connection::{contexts_path, of_environment};

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate context add here --state-dir ~/.local/state/bedplate
  bedplate context add lab --url https://lab:7431 --fingerprint HEX --token-file lab.token
  bedplate context add site slurm
  bedplate context add pods kubernetes --image registry/train:1
  bedplate context use lab
  bedplate queue                     the queue of lab
  bedplate queue --context here      the queue of another one

Contexts are kept in ~/.config/bedplate/contexts.toml, or in the file that
BEDPLATE_CONTEXTS names. --server, --state-dir and their variables override the
current context. Without any of them, commands talk to the cluster of the state
directory on this machine.")]
pub(crate) enum Arguments {
    /// All contexts, and which is used
    List,
    /// Where a cluster is and what it can do; the current one when none is named
    Show { name: Option<String> },
    /// Let commands talk to this cluster from now on
    Use { name: String },
    /// Name a cluster, or change what its name stands for
    Add(Box<AddArguments>),
    /// Forget a name; the cluster is left alone
    Remove { name: String },
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate context add here --state-dir ~/.local/state/bedplate
  bedplate context add lab --url https://lab:7431 --fingerprint HEX --token-file lab.token
  BEDPLATE_TOKEN=… bedplate context add lab --url https://127.0.0.1:7431 --fingerprint HEX
  bedplate context add site slurm
  bedplate context add site slurm --rest unix:/run/slurmrestd.sock
  bedplate context add site slurm --rest http://127.0.0.1:6820 --token-file jwt
  bedplate context add pods kubernetes --image registry/train:1
  bedplate context add pods kubernetes --kube-context prod --namespace research

Without --token-file the token in BEDPLATE_TOKEN is kept in the contexts file,
which only you can read. A Slurm is tried at once, through its REST server if
--rest names one and through its commands, and the command says what works. Its
token (JWT) is read from the file or from SLURM_JWT at each use. A Kubernetes
cluster is found as kubectl finds it, and is tried at once too.")]
pub(crate) struct AddArguments {
    name: String,
    /// Which control plane the cluster has [default: local]
    #[arg(value_name = "KIND", value_parser = choice(&ClusterKind::ALL), conflicts_with = "kind")]
    of_kind: Option<ClusterKind>,
    /// The same as an option
    #[arg(long, value_parser = choice(&ClusterKind::ALL), hide = true)]
    kind: Option<ClusterKind>,
    /// Where the cluster is
    #[arg(long)]
    url: Option<String>,
    /// Where the REST server of a Slurm is: unix:/PATH or http://HOST:PORT
    #[arg(long, value_name = "PLACE", conflicts_with = "url")]
    rest: Option<String>,
    /// The slurm.conf of a Slurm, if not the usual one of this machine
    #[arg(long, value_name = "FILE")]
    slurm_conf: Option<PathBuf>,
    /// How many seconds an answer of Slurm may take [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: Option<u64>,
    /// SHA-256 of its certificate, as `bedplate up` printed it
    #[arg(long, value_name = "HEX")]
    fingerprint: Option<String>,
    /// A file that holds the token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// State directory of a cluster on this machine, instead of a URL
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    kubernetes: KubernetesArguments,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Kubernetes")]
struct KubernetesArguments {
    /// The kubeconfig [default: as for kubectl]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    kube_context: Option<String>,
    /// Where jobs go that name no namespace [default: that of the kubeconfig's context]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Image of jobs that name none
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Scheduler of jobs that name none; `bedplate` is ours
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// Make plain Jobs even where JobSet is installed
    #[arg(long)]
    plain_jobs: bool,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let path = contexts_path();
    let load = || Contexts::load(&path).map_err(DriverError::from);
    let (said, changed) = match arguments {
        Arguments::List => return list(&load()?, console),
        Arguments::Show { name } => return show(&load()?, name.as_deref(), console),
        Arguments::Use { name } => {
            let changed = Contexts::change(&path, |contexts| {
                contexts.find(name)?;
                contexts.current = Some(name.clone());
                Ok(())
            });
            (format!("commands talk to `{name}` from now on"), changed)
        }
        Arguments::Add(arguments) => {
            let context = context(arguments);
            if context.kind == ClusterKind::Kubernetes && context.url.is_none() {
                say_version(&context, console)?;
            } else if context.kind == ClusterKind::Slurm {
                say_transports(&context.slurm_place()?.check()?, console);
            } else if let (Some(url), Some(_)) = (&context.url, &context.token) {
                ClusterPlace::of_daemon(url, Some(String::new()), context.fingerprint.clone())?;
            }
            let name = &arguments.name;
            let said =
                format!("`{name}` is known; `bedplate context use {name}` makes it the one that is used");
            (said, Contexts::change(&path, |contexts| contexts.add(name, context)))
        }
        Arguments::Remove { name } => {
            (format!("`{name}` is forgotten"), Contexts::change(&path, |contexts| contexts.remove(name)))
        }
    };
    let contexts = changed.map_err(DriverError::from)?;
    console.say(&said);
    if console.is_json() { console.json(&as_json(&contexts)) } else { Ok(()) }
}

fn context(arguments: &AddArguments) -> ClusterContext {
    // Commands run in other folders later.
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let inline = || variable("BEDPLATE_TOKEN").map(Token::Text);
    let token = arguments.token_file.as_ref().map(|path| Token::File(absolute(path)));
    let kind = arguments.of_kind.or(arguments.kind).unwrap_or(ClusterKind::Local);
    let url = arguments.url.clone().or_else(|| arguments.rest.clone());
    ClusterContext {
        kind,
        fingerprint: arguments.fingerprint.clone(),
        // A JWT expires, so it is not kept.
        token: token.or_else(|| inline().filter(|_| kind == ClusterKind::Local)).filter(|_| url.is_some()),
        url,
        state_dir: arguments.state_dir.as_ref().map(absolute),
        slurm_conf: arguments.slurm_conf.as_ref().map(absolute),
        patience_s: arguments.patience,
        kubernetes: kubernetes_site(&arguments.kubernetes, absolute),
    }
}

fn kubernetes_site(
    arguments: &KubernetesArguments,
    absolute: impl Fn(&PathBuf) -> PathBuf,
) -> KubernetesSite {
    KubernetesSite {
        place: KubernetesPlace {
            kubeconfig: arguments.kubeconfig.as_ref().map(absolute),
            context: arguments.kube_context.clone(),
            namespace: arguments.namespace.clone(),
        },
        image: arguments.image.clone(),
        scheduler: arguments.scheduler.clone(),
        has_plain_jobs: arguments.plain_jobs,
    }
}

/// That a Kubernetes cluster answers, and what jobs become there.
fn say_version(context: &ClusterContext, console: &Console) -> Result<(), CliError> {
    let cluster = Kubernetes::new(&context.kubernetes)?;
    let kind = match cluster.manifest_kind()? {
        ManifestKind::JobSet => "JobSets",
        _ => "Jobs",
    };
    console.say(&format!("{}: works, {}; jobs become {kind}", cluster.name(), cluster.version()?));
    Ok(())
}

/// Which transports to a Slurm work, and which would be taken first.
fn say_transports(transports: &[TransportFound], console: &Console) {
    for transport in transports {
        console.say(&match &transport.outcome {
            Ok(version) => format!("{}: works, Slurm {version}", transport.transport),
            Err(reason) => format!("{}: does not work: {reason}", transport.transport),
        });
    }
}

fn list(contexts: &Contexts, console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        return console.json(&as_json(contexts));
    }
    match (of_environment(), &contexts.current) {
        (Some(context), _) => {
            console.say(&format!("the environment overrides contexts: commands talk to {}", place(&context)));
        }
        (None, None) => {
            console.say(&format!("none is current: commands talk to {}", place(&default_context())))
        }
        (None, Some(_)) => {}
    }
    if contexts.all.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::left("CURRENT", 0),
        Column::left("NAME", 0),
        Column::left("KIND", 1),
        Column::left("WHERE", 0),
    ]);
    for (name, context) in &contexts.all {
        let mark = if contexts.current.as_ref() == Some(name) { "*" } else { "" };
        table.row(vec![mark.to_owned(), name.clone(), context.kind.name().to_owned(), place(context)]);
    }
    console.table(&table)
}

/// The cluster that commands talk to while no context is current.
fn default_context() -> ClusterContext {
    of_environment().unwrap_or_else(|| ClusterContext::of_state(state_directory(None).0))
}

fn show(contexts: &Contexts, name: Option<&str>, console: &mut Console) -> Result<(), CliError> {
    let default = default_context();
    let name = name.or(contexts.current.as_deref());
    let context = match name {
        Some(name) => contexts.find(name).map_err(DriverError::from)?,
        None => &default,
    };
    if console.is_json() {
        return console.json(&one_json(name, context, contexts));
    }
    let mut facts = Facts::default();
    facts.add("kind", context.kind.name()).add("where", place(context));
    facts.add_known("fingerprint", context.fingerprint.as_ref());
    facts.add_known("token", context.token.as_ref().map(token_text));
    facts.add_known("slurm.conf", context.slurm_conf.as_ref().map(|path| path.display().to_string()));
    let kubernetes = &context.kubernetes;
    facts
        .add_known("kubeconfig", kubernetes.place.kubeconfig.as_ref().map(|path| path.display().to_string()));
    facts.add_known("namespace", kubernetes.place.namespace.as_ref());
    facts.add_known("image", kubernetes.image.as_ref());
    facts.add_known("scheduler", kubernetes.scheduler.as_ref());
    facts.add_known("patience", context.patience_s.map(|seconds| format!("{seconds} s")));
    // What REST cannot do, Slurm's commands can.
    for capability in Capability::ALL {
        facts.add("can", capability.text());
    }
    if context.kind == ClusterKind::Slurm {
        say_transports(&context.slurm_place()?.try_transports()?, console);
    }
    let title =
        name.map_or("no context is current; the default is".to_owned(), |name| format!("context {name}"));
    console.text(&format!("{title}\n{}", facts.render(console.width())))
}

fn place(context: &ClusterContext) -> String {
    let directory = context.state_dir.as_ref().map(|path| path.display().to_string());
    let otherwise = || match context.kind {
        ClusterKind::Local => String::new(),
        ClusterKind::Slurm => "Slurm's commands".to_owned(),
        ClusterKind::Kubernetes => match &context.kubernetes.place.context {
            Some(name) => format!("context {name} of the kubeconfig"),
            None => "the kubeconfig".to_owned(),
        },
    };
    context.url.clone().or(directory).unwrap_or_else(otherwise)
}

fn token_text(token: &Token) -> String {
    match token {
        Token::File(path) => format!("in {}", path.display()),
        Token::Text(_) => "in the contexts file".to_owned(),
    }
}

fn as_json(contexts: &Contexts) -> Value {
    let all = contexts.all.iter().map(|(name, context)| one_json(Some(name), context, contexts));
    json!({ "current": contexts.current, "contexts": all.collect::<Vec<Value>>() })
}

/// Without a token's text.
fn one_json(name: Option<&str>, context: &ClusterContext, contexts: &Contexts) -> Value {
    json!({
        "name": name,
        "is_current": name.is_some() && name == contexts.current.as_deref(),
        "kind": context.kind.name(),
        "url": context.url,
        "fingerprint": context.fingerprint,
        "token": context.token.as_ref().map(token_text),
        "state_dir": context.state_dir,
        "slurm_conf": context.slurm_conf,
        "patience_s": context.patience_s,
        "kubeconfig": context.kubernetes.place.kubeconfig,
        "kube_context": context.kubernetes.place.context,
        "namespace": context.kubernetes.place.namespace,
        "image": context.kubernetes.image,
        "scheduler": context.kubernetes.scheduler,
        "plain_jobs": context.kubernetes.has_plain_jobs,
        "can": Capability::ALL,
    })
}
