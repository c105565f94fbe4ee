//! The comparison as tables and as JSON.

use std::collections::BTreeMap;

use bedplate_calibrate::serving::Beside;
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_units::grouped;
use serde_json::{Map, Value, json};

use super::peer::Compared;

/// Kinds of rows in the order shown, with their titles.
const KINDS: [(&str, &str); 4] =
    [("rows", "ROWS OF"), ("gpu", "GPU"), ("kind", "MODEL AND ENGINE"), ("model", "MODEL AND GPU")];

pub(super) fn text(compared: &Compared, console: &mut Console) -> Result<(), CliError> {
    let (report, time) = (&compared.report, &compared.time);
    let count = |rows: usize| grouped(rows as u64);
    let mut facts = Facts::default();
    facts
        .add(
            "rows",
            format!(
                "{}, of which {} say enough to be predicted",
                count(report.asked + compared.skipped),
                count(report.asked)
            ),
        )
        .add(
            "bedplate",
            format!("predicts {}, in {:.2} ms of CPU time each", count(report.asked), time.ours * 1e3),
        )
        .add(
            &format!("aiconfigurator {}", compared.about.version),
            format!(
                "predicts {}, in {:.1} ms each, {:.0} ms with starting and reading its tables",
                count(report.answered),
                time.peer * 1e3,
                time.peer_from_start * 1e3
            ),
        );
    console.text(&format!("errors on the same measured rows\n{}", facts.render(console.width())))?;
    for (kind, title) in KINDS {
        console.line("")?;
        console.table(&table(title, &report.by[kind]))?;
    }
    console.line(&format!(
        "\nits database also has {}, where no row was measured",
        compared.unmeasured.join(", ")
    ))?;
    for (reason, rows) in &compared.refused {
        console.say(&format!("no answer of the peer for {rows}: {reason}"));
    }
    console.say(&format!(
        "{} answers of the peer are filled in where kernels were not measured, {} warn of users who wait for room",
        compared.filled, compared.queued
    ));
    Ok(())
}

/// Three lines a group, one for each prediction.
fn table(title: &'static str, groups: &BTreeMap<String, Beside>) -> Table {
    let mut columns = vec![Column::left(title, 0), Column::right("ROWS", 0), Column::left("PREDICTED BY", 0)];
    columns.extend(Column::errors_of_serving());
    let mut table = Table::new(columns);
    for (name, group) in groups {
        let both = group.peer.inter_token.rows;
        let rows = if both == group.rows { both.to_string() } else { format!("{both} of {}", group.rows) };
        if both == 0 {
            let mut cells = vec![name.clone(), rows, "bedplate alone".to_owned()];
            cells.resize(9, "-".to_owned());
            table.row(cells);
            continue;
        }
        for (by, scores, name, rows) in [
            ("bedplate, source held out", &group.held_out, name.as_str(), rows.as_str()),
            ("bedplate, fitted to it", &group.fitted, "", ""),
            ("aiconfigurator", &group.peer, "", ""),
        ] {
            let mut cells = vec![name.to_owned(), rows.to_owned(), by.to_owned()];
            for score in [scores.inter_token, scores.throughput, scores.first_token] {
                cells.push(format!("{:.1}%", score.median_abs_error * 100.0));
                cells.push(format!("{:.0}%", score.p90_abs_error * 100.0));
            }
            table.row(cells);
        }
    }
    table
}

pub(super) fn json(compared: &Compared) -> Value {
    let (report, time) = (&compared.report, &compared.time);
    let groups = |groups: &BTreeMap<String, Beside>| {
        Value::Object(groups.iter().map(|(name, group)| (name.clone(), group_json(group))).collect())
    };
    let by: Map<String, Value> =
        report.by.iter().map(|(kind, of)| ((*kind).to_owned(), groups(of))).collect();
    json!({
        "peer": {
            "name": "aiconfigurator",
            "version": compared.about.version,
            "systems": compared.about.systems,
            "systems_without_rows": compared.unmeasured,
        },
        "rows_asked": report.asked,
        "rows_answered_by_peer": report.answered,
        "rows_skipped": compared.skipped,
        "refused_by_peer": compared.refused,
        "filled_by_peer": compared.filled,
        "queued_by_peer": compared.queued,
        "cpu_s_per_prediction": {
            "bedplate": time.ours,
            "peer": time.peer,
            "peer_from_start": time.peer_from_start,
        },
        "by": by,
    })
}

fn group_json(group: &Beside) -> Value {
    json!({
        "rows": group.rows,
        "rows_of_both": group.peer.inter_token.rows,
        "left_out": group.held_out.json(),
        "fitted": group.fitted.json(),
        "peer": group.peer.json(),
    })
}
