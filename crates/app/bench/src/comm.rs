//! `bedplate bench comm`: collectives between local ranks, in the table that nccl-tests made common.

mod link;
mod overlap;
pub(super) mod peers;
mod prediction;
mod question;
pub(super) mod rank;
pub(super) mod rank_set;
mod row;
mod targets;
mod work;

use std::path::PathBuf;

use bedplate_catalog::CollectiveCurve;
use bedplate_comm::{Algorithm, ElementFormat, Operation};
use bedplate_kernels::{Device, DeviceChoice};
use bedplate_local::host::{host_entry, overlay_path};
use bedplate_local::{Machine, machine};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, Context, ProgramError};
use serde_json::json;

use self::peers::{Installed, Ours, Peer, Transport};
use self::prediction::Prediction;
use self::question::{Case, size_text};
use self::rank_set::{Answer, RankSet, RankSetError};
use self::row::{Row, Statistic, Times};
use self::targets::{Target, targets};
use super::host_file;
use super::kernels::copy_rate;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench comm
  bedplate bench comm --ranks 2,4 --sizes 1K..256M --op all_reduce,broadcast
  bedplate bench comm --peer gloo,openmpi --transport auto,tcp --json
  bedplate bench comm --transport tcp --algorithm ring --sizes 64M
  bedplate bench comm --overlap
  bedplate bench comm --device cuda --ranks 8 --sizes 1K..256M
  bedplate bench machine && bedplate bench comm --save

Ranks are processes on this machine; buffers are registered unless --private
is given. Sizes, counts and bandwidths are those of nccl-tests: SIZE is the
larger buffer of a rank, ALGBW is size over time, BUSBW what a link would
carry. A sample lasts as long as its slowest rank, and is the mean of many
calls where they are small. TIME is the best sample, MEDIAN the middle one.
WRONG counts numbers that differ from the right result. Peers take turns with
us, size by size, and are installed when they are missing: torch into the
user's cache directory, Open MPI by apt-get.")]
pub(super) struct Arguments {
    /// How many ranks, one after the other
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "2,4",
          value_parser = clap::value_parser!(u32).range(1..=127))]
    ranks: Vec<u32>,
    /// Sizes, or MIN..MAX for every eighth size between them
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1K,8K,64K,512K,4M,32M,64M,256M",
          value_parser = |word: &str| question::sizes(word).map(Sizes))]
    sizes: Vec<Sizes>,
    /// Operations, or `all`
    #[arg(long, value_name = "NAMES", value_delimiter = ',',
          default_value = "all_reduce,all_gather,reduce_scatter,all_to_all,broadcast",
          value_parser = |word: &str| question::operations(word).map(Operations))]
    op: Vec<Operations>,
    /// Format of the numbers
    #[arg(long, value_name = "NAME", default_value = "f32", value_parser = question::format)]
    format: ElementFormat,
    /// How our ranks reach each other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    transport: Vec<Transport>,
    /// Where the numbers lie: `cpu`, or `cuda` for a GPU of its own for every rank. Ranks that are more than the
    /// GPUs share the first, each as a host of its own, because NCCL takes a GPU of a host once
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu, conflicts_with_all = ["save", "private"])]
    device: DeviceChoice,
    /// Use one algorithm over TCP wherever it exists: pairwise, ring, doubling, halving or tree
    #[arg(long, value_name = "NAME", value_parser = rank::algorithm)]
    algorithm: Option<Algorithm>,
    /// Leave our buffers unregistered, so that they go through slots
    #[arg(long)]
    private: bool,
    /// Also measure other libraries
    #[arg(long, value_enum, value_delimiter = ',')]
    peer: Vec<Peer>,
    /// A Python with torch, for Gloo
    #[arg(long, value_name = "PATH", requires = "peer")]
    peer_python: Option<PathBuf>,
    /// How often each size is measured, in turns
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Calls whose mean is one sample; by default 50 of small ones, one of large ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    calls: Option<u32>,
    /// Add the table to this host's catalog file, for `plan train --cluster host:RANKS`
    /// [default file: ~/.local/state/bedplate/host.toml]
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["private", "overlap"])]
    save: Option<Option<PathBuf>>,
    /// Measure how much of an all-reduce hides behind a computation instead
    #[arg(long, conflicts_with_all = ["ranks", "sizes", "op", "format", "transport", "algorithm", "private", "peer",
          "rounds", "calls"])]
    overlap: bool,
    /// The rate of the link for --overlap, as tc spells it
    #[arg(long, value_name = "RATE", default_value = "1gbit", requires = "overlap")]
    link: String,
}

