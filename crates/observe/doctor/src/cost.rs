//! What a flaw costs, by the performance model: the same step predicted with and without it.
//!
//! The reference is fixed so that figures compare: Llama 3.1 8B trained with fully sharded data parallelism on sixteen nodes
//! of the instance, one sequence of 8192 tokens per GPU. A job that communicates more loses more.

use bedplate_catalog::Catalog;
use bedplate_perf::{Constants, Hardware, Stack, Workload, predict};
use bedplate_topology::Cluster;
use bedplate_transformer::{Transformer, builtin};

use crate::check::Cost;

const NODES: u32 = 16;
const MODEL: &str = "llama-3.1-8b";
/// Scale-out bandwidth in bytes per second of the node on which TCP was measured.
const NODE_OF_TCP_FIGURES: f64 = 50e9;

/// Prices flaws of nodes of one instance type.
#[derive(Debug, Clone)]
pub struct FlawPricing {
    instance: String,
    hardware: Hardware,
    model: Transformer,
    cards: Option<u32>,
    accelerators: u32,
    seconds: f64,
}

impl FlawPricing {
    /// `None` where the model cannot price the instance: it is not in the catalog, or not a GPU.
    pub fn new(instance: &str, catalog: &Catalog) -> Option<Self> {
        let entry = catalog.instance(instance).ok()?;
        let cluster = Cluster::from_spec(&format!("{instance}:{NODES}"), catalog).ok()?;
        let hardware = Hardware::from_cluster(&cluster, catalog).ok()?;
        let model = builtin(MODEL).ok()?;
        let mut price = Self {
            instance: instance.to_owned(),
            hardware,
            model,
            cards: entry.scale_out_cards,
            accelerators: entry.accelerators,
            seconds: 0.0,
        };
        price.seconds = price.step(&hardware)?;
        Some(price)
    }

    fn step(&self, hardware: &Hardware) -> Option<f64> {
        let layout = format!("dp{}.zero3.recompute-full", hardware.gpus).parse().ok()?;
        let workload = Workload {
            sequence: 8192,
            global_batch: u64::from(hardware.gpus),
            stack: Stack::Fsdp,
            ..Workload::default()
        };
        let step = predict(&self.model, hardware, &layout, &workload, &Constants::builtin()).ok()?;
        Some(step.seconds().get())
    }

    fn with(&self, hardware: Hardware, what: &str) -> Option<Cost> {
        let seconds = self.step(&hardware)?;
        let slowdown = seconds / self.seconds;
        let told = if slowdown < 1.005 {
            format!("nothing measurable for {} {what}", self.reference())
        } else {
            format!(
                "{} goes from {:.2} s to {seconds:.2} s ({slowdown:.2}x) {what}",
                self.reference(),
                self.seconds
            )
        };
        slowdown.is_finite().then_some(Cost { slowdown, told })
    }

    fn reference(&self) -> String {
        format!("a step of Llama 3.1 8B (FSDP, {NODES} x {})", self.instance)
    }

    /// Network cards of the instance, by the catalog.
    pub fn cards(&self) -> Option<u32> {
        self.cards
    }

    /// TCP uses the instance's ordinary interface, so more EFA cards do not make it faster: a node has at most what the
    /// model's factor was fitted to, TCP on p4d.24xlarge.
    pub fn without_rdma(&self) -> Option<Cost> {
        let scale_out =
            self.hardware.scale_out.min(NODE_OF_TCP_FIGURES / f64::from(self.accelerators.max(1)));
        let hardware = Hardware { scale_out, ..self.hardware }.without_rdma();
        self.with(hardware, "over TCP sockets")
    }

    pub fn without_nvlink(&self) -> Option<Cost> {
        let scale_up = self.hardware.scale_up.min(self.hardware.host_link / 2.0);
        self.with(Hardware { scale_up, ..self.hardware }, "with GPUs that reach each other through the host")
    }

    /// Staged copies share the PCIe link in both directions, so at most half of it is left.
    pub fn without_gpu_direct(&self) -> Option<Cost> {
        let scale_out = self.hardware.scale_out.min(self.hardware.host_link / 2.0);
        self.with(Hardware { scale_out, ..self.hardware }, "if half of the PCIe link is left for the network")
    }

    pub fn with_cards(&self, cards: u32) -> Option<Cost> {
        let share = f64::from(cards) / f64::from(self.cards.filter(|all| *all > 0)?);
        if cards == 0 {
            return self.without_rdma();
        }
        let scale_out = self.hardware.scale_out * share.min(1.0);
        self.with(Hardware { scale_out, ..self.hardware }, &format!("with {cards} network cards"))
    }

    /// All GPUs wait for the slowest, so one slow GPU slows all.
    pub fn at_clock(&self, share: f64) -> Option<Cost> {
        let share = share.clamp(0.05, 1.0);
        let hardware = Hardware {
            peak_fp32: self.hardware.peak_fp32 * share,
            peak_bf16: self.hardware.peak_bf16 * share,
            peak_fp8: self.hardware.peak_fp8 * share,
            peak_fp4: self.hardware.peak_fp4 * share,
            ..self.hardware
        };
        self.with(hardware, &format!("at {:.0} % of the clock", share * 100.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_cost_more_than_missing_cards_and_those_more_than_nothing() {
        let price = FlawPricing::new("p5.48xlarge", &Catalog::builtin()).expect("it is in the catalog");
        let sockets = price.without_rdma().expect("priced").slowdown;
        let half = price.with_cards(16).expect("priced").slowdown;
        let all = price.with_cards(32).expect("priced").slowdown;
        assert!(sockets > half && half >= all && (all - 1.0).abs() < 1e-9, "{sockets} {half} {all}");
        assert!(price.without_nvlink().expect("priced").slowdown > 1.5);
        let slow = price.at_clock(0.5).expect("priced");
        assert!(slow.slowdown > 1.5, "{slow:?}");
        assert!(slow.told.contains("p5.48xlarge") && slow.told.contains("50 %"), "{}", slow.told);
    }

    #[test]
    fn what_the_catalog_does_not_know_has_no_price() {
        assert!(FlawPricing::new("my-desktop", &Catalog::builtin()).is_none());
    }
}
