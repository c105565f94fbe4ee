//! `bedplate plan budget`: which model for the money.

use bedplate_catalog::{Catalog, Purchase};
use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_goodput::GoodputError;
use bedplate_search::{BudgetPlan, Means, budget};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console, choice};
use bedplate_units::{Count, DollarRate, Dollars, FlopRate, Seconds, Tokens};
use serde_json::json;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate plan budget --dollars '$1M' --instance p5.48xlarge --purchase capacity-block
  bedplate plan budget --gpu-hours 100000 --instance p5en.48xlarge --mfu 0.45

Kaplan's and Chinchilla's laws disagree about how to split computation between
parameters and tokens, so each is named with its source. The loss is on the
law's own data.")]
pub(crate) struct Arguments {
    /// The budget in dollars
    #[arg(long, conflicts_with = "gpu_hours", required_unless_present = "gpu_hours")]
    dollars: Option<Dollars>,
    /// The budget in GPU-hours, instead of dollars
    #[arg(long, value_name = "HOURS", value_parser = hours)]
    gpu_hours: Option<f64>,
    /// The machine it runs on
    #[arg(long)]
    instance: String,
    /// Share of the bf16 peak that training reaches; take it from `plan train`
    #[arg(long, default_value_t = 0.4)]
    mfu: f64,
    #[arg(long, value_parser = choice(&Purchase::ALL), default_value = "on-demand")]
    purchase: Purchase,
    /// Only prices of this region
    #[arg(long)]
    region: Option<String>,
}

/// A count such as `100000` or `1M`.
fn hours(text: &str) -> Result<f64, String> {
    text.parse().map(Tokens::get).map_err(|_| "write a number such as 100000 or 1M".into())
}

#[derive(Debug, thiserror::Error)]
#[error("an MFU of {mfu} is not between 0 and 1")]
struct ImpossibleMfu {
    mfu: f64,
}

pub(super) static IMPOSSIBLE_MFU: Page = Page {
    code: "plan/impossible-mfu",
    class: Class::User,
    meaning: "Model FLOPs utilisation is the share of the peak that training reaches; 0.3 to 0.5 is usual.",
    remedy: "give a share above 0 and at most 1, such as `--mfu 0.4`",
};

impl Diagnostic for ImpossibleMfu {
    fn page(&self) -> &'static Page {
        &IMPOSSIBLE_MFU
    }
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    if !(arguments.mfu > 0.0 && arguments.mfu <= 1.0) {
        return Err(ImpossibleMfu { mfu: arguments.mfu }.into());
    }
    let instance = catalog.instance(&arguments.instance)?;
    let accelerator = catalog.accelerator_of(instance);
    let peak = accelerator.peaks.bf16.unwrap_or(FlopRate::ZERO);
    let means = match (arguments.gpu_hours, arguments.dollars) {
        (Some(hours), _) => Means::GpuTime(Seconds::hours(hours)),
        (None, dollars) => {
            Means::Money { dollars: dollars.unwrap_or_default(), per_gpu: price_per_gpu(arguments, catalog)? }
        }
    };
    let plan = budget(means, peak * arguments.mfu)?;
    if console.is_json() {
        return console.json(&plan_json(&plan));
    }
    let mut facts = Facts::default();
    facts
        .add("buys", format!("{} GPU-hours of {}", Count(plan.gpu_time.as_hours() as u64), accelerator.name))
        .add("which is", format!("{} at {:.0}% of {peak}", plan.compute, arguments.mfu * 100.0));
    console.text(&facts.render(console.width()))?;
    console.line("")?;
    let mut table = Table::new(vec![
        Column::left("LAW", 0),
        Column::right("PARAMETERS", 0),
        Column::right("TOKENS", 0),
        Column::right("LOSS", 0),
        Column::left("SOURCE", 1),
    ]);
    for optimum in &plan.optima {
        table.row(vec![
            optimum.law.name().into(),
            Count(optimum.parameters as u64).to_string(),
            Count(optimum.tokens.get() as u64).to_string(),
            optimum.loss.map(|loss| format!("{loss:.3}")).unwrap_or_default(),
            optimum.law.source().into(),
        ]);
    }
    console.table(&table)
}

fn price_per_gpu(arguments: &Arguments, catalog: &Catalog) -> Result<DollarRate, CliError> {
    let instance = catalog.instance(&arguments.instance)?;
    let price = instance.prices.newest(arguments.purchase, arguments.region.as_deref());
    let price = price.ok_or_else(|| GoodputError::UnknownPrice {
        machine: instance.name.clone(),
        purchase: arguments.purchase.name(),
    })?;
    Ok(price.per_hour / f64::from(instance.accelerators))
}

fn plan_json(plan: &BudgetPlan) -> serde_json::Value {
    let optima = plan.optima.iter().map(|optimum| {
        json!({
            "law": optimum.law.name(),
            "source": optimum.law.source(),
            "parameters": optimum.parameters,
            "tokens": optimum.tokens.get(),
            "loss": optimum.loss,
        })
    });
    json!({
        "gpu_hours": plan.gpu_time.as_hours(),
        "flops": plan.compute.get(),
        "optima": optima.collect::<Vec<_>>(),
    })
}
