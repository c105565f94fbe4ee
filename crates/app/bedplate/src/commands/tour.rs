//! `bedplate tour`: a guided run of the real program, chapter by chapter.
//!
//! Every step is a command line that goes through the same parser and code as a user's; the guide only
//! adds a sentence before it. Later capabilities add chapters here.

mod cluster;
mod learning;
mod serving;
mod straggler;

use bedplate_catalog::Catalog;
use bedplate_terminal::present::wrap;
use bedplate_terminal::{CliError, Console, Context};
use bedplate_transformer::{TrainingState, builtin};
use clap::Parser;
use serde_json::{Value, json};

use crate::cli::Cli;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate tour
  bedplate tour --no-cluster
  bedplate tour --json | jq '.chapters[].title'")]
pub(crate) struct Arguments {
    /// Skip the last chapter, which starts processes on this machine
    #[arg(long)]
    no_cluster: bool,
}

struct Chapter {
    title: &'static str,
    steps: Vec<Step>,
}

struct Step {
    /// What to look for.
    remark: String,
    /// The arguments of `bedplate`.
    command: &'static str,
}

/// The running example: large enough to need a cluster, and well known.
const MODEL: &str = "llama-3.1-70b";
const INSTANCE: &str = "p5.48xlarge";

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let chapters = chapters(&context.load_catalog()?)?;
    if console.is_json() {
        return run_as_json(&chapters, arguments, context, console);
    }
    let width = console.width().unwrap_or(80).min(100);
    let welcome = "Bedplate plans, schedules, runs and observes the training and serving of foundation models. \
                   This tour runs the real program; every command in it can be repeated.";
    console.line(&wrap(welcome, width).join("\n"))?;
    let count = chapters.len() + usize::from(!arguments.no_cluster);
    let heading = |number: usize, title: &str| {
        let heading = format!("{number} of {count}: {title}");
        format!("\n{heading}\n{}", "=".repeat(heading.len()))
    };
    for (index, chapter) in chapters.iter().enumerate() {
        console.line(&heading(index + 1, chapter.title))?;
        for step in &chapter.steps {
            console.line(&format!("\n{}", wrap(&step.remark, width).join("\n")))?;
            console.line(&format!("\n$ {}", typed(step.command, width)))?;
            run_step(step, context, console)?;
        }
    }
    let mut titles: Vec<&str> = chapters.iter().map(|chapter| chapter.title).collect();
    if !arguments.no_cluster {
        console.line(&heading(count, cluster::TITLE))?;
        cluster::tell(context, console, width)?;
        titles.push(cluster::TITLE);
    }
    console.text(&farewell(&titles, width))
}

fn chapters(catalog: &Catalog) -> Result<Vec<Chapter>, CliError> {
    Ok(vec![
        Chapter {
            title: "the hardware",
            steps: vec![Step {
                remark: "The catalog holds accelerators, machines, fabrics, storage and prices, each figure \
                         with its source. Two machines side by side:"
                    .into(),
                command: "catalog compare p5.48xlarge p6-b200.48xlarge",
            }],
        },
        Chapter {
            title: "a cluster",
            steps: vec![
                Step {
                    remark: "Sixty-four such machines. Look at the two regimes: fast inside a scale-up \
                             domain, an order of magnitude slower between machines."
                        .into(),
                    command: "cluster show p5.48xlarge:64",
                },
                Step {
                    remark:
                        "In an UltraServer the fast domain spans eighteen machines; that is what mixtures \
                             of experts ask for."
                            .into(),
                    command: "cluster show u-p6e-gb200x72:2",
                },
            ],
        },
        Chapter {
            title: "a model",
            steps: vec![Step {
                remark: "A model by its built-in name, or any Hugging Face config.json. Parameters are \
                         exact; FLOPs name the convention they are counted by."
                    .into(),
                command: "model show llama-3.1-70b",
            }],
        },
        Chapter {
            title: "how the model is split",
            steps: vec![Step {
                remark: why_it_must_be_cut(catalog)?,
                command: "layout dp16.tp8.sp.pp4.zero1 --model llama-3.1-70b --gpus 512",
            }],
        },
        Chapter {
            title: "the plan",
            steps: vec![Step {
                remark:
                    "Which of all legal layouts is the best, what limits it, does it fit, how long and how \
                         much for two trillion tokens? Every layout is priced; the interval comes from \
                         measured runs that the model was not fitted to."
                        .into(),
                command: "plan train --model llama-3.1-70b --cluster p5.48xlarge:64 --tokens 2T",
            }],
        },
        Chapter {
            title: "the deployment",
            steps: vec![Step {
                remark: "And serving it: the cheapest deployment that keeps first tokens within a second and 30 ms \
                         between tokens at two requests a second. The answer was replayed, request by request, \
                         through the scheduler and the router that an engine runs."
                    .into(),
                command: "plan serve --model llama-3.1-70b --cluster p5en.48xlarge:1 --isl 2000 --osl 300 \
                          --rate 2/s --slo ttft=1s,itl=30ms --top 6",
            }],
        },
        Chapter {
            title: "the queue",
            steps: vec![Step {
                remark: "You are not alone on the cluster. A thousand jobs of the kind that model builders submit, in \
                         virtual time, under three policies: backfill in the order of arrival, the same as Slurm does it, and \
                         the scheduler of this program; eight times, each with other jobs. Slowdown is the time from \
                         submission to the end over the run time. Below the table it says who is best at what."
                    .into(),
                command: "replay jobs --generate llm --jobs 1000 --load 0.9 --cluster p5.48xlarge:16 \
                          --policy easy --policy conservative --policy ours --seeds 8",
            }],
        },
    ])
}

