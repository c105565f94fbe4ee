//! `bedplate bench abuse`: what one user with ordinary rights can do to another by abusing the cluster.

mod mallory;
mod neighbour;
mod strategies;

use std::time::{Duration, Instant};

use bedplate_drivers::{ClusterPlace, Local, StateDirectory};
use bedplate_local::{TemporaryCluster, Wanted};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, Context};
use bedplate_topology::{Format, ImportOptions, import};
use serde_json::{Value, json};

use crate::product::launcher;
use mallory::Mallory;
use neighbour::{Experience, Neighbour};
use strategies::{STRATEGIES, Strategy};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench abuse
  bedplate bench abuse --seconds 10 --only forks,logs
  bedplate bench abuse --json

A cluster of 2 nodes with 4 CPUs each is started for this, with its supervisor.
One user abuses it, in one way after the other; beside him another user submits a
job a second and looks at the nodes. The table says for each way how often the
first was served and refused, how long the other's submissions and looks took,
how many of them or of the other's jobs failed, how often one of the other's
running jobs or a node lost its lease, and how often the daemon was started
again. `alone` and `alone again`, before and after, are the other user without the
first: what the machine itself makes of it, with the load that it had. Run it as root: jobs then run as two users of the system, otherwise all
as you. It is meant for machines where nothing else matters: fork bombs are
among the ways. Exit code 1 if a figure misses its aim.")]
pub(super) struct Arguments {
    /// How long each way is tried
    #[arg(long, value_name = "COUNT", default_value_t = 60)]
    seconds: u64,
    /// Only these ways, with commas between
    #[arg(long, value_name = "WAYS", value_delimiter = ',', value_parser = STRATEGIES.map(|way| way.name))]
    only: Vec<String>,
}

/// The slowest of a hundred answers to the other user.
const MOST_MS: f64 = 250.0;
const NODES: u32 = 2;
const CPUS: u32 = 4;
/// Users of every Debian, so that agents that are root can run jobs as them.
const ABUSES: &str = "nobody";
const SUFFERS: &str = "daemon";
/// How long what is left of one way may take to be gone before the next begins.
const CLEARED_WITHIN: Duration = Duration::from_secs(300);

/// The other user without the first, before all ways and after them.
const ALONE: [Strategy; 2] = [
    Strategy { name: "alone", about: "nobody abuses anything", act: |_| {} },
    Strategy { name: "alone again", about: "nobody abuses anything any more", act: |_| {} },
];

/// What came of one way.
struct Row {
    name: &'static str,
    served: u64,
    refused: u64,
    experience: Experience,
    restarts: u64,
    /// Until nothing of it was left.
    cleared_s: f64,
    /// Processes that ran or were ready to, of the whole machine, in the minute before its end.
    load: f64,
}

impl Row {
    fn is_met(&self) -> bool {
        let Experience { answers_ms, failures, leases_lost, .. } = &self.experience;
        !answers_ms.is_empty()
            && self.experience.percentile(0.99) <= MOST_MS
            && failures.is_empty()
            && *leases_lost == 0
            && self.restarts == 0
    }

    fn to_json(&self) -> Value {
        let Experience { answers_ms, failures, leases_lost, .. } = &self.experience;
        json!({
            "way": self.name,
            "served": self.served,
            "refused": self.refused,
            "answers": answers_ms.len(),
            "p50_ms": self.experience.percentile(0.5),
            "p99_ms": self.experience.percentile(0.99),
            "failures": failures,
            "leases_lost": leases_lost,
            "daemon_restarts": self.restarts,
            "cleared_s": self.cleared_s,
            "load": self.load,
            "is_met": self.is_met(),
        })
    }

