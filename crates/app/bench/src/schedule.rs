//! `bedplate bench schedule`: what one pass of the scheduler costs.

use std::time::{Duration, Instant};

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_gangs::{
    ANY_GPU, Accounts, Closeness, Decision, Event, GangOutcome, GangRequest, Grant, JobId, Qos, QosId,
    QueueId, RoleRequest, Scheduler, Settings, Span, Time, UserId,
};
use bedplate_terminal::files::write_text;
use bedplate_terminal::html::{Plot, Point, Report, Series};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_topology::{Cluster, Format, ImportOptions, Level, import};
use bedplate_units::grouped;
use serde_json::{Value, json};

use crate::cpu_clock::CpuClock;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench schedule
  bedplate bench schedule --nodes 10000 --pending 10000 --json
  bedplate bench schedule --queues 2000
  bedplate bench schedule --growth --report growth.html

A cluster of eight-GPU nodes under a tree of three levels is filled with gangs;
then more are queued, a fifth of them over several nodes. CYCLE is one full
conservative pass that reserves a start on specific nodes for every waiting
gang; INCREMENTAL is the mean over events (a gang ends, another is submitted),
each followed by a pass that starts what it can and keeps all reservations.
With --queues each gang belongs to one of that many queues, which share the
cluster and borrow from each other, to an account of its own and to one of
three qualities of service with limits. Both are CPU time of one thread; the
worst event is wall time.")]
pub(super) struct Arguments {
    /// Nodes of the cluster, with eight GPUs each
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(32..=100_000))]
    nodes: u32,
    /// Gangs that wait
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pending: u32,
    /// Of the generated gangs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Queues with a quota of their own that borrow from each other; each has an account
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    queues: u32,
    /// Measure how the time grows with nodes and with gangs
    #[arg(long)]
    growth: bool,
    /// Write the growth as a page with plots
    #[arg(long, value_name = "FILE", requires = "growth")]
    report: Option<String>,
}

struct Measured {
    nodes: u32,
    pending: u32,
    queues: u32,
    cycle_ms: f64,
    reserved: usize,
    incremental_ms: f64,
    worst_event_ms: f64,
}

/// CPU time that Slurm 22.05 takes for each gang it tests, at 1,000 nodes with device affinity and a tree.
const SLURM_MS_PER_GANG: f64 = 75.0;
const SLURM_NODES: u32 = 1000;
const EVENTS: u64 = 200;

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    if arguments.growth {
        return growth(arguments, catalog, console);
    }
    let Arguments { nodes, pending, queues, seed, .. } = *arguments;
    let measured = measure(nodes, pending, queues, seed, catalog)?;
    if console.is_json() {
        return console.json(&json_of(&measured));
    }
    console.table(&table(std::slice::from_ref(&measured)))?;
    let each = measured.cycle_ms / f64::from(measured.pending);
    let times = match measured.nodes {
        SLURM_NODES => format!(", {:.0} times as much", SLURM_MS_PER_GANG / each),
        _ => String::new(),
    };
    console.line(&format!(
        "\n{each:.3} ms of CPU for each gang. Slurm 22.05 takes {SLURM_MS_PER_GANG} ms at 1,000 nodes\n\
         with device affinity and a tree (docs/scheduler.md){times}."
    ))
}

fn growth(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let by_nodes = [250, 500, 1000, 2000, 4000, 8000].map(|nodes| (nodes, arguments.pending.min(4000)));
    let by_gangs = [625, 1250, 2500, 5000, 10_000, 20_000].map(|pending| (arguments.nodes, pending));
    let mut results = Vec::new();
    for (nodes, pending) in by_nodes.into_iter().chain(by_gangs) {
        console.say(&format!("{nodes} nodes, {pending} gangs"));
        results.push(measure(nodes, pending, arguments.queues, arguments.seed, catalog)?);
    }
    let (nodes, gangs) = results.split_at(by_nodes.len());
    if let Some(path) = &arguments.report {
        write_text(path, &page(nodes, gangs))?;
        console.say(&format!("written to {path}"));
    }
    if console.is_json() {
        let rows = |rows: &[Measured]| rows.iter().map(json_of).collect::<Vec<Value>>();
        return console.json(&json!({ "by_nodes": rows(nodes), "by_pending": rows(gangs) }));
    }
    console.table(&table(&results))
}