/// What one word of `--sizes` means.
#[derive(Debug, Clone)]
struct Sizes(Vec<u64>);

/// What one word of `--op` means.
#[derive(Debug, Clone)]
struct Operations(Vec<Operation>);

/// Sizes of the all-reduces that are overlapped: half a second on the default link, a tenth in memory.
const OVER_LINK: u64 = 64 << 20;
const IN_MEMORY: u64 = 256 << 20;

/// What else ran here when the command began, which every figure suffers from.
fn load_text(load: Option<f64>) -> String {
    load.map_or_else(String::new, |load| format!("Load before the run: {load:.1} processes."))
}

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    if arguments.overlap {
        let question = overlap::Question {
            link_rate: &arguments.link,
            link_bytes: OVER_LINK,
            memory_bytes: IN_MEMORY,
            rounds: 9,
        };
        return overlap::run(&question, console);
    }
    let (cases, load) = (arguments.cases()?, machine::load());
    let mut peers = Vec::new();
    for peer in &arguments.peer {
        peers.push(peers::install(*peer, arguments.peer_python.as_deref(), console)?);
    }
    let device = Device::cpu(Machine::this().cores as usize);
    let mut found = Found { rows: Vec::new(), copy: copy_rate(&device), load, predictions: Vec::new() };
    for ranks in &arguments.ranks {
        let cases: Vec<Case> = cases.iter().map(|case| Case { ranks: *ranks, ..*case }).collect();
        found.rows.extend(arguments.measure(&cases, &peers, console)?);
        // The best of several moments, as for everything else.
        found.copy = found.copy.max(copy_rate(&device));
    }
    let known = host_entry(context.load_catalog().ok().as_ref()).map_or(Vec::new(), |host| host.collectives);
    found.predictions = prediction::predictions(&found.rows, &known);
    if console.is_json() {
        console.json(&found.report())?;
    } else {
        found.show(console)?;
    }
    if let Some(path) = &arguments.save {
        let path = path.clone().unwrap_or_else(overlay_path);
        host_file::save(&path, &prediction::table_of(&found.rows))?;
        let shown = path.display();
        console.say(&format!(
            "wrote {shown}; plan with it: bedplate --catalog {shown} plan train --cluster host:2 …"
        ));
    }
    let rows = &found.rows;
    warn_of_wrong_peers(rows, console);
    if rows.iter().any(|row| row.ours.wrong > 0) { Err(CliError::Refused) } else { Ok(()) }
}

impl Arguments {
    /// What is measured with each number of ranks.
    fn cases(&self) -> Result<Vec<Case>, CliError> {
        let most = self.ranks.iter().copied().max().unwrap_or(1);
        let sizes: usize = self.sizes.iter().map(|word| word.0.len()).sum();
        if self.save.is_some() && (sizes > CollectiveCurve::MOST || self.format != ElementFormat::F32) {
            let message = "--save takes up to 16 sizes, in f32".to_owned();
            return Err(ProgramError::Usage { message }.into());
        }
        if self.algorithm.is_some() && !self.transport.contains(&Transport::Tcp) {
            let message = "--algorithm needs --transport tcp: shared memory has one way only".to_owned();
            return Err(ProgramError::Usage { message }.into());
        }
        let mut cases = Vec::new();
        for operation in self.op.iter().flat_map(|word| &word.0) {
            for bytes in self.sizes.iter().flat_map(|word| &word.0) {
                let case = Case { operation: *operation, format: self.format, ranks: most, bytes: *bytes };
                if case.count() == 0 {
                    let (bytes, format) = (case.bytes, case.format);
                    let message = format!(
                        "--sizes {bytes}: {bytes} bytes are less than one {format} for each of {most} ranks"
                    );
                    return Err(ProgramError::Usage { message }.into());
                }
                cases.push(case);
            }
        }
        Ok(cases)
    }

