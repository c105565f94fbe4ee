//! Network cards by sysfs: EFA under AWS's names, InfiniBand and RoCE under those of node_exporter.

use std::path::Path;
use std::sync::Arc;

use crate::collectors::{Collector, Failed};
use crate::metrics::Metric;
use crate::metrics::network as metric;
use crate::root::{Root, list, number, read, read_number};
use crate::series::{Naming, SeriesBatch, Spot};

const CARDS: &str = "sys/class/infiniband";
const EFA_PREFIX: &str = "node_amazonefa_";

/// Files below `ports/N` of InfiniBand cards. Data is counted in words of four bytes.
const COUNTERS: [(&str, &Metric, f64); 16] = [
    ("counters/port_xmit_data", &metric::IB_PORT_DATA_TRANSMITTED_BYTES_TOTAL, 4.0),
    ("counters/port_rcv_data", &metric::IB_PORT_DATA_RECEIVED_BYTES_TOTAL, 4.0),
    ("counters/port_xmit_packets", &metric::IB_PORT_PACKETS_TRANSMITTED_TOTAL, 1.0),
    ("counters/port_rcv_packets", &metric::IB_PORT_PACKETS_RECEIVED_TOTAL, 1.0),
    ("counters/port_xmit_wait", &metric::IB_PORT_TRANSMIT_WAIT_TOTAL, 1.0),
    ("counters/port_rcv_errors", &metric::IB_PORT_ERRORS_RECEIVED_TOTAL, 1.0),
    ("counters/port_xmit_discards", &metric::IB_PORT_DISCARDS_TRANSMITTED_TOTAL, 1.0),
    ("counters/symbol_error", &metric::IB_SYMBOL_ERROR_TOTAL, 1.0),
    ("counters/link_downed", &metric::IB_LINK_DOWNED_TOTAL, 1.0),
    ("counters/link_error_recovery", &metric::IB_LINK_ERROR_RECOVERY_TOTAL, 1.0),
    ("counters/local_link_integrity_errors", &metric::IB_LOCAL_LINK_INTEGRITY_ERRORS_TOTAL, 1.0),
    ("counters/port_xmit_constraint_errors", &metric::IB_PORT_CONSTRAINT_ERRORS_TRANSMITTED_TOTAL, 1.0),
    ("hw_counters/out_of_sequence", &metric::IB_OUT_OF_SEQUENCE_TOTAL, 1.0),
    ("hw_counters/packet_seq_err", &metric::IB_PACKET_SEQUENCE_ERR_TOTAL, 1.0),
    ("hw_counters/local_ack_timeout_err", &metric::IB_LOCAL_ACK_TIMEOUT_ERR_TOTAL, 1.0),
    ("hw_counters/roce_adp_retrans", &metric::IB_ROCE_ADP_RETRANS_TOTAL, 1.0),
];

pub(crate) struct Ports {
    root: Root,
    naming: Naming,
}

impl Ports {
    pub(crate) fn new(root: Root, naming: Naming) -> Self {
        Self { root, naming }
    }

    fn port(&self, card: &str, port: &str, folder: &Path, to: &mut SeriesBatch) {
        let labels = self.naming.labels(&[("device", card), ("port", port)]);
        let spot = Spot::Card(card.into());
        match is_efa(folder) {
            true => efa(folder, &labels, &spot, to),
            false => infiniband(folder, &labels, &spot, to),
        }
    }
}

impl Collector for Ports {
    fn name(&self) -> &'static str {
        "network"
    }

    fn collect(&mut self, to: &mut SeriesBatch) -> Result<(), Failed> {
        for card in self.root.list(CARDS) {
            let ports = self.root.path(&format!("{CARDS}/{card}/ports"));
            for port in list(&ports) {
                self.port(&card, &port, &ports.join(&port), to);
            }
        }
        Ok(())
    }
}

/// EFA's counters are its own: no other card has this one.
fn is_efa(folder: &Path) -> bool {
    folder.join("hw_counters/send_wrs").exists() || folder.join("hw_counters/completed_cmds").exists()
}

fn efa(folder: &Path, labels: &Arc<str>, spot: &Spot, to: &mut SeriesBatch) {
    let counters = metric::NETWORK.iter().filter(|metric| metric.name.starts_with(EFA_PREFIX));
    for metric in counters {
        let file = folder.join("hw_counters").join(&metric.name[EFA_PREFIX.len()..]);
        if let Some(value) = read_number(&file) {
            to.put(metric, labels, spot, value);
        }
    }
}

fn infiniband(folder: &Path, labels: &Arc<str>, spot: &Spot, to: &mut SeriesBatch) {
    for (file, metric, factor) in COUNTERS {
        if let Some(value) = read_number(&folder.join(file)) {
            to.put(metric, labels, spot, value * factor);
        }
    }
    if let Some(state) = read(&folder.join("state")).as_deref().and_then(state_id) {
        to.put(&metric::IB_STATE_ID, labels, spot, state);
    }
    if let Some(rate) = read(&folder.join("rate")).as_deref().and_then(bytes_per_second) {
        to.put(&metric::IB_RATE, labels, spot, rate);
    }
}

/// The number in `4: ACTIVE`.
pub fn state_id(text: &str) -> Option<f64> {
    number(text.split(':').next()?)
}

/// The rate in `400 Gb/sec (4X NDR)`.
pub fn bytes_per_second(text: &str) -> Option<f64> {
    let gigabits = number(text.split_whitespace().next()?)?;
    Some(gigabits * 1e9 / 8.0).filter(|rate| rate.is_finite())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn states_and_rates_are_read_as_the_kernel_writes_them(state in 0u32..8, rate in 1u32..2000) {
            prop_assert_eq!(state_id(&format!("{state}: ACTIVE\n")), Some(f64::from(state)));
            let read = bytes_per_second(&format!("{rate} Gb/sec (4X NDR)\n"));
            prop_assert_eq!(read, Some(f64::from(rate) * 1.25e8));
        }

        #[test]
        fn arbitrary_bytes_never_harm(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let text = String::from_utf8_lossy(&bytes);
            let read = [state_id(&text), bytes_per_second(&text)];
            prop_assert!(read.iter().flatten().all(|value| value.is_finite()));
        }
    }
}
