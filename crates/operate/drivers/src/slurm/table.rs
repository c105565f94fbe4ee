//! Jobs from the tables that `squeue --Format` and `sacct --parsable2` print.
//!
//! Fields are separated by a character that no name has, and moments are asked for in seconds since 1970.

use bedplate_document::slurm;

use super::job::{Array, Exit, JobRecord, node_names};
use super::value::resource;

/// Between fields.
pub(super) const SEPARATOR: char = '\x1f';

/// The fields of `squeue --Format`, as every version since 20.11 names them.
pub(super) const QUEUE: [&str; 25] = [
    "jobid",
    "arrayjobid",
    "arraytaskid",
    "name",
    "username",
    "account",
    "partition",
    "qos",
    "state",
    "reason",
    "submittime",
    "starttime",
    "endtime",
    "timelimit",
    "prioritylong",
    "restartcnt",
    "exit_code",
    "numnodes",
    "tres-alloc",
    "numtasks",
    "nodelist",
    "stdout",
    "stderr",
    "workdir",
    "comment",
];

/// The fields of `sacct --format`.
pub(super) const HISTORY: [&str; 22] = [
    "JobIDRaw",
    "JobID",
    "JobName",
    "User",
    "Account",
    "Partition",
    "QOS",
    "State",
    "ExitCode",
    "Submit",
    "Start",
    "End",
    "TimelimitRaw",
    "NNodes",
    "ReqTRES",
    "AllocTRES",
    "NodeList",
    "Comment",
    "WorkDir",
    "Priority",
    "Reason",
    "ElapsedRaw",
];

/// What `--Format` takes.
pub(super) fn queue_format() -> String {
    QUEUE.map(|field| format!("{field}:{SEPARATOR}")).join(",")
}

/// The jobs of `squeue`. A line that is none is an error, with the line.
pub(super) fn read_queue(text: &str) -> Result<Vec<JobRecord>, String> {
    rows(text, QUEUE.len()).map(|fields| fields.and_then(|fields| queue_row(&fields))).collect()
}

/// The jobs of `sacct`; a job that was requeued has a row for each run.
pub(super) fn read_history(text: &str) -> Result<Vec<JobRecord>, String> {
    rows(text, HISTORY.len()).map(|fields| fields.and_then(|fields| history_row(&fields))).collect()
}

fn rows(text: &str, count: usize) -> impl Iterator<Item = Result<Vec<&str>, String>> {
    text.lines().filter(|line| !line.trim().is_empty()).map(move |line| {
        let fields: Vec<&str> = line.split(SEPARATOR).map(str::trim).collect();
        match fields.len() >= count {
            true => Ok(fields),
            false => Err(format!("a row has {} fields instead of {count}: {}", fields.len(), shown(line))),
        }
    })
}

fn queue_row(fields: &[&str]) -> Result<JobRecord, String> {
    let get = |name: &str| QUEUE.iter().position(|known| *known == name).map_or("", |at| known(fields[at]));
    let id =
        get("jobid").parse().map_err(|_| format!("`{}` is not the number of a job", shown(get("jobid"))))?;
    let nodes_asked = get("numnodes").split('-').next().and_then(|count| count.parse().ok()).unwrap_or(1);
    Ok(JobRecord {
        id,
        array: queue_array(get("arrayjobid"), get("arraytaskid")),
        name: get("name").to_owned(),
        user: get("username").to_owned(),
        account: get("account").to_owned(),
        partition: get("partition").to_owned(),
        qos: get("qos").to_owned(),
        comment: get("comment").to_owned(),
        states: vec![get("state").to_owned()],
        reason: get("reason").to_owned(),
        description: String::new(),
        submitted_s: seconds(get("submittime")),
        started_s: seconds(get("starttime")),
        ended_s: seconds(get("endtime")),
        limit_min: minutes(get("timelimit")),
        priority: get("prioritylong").parse().ok(),
        restarts: get("restartcnt").parse().unwrap_or(0),
        exit: get("exit_code").parse().ok().map(Exit::from_wait),
        nodes_asked,
        gpus_asked: resource(get("tres-alloc"), "gres/gpu").unwrap_or(0),
        resources: get("tres-alloc").to_owned(),
        tasks: get("numtasks").parse().unwrap_or(1).max(1),
        nodes: node_names(get("nodelist")),
        devices: Vec::new(),
        stdout: get("stdout").to_owned(),
        stderr: get("stderr").to_owned(),
        directory: get("workdir").to_owned(),
        dependency: String::new(),
    })
}

