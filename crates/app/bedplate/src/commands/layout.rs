//! `bedplate layout LAYOUT`

use bedplate_layout::{Batch, Dimension, Layout, LayoutRefusal, RankMap, Sharding};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console, length};
use serde_json::{Value, json};

use crate::models::load;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate layout dp8.tp4.pp2
  bedplate layout tp8.dp16.pp4.sp --model llama-3.1-70b --gpus 512
  bedplate layout dp64.ep8 --model mixtral-8x7b --seq 4096 --global-batch 512

Parts, in any order: dp (data), tp (tensor), sp (sequence parallel), cp (context), pp (pipeline),
vpp (virtual stages), ep (expert), etp (expert tensor), zero1, zero2, zero3 or fsdp, hsdpN, mb
(micro-batch), recompute-selective, recompute-full, fp32, bf16, fp16, fp8, fp4.")]
pub(crate) struct Arguments {
    /// A layout such as dp8.tp4.pp2
    layout: String,
    /// Check it against a model: a built-in name, a config.json or its folder
    #[arg(long, value_name = "NAME|FILE")]
    model: Option<String>,
    /// Check that it uses exactly this many GPUs
    #[arg(long)]
    gpus: Option<u64>,
    /// Tokens per sequence, for the rules of the batch
    #[arg(long, requires = "global_batch", requires = "model", value_parser = length::<u64>(100_000_000))]
    seq: Option<u64>,
    /// Sequences per step, for the rules of the batch
    #[arg(long, requires = "seq", requires = "model")]
    global_batch: Option<u64>,
}

/// Dimensions with the names that users know.
const DIMENSIONS: [(&str, Dimension); 7] = [
    ("tensor", Dimension::Tensor),
    ("context", Dimension::Context),
    ("data", Dimension::Data),
    ("pipeline", Dimension::Pipeline),
    ("expert", Dimension::Expert),
    ("expert tensor", Dimension::ExpertTensor),
    ("expert copies", Dimension::ExpertData),
];

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let layout: Layout = arguments.layout.parse()?;
    let refusals = refusals(&layout, arguments)?;
    let map = RankMap::new(&layout).ok();
    if console.is_json() {
        console.json(&layout_json(&layout, map.as_ref(), &refusals))?;
        return verdict(&refusals);
    }
    let mut facts = Facts::default();
    facts.add("GPUs", layout.world().to_string()).add("sharding", sharding_text(&layout));
    for refusal in &refusals {
        facts.add("refused", refusal.to_string());
    }
    if refusals.is_empty() {
        facts.add("legal", legality(arguments));
    }
    console.text(&format!("{layout}\n{}", facts.render(console.width())))?;
    if let Some(map) = map {
        console.line("")?;
        console.table(&group_table(&map))?;
    }
    verdict(&refusals)
}

/// A layout that cannot be used is a refusal, and the exit code says so.
fn verdict(refusals: &[LayoutRefusal]) -> Result<(), CliError> {
    if refusals.is_empty() { Ok(()) } else { Err(CliError::Refused) }
}

fn sharding_text(layout: &Layout) -> String {
    let what = match layout.sharding {
        Sharding::None => return "none; every data rank holds all weights and states".into(),
        Sharding::Optimizer => "optimizer states",
        Sharding::Gradients => "gradients and optimizer states",
        Sharding::Weights | Sharding::WeightsWithin(_) => "weights, gradients and optimizer states",
    };
    format!("{what} over {} ranks", layout.shard_ranks())
}

fn refusals(layout: &Layout, arguments: &Arguments) -> Result<Vec<LayoutRefusal>, CliError> {
    let batch = arguments.seq.zip(arguments.global_batch);
    let batch = batch.map(|(sequence, global_batch)| Batch { sequence, global_batch });
    Ok(match &arguments.model {
        Some(name) => layout.refusals(&load(name)?, arguments.gpus, batch),
        None => layout.refusals_without_model(arguments.gpus),
    })
}

fn legality(arguments: &Arguments) -> String {
    match &arguments.model {
        Some(model) => format!("yes, for {model}"),
        None => "as far as the layout alone can tell; add --model to check heads, layers and experts".into(),
    }
}

fn group_table(map: &RankMap) -> Table {
    let mut table = Table::new(vec![
        Column::left("DIMENSION", 0),
        Column::right("SIZE", 0),
        Column::right("GROUPS", 1),
        Column::left("GROUP OF RANK 0", 0),
    ]);
    for (name, dimension) in DIMENSIONS {
        let size = map.size(dimension);
        let is_trivial = dimension == Dimension::ExpertData && map.size(Dimension::Expert) == 1;
        if size > 1 && !is_trivial {
            let group = first_group(map, dimension);
            table.row(vec![name.into(), size.to_string(), (map.world() / size).to_string(), group]);
        }
    }
    if table.is_empty() {
        table.row(vec!["data".into(), "1".into(), "1".into(), "0".into()]);
    }
    table
}

/// The first ranks of the group; a long list ends with the last rank.
fn first_group(map: &RankMap, dimension: Dimension) -> String {
    let ranks: Vec<String> = map.group(dimension, 0).ranks().map(|rank| rank.to_string()).collect();
    match ranks.as_slice() {
        [first @ .., last] if first.len() > 5 => format!("{} … {last}", first[..4].join(" ")),
        short => short.join(" "),
    }
}

fn layout_json(layout: &Layout, map: Option<&RankMap>, refusals: &[LayoutRefusal]) -> Value {
    let groups = |map: &RankMap| {
        let group = |(name, dimension): (&str, Dimension)| {
            let group = map.group(dimension, 0);
            (name.replace(' ', "_"), json!({ "size": group.size, "stride": group.stride }))
        };
        Value::Object(DIMENSIONS.into_iter().map(group).collect())
    };
    json!({
        "layout": layout.to_string(),
        "gpus": layout.world(),
        "shard_ranks": layout.shard_ranks(),
        "is_legal": refusals.is_empty(),
        "refusals": refusals.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "groups": map.map(groups),
    })
}
