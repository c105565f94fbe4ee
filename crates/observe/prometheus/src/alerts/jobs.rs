//! Alerts on jobs: training by this program, serving by vLLM.

use bedplate_finding::{Action, Layer, Severity};

use super::cluster::{Written, written};
use crate::alert::Alert;

pub(super) fn alerts() -> Vec<Alert> {
    ALERTS.iter().map(written).collect()
}

const STALLED: &str = "{hpc_job=\"12\",kind=\"stall\",cause=\"network\"";
const SLOW: &str = "{hpc_job=\"12\",kind=\"slow since\",cause=\"hardware\"";
const DIVERGING: &str = "{hpc_job=\"12\",kind=\"diverging\",cause=\"application\"";
const TRAIN: &str = "{job=\"train\",instance=\"n1:9400\"";

/// Times are in steps of a minute.
const ALERTS: &[Written] = &[
    Written {
        rule: "training/stalled",
        expression: "changes(bedplate_train_steps_total[15m]) == 0 and bedplate_train_steps_total offset 15m > 0",
        lasts_s: 60,
        severity: Severity::Critical,
        layer: Layer::Application,
        action: Action::Alert,
        summary: "{{ $labels.instance }}: no step for a quarter of an hour",
        why: "Ranks wait for each other or for storage. PyTorch reports nothing before its timeout of 30 minutes.",
        remedy: "`bedplate comm flight` names the rank that did not come; look at storage and the kernel log of its node",
        bad: &[("bedplate_train_steps_total", TRAIN, "100x40")],
        good: &[("bedplate_train_steps_total", TRAIN, "100+1x40")],
        at_minute: 30,
        labels: &[("instance", "n1:9400"), ("job", "train")],
    },
    Written {
        rule: "training/slower-than-predicted",
        expression: "bedplate_train_step_seconds > 1.3 * sum by (instance, job) (bedplate_train_predicted_seconds)",
        lasts_s: 900,
        severity: Severity::Warning,
        layer: Layer::Application,
        action: Action::Alert,
        summary: "{{ $labels.instance }}: steps take more than 1.3 times the prediction",
        why: "The prediction travels with the job. What takes longer than predicted names the layer at fault.",
        remedy: "compare the parts on the dashboard of the training run, then `bedplate doctor` on the nodes",
        bad: &[
            ("bedplate_train_step_seconds", TRAIN, "2x40"),
            (
                "bedplate_train_predicted_seconds",
                "{part=\"compute\",job=\"train\",instance=\"n1:9400\"",
                "1x40",
            ),
        ],
        good: &[
            ("bedplate_train_step_seconds", TRAIN, "1.2x40"),
            (
                "bedplate_train_predicted_seconds",
                "{part=\"compute\",job=\"train\",instance=\"n1:9400\"",
                "1x40",
            ),
        ],
        at_minute: 20,
        labels: &[("instance", "n1:9400"), ("job", "train")],
    },
    Written {
        rule: "training/loss-not-finite",
        expression: "bedplate_train_loss != bedplate_train_loss or abs(bedplate_train_loss) == Inf",
        lasts_s: 0,
        severity: Severity::Critical,
        layer: Layer::Application,
        action: Action::Alert,
        summary: "{{ $labels.instance }}: the loss is not a number",
        why: "Everything computed after it is lost.",
        remedy: "stop the run; resume from the newest checkpoint before it with a lower learning rate or another seed of the data",
        bad: &[("bedplate_train_loss", TRAIN, "2 2 2 NaN NaN NaN NaN NaN NaN NaN NaN NaN")],
        good: &[("bedplate_train_loss", TRAIN, "2x15")],
        at_minute: 10,
        labels: &[("instance", "n1:9400"), ("job", "train")],
    },
    Written {
        rule: "job/stalled",
        expression: "bedplate_job_problem{kind=\"stall\"} == 1",
        lasts_s: 30,
        severity: Severity::Critical,
        layer: Layer::Application,
        action: Action::Alert,
        summary: "job {{ $labels.hpc_job }} stands still: {{ $labels.cause }}",
        why: "The control plane sees no step of a job whose steps came regularly. Its devices are paid for and idle.",
        remedy: "`bedplate diagnose JOB` names the ranks that are behind and what they wait for",
        bad: &[("bedplate_job_problem", STALLED, "0 1x10")],
        good: &[("bedplate_job_problem", SLOW, "1x10")],
        at_minute: 5,
        labels: &[("hpc_job", "12"), ("kind", "stall"), ("cause", "network")],
    },
    Written {
        rule: "job/slow",
        expression: "bedplate_job_problem{kind=~\"slow since|slower than predicted|unstable\"} == 1",
        lasts_s: 600,
        severity: Severity::Warning,
        layer: Layer::Application,
        action: Action::Alert,
        summary: "job {{ $labels.hpc_job }}: {{ $labels.kind }}, {{ $labels.cause }}",
        why: "Its steps take longer than they did, or than predicted, and the control plane is sure of it.",
        remedy: "`bedplate diagnose JOB` shows the evidence, what it costs and what to do first",
        bad: &[("bedplate_job_problem", SLOW, "1x30")],
        good: &[("bedplate_job_problem", SLOW, "1x5 _x25")],
        at_minute: 20,
        labels: &[("hpc_job", "12"), ("kind", "slow since"), ("cause", "hardware")],
    },
    Written {
        rule: "job/failing",
        expression: "bedplate_job_problem{kind=~\"crashed|diverging\"} == 1",
        lasts_s: 0,
        severity: Severity::Critical,
        layer: Layer::Application,
        action: Action::Alert,
        summary: "job {{ $labels.hpc_job }}: {{ $labels.kind }}, {{ $labels.cause }}",
        why: "Its ranks printed errors of a crash, or its loss is no number any more: what it computes from here on is lost.",
        remedy: "`bedplate diagnose JOB` names the first error and whose it was",
        bad: &[("bedplate_job_problem", DIVERGING, "1x10")],
        good: &[("bedplate_job_problem", SLOW, "1x10")],
        at_minute: 5,
        labels: &[("hpc_job", "12"), ("kind", "diverging"), ("cause", "application")],
    },
    Written {
        rule: "serving/queue",
        expression: "avg_over_time(vllm:num_requests_waiting[5m]) > 2 * avg_over_time(vllm:num_requests_running[5m]) and vllm:num_requests_waiting > 10",
        lasts_s: 300,
        severity: Severity::Warning,
        layer: Layer::Application,
        action: Action::Alert,
        summary: "{{ $labels.instance }}: more requests wait than can run",
        why: "The replica takes in more than it can serve; time to first token grows without bound.",
        remedy: "add replicas (`bedplate plan serve` counts them), or refuse requests earlier",
        bad: &[
            ("vllm:num_requests_waiting", "{instance=\"n1:8000\"", "100x40"),
            ("vllm:num_requests_running", "{instance=\"n1:8000\"", "32x40"),
        ],
        good: &[
            ("vllm:num_requests_waiting", "{instance=\"n1:8000\"", "20x40"),
            ("vllm:num_requests_running", "{instance=\"n1:8000\"", "32x40"),
        ],
        at_minute: 20,
        labels: &[("instance", "n1:8000")],
    },
    Written {
        rule: "serving/cache-full",
        expression: "min_over_time(vllm:kv_cache_usage_perc[5m]) > 0.98",
        lasts_s: 300,
        severity: Severity::Warning,
        layer: Layer::Application,
        action: Action::Alert,
        summary: "{{ $labels.instance }}: the KV cache is full",
        why: "Requests are preempted and computed again.",
        remedy: "lower the number of sequences, use an 8-bit cache, or add replicas",
        bad: &[("vllm:kv_cache_usage_perc", "{instance=\"n1:8000\"", "1x40")],
        good: &[("vllm:kv_cache_usage_perc", "{instance=\"n1:8000\"", "0.9x40")],
        at_minute: 20,
        labels: &[("instance", "n1:8000")],
    },
];
