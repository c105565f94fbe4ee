//! A submission as slurmrestd takes it: the options of the script as fields, in the names and forms of its version.

use serde_json::{Map, Value, json};

use super::error::SlurmError;
use super::openapi::{Form, OpenApi};
use super::table::minutes;
use super::transport::Submission;
use crate::DriverError;

/// How the value of an option is read.
#[derive(Clone, Copy)]
enum Reads {
    Text,
    Number,
    /// `2` or `2-4`.
    Nodes,
    /// Slurm's time in minutes.
    Minutes,
    /// `64G` in MiB.
    Mebibytes,
    /// `h100:8`, of each of something.
    Gpus,
    Yes,
    No,
    /// `a,b` where a list is taken.
    Names,
    /// A moment: `now+60`, `uts1794809099`.
    Moment,
    Exclusive,
    /// `1@00:10`.
    Switches,
    OpenMode,
}

/// Options of sbatch, how their values are read, and the names of the field, the older one first where both exist.
const OPTIONS: &[(&str, Reads, &[&str])] = &[
    ("job-name", Reads::Text, &["name"]),
    ("account", Reads::Text, &["account"]),
    ("partition", Reads::Text, &["partition"]),
    ("qos", Reads::Text, &["qos"]),
    ("reservation", Reads::Text, &["reservation"]),
    ("constraint", Reads::Text, &["constraints"]),
    ("prefer", Reads::Text, &["prefer"]),
    ("licenses", Reads::Text, &["licenses"]),
    ("wckey", Reads::Text, &["wckey"]),
    ("mail-user", Reads::Text, &["mail_user"]),
    ("mail-type", Reads::Names, &["mail_type"]),
    ("dependency", Reads::Text, &["dependency"]),
    ("array", Reads::Text, &["array"]),
    ("output", Reads::Text, &["standard_output"]),
    ("error", Reads::Text, &["standard_error"]),
    ("input", Reads::Text, &["standard_input"]),
    ("chdir", Reads::Text, &["current_working_directory"]),
    ("signal", Reads::Text, &["signal"]),
    ("container", Reads::Text, &["container"]),
    ("cpus-per-gpu", Reads::Text, &["cpus_per_gpu"]),
    ("nodes", Reads::Nodes, &["nodes"]),
    ("ntasks", Reads::Number, &["tasks"]),
    ("ntasks-per-node", Reads::Number, &["tasks_per_node"]),
    ("ntasks-per-socket", Reads::Number, &["tasks_per_socket"]),
    ("ntasks-per-core", Reads::Number, &["tasks_per_core"]),
    ("cpus-per-task", Reads::Number, &["cpus_per_task"]),
    ("threads-per-core", Reads::Number, &["threads_per_core"]),
    ("nice", Reads::Number, &["nice"]),
    ("priority", Reads::Number, &["priority"]),
    ("time", Reads::Minutes, &["time_limit"]),
    ("time-min", Reads::Minutes, &["time_minimum"]),
    ("mem", Reads::Mebibytes, &["memory_per_node"]),
    ("mem-per-cpu", Reads::Mebibytes, &["memory_per_cpu"]),
    ("mem-per-gpu", Reads::Mebibytes, &["memory_per_gpu"]),
    ("gpus-per-node", Reads::Gpus, &["gpus_per_node", "tres_per_node"]),
    ("gpus-per-task", Reads::Gpus, &["gpus_per_task", "tres_per_task"]),
    ("gpus", Reads::Gpus, &["gpus", "tres_per_job"]),
    ("gres", Reads::Text, &["gres", "tres_per_node"]),
    ("hold", Reads::Yes, &["hold"]),
    ("requeue", Reads::Yes, &["requeue"]),
    ("no-requeue", Reads::No, &["requeue"]),
    ("no-kill", Reads::Yes, &["no_kill"]),
    ("no-kill", Reads::No, &["kill_on_node_fail"]),
    ("kill-on-invalid-dep", Reads::Yes, &["kill_on_invalid_dependency"]),
    ("contiguous", Reads::Yes, &["contiguous"]),
    ("spread-job", Reads::Yes, &["spread_job"]),
    ("exclusive", Reads::Exclusive, &["exclusive", "shared"]),
    ("oversubscribe", Reads::Yes, &["oversubscribe"]),
    ("nodelist", Reads::Names, &["required_nodes"]),
    ("exclude", Reads::Names, &["excluded_nodes"]),
    ("begin", Reads::Moment, &["begin_time"]),
    ("switches", Reads::Switches, &["required_switches"]),
    ("open-mode", Reads::OpenMode, &["open_mode"]),
];
/// Options that say nothing about the job, or what is handed over otherwise.
const ELSEWHERE: [&str; 6] = ["export", "comment", "parsable", "wait", "quiet", "verbose"];

