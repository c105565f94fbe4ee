//! `bedplate doctor --cluster`: every node examines itself in a small job, and the odd ones out are shown.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bedplate_catalog::Catalog;
use bedplate_doctor::{Check, CheckVerdict, Difference, NodeFacts, differences, examine, worst};
use bedplate_drivers::{Driver, Errand, ErrandOptions, NodeSummary, NotBrought, Sent};
use bedplate_terminal::present::{Column, Table, printable_line};
use bedplate_terminal::{CliError, Console};
use serde_json::{Value, json};

use super::{Arguments, DoctorError, page, verdicts};

/// Different reasons that are told when no node was examined.
const MOST_REASONS: usize = 3;

/// A node, and what became of its examination.
struct Examined {
    node: String,
    outcome: Result<(NodeFacts, Vec<Check>), String>,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let slurm = arguments.connection.slurm()?;
    let is_slurm = slurm.is_some();
    let driver: Box<dyn Driver> = match slurm {
        Some(slurm) => Box::new(slurm),
        None => arguments.connection.driver()?,
    };
    let own =
        || std::env::current_exe().map_or_else(|_| "bedplate".to_owned(), |path| path.display().to_string());
    let options = ErrandOptions {
        name: "doctor",
        program: arguments.program.clone().unwrap_or_else(own),
        patience: Duration::from_secs(arguments.patience),
        partition: arguments.partition.clone(),
        account: arguments.account.clone(),
    };
    let errand = Errand::new(&*driver, is_slurm, options).map_err(|source| DoctorError::Folder { source })?;
    let examined = examine_all(&errand, arguments, catalog, &*driver)?;
    drop(errand);
    console.say_notes(driver.remarks());
    let known: Vec<NodeFacts> =
        examined.iter().filter_map(|it| Some(it.outcome.as_ref().ok()?.0.clone())).collect();
    let odd = differences(&known);
    if console.is_json() {
        console.json(&report(&examined, &odd))?;
    } else {
        show(&examined, &odd, console)?;
    }
    let fails = examined
        .iter()
        .filter_map(|it| it.outcome.as_ref().ok())
        .any(|(_, checks)| worst(checks) == CheckVerdict::Fail);
    if fails { Err(CliError::Refused) } else { Ok(()) }
}

/// Every node with what came back of it; at least one was examined.
fn examine_all(
    errand: &Errand<'_>,
    arguments: &Arguments,
    catalog: &Catalog,
    driver: &dyn Driver,
) -> Result<Vec<Examined>, CliError> {
    let send = |node: &NodeSummary| {
        errand.send(node, &["doctor", "--facts", "--node", node.name.as_str(), "--root", &arguments.root])
    };
    let sent: Vec<Sent> = driver.nodes()?.iter().map(send).collect();
    let deadline = Instant::now() + Duration::from_secs(arguments.patience);
    let read: Vec<(String, Result<NodeFacts, NotBrought>)> = sent
        .into_iter()
        .map(|sent| {
            let node = sent.node.clone();
            let facts = errand.collect(sent, deadline, NodeFacts::find_in).map(|brought| {
                if brought.may_hide_gpus { brought.value.with_hidden_gpus() } else { brought.value }
            });
            (node, facts)
        })
        .collect();
    if read.iter().all(|(_, facts)| facts.is_err()) {
        return Err(nothing(&read, errand).into());
    }
    let judged = |facts: NodeFacts| {
        let checks = examine(&facts, catalog, arguments.like.as_deref()).checks;
        (facts, checks)
    };
    let examined = |(node, facts): (String, Result<NodeFacts, NotBrought>)| Examined {
        node,
        outcome: facts.map(judged).map_err(|why| printable_line(&why.to_string())),
    };
    Ok(read.into_iter().map(examined).collect())
}