fn page(nodes: &[Measured], gangs: &[Measured]) -> String {
    let mut report = Report::new("One pass of the scheduler", "CPU time of one thread");
    let plot = |title: &str, rows: &[Measured], x: fn(&Measured) -> f64| {
        let line = |name: &str, y: fn(&Measured) -> f64| Series {
            name: name.into(),
            points: rows.iter().map(|row| Point { x: x(row), y: y(row), label: String::new() }).collect(),
            is_line: true,
        };
        let plot = Plot {
            x_title: title.into(),
            y_title: "ms".into(),
            is_x_logarithmic: true,
            is_y_logarithmic: true,
            series: vec![line("full cycle", |row| row.cycle_ms), line("one event", |row| row.incremental_ms)],
        };
        plot.svg()
    };
    report.section("By nodes", "The same number of waiting gangs on larger and larger clusters.");
    report.chart(&plot("nodes", nodes, |row| row.nodes.into()));
    report.section("By waiting gangs", "The same cluster with more and more gangs in the queue.");
    report.chart(&plot("gangs", gangs, |row| row.pending.into()));
    report.table(&table(nodes).cells()).table(&table(gangs).cells());
    report.html()
}

fn table(results: &[Measured]) -> Table {
    let mut table = Table::new(vec![
        Column::right("NODES", 0),
        Column::right("GANGS", 0),
        Column::right("CYCLE", 0),
        Column::right("RESERVED", 1),
        Column::right("INCREMENTAL", 0),
        Column::right("WORST EVENT", 1),
    ]);
    for result in results {
        table.row(vec![
            grouped(result.nodes.into()),
            grouped(result.pending.into()),
            format!("{:.1} ms", result.cycle_ms),
            grouped(result.reserved as u64),
            format!("{:.3} ms", result.incremental_ms),
            format!("{:.3} ms", result.worst_event_ms),
        ]);
    }
    table
}

fn json_of(measured: &Measured) -> Value {
    json!({
        "nodes": measured.nodes,
        "pending": measured.pending,
        "queues": measured.queues,
        "cycle_ms": measured.cycle_ms,
        "reserved": measured.reserved,
        "incremental_ms": measured.incremental_ms,
        "worst_event_ms": measured.worst_event_ms,
        "slurm_22_05_ms_per_gang": SLURM_MS_PER_GANG,
    })
}

fn measure(
    nodes: u32,
    pending: u32,
    queues: u32,
    seed: u64,
    catalog: &Catalog,
) -> Result<Measured, CliError> {
    let mut bench = Bench::new(nodes, queues, seed, catalog)?;
    bench.fill();
    bench.queue(pending);
    let clock = CpuClock::start();
    let started = bench.scheduler.replan(bench.now);
    let cycle_ms = clock.elapsed_ms();
    bench.note(&started);
    let reserved = bench.scheduler.reservations().count();
    let clock = CpuClock::start();
    let worst = (0..EVENTS).map(|_| bench.one_ends().max(bench.one_comes())).max().unwrap_or_default();
    let incremental_ms = clock.elapsed_ms() / (2 * EVENTS) as f64;
    Ok(Measured {
        nodes,
        pending,
        queues,
        cycle_ms,
        reserved,
        incremental_ms,
        worst_event_ms: worst.as_secs_f64() * 1e3,
    })
}

/// A full cluster with a queue before it.
struct Bench {
    scheduler: Scheduler,
    random: Random,
    running: Vec<JobId>,
    queues: u32,
    next: u64,
    now: Time,
}

impl Bench {
    fn new(nodes: u32, queues: u32, seed: u64, catalog: &Catalog) -> Result<Self, CliError> {
        let mut settings = Settings::default();
        settings.backfill.reserved = usize::MAX;
        // Only the first cycle is full; later events are measured separately.
        settings.backfill.replan_percent = u32::MAX / 2;
        settings.backfill.replan_after = Span::days(365);
        settings.weights.fair_share = 10_000;
        for account in 0..20 {
            settings.accounts.add(format!("team{account}"), Accounts::ROOT, 1 + account % 4);
        }
        if queues > 0 {
            share_out(&mut settings, queues, u64::from(nodes) * 8);
        }
        let scheduler = Scheduler::new(tree(nodes, catalog)?, settings);
        let random = Random(seed | 1);
        Ok(Self { scheduler, random, running: Vec::new(), queues, next: 1, now: Time::ZERO })
    }