    /// All rank sets of one number of ranks, which take turns.
    fn measure(&self, cases: &[Case], peers: &[Installed], console: &Console) -> Result<Vec<Row>, CliError> {
        let Some(Case { ranks, .. }) = cases.first().copied() else { return Ok(Vec::new()) };
        console.say(&format!("{ranks} ranks"));
        let mut rank_sets = RankSets { ours: Vec::new(), peers: Vec::new() };
        for transport in &self.transport {
            let ours = Ours {
                transport: *transport,
                algorithm: self.algorithm,
                is_private: self.private,
                device: self.device,
            };
            rank_sets.ours.push((*transport, ours.start(ranks)?));
        }
        for peer in peers {
            rank_sets.peers.push((peer.peer(), peer.start(ranks)?));
        }
        let mut rows = Vec::new();
        for case in cases {
            console.say(&format!("{} of {}", case.operation, size_text(case.bytes)));
            rows.extend(rank_sets.measure(case, self.rounds, self.calls)?);
        }
        Ok(rows)
    }
}

struct RankSets {
    ours: Vec<(Transport, RankSet)>,
    peers: Vec<(Peer, RankSet)>,
}

impl RankSets {
    /// One row for each of our transports, all beside the same times of the peers.
    fn measure(&mut self, case: &Case, rounds: u32, calls: Option<u32>) -> Result<Vec<Row>, RankSetError> {
        let effort = case.effort(calls);
        let mut ours: Vec<Vec<Answer>> = self.ours.iter().map(|_| Vec::new()).collect();
        let mut peers: Vec<Vec<Answer>> = self.peers.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for ((_, rank_set), answers) in self.ours.iter_mut().zip(&mut ours) {
                answers.push(rank_set.measure(case, effort)?);
            }
            for ((_, rank_set), answers) in self.peers.iter_mut().zip(&mut peers) {
                answers.push(rank_set.measure(case, effort)?);
            }
        }
        let peers: Vec<(Peer, Option<Times>)> =
            self.peers.iter().zip(peers).map(|((peer, _), answers)| (*peer, Times::of(answers))).collect();
        let mut rows = Vec::new();
        for ((transport, _), answers) in self.ours.iter().zip(ours) {
            let why = answers.iter().find_map(|answer| match answer {
                Answer::Lacking(why) => Some(why.clone()),
                Answer::Measured { .. } => None,
            });
            let failed = || RankSetError::Failed {
                rank_set: "bedplate".to_owned(),
                what: format!("failed: {}", why.unwrap_or_default()),
                log: String::new(),
            };
            let ours = Times::of(answers).ok_or_else(failed)?;
            rows.push(Row { case: *case, transport: *transport, ours, peers: peers.clone() });
        }
        Ok(rows)
    }
}

/// All that one run found.
struct Found {
    rows: Vec<Row>,
    /// Bytes per second that a copy reads and writes.
    copy: f64,
    /// Before the run.
    load: Option<f64>,
    predictions: Vec<Prediction>,
}

impl Found {
    fn show(&self, console: &mut Console) -> Result<(), CliError> {
        console.table(&table(&self.rows))?;
        console.line(&machine_text(&self.rows, self.copy))?;
        console.line(&load_text(self.load))?;
        prediction::show(&self.predictions, console)?;
        show_targets(&targets(&self.rows, self.copy), console)
    }
}

/// A peer that computes something else is no peer.
fn warn_of_wrong_peers(rows: &[Row], console: &Console) {
    for row in rows {
        for (peer, times) in &row.peers {
            if times.as_ref().is_some_and(|times| times.wrong > 0) {
                let Case { operation, bytes, .. } = row.case;
                console.say(&format!("{} gave wrong numbers in {operation} of {bytes}", peer.name()));
            }
        }
    }
}

fn table(rows: &[Row]) -> Table {
    let mut columns = vec![
        Column::right("RANKS", 0),
        Column::left("OP", 0),
        Column::right("SIZE", 0),
        Column::right("COUNT", 3),
        Column::left("TYPE", 3),
        Column::left("ALGORITHM", 2),
        Column::right("TIME", 0),
        Column::right("MEDIAN", 1),
        Column::right("ALGBW", 1),
        Column::right("BUSBW", 0),
        Column::right("WRONG", 1),
    ];
    let has = |peer: Peer| rows.iter().any(|row| row.peers.iter().any(|(known, _)| *known == peer));
    for (peer, time, bandwidth, ratio) in PEER_COLUMNS {
        if has(peer) {
            columns.extend([Column::right(time, 1), Column::right(bandwidth, 2), Column::right(ratio, 0)]);
        }
    }
    let mut table = Table::new(columns);
    for row in rows {
        let mut cells = own_cells(row);
        for (peer, ..) in PEER_COLUMNS.into_iter().filter(|(peer, ..)| has(*peer)) {
            cells.extend(peer_cells(row, peer));
        }
        table.row(cells);
    }
    table
}