/// The arithmetic that joins the chapters: training state against the memory of one accelerator.
fn why_it_must_be_cut(catalog: &Catalog) -> Result<String, CliError> {
    let accelerator = catalog.accelerator_of(catalog.instance(INSTANCE)?);
    let state = builtin(MODEL)?.training_bytes(TrainingState::default()).total();
    let usable = accelerator.memory_for_programs();
    let needed = (state / usable).ceil();
    Ok(format!(
        "Training {MODEL} keeps {state} of weights, gradients and optimizer state. One {} gives programs {usable:#}, so \
         {needed} of them are needed before the first activation is stored. A layout says which GPU holds what; \
         this one uses all 512 GPUs:",
        accelerator.name
    ))
}

/// A command as it can be typed, with backslashes at line breaks.
fn typed(command: &str, width: usize) -> String {
    wrap(&format!("bedplate {command}"), width.saturating_sub(8)).join(" \\\n      ")
}

fn run_step(step: &Step, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let words = std::iter::once("bedplate").chain(step.command.split(' '));
    let cli = Cli::try_parse_from(words).map_err(CliError::from_clap)?;
    super::run(cli.command, context, console)
}

/// One document with the result of every step.
fn run_as_json(
    chapters: &[Chapter],
    arguments: &Arguments,
    context: &Context,
    console: &mut Console,
) -> Result<(), CliError> {
    let mut told = Vec::new();
    for chapter in chapters {
        let mut steps = Vec::new();
        for step in &chapter.steps {
            let mut recorder = Console::recorder();
            run_step(step, context, &mut recorder)?;
            let result: Value = serde_json::from_str(recorder.recorded()).unwrap_or(Value::Null);
            steps.push(json!({ "command": format!("bedplate {}", step.command), "result": result }));
        }
        told.push(json!({ "title": chapter.title, "steps": steps }));
    }
    if !arguments.no_cluster {
        let happened = cluster::tell(context, console, 80)?;
        told.push(json!({ "title": cluster::TITLE, "happened": happened }));
    }
    console.json(&json!({ "chapters": told }))
}

fn farewell(titles: &[&str], width: usize) -> String {
    format!(
        "\n{}\n\nContinue with:\n\
         \x20 bedplate plan choose --model llama-3.1-70b --tokens 2T --deadline 30d\n\
         \x20 bedplate catalog instances --memory '>=141GB'     hardware by need\n\
         \x20 bedplate catalog show h200                        figures with sources\n\
         \x20 bedplate cluster import topology.conf slurm.conf  your own cluster\n\
         \x20 bedplate model show path/to/config.json           your own model\n\
         \x20 bedplate up                                       a cluster on this machine\n\
         \x20 bedplate help                                     everything else\n",
        wrap(&format!("You have seen {}.", titles.join(", ")), width).join("\n")
    )
}