    fn cells(&self) -> Vec<String> {
        let Experience { failures, leases_lost, .. } = &self.experience;
        vec![
            self.name.to_owned(),
            self.served.to_string(),
            self.refused.to_string(),
            format!("{:.1}", self.experience.percentile(0.5)),
            format!("{:.1}", self.experience.percentile(0.99)),
            failures.len().to_string(),
            leases_lost.to_string(),
            self.restarts.to_string(),
            format!("{:.1}", self.load),
            if self.is_met() { "yes" } else { "NO" }.to_owned(),
        ]
    }
}

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let is_chosen =
        |way: &&Strategy| arguments.only.is_empty() || arguments.only.iter().any(|name| name == way.name);
    let site = Site::start(context, console)?;
    let mut rows = Vec::new();
    let [before, after] = &ALONE;
    let ways = std::iter::once(before).chain(STRATEGIES.iter().filter(is_chosen)).chain([after]);
    for strategy in ways {
        console.say(&format!("{}: {}", strategy.name, strategy.about));
        let row = site.suffer(strategy, Duration::from_secs(arguments.seconds.max(1)))?;
        for failure in row.experience.failures.iter().take(3) {
            console.say(&format!("failed: {failure}"));
        }
        rows.push(row);
    }
    show(&rows, console)?;
    let abused = &rows[1..rows.len() - 1];
    if abused.iter().all(Row::is_met) { Ok(()) } else { Err(CliError::Refused) }
}

fn show(rows: &[Row], console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        let ways: Vec<Value> = rows.iter().map(Row::to_json).collect();
        return console.json(&json!({ "most_p99_ms": MOST_MS, "ways": ways }));
    }
    let numbers =
        ["SERVED", "REFUSED", "P50 MS", "P99 MS", "FAILURES", "LEASES LOST", "RESTARTS", "LOAD", "MET"];
    let columns = std::iter::once(Column::left("WAY", 0));
    let columns = columns.chain(numbers.map(|name| Column::right(name, 0)));
    let mut table = Table::new(columns.collect());
    rows.iter().for_each(|row| table.row(row.cells()));
    console.table(&table)
}

/// The cluster and its two users.
struct Site {
    cluster: TemporaryCluster,
    abuses: ClusterPlace,
    neighbour: Neighbour,
}

impl Site {
    fn start(context: &Context, console: &Console) -> Result<Self, CliError> {
        let description = format!(
            "name = \"abused\"\n[[kind]]\nname = \"small\"\nvcpus = {CPUS}\nmemory = \"4000 MiB\"\n\
             [[group]]\nkind = \"small\"\ncount = {NODES}\n"
        );
        let catalog = context.load_catalog()?;
        let source = bedplate_diag::Source::new("the benchmark", &description);
        let cluster = import(Format::Document, &[source], &ImportOptions::default(), &catalog)?;
        let wanted = Wanted { cluster: Some(cluster), ..Wanted::default() };
        let launcher = launcher(context, console)?;
        let cluster = TemporaryCluster::start(&wanted, &catalog, launcher.clone())?;
        // What it does to a daemon that is slow is a part of the experience.
        launcher.start_supervisor(&StateDirectory(cluster.folder().to_owned()))?;
        let place_of = |user: &str| -> Result<ClusterPlace, CliError> {
            let token = cluster.driver.make_token(user, "user", None)?.token;
            Ok(ClusterPlace { token, ..cluster.driver.place().clone() })
        };
        let (abuses, suffers) = (place_of(ABUSES)?, place_of(SUFFERS)?);
        let neighbour = Neighbour::settle(suffers, NODES)?;
        Ok(Self { cluster, abuses, neighbour })
    }

    fn suffer(&self, strategy: &Strategy, length: Duration) -> Result<Row, CliError> {
        let before = self.daemon();
        let mallory = Mallory::new(self.abuses.clone(), length);
        let experience = std::thread::scope(|scope| {
            let suffers = scope.spawn(|| self.neighbour.live(length));
            (strategy.act)(&mallory);
            suffers.join().expect("it does not panic")
        });
        let load = load();
        let began = Instant::now();
        let is_gone =
            mallory::clear(&Local::new(self.cluster.driver.place().clone()), ABUSES, CLEARED_WITHIN);
        let cleared_s = began.elapsed().as_secs_f64();
        let mut experience = experience;
        if !is_gone {
            experience.failures.push(format!("jobs are left after {cleared_s:.0} s"));
        }
        self.neighbour.look_back(&mut experience);
        let restarts = u64::from(self.daemon() != before);
        let (served, refused) = mallory.counts();
        Ok(Row { name: strategy.name, served, refused, experience, restarts, cleared_s, load })
    }

    /// Which process the daemon is.
    fn daemon(&self) -> Option<u32> {
        StateDirectory(self.cluster.folder().to_owned()).beacon().ok().flatten().map(|beacon| beacon.pid)
    }
}

/// The mean over the last minute, of the whole machine.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default()
}