/// The body of a submission. An option for which this version has no field is an error: nothing is dropped.
pub(super) fn body(submission: &Submission, api: &OpenApi, now_s: u64) -> Result<Value, DriverError> {
    let mut job = Map::new();
    for (option, value) in submission.options.iter().filter(|(name, _)| !ELSEWHERE.contains(&name.as_str())) {
        add(&mut job, option, value.as_deref(), api, now_s)?;
    }
    job.insert("comment".into(), submission.comment.clone().into());
    job.insert("environment".into(), environment(submission, api));
    if !job.contains_key("current_working_directory") {
        job.insert("current_working_directory".into(), submission.directory.clone().into());
    }
    // Without the number of tasks some versions give a job one node, whatever it asks for.
    if let (Some(nodes), Some(each)) =
        (job.get("minimum_nodes").and_then(Value::as_u64), job.get("tasks_per_node").and_then(Value::as_u64))
        && !job.contains_key("tasks")
    {
        job.insert("tasks".into(), (nodes * each).into());
    }
    let script = submission.script.clone();
    Ok(match api.field(&["script"]) {
        Some(_) => {
            job.insert("script".into(), script.into());
            json!({ "job": job })
        }
        None => json!({ "script": script, "job": job }),
    })
}

fn environment(submission: &Submission, api: &OpenApi) -> Value {
    let pairs = submission.environment.iter();
    match api.field(&["environment"]) {
        Some((_, Form::List)) => pairs.map(|(name, value)| Value::from(format!("{name}={value}"))).collect(),
        _ => pairs
            .map(|(name, value)| (name.clone(), Value::from(value.clone())))
            .collect::<Map<_, _>>()
            .into(),
    }
}

fn add(
    job: &mut Map<String, Value>,
    option: &str,
    value: Option<&str>,
    api: &OpenApi,
    now_s: u64,
) -> Result<(), DriverError> {
    let rows = OPTIONS.iter().filter(|(name, ..)| *name == option);
    let found = rows.filter_map(|(_, reads, names)| Some((*reads, api.field(names)?))).next();
    let Some((reads, (name, form))) = found else {
        return Err(SlurmError::NoField { option: option.to_owned(), version: api.version.clone() }.into());
    };
    let text = value.unwrap_or_default();
    let wrong = |reason: &str| -> DriverError {
        let (option, value) = (option.to_owned(), bedplate_diag::shown(text));
        SlurmError::Option { option, value, reason: reason.to_owned() }.into()
    };
    let number = |parsed: Option<u64>, reason: &str| {
        parsed.map(|number| numbered(number, form)).ok_or_else(|| wrong(reason))
    };
    let value = match reads {
        Reads::Text => Value::from(text),
        Reads::Number if text.starts_with('-') => {
            text.parse::<i64>().map(Value::from).map_err(|_| wrong("it is not a number"))?
        }
        Reads::Number => number(text.parse().ok(), "it is not a number")?,
        Reads::Minutes => number(minutes(text), "it is not a time")?,
        Reads::Mebibytes => number(mebibytes(text), "it is not a size")?,
        Reads::Moment => number(moment(text, now_s), "it is not `now+SECONDS` or `utsSECONDS`")?,
        Reads::Yes => Value::from(true),
        Reads::No => Value::from(false),
        Reads::Gpus if name.starts_with("tres") => joined(job.get(name), &format!("gres/gpu:{text}")),
        Reads::Gpus => Value::from(text),
        Reads::Names if form == Form::List => names(text),
        Reads::Names => Value::from(text),
        Reads::Exclusive => exclusive(text, form),
        Reads::OpenMode if form == Form::List => json!([text.to_ascii_uppercase()]),
        Reads::OpenMode => Value::from(text),
        Reads::Switches => {
            let (count, longest) = text.split_once('@').unwrap_or((text, ""));
            if let Some(seconds) = minutes(longest).filter(|_| !longest.is_empty()) {
                job.insert("maximum_switch_wait_time".into(), (seconds * 60).into());
            }
            number(count.parse().ok(), "it is not a number of switches")?
        }
        Reads::Nodes => {
            let range = node_range(text).ok_or_else(|| wrong("it is not a number of nodes"))?;
            job.insert("minimum_nodes".into(), range.0.into());
            if api.field(&["maximum_nodes"]).is_some() {
                job.insert("maximum_nodes".into(), range.1.into());
            }
            if form == Form::List {
                json!([range.0, range.1])
            } else {
                Value::from(format!("{}-{}", range.0, range.1))
            }
        }
    };
    let value = if option == "gres" { joined(job.get(name), text) } else { value };
    job.insert(name.to_owned(), value);
    Ok(())
}

fn numbered(number: u64, form: Form) -> Value {
    match form {
        Form::OptionalNumber => json!({ "set": true, "infinite": false, "number": number }),
        Form::Text => Value::from(number.to_string()),
        _ => Value::from(number),
    }
}

/// Two options may add to one field.
fn joined(known: Option<&Value>, more: &str) -> Value {
    match known.and_then(Value::as_str) {
        Some(known) => format!("{known},{more}").into(),
        None => more.into(),
    }
}

