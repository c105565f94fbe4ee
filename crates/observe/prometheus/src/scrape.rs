//! How Prometheus finds the nodes: by a list, by Slurm's hosts, by Kubernetes, by EC2; and remote writing to Amazon's service.

use bedplate_document::quote;

use crate::alert::duration;

/// The port of `bedplate export`.
pub const PORT: u16 = 9400;

/// Where the nodes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeDiscovery {
    /// Named here, with or without a port.
    Static(Vec<String>),
    /// A file that something keeps current; `bedplate scrape-config --targets` writes one.
    File(String),
    /// Instances of EC2 with a tag, which also gives their type as a label.
    Ec2 { region: String, tag: String, value: String },
    /// Pods, by a PodMonitor of the Prometheus operator.
    Kubernetes { namespace: String },
}

/// What Prometheus scrapes, and where it sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scrape {
    pub finding: NodeDiscovery,
    pub interval_s: u64,
    /// The daemon of our own cluster, as host:port.
    pub daemon: Option<String>,
    /// Replicas of vLLM, as host:port.
    pub serving: Vec<String>,
    /// Training runs with `output.metrics_address`, as host:port.
    pub training: Vec<String>,
    /// A workspace of Amazon Managed Service for Prometheus: its remote write address and region.
    pub remote_write: Option<(String, String)>,
    pub rule_files: Vec<String>,
    /// Alertmanager, as host:port.
    pub alertmanager: Option<String>,
}

impl Default for Scrape {
    fn default() -> Self {
        Self {
            finding: NodeDiscovery::Static(Vec::new()),
            interval_s: 15,
            daemon: None,
            serving: Vec::new(),
            training: Vec::new(),
            remote_write: None,
            rule_files: Vec::new(),
            alertmanager: None,
        }
    }
}

impl Scrape {
    /// `prometheus.yml`, or a PodMonitor for Kubernetes.
    pub fn to_yaml(&self) -> String {
        match &self.finding {
            NodeDiscovery::Kubernetes { namespace } => pod_monitor(namespace, self.interval_s),
            _ => self.prometheus(),
        }
    }

    fn prometheus(&self) -> String {
        let interval = duration(self.interval_s);
        let mut text = format!(
            "# Made by `bedplate scrape-config`.\nglobal:\n  scrape_interval: {interval}\n  evaluation_interval: {interval}\n"
        );
        text += &self.rules_and_alerts();
        text += "scrape_configs:\n";
        text += &self.nodes();
        if let Some(daemon) = &self.daemon {
            text += &job("bedplate-daemon", std::slice::from_ref(daemon));
            // The token is for the daemon of this certificate alone.
            text += "    scheme: https\n    tls_config:\n      ca_file: /etc/prometheus/bedplate.pem\n      server_name: bedplate\n";
            text += "    authorization:\n      credentials_file: /etc/prometheus/bedplate.token\n";
        }
        for (name, targets) in [("bedplate-serving", &self.serving), ("bedplate-training", &self.training)] {
            if !targets.is_empty() {
                text += &job(name, targets);
            }
        }
        text + &self.remote()
    }

    fn rules_and_alerts(&self) -> String {
        let mut text = String::new();
        if !self.rule_files.is_empty() {
            text += "rule_files:\n";
            self.rule_files.iter().for_each(|file| text += &format!("  - {}\n", quote::yaml(file)));
        }
        if let Some(alertmanager) = &self.alertmanager {
            text += &format!(
                "alerting:\n  alertmanagers:\n    - static_configs:\n        - targets: [{}]\n",
                quote::yaml(alertmanager)
            );
        }
        text
    }

    fn nodes(&self) -> String {
        match &self.finding {
            NodeDiscovery::Static(targets) => {
                job("bedplate", &targets.iter().map(|it| with_port(it)).collect::<Vec<_>>())
            }
            NodeDiscovery::File(path) => {
                format!(
                    "  - job_name: \"bedplate\"\n    file_sd_configs:\n      - files: [{}]\n",
                    quote::yaml(path)
                )
            }
            NodeDiscovery::Ec2 { region, tag, value } => ec2(region, tag, value),
            NodeDiscovery::Kubernetes { .. } => String::new(),
        }
    }