/// Why no node was examined: what most likely has one remedy for all of them comes first.
fn nothing(read: &[(String, Result<NodeFacts, NotBrought>)], errand: &Errand<'_>) -> DoctorError {
    let reasons = || read.iter().filter_map(|(node, facts)| Some((node, facts.as_ref().err()?)));
    let without = reasons().filter(|(_, why)| matches!(why, NotBrought::NoProgram { .. })).count();
    if without > 0 {
        return DoctorError::NoProgram { program: errand.program().to_owned(), nodes: without };
    }
    let mut told = BTreeSet::new();
    let different = reasons().filter(|(_, why)| told.insert(printable_line(&why.to_string())));
    let why: Vec<String> = different
        .take(MOST_REASONS)
        .map(|(node, why)| format!("{node}: {}", printable_line(&why.to_string())))
        .collect();
    let why = if why.is_empty() { "it has none".to_owned() } else { why.join("; ") };
    DoctorError::NoNodes { why }
}

fn show(examined: &[Examined], odd: &[Difference], console: &mut Console) -> Result<(), CliError> {
    let mut table = Table::new(vec![
        Column::left("NODE", 0),
        Column::left("VERDICT", 0),
        Column::right("FAIL", 1),
        Column::right("WARN", 1),
        Column::right("PASS", 2),
        Column::left("FIRST FLAW", 0),
    ]);
    for it in examined {
        table.row(match &it.outcome {
            Err(why) => vec![
                it.node.clone(),
                "not examined".into(),
                String::new(),
                String::new(),
                String::new(),
                why.clone(),
            ],
            Ok((_, checks)) => row(&it.node, checks),
        });
    }
    console.table(&table)?;
    show_odd(odd, console)?;
    let mut shown: Vec<&str> = Vec::new();
    for check in flaws(examined).filter(|check| check.verdict == CheckVerdict::Fail) {
        if !shown.contains(&check.rule.as_str()) {
            shown.push(&check.rule);
            console.line(&format!("\non {}", nodes_with(examined, &check.rule).join(", ")))?;
            console.text(&page::checks(std::slice::from_ref(check), console.width()))?;
        }
    }
    Ok(())
}

fn row(node: &str, checks: &[Check]) -> Vec<String> {
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count().to_string();
    let first =
        checks.iter().filter(|check| check.verdict != CheckVerdict::Pass).max_by_key(|check| check.verdict);
    vec![
        node.to_owned(),
        worst(checks).to_string(),
        count(CheckVerdict::Fail),
        count(CheckVerdict::Warn),
        count(CheckVerdict::Pass),
        first.map_or_else(String::new, |check| check.found.clone()),
    ]
}

fn show_odd(odd: &[Difference], console: &mut Console) -> Result<(), CliError> {
    if odd.is_empty() {
        return console.line("\nall nodes are alike");
    }
    console.line("\nodd ones out")?;
    for difference in odd {
        let nodes: Vec<String> =
            difference.odd.iter().map(|it| format!("{} has {}", it.node, it.has)).collect();
        console.line(&format!(
            "  {}: most have {}; {}",
            difference.what,
            difference.most,
            nodes.join(", ")
        ))?;
    }
    Ok(())
}

fn flaws(examined: &[Examined]) -> impl Iterator<Item = &Check> {
    let checks = examined.iter().filter_map(|it| it.outcome.as_ref().ok()).flat_map(|(_, checks)| checks);
    checks.filter(|check| check.verdict != CheckVerdict::Pass)
}

fn nodes_with<'a>(examined: &'a [Examined], rule: &str) -> Vec<&'a str> {
    let has = |it: &&Examined| {
        let checks = it.outcome.as_ref().map(|(_, checks)| checks.as_slice()).unwrap_or_default();
        checks.iter().any(|check| check.rule == rule && check.verdict == CheckVerdict::Fail)
    };
    examined.iter().filter(has).map(|it| it.node.as_str()).collect()
}

fn report(examined: &[Examined], odd: &[Difference]) -> Value {
    let node = |it: &Examined| match &it.outcome {
        Err(why) => json!({ "node": it.node, "verdict": null, "not_examined": why }),
        Ok((_, checks)) => json!({
            "node": it.node, "verdict": worst(checks), "counts": verdicts(checks), "checks": checks,
        }),
    };
    json!({ "nodes": examined.iter().map(node).collect::<Vec<_>>(), "odd_ones_out": odd })
}