/// Host lists stay whole; commas outside brackets separate.
fn names(text: &str) -> Value {
    super::value::split_outside_brackets(text).map(Value::from).collect()
}

fn exclusive(text: &str, form: Form) -> Value {
    match (form, text) {
        (Form::List, "") => json!(["none"]),
        (Form::List, word) => json!([word]),
        (Form::Truth, _) => Value::from(true),
        (_, "") => Value::from("exclusive"),
        (_, word) => Value::from(word),
    }
}

fn node_range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn mebibytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    Some(match text[digits.len()..].trim_end_matches(['B', 'b']).to_ascii_uppercase().as_str() {
        "K" => number.div_ceil(1024),
        "" | "M" => number,
        "G" => number.checked_mul(1024)?,
        "T" => number.checked_mul(1 << 20)?,
        _ => return None,
    })
}

fn moment(text: &str, now_s: u64) -> Option<u64> {
    if let Some(seconds) = text.strip_prefix("uts") {
        return seconds.parse().ok();
    }
    let after = text.strip_prefix("now")?;
    let Some(after) = after.strip_prefix('+') else { return after.is_empty().then_some(now_s) };
    let digits = after.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &after[digits.len()..] {
        "" | "seconds" | "second" => 1,
        "minutes" | "minute" => 60,
        "hours" | "hour" => 3600,
        "days" | "day" => 86_400,
        "weeks" | "week" => 604_800,
        _ => return None,
    };
    now_s.checked_add(digits.parse::<u64>().ok()?.checked_mul(unit)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::slurm::openapi::tests::{new, old};

    fn submission(options: &[(&str, Option<&str>)]) -> Submission {
        let owned = |(name, value): &(&str, Option<&str>)| ((*name).to_owned(), value.map(str::to_owned));
        Submission {
            script: "#!/bin/sh\n".into(),
            options: options.iter().map(owned).collect(),
            comment: "bedplate key=x".into(),
            environment: BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]),
            directory: "/tmp".into(),
        }
    }

    const JOB: &[(&str, Option<&str>)] = &[
        ("job-name", Some("a")),
        ("nodes", Some("2")),
        ("ntasks-per-node", Some("4")),
        ("gpus-per-node", Some("h100:8")),
        ("time", Some("1-00:00:00")),
        ("mem", Some("64G")),
        ("exclusive", None),
        ("no-requeue", None),
        ("no-kill", None),
        ("begin", Some("now+2hours")),
        ("open-mode", Some("append")),
        ("comment", Some("mine")),
        ("export", Some("ALL")),
    ];

    #[test]
    fn one_job_is_written_in_the_fields_of_the_old_version() {
        let body = body(&submission(JOB), &old(), 1000).unwrap();
        assert_eq!(
            body,
            json!({ "script": "#!/bin/sh\n", "job": {
                "name": "a", "minimum_nodes": 2, "nodes": [2, 2], "tasks_per_node": 4, "gpus_per_node": "h100:8", "time_limit": 1440,
                "memory_per_node": 65536, "exclusive": "exclusive", "requeue": false, "no_kill": true, "begin_time": 8200, "open_mode": "append",
                "comment": "bedplate key=x", "environment": { "PATH": "/bin" }, "current_working_directory": "/tmp", "tasks": 8,
            } })
        );
    }

    #[test]
    fn and_in_those_of_a_newer_one() {
        let body = body(&submission(JOB), &new(), 1000).unwrap();
        let number = |number: u64| json!({ "set": true, "infinite": false, "number": number });
        assert_eq!(
            body,
            json!({ "job": {
                "name": "a", "minimum_nodes": 2, "maximum_nodes": 2, "nodes": "2-2", "tasks_per_node": 4, "tres_per_node": "gres/gpu:h100:8",
                "time_limit": number(1440), "memory_per_node": number(65536), "shared": ["none"], "requeue": false, "kill_on_node_fail": false,
                "begin_time": number(8200), "open_mode": ["APPEND"], "comment": "bedplate key=x", "environment": ["PATH=/bin"],
                "current_working_directory": "/tmp", "tasks": 8, "script": "#!/bin/sh\n",
            } })
        );
    }

    #[test]
    fn what_has_no_field_or_no_meaning_is_refused() {
        let code = |options: &[(&str, Option<&str>)], api: &OpenApi| {
            bedplate_diag::Diagnostic::page(&body(&submission(options), api, 0).unwrap_err()).code
        };
        assert_eq!(code(&[("nodelist", Some("n1,n[3-4]"))], &old()), "slurm/no-field");
        assert_eq!(code(&[("container-image", Some("x"))], &new()), "slurm/no-field");
        assert_eq!(code(&[("time", Some("soon"))], &new()), "slurm/option");
        let found = body(&submission(&[("nodelist", Some("n1,n[3-4]"))]), &new(), 0).unwrap();
        assert_eq!(found["job"]["required_nodes"], json!(["n1", "n[3-4]"]));
    }
}