    fn remote(&self) -> String {
        let Some((url, region)) = &self.remote_write else { return String::new() };
        format!(
            "remote_write:\n  - url: {}\n    sigv4:\n      region: {}\n    queue_config:\n      max_samples_per_send: 1000\n      max_shards: 200\n      capacity: 2500\n",
            quote::yaml(url),
            quote::yaml(region)
        )
    }
}

/// A node's address with the exporter's port where it has none.
pub fn with_port(target: &str) -> String {
    let has_port = target.rsplit_once(':').is_some_and(|(host, port)| {
        port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
    });
    match has_port {
        true => target.to_owned(),
        false if target.contains(':') && !target.starts_with('[') => format!("[{target}]:{PORT}"),
        false => format!("{target}:{PORT}"),
    }
}

/// Targets for `file_sd_configs`, as JSON: of Slurm's nodes, for example.
pub fn targets_file(nodes: &[String], labels: &[(String, String)]) -> String {
    let targets: Vec<String> = nodes.iter().map(|node| with_port(node)).collect();
    let labels: serde_json::Map<String, serde_json::Value> =
        labels.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    format!("{:#}\n", serde_json::json!([{ "targets": targets, "labels": labels }]))
}

fn job(name: &str, targets: &[String]) -> String {
    let targets: Vec<String> = targets.iter().map(|target| quote::yaml(target)).collect();
    format!(
        "  - job_name: {}\n    static_configs:\n      - targets: [{}]\n",
        quote::yaml(name),
        targets.join(", ")
    )
}

fn ec2(region: &str, tag: &str, value: &str) -> String {
    let label = tag.replace(|character: char| !character.is_ascii_alphanumeric(), "_");
    format!(
        "  - job_name: \"bedplate\"\n    ec2_sd_configs:\n      - region: {}\n        port: {PORT}\n        filters:\n          - name: {}\n            values: [{}]\n          - name: \"instance-state-name\"\n            values: [\"running\"]\n    relabel_configs:\n      - source_labels: [__meta_ec2_instance_type]\n        target_label: instance_type\n      - source_labels: [__meta_ec2_instance_id]\n        target_label: instance_id\n      - source_labels: [__meta_ec2_availability_zone]\n        target_label: availability_zone\n      - source_labels: [__meta_ec2_tag_{label}]\n        target_label: cluster\n",
        quote::yaml(region),
        quote::yaml(&format!("tag:{tag}")),
        quote::yaml(value),
    )
}

/// For the Prometheus operator: pods of the DaemonSet that runs `bedplate export`, and pods of training and serving by a label.
fn pod_monitor(namespace: &str, interval_s: u64) -> String {
    let interval = duration(interval_s);
    let monitor = |name: &str, label: &str, port: &str, relabel: &str| {
        format!(
            "---\napiVersion: monitoring.coreos.com/v1\nkind: PodMonitor\nmetadata:\n  name: {name}\n  namespace: {}\n  labels:\n    app.kubernetes.io/part-of: bedplate\nspec:\n  namespaceSelector:\n    any: true\n  selector:\n    matchLabels:\n      {label}\n  podMetricsEndpoints:\n    - port: {port}\n      path: /metrics\n      interval: {interval}\n      relabelings:\n{relabel}",
            quote::yaml(namespace)
        )
    };
    let by_node = "        - sourceLabels: [__meta_kubernetes_pod_node_name]\n          targetLabel: node\n";
    let by_job = "        - sourceLabels: [__meta_kubernetes_pod_label_jobset_sigs_k8s_io_jobset_name]\n          targetLabel: hpc_job\n";
    monitor("bedplate-export", "app.kubernetes.io/name: bedplate-export", "metrics", by_node)
        + &monitor("bedplate-train", "bedplate/metrics: train", "metrics", by_job)
        + &monitor("bedplate-serve", "bedplate/metrics: serve", "http", by_job)
}
