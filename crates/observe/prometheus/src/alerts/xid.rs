//! Alerts on XIDs, from the catalog.
//!
//! A code that takes the node out of service has an alert of its own with its meaning; the others share one per action. A
//! counter that appears with its first event has no growth that `increase` could see, so an event is new when the counter
//! is larger than five minutes ago, or was not there then. Labels of jobs are summed away: the next job on a GPU is no
//! new event.

use bedplate_finding::{Action, Layer, Severity};
use bedplate_health::{Profile, XidCatalog, XidEntry};

use crate::alert::{Alert, Example};

pub(super) fn alerts(profile: Profile) -> Vec<Alert> {
    let catalog = XidCatalog::default();
    let entries = catalog.entries();
    let takes_out = |entry: &&XidEntry| entry.action(profile).takes_node_out_of_service();
    let mut alerts: Vec<Alert> =
        entries.iter().filter(takes_out).map(|entry| of_one(entry, profile)).collect();
    for action in [Action::RestartJob, Action::Alert] {
        let codes: Vec<&XidEntry> = entries.iter().filter(|entry| entry.action(profile) == action).collect();
        alerts.extend(of_many(&codes, action));
    }
    alerts
}

fn of_one(entry: &XidEntry, profile: Profile) -> Alert {
    let code = entry.xid.to_string();
    Alert {
        name: format!("GpuXid{code}"),
        rule: format!("gpu/xid-{code}"),
        expression: newly_seen(&code),
        lasts_s: 0,
        severity: Severity::Critical,
        layer: entry.layer,
        action: entry.action(profile),
        summary: format!("{PLACE}: XID {code}, {}", entry.meaning),
        why: format!("{}. NVIDIA's action is {}.", entry.mnemonic, entry.nvidia_says),
        remedy: remedy(entry.action(profile)).to_owned(),
        examples: examples(&code, "12345"),
    }
}

fn of_many(entries: &[&XidEntry], action: Action) -> Option<Alert> {
    let first = entries.first()?.xid.to_string();
    let codes: Vec<String> = entries.iter().map(|entry| entry.xid.to_string()).collect();
    let (name, severity, layer) = match action {
        Action::RestartJob => ("restart-job", Severity::Warning, Layer::Application),
        _ => ("unexpected", Severity::Warning, Layer::Hardware),
    };
    Some(Alert {
        name: crate::alert::camel_case(&format!("gpu/xid-{name}")),
        rule: format!("gpu/xid-{name}"),
        expression: newly_seen(&codes.join("|")),
        lasts_s: 0,
        severity,
        layer,
        action,
        summary: format!("{PLACE}: XID {{{{ $labels.xid }}}}"),
        why: "`bedplate health xid CODE` says what the code means.".to_owned(),
        remedy: remedy(action).to_owned(),
        examples: examples(&first, "12345"),
    })
}

const PLACE: &str = "{{ $labels.Hostname }} GPU {{ $labels.gpu }}";

fn remedy(action: Action) -> &'static str {
    match action {
        Action::Replace => "drain the node and replace it",
        Action::Reboot => "drain the node and reboot it; replace it when it happens again",
        Action::ResetDevice => "drain the node and reset the GPU; replace it when it happens again",
        Action::Drain => "drain the node and run the deep check",
        Action::RestartJob => {
            "the job starts again from its newest checkpoint; look at the GPU when another job meets the same"
        }
        Action::Record | Action::Watch | Action::Alert => {
            "`bedplate health xid CODE` says what it means; watch whether it comes again"
        }
    }
}

fn newly_seen(codes: &str) -> String {
    let total = |offset: &str| {
        format!("sum by (Hostname, gpu, xid) (DCGM_EXP_XID_ERRORS_COUNT{{xid=~\"{codes}\"}}{offset})")
    };
    let (now, before) = (total(""), total(" offset 5m"));
    format!("{now} > {before} or {now} unless {before}")
}

/// The first event of a code fires, also while the job changes; five minutes later it is no news; other codes are silent.
fn examples(code: &str, other: &str) -> Vec<Example> {
    let series = |code: &str, job: &str| {
        format!("DCGM_EXP_XID_ERRORS_COUNT{{Hostname=\"n1\",gpu=\"3\",hpc_job=\"{job}\",xid=\"{code}\"}}")
    };
    let fires = vec![
        [("Hostname", "n1"), ("gpu", "3"), ("xid", code)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
    ];
    let example =
        |series: Vec<(String, String)>, at_s, fires| Example { interval_s: 10, series, at_s, fires };
    let first = vec![(series(code, "7"), "_x6 1x60".to_owned())];
    let again = vec![(series(code, "7"), "1x60 2x60".to_owned())];
    let next_job =
        vec![(series(code, "7"), "1x60 stale".to_owned()), (series(code, "8"), "_x61 1x60".to_owned())];
    vec![
        example(first.clone(), 120, fires.clone()),
        example(first, 420, Vec::new()),
        example(again, 660, fires),
        example(next_job, 720, Vec::new()),
        example(vec![(series(other, "7"), "_x6 1x60".to_owned())], 120, Vec::new()),
    ]
}