    /// Submits gangs until none starts any more, then removes the waiting ones.
    fn fill(&mut self) {
        let mut refused = 0;
        while refused < 50 {
            let request = self.request();
            let job = request.id;
            let decisions = self.scheduler.apply(Event::Submit(Box::new(request)), self.now);
            self.note(&decisions);
            if self.running.last() != Some(&job) {
                refused += 1;
                self.scheduler.apply(Event::Cancel(job), self.now);
            }
        }
        self.now = self.now + Span::minutes(1);
    }

    fn queue(&mut self, pending: u32) {
        let requests: Vec<Event> = (0..pending).map(|_| Event::Submit(Box::new(self.request()))).collect();
        let decisions = self.scheduler.apply_all(requests, self.now);
        self.note(&decisions);
    }

    fn note(&mut self, decisions: &[Decision]) {
        let started = decisions.iter().filter_map(|decision| match decision {
            Decision::Start { job, .. } => Some(*job),
            _ => None,
        });
        self.running.extend(started);
    }

    /// Ends a random gang and returns the wall time.
    fn one_ends(&mut self) -> Duration {
        self.now = self.now + Span::seconds(1);
        let index = self.random.below(self.running.len() as u64) as usize;
        let job = self.running.swap_remove(index);
        self.timed(Event::Ended { job, outcome: GangOutcome::Succeeded })
    }

    fn one_comes(&mut self) -> Duration {
        let request = self.request();
        self.timed(Event::Submit(Box::new(request)))
    }

    fn timed(&mut self, event: Event) -> Duration {
        let clock = Instant::now();
        let decisions = self.scheduler.apply(event, self.now);
        let elapsed = clock.elapsed();
        self.note(&decisions);
        elapsed
    }

    /// 80 % of the gangs are on one node, half of those on part of it; the others have 2 to 64 nodes, and
    /// a third of these insist on one leaf.
    fn request(&mut self) -> GangRequest {
        const LIMITS_MINUTES: [u64; 10] = [30, 60, 120, 240, 480, 720, 1440, 2880, 4320, 10_080];
        let id = JobId(self.next);
        self.next += 1;
        let role = match self.random.below(10) {
            0..4 => RoleRequest::new(1, 1 << self.random.below(3)),
            4..8 => RoleRequest::new(1, 8),
            _ => RoleRequest::new(2 << self.random.below(6), 8),
        };
        let in_one_leaf = role.nodes > 1 && role.nodes <= 16 && self.random.below(3) == 0;
        let mut request = GangRequest::new(id, role);
        request.time_limit = Span::minutes(LIMITS_MINUTES[self.random.below(10) as usize]);
        request.user = UserId(self.random.below(100) as u32);
        request.account = bedplate_gangs::AccountId(1 + request.user.0 % 20);
        if self.queues > 0 {
            let queue = self.random.below(self.queues.into()) as u16;
            // The root comes before the queues, and the twenty teams before their accounts.
            request.queue = Some(QueueId(1 + queue));
            request.account = bedplate_gangs::AccountId(21 + u32::from(queue));
            request.qos = QosId(self.random.below(3) as u16);
        }
        if in_one_leaf {
            request.closeness = Closeness::Required(Level::LEAF);
        }
        request
    }
}

/// Queues below one root that have an equal part of the cluster each and borrow the rest, an account for each, and three
/// qualities of service with limits.
fn share_out(settings: &mut Settings, queues: u32, gpus: u64) {
    let root = settings.queues.add("all", None, 1.0);
    for queue in 0..queues {
        let id = settings.queues.add(format!("queue{queue}"), Some(root), f64::from(1 + queue % 3));
        let share = gpus / u64::from(queues) + u64::from(u64::from(queue) < gpus % u64::from(queues));
        settings.queues.grant(id, ANY_GPU, Grant { nominal: share, ..Grant::default() });
        settings.accounts.add(format!("account{queue}"), Accounts::ROOT, 1 + queue % 4);
    }
    for (name, most_gpus_per_user) in [("long", 512), ("short", 1024)] {
        settings.qos.push(Qos { most_gpus_per_user: Some(most_gpus_per_user), ..Qos::named(name) });
    }
}

/// Nodes of eight GPUs, sixteen to a leaf, eight leaves to a spine.
fn tree(nodes: u32, catalog: &Catalog) -> Result<Cluster, CliError> {
    let text = format!(
        "[[group]]\ninstance = \"p5.48xlarge\"\ncount = {nodes}\n\
         [fabric]\nnodes_per_leaf = 16\nleaves_per_spine = 8\n"
    );
    let source = Source::new("cluster.toml", &text);
    Ok(import(Format::Document, &[source], &ImportOptions::default(), catalog)?)
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
}
