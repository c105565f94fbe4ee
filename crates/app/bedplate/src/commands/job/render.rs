//! `bedplate job render --for slurm|kubernetes FILE`: a job file as another scheduler reads it.

use bedplate_document::to_yaml;
use bedplate_job::kubernetes::{self, ManifestKind, PodGroup, RenderOptions};
use bedplate_job::sbatch::{self, Setting};
use bedplate_job::{Job, Remark};
use bedplate_terminal::{CliError, Console, choice};
use serde_json::{Value, json};

use crate::job_file::read_file;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate job render --for slurm job.toml
  bedplate job render --for slurm job.toml | sbatch
  bedplate job render --for kubernetes --image registry/train:1 job.toml
  bedplate job render --for kubernetes --as pytorchjob job.toml | kubectl apply -f -

The script or the manifests go to standard output. Notes on standard error name
each key that the other scheduler has no word for. What cannot be left out
without changing the job is an error. For Slurm a batch script is printed as it
is.")]
pub(crate) struct Arguments {
    /// A job file (TOML or JSON), a batch script or a manifest; `-` reads standard input
    file: String,
    /// For which scheduler
    #[arg(long = "for", value_name = "SCHEDULER")]
    scheduler: Scheduler,
    #[command(flatten)]
    kubernetes: KubernetesArguments,
}

#[derive(clap::Args)]
#[command(next_help_heading = "For Kubernetes")]
struct KubernetesArguments {
    /// What the job becomes [default: jobset]
    #[arg(long = "as", value_name = "KIND", value_parser = choice(&KINDS))]
    kind: Option<ManifestKind>,
    /// Image for a job that names none
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Namespace for a job that names none
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Queue of Kueue, Volcano or KAI for a job that names none [default: its partition]
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Scheduler of the pods for a job that names none; `bedplate` is ours
    #[arg(long, value_name = "NAME")]
    pod_scheduler: Option<String>,
    /// A PodGroup for another scheduler of gangs
    #[arg(long, value_name = "SCHEDULER", value_parser = choice(&GROUPS))]
    pod_group: Option<PodGroup>,
}

const KINDS: [(&str, ManifestKind); 4] = [
    ("jobset", ManifestKind::JobSet),
    ("job", ManifestKind::Job),
    ("pytorchjob", ManifestKind::PyTorchJob),
    ("trainjob", ManifestKind::TrainJob),
];
const GROUPS: [(&str, PodGroup); 2] = [("volcano", PodGroup::Volcano), ("kai", PodGroup::Kai)];

#[derive(Clone, Copy, clap::ValueEnum)]
enum Scheduler {
    /// A script for sbatch
    Slurm,
    /// Manifests for kubectl
    Kubernetes,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let (job, _) = read_file(&arguments.file)?;
    match arguments.scheduler {
        Scheduler::Slurm => for_slurm(&job, console),
        Scheduler::Kubernetes => for_kubernetes(&job, &arguments.kubernetes, console),
    }
}

fn for_slurm(job: &Job, console: &mut Console) -> Result<(), CliError> {
    let rendered = sbatch::render(job)?;
    if console.is_json() {
        let remarks: Vec<Value> = rendered.remarks.iter().map(remark).collect();
        let options: Vec<Value> = rendered.options.iter().map(option).collect();
        return console.json(&json!({ "script": rendered.script, "options": options, "remarks": remarks }));
    }
    say(&rendered.remarks, console);
    console.text(&rendered.script)
}

fn for_kubernetes(job: &Job, arguments: &KubernetesArguments, console: &mut Console) -> Result<(), CliError> {
    let options = RenderOptions {
        kind: arguments.kind.unwrap_or_default(),
        image: arguments.image.clone(),
        namespace: arguments.namespace.clone(),
        queue: arguments.queue.clone(),
        scheduler: arguments.pod_scheduler.clone(),
        pod_group: arguments.pod_group,
        ..RenderOptions::default()
    };
    let manifests = kubernetes::render(job, &options)?;
    if console.is_json() {
        let remarks: Vec<Value> = manifests.remarks.iter().map(remark).collect();
        return console.json(&json!({ "objects": manifests.objects, "remarks": remarks }));
    }
    say(&manifests.remarks, console);
    console.text(&to_yaml(&manifests.objects))
}

fn say(remarks: &[Remark], console: &Console) {
    for remark in remarks {
        console.say(&format!("note: {remark}"));
    }
}

fn remark(remark: &Remark) -> Value {
    json!({ "key": remark.option, "text": remark.text })
}

fn option((name, value): &Setting) -> Value {
    json!({ "option": name, "value": value })
}
