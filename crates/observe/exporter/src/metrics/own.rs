//! What the exporter says about itself, and what it finds.

use super::table;

const COLLECTOR_LABELS: &[&str] = &["collector", "Hostname"];
const TARGET_LABELS: &[&str] = &["target", "hpc_job", "rank", "Hostname"];
const FINDING_LABELS: &[&str] = &["rule", "severity", "layer", "action", "subject", "Hostname"];

table! { OWN:
    COLLECTOR_UP "bedplate_collector_up" Gauge COLLECTOR_LABELS
        "Whether the last reading of a collector succeeded."
    COLLECTOR_SECONDS "bedplate_collector_seconds_total" Counter COLLECTOR_LABELS
        "Time that readings took, added up."
    COLLECTOR_ERRORS "bedplate_collector_errors_total" Counter COLLECTOR_LABELS
        "Readings that failed."
    TARGET_UP "bedplate_target_up" Gauge TARGET_LABELS
        "Whether the metrics of a rank could be read."
    FINDING "bedplate_finding" Gauge FINDING_LABELS
        "A finding that is open: 1."
    FINDINGS_TOTAL "bedplate_findings_total" Counter FINDING_LABELS
        "Findings since the exporter started."
}
