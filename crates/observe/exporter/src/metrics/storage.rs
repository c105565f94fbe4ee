//! Metrics of storage: Lustre under the names of lustre_exporter, disks and file systems under those of node_exporter.

use super::table;

/// A mounted Lustre file system.
const LUSTRE_LABELS: &[&str] = &["component", "target", "Hostname"];
/// One operation of it.
const OPERATION_LABELS: &[&str] = &["component", "target", "operation", "Hostname"];
/// A target of it, as its client sees it.
const TARGET_LABELS: &[&str] = &["component", "target", "type", "Hostname"];
const DISK_LABELS: &[&str] = &["device", "Hostname"];
const MOUNT_LABELS: &[&str] = &["device", "fstype", "mountpoint", "Hostname"];

table! { STORAGE:
    LUSTRE_READ_BYTES "lustre_read_bytes_total" Counter LUSTRE_LABELS
        "Bytes read."
    LUSTRE_WRITE_BYTES "lustre_write_bytes_total" Counter LUSTRE_LABELS
        "Bytes written."
    LUSTRE_READ_SAMPLES "lustre_read_samples_total" Counter LUSTRE_LABELS
        "Reads."
    LUSTRE_WRITE_SAMPLES "lustre_write_samples_total" Counter LUSTRE_LABELS
        "Writes."
    LUSTRE_READ_MAXIMUM "lustre_read_maximum_size_bytes" Gauge LUSTRE_LABELS
        "Largest read."
    LUSTRE_WRITE_MAXIMUM "lustre_write_maximum_size_bytes" Gauge LUSTRE_LABELS
        "Largest write."
    LUSTRE_STATS "lustre_stats_total" Counter OPERATION_LABELS
        "Operations of this kind."
    LUSTRE_STATS_SECONDS "bedplate_lustre_operation_seconds_total" Counter OPERATION_LABELS
        "Time spent in operations of this kind."
    LUSTRE_RPCS_IN_FLIGHT "lustre_rpcs_in_flight" Gauge TARGET_LABELS
        "Requests to a target that are not answered yet."
    LUSTRE_PENDING_PAGES "bedplate_lustre_pending_pages" Gauge TARGET_LABELS
        "Pages that wait to be sent to a target."
    LUSTRE_IMPORT_FULL "bedplate_lustre_target_connected" Gauge TARGET_LABELS
        "Whether the connection to a target is in full use."
    DISK_READ_BYTES "node_disk_read_bytes_total" Counter DISK_LABELS
        "Bytes read."
    DISK_WRITTEN_BYTES "node_disk_written_bytes_total" Counter DISK_LABELS
        "Bytes written."
    DISK_READS "node_disk_reads_completed_total" Counter DISK_LABELS
        "Reads completed."
    DISK_WRITES "node_disk_writes_completed_total" Counter DISK_LABELS
        "Writes completed."
    DISK_READ_SECONDS "node_disk_read_time_seconds_total" Counter DISK_LABELS
        "Time that reads took, added up."
    DISK_WRITE_SECONDS "node_disk_write_time_seconds_total" Counter DISK_LABELS
        "Time that writes took, added up."
    DISK_BUSY_SECONDS "node_disk_io_time_seconds_total" Counter DISK_LABELS
        "Time in which the disk had something to do."
    NVME_LIVE "bedplate_nvme_live" Gauge DISK_LABELS
        "Whether the NVMe controller works: its state is live."
    NVME_TEMPERATURE "bedplate_nvme_temperature_celsius" Gauge DISK_LABELS
        "Temperature of the NVMe controller."
    FILESYSTEM_SIZE "node_filesystem_size_bytes" Gauge MOUNT_LABELS
        "Size of the file system."
    FILESYSTEM_AVAILABLE "node_filesystem_avail_bytes" Gauge MOUNT_LABELS
        "Space that users have left."
    FILESYSTEM_FILES_FREE "node_filesystem_files_free" Gauge MOUNT_LABELS
        "Files that can still be made."
    FILESYSTEM_READONLY "node_filesystem_readonly" Gauge MOUNT_LABELS
        "Whether the file system is mounted read-only."
    MOUNT_STALLED_SECONDS "bedplate_mount_stalled_seconds" Gauge MOUNT_LABELS
        "How long the file system has not answered; 0 when it answers."
}
