//! The command line: what can be typed, and help with examples.

use bedplate_terminal::GlobalArguments;
use clap::{Parser, Subcommand};

use crate::commands::{
    agent, bench, catalog, chaos, checkpoint, cluster, comm, compare, completions, context, daemon,
    dashboards, data, diagnose, doctor, down, error, export, generate, health, history, job, journal, launch,
    layout, man, model, node, plan, queue, replay, route, rules, scheduler, scrape_config, selftest, serve,
    status, submit, token, top, tour, train, unit, up, usage, watch,
};

/// Plan, schedule, run and observe the training and serving of foundation models.
#[derive(Parser)]
#[command(name = "bedplate", version, about, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Start here:
  bedplate tour                                  a guided run through all of it
  bedplate catalog instances --memory '>=141GB'  hardware that fits a need
  bedplate cluster show p5.48xlarge:64           a cluster and its network
  bedplate model show llama-3.1-70b              parameters, FLOPs and bytes
  bedplate plan train --model llama-3.1-70b --cluster p5.48xlarge:64 --tokens 2T
  bedplate up --nodes 4 --like p5.48xlarge       a cluster on this machine
  bedplate submit --nodes 2 --follow -- hostname a job on it

Data goes to standard output, remarks to standard error. Exit codes: 0 done, 1 refused or
failed, 2 usage, 3 transient, 70 our bug.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArguments,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Take a guided tour: hardware, a cluster, a model, a plan
    Tour(tour::Arguments),
    /// Look up hardware: accelerators, instances, fabrics, storage, prices
    Catalog(catalog::Arguments),
    /// Describe a cluster and its topology: show, import, export, check
    #[command(subcommand)]
    Cluster(cluster::Arguments),
    /// Count parameters, FLOPs and bytes of a model
    #[command(subcommand)]
    Model(model::Arguments),
    /// Predict and choose: layouts, times, memory, costs
    #[command(subcommand)]
    Plan(Box<plan::Arguments>),
    /// Simulate in virtual time: jobs under other policies, requests over other replicas
    #[command(subcommand)]
    Replay(replay::Arguments),
    /// Train a model in this process; also what a native training job runs
    Train(train::Arguments),
    /// Serve a model: an OpenAI-compatible API on this machine
    Serve(Box<serve::Arguments>),
    /// Put one address in front of many servers of models: prefixes, load, checks, retries
    Route(Box<route::Arguments>),
    /// Continue one prompt with a model
    Generate(generate::Arguments),
    /// Work with checkpoints: show, verify, convert to and from other formats
    #[command(subcommand)]
    Checkpoint(checkpoint::Arguments),
    /// Start a cluster on this machine
    Up(up::Arguments),
    /// Make this machine a node of a cluster on another one
    Join(up::join::Arguments),
    /// End what `up` or `join` started on this machine
    Down(down::Arguments),
    /// Show how the cluster of this machine does, also while its daemon is away
    Status(status::Arguments),
    /// Give a cluster a job: a file, a batch script or a command
    Submit(Box<submit::Arguments>),
    /// List waiting and running jobs
    Queue(queue::Arguments),
    /// Work with a job: show, logs, explain, cancel, hold, release, requeue, attach, render
    #[command(subcommand)]
    Job(job::Arguments),
    /// Work with nodes: list, show, drain, resume, start
    #[command(subcommand)]
    Node(node::Arguments),
    /// Watch nodes and jobs on one screen
    Top(top::Arguments),
    /// Find out what slowed or stopped a job, from its logs, kernel logs and flight records
    Diagnose(diagnose::Arguments),
    /// Explain why one run is slower than another, part by part, and what differs between them
    Compare(compare::Arguments),
    /// Observe any trainer or server, unchanged: its steps, its errors, what is wrong
    Watch(watch::Arguments),
    /// Find out what is wrong with a node, a job's NCCL or nodes of a cluster, what it costs, how to fix it
    Doctor(doctor::Arguments),
    /// Test whether a GPU computes correctly, and as fast as its kind should
    Selftest(selftest::Arguments),
    /// Print recording and alerting rules for Prometheus, with their unit tests
    Rules(rules::Arguments),
    /// Print dashboards for Grafana
    Dashboards(dashboards::Arguments),
    /// Print how Prometheus finds the nodes: a list, a cluster, EC2, Kubernetes
    ScrapeConfig(scrape_config::Arguments),
    /// Serve metrics and findings of this machine to Prometheus
    Export(Box<export::Arguments>),
    /// Show health rules and XIDs, or check this machine in depth
    #[command(subcommand)]
    Health(health::Arguments),
    /// Show who used how many GPU-hours
    Usage(usage::Arguments),
    /// Prune the history of ended jobs
    #[command(subcommand)]
    History(history::Arguments),
    /// Check, repair and back up the journal, in which a cluster keeps its state
    #[command(subcommand)]
    Journal(journal::Arguments),
    /// Manage tokens, which say who may do what: add, list, revoke
    #[command(subcommand)]
    Token(token::Arguments),
    /// Choose the cluster that commands talk to: list, show, use, add, remove
    #[command(subcommand)]
    Context(context::Arguments),
    /// Print systemd units for the daemon and for the agents of real nodes
    #[command(subcommand)]
    Unit(unit::Arguments),
    /// Break something on purpose, to see it heal
    #[command(subcommand)]
    Chaos(chaos::Arguments),
    /// Read a parallel layout: its spelling, its rules, its rank groups
    Layout(layout::Arguments),
    /// Turn text into tokens for training: tokenize, generate, show, train-tokenizer
    #[command(subcommand)]
    Data(data::Arguments),
    /// Find which rank has not entered which collective
    #[command(subcommand)]
    Comm(comm::Arguments),
    /// Measure how fast the program's own parts are, next to named peers
    Bench(bench::Arguments),
    /// The process of a node that runs ranks; `bedplate up` starts it
    #[command(hide = true)]
    Agent(Box<agent::Arguments>),
    /// Run a gang inside a job of Slurm; it heals on spare nodes without going back to the queue
    Launch(launch::Arguments),
    /// Run a scheduler for Kubernetes beside its own: whole gangs of pods, reservations, fair shares
    Scheduler(scheduler::Arguments),
    /// What `launch` starts on each node
    #[command(hide = true)]
    LaunchHelper(launch::HelperArguments),
    /// Explain an error code and what to do about it
    Error(error::Arguments),
    /// Print a completion script for your shell
    Completions(completions::Arguments),
    /// Print the manual page, or write one per command
    Man(man::Arguments),
    /// The control plane of a cluster
    #[command(hide = true)]
    Daemon(daemon::Arguments),
    /// Starts daemon and agents of a cluster again when they die
    #[command(hide = true)]
    Supervise(up::supervise::Arguments),
}
