//! `bedplate doctor --cluster`: every node examines itself in a small job, and the odd ones out are shown.

use std::thread;
use std::time::{Duration, Instant};

use bedplate_catalog::Catalog;
use bedplate_doctor::{Check, Difference, Facts, Verdict, differences, examine, worst};
use bedplate_drivers::{Driver, JobId, JobOrder, LogQuery, NodeState, NodeSummary};
use bedplate_job::{Gang, Job, Role, Workload};
use serde_json::{Value, json};

use super::{Arguments, DoctorError, page, verdicts};
use crate::commands::submit::submit_here;
use crate::console::Console;
use crate::present::{Column, Table};
use crate::stop::Stop;

/// A node, and what became of its examination.
struct Examined {
    node: String,
    outcome: Result<(Facts, Vec<Check>), String>,
}

/// A job that examines a node.
struct Sent {
    node: String,
    job: Result<JobId, String>,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), Stop> {
    let driver = arguments.connection.driver()?;
    let nodes = driver.nodes()?;
    let sent: Vec<Sent> = nodes.iter().map(|node| send(node, arguments, &*driver)).collect();
    let deadline = Instant::now() + Duration::from_secs(arguments.patience);
    let facts: Vec<(String, Result<Facts, String>)> =
        sent.into_iter().map(|sent| (sent.node.clone(), collect(sent, &*driver, deadline))).collect();
    let examined: Vec<Examined> = facts
        .into_iter()
        .map(|(node, facts)| Examined { node, outcome: facts.map(|facts| judged(facts, arguments, catalog)) })
        .collect();
    let known: Vec<Facts> =
        examined.iter().filter_map(|it| Some(it.outcome.as_ref().ok()?.0.clone())).collect();
    if known.is_empty() {
        return Err(DoctorError::NoNodes.into());
    }
    let odd = differences(&known);
    if console.is_json() {
        console.json(&report(&examined, &odd))?;
    } else {
        show(&examined, &odd, console)?;
    }
    let fails = examined
        .iter()
        .filter_map(|it| it.outcome.as_ref().ok())
        .any(|(_, checks)| worst(checks) == Verdict::Fail);
    if fails { Err(Stop::Refused) } else { Ok(()) }
}

fn judged(facts: Facts, arguments: &Arguments, catalog: &Catalog) -> (Facts, Vec<Check>) {
    let checks = examine(&facts, catalog, arguments.like.as_deref()).checks;
    (facts, checks)
}

/// Only nodes that take work are asked; a job for another one would wait for ever.
fn send(node: &NodeSummary, arguments: &Arguments, driver: &dyn Driver) -> Sent {
    let name = node.name.to_string();
    let takes_work = matches!(node.state, NodeState::Idle | NodeState::Allocated | NodeState::Planned);
    let job = match takes_work {
        false => Err(format!("it is {}", node.state.name())),
        true => submit_here(job(&name, arguments), driver).map_err(|stop| stop.summary()),
    };
    Sent { node: name, job: job.map(|submitted| submitted.id) }
}

fn job(node: &str, arguments: &Arguments) -> Job {
    let program =
        std::env::current_exe().map_or_else(|_| "bedplate".to_owned(), |path| path.display().to_string());
    let words = [program.as_str(), "doctor", "--facts", "--node", node, "--root", &arguments.root];
    let role = Role { nodes: 1, ..Role::named(Role::ONLY) };
    let mut job = Job::new("doctor", Workload::command(words), Gang::of(role));
    job.placement.only_nodes = vec![node.to_owned()];
    job
}

/// The facts that the job printed, or why there are none.
fn collect(sent: Sent, driver: &dyn Driver, deadline: Instant) -> Result<Facts, String> {
    let id = sent.job?;
    loop {
        let job = driver.job(&id).map_err(|error| error.to_string())?.summary;
        if job.state.is_final() {
            break;
        }
        if Instant::now() >= deadline {
            let _ = driver.order(&id, JobOrder::Cancel);
            return Err(format!("its job {} did not end in time: {}", job.label, job.state.name()));
        }
        thread::sleep(driver.pause().min(Duration::from_millis(200)));
    }
    let mut text = Vec::new();
    driver.logs(&id, &LogQuery::default(), &mut text).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| format!("its job printed no facts: {error}"))
}

fn show(examined: &[Examined], odd: &[Difference], console: &mut Console) -> Result<(), Stop> {
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
    for check in flaws(examined).filter(|check| check.verdict == Verdict::Fail) {
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
        checks.iter().filter(|check| check.verdict != Verdict::Pass).max_by_key(|check| check.verdict);
    vec![
        node.to_owned(),
        worst(checks).to_string(),
        count(Verdict::Fail),
        count(Verdict::Warn),
        count(Verdict::Pass),
        first.map_or_else(String::new, |check| check.found.clone()),
    ]
}

fn show_odd(odd: &[Difference], console: &mut Console) -> Result<(), Stop> {
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
    checks.filter(|check| check.verdict != Verdict::Pass)
}

fn nodes_with<'a>(examined: &'a [Examined], rule: &str) -> Vec<&'a str> {
    let has = |it: &&Examined| {
        let checks = it.outcome.as_ref().map(|(_, checks)| checks.as_slice()).unwrap_or_default();
        checks.iter().any(|check| check.rule == rule && check.verdict == Verdict::Fail)
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