const PEER_COLUMNS: [(Peer, &str, &str, &str); 2] = [
    (Peer::Gloo, "GLOO", "GLOO BUSBW", "TO GLOO"),
    (Peer::Openmpi, "OPENMPI", "OPENMPI BUSBW", "TO OPENMPI"),
];

fn own_cells(row: &Row) -> Vec<String> {
    let (algorithm, bus) = row.bandwidths(&row.ours, Statistic::Best);
    let over = if row.transport == Transport::Tcp { " (tcp)" } else { "" };
    vec![
        row.case.ranks.to_string(),
        row.case.operation.to_string(),
        row.case.moved().to_string(),
        row.case.count().to_string(),
        row.case.format.to_string(),
        format!("{}{over}", row.ours.algorithm),
        time_text(row.ours.best),
        time_text(row.ours.median),
        format!("{algorithm:.3}"),
        format!("{bus:.3}"),
        row.ours.wrong.to_string(),
    ]
}

fn peer_cells(row: &Row, peer: Peer) -> [String; 3] {
    let none = || "-".to_owned();
    match (row.peer(peer), row.ratio(peer, Statistic::Best)) {
        (Some(times), Some(ratio)) => [
            time_text(times.best),
            format!("{:.3}", row.bandwidths(times, Statistic::Best).1),
            format!("{ratio:.2}x"),
        ],
        _ => [none(), none(), none()],
    }
}

/// Microseconds, as nccl-tests prints them.
fn time_text(microseconds: f64) -> String {
    if microseconds < 100.0 { format!("{microseconds:.2}") } else { format!("{microseconds:.0}") }
}

fn machine_text(rows: &[Row], copy: f64) -> String {
    let cores = Machine::this().cores;
    let mut text = format!(
        "\nTimes in us, bandwidths in GB/s. This machine: {cores} cores; a copy of 256 MB on all of them reads and writes {:.1} GB/s.",
        copy / 1e9
    );
    let mut largest: Vec<&Row> = rows.iter().filter(|row| row.bytes_moved().is_some()).collect();
    largest.sort_by_key(|row| (row.case.ranks, std::cmp::Reverse(row.case.bytes)));
    largest.dedup_by_key(|row| row.case.ranks);
    for row in largest {
        let moved = row.bytes_moved().unwrap_or(0.0) / (row.ours.best * 1e-6);
        text += &format!(
            "\nThe all-reduce of {} on {} ranks reads and writes every buffer once: {:.1} GB/s, {:.0} % of that.",
            size_text(row.case.bytes),
            row.case.ranks,
            moved / 1e9,
            100.0 * moved / copy
        );
    }
    text
}

/// Beside each other: what is to be reached, and what was.
fn show_targets(targets: &[Target], console: &mut Console) -> Result<(), CliError> {
    if targets.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::left("TARGET", 0),
        Column::right("WANTED", 0),
        Column::right("BEST", 0),
        Column::right("MEDIAN", 1),
        Column::left("AT", 1),
        Column::left("", 0),
    ]);
    for target in targets {
        table.row(vec![
            target.what.clone(),
            target.wanted_text(),
            target.figure_text(target.best),
            target.figure_text(target.median),
            target.at.clone(),
            target.verdict(),
        ]);
    }
    console.line("")?;
    console.table(&table)
}

impl Found {
    fn report(&self) -> serde_json::Value {
        let moved = |row: &Row| {
            let rate = row.bytes_moved()? / (row.ours.best * 1e-6);
            Some(json!({
                "ranks": row.case.ranks,
                "bytes": row.case.moved(),
                "moved_gb_s": rate / 1e9,
                "share_of_copy": rate / self.copy,
            }))
        };
        json!({
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "machine": {
                "cores": Machine::this().cores,
                "copy_gb_s": self.copy / 1e9,
                "load": self.load,
                "all_reduce": self.rows.iter().filter_map(moved).collect::<Vec<_>>(),
            },
            "predictions": self.predictions.iter().map(Prediction::json).collect::<Vec<_>>(),
            "targets": targets(&self.rows, self.copy).iter().map(Target::json).collect::<Vec<_>>(),
        })
    }
}