fn history_row(fields: &[&str]) -> Result<JobRecord, String> {
    let get = |name: &str| HISTORY.iter().position(|known| *known == name).map_or("", |at| known(fields[at]));
    let raw = get("JobIDRaw");
    let id = raw.parse().map_err(|_| format!("`{}` is not the number of a job", shown(raw)))?;
    let asked = if get("AllocTRES").is_empty() { get("ReqTRES") } else { get("AllocTRES") };
    Ok(JobRecord {
        id,
        array: history_array(get("JobID")),
        name: get("JobName").to_owned(),
        user: get("User").to_owned(),
        account: get("Account").to_owned(),
        partition: get("Partition").to_owned(),
        qos: get("QOS").to_owned(),
        comment: get("Comment").to_owned(),
        states: vec![get("State").to_ascii_uppercase()],
        reason: get("Reason").to_owned(),
        description: String::new(),
        submitted_s: seconds(get("Submit")),
        started_s: seconds(get("Start")),
        ended_s: seconds(get("End")),
        limit_min: get("TimelimitRaw").parse().ok(),
        priority: get("Priority").parse().ok(),
        restarts: 0,
        exit: Exit::from_pair(get("ExitCode")),
        nodes_asked: get("NNodes").parse().unwrap_or(0),
        gpus_asked: resource(asked, "gres/gpu").unwrap_or(0),
        resources: asked.to_owned(),
        tasks: 1,
        nodes: node_names(get("NodeList")),
        devices: Vec::new(),
        stdout: String::new(),
        stderr: String::new(),
        directory: get("WorkDir").to_owned(),
        dependency: String::new(),
    })
}

/// Slurm's words for nothing.
fn known(text: &str) -> &str {
    if ["N/A", "(null)", "Unknown", "NONE", "None assigned"].contains(&text) { "" } else { text }
}

/// `12` and `3`, or `12` and `0-3%2` while the tasks wait; a job outside arrays is its own array without a task.
fn queue_array(array: &str, task: &str) -> Option<Array> {
    let job = array.parse().ok()?;
    match (task, task.parse()) {
        ("", _) => None,
        (_, Ok(task)) => Some(Array { job, task: Some(task), waiting: String::new() }),
        (list, Err(_)) => Some(Array { job, task: None, waiting: list.trim_matches(['[', ']']).to_owned() }),
    }
}

/// `12_3` or `12_[0-3%2]`.
fn history_array(label: &str) -> Option<Array> {
    let (array, task) = label.split_once('_')?;
    queue_array(array, task)
}

fn seconds(text: &str) -> Option<u64> {
    text.parse().ok().filter(|seconds| *seconds > 0)
}

/// Slurm's `days-hours:minutes:seconds` and shorter forms, in whole minutes; nothing without an end.
pub(super) fn minutes(text: &str) -> Option<u64> {
    slurm::seconds(text).ok().map(|seconds| seconds.div_ceil(60))
}

fn shown(text: &str) -> String {
    bedplate_diag::shown(&text.replace(SEPARATOR, "|"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobState;

    fn row(fields: &[&str]) -> String {
        fields.join(&SEPARATOR.to_string())
    }

    #[test]
    fn a_row_of_squeue_is_a_job() {
        let text = row(&[
            "1012",
            "1010",
            "3",
            "a|b c",
            "ada",
            "lab",
            "main",
            "normal",
            "RUNNING",
            "None",
            "1794809415",
            "1794809416",
            "1794810016",
            "10:00",
            "43466",
            "1",
            "0",
            "2",
            "cpu=2,node=2,gres/gpu=16",
            "8",
            "n[1-2]",
            "/tmp/%j.out",
            "/tmp/%j.out",
            "/tmp",
            "x y",
        ]);
        let jobs = read_queue(&format!("{text}\n")).unwrap();
        let summary = jobs[0].summary();
        assert_eq!((summary.id.as_str(), summary.label.as_str()), ("1010_3", "1010_3"));
        assert_eq!((summary.life.state, summary.life.runs, summary.gpus_asked), (JobState::Running, 2, 16));
        assert_eq!(summary.nodes, ["n1".into(), "n2".into()]);
        assert_eq!((jobs[0].limit_min, summary.ends_ms), (Some(10), Some(1_794_810_016_000)));
        assert!(read_queue("slurm is tired\n").unwrap_err().contains("1 fields"));
    }

    #[test]
    fn a_row_of_sacct_is_a_job_that_has_ended() {
        let text = row(&[
            "7",
            "7",
            "wrap",
            "ada",
            "lab",
            "main",
            "normal",
            "CANCELLED by 1000",
            "0:15",
            "10",
            "20",
            "30",
            "60",
            "2",
            "cpu=2,node=2,gres/gpu=16",
            "cpu=2,node=2,gres/gpu=16",
            "n[1-2]",
            "mine",
            "/tmp",
            "5",
            "None",
            "10",
        ]);
        let job = read_history(&text).unwrap().remove(0);
        let summary = job.summary();
        assert_eq!((summary.life.state, summary.life.runs), (JobState::Cancelled, 1));
        assert_eq!(summary.life.reason.unwrap().text, "it was cancelled by user number 1000");
        assert_eq!((summary.life.ended_ms, summary.life.exit_status), (Some(30_000), None));
        assert!(summary.nodes.is_empty());
        assert_eq!(history_array("12_[0-3%2]").unwrap().waiting, "0-3%2");
    }

    #[test]
    fn limits_are_whole_minutes() {
        for (text, expected) in [("10:00", Some(10)), ("0:30", Some(1)), ("UNLIMITED", None), ("", None)] {
            assert_eq!(minutes(text), expected, "{text}");
        }
    }
}
