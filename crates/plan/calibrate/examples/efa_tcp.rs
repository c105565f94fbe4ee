//! Predicted and stated figures of GPT-3 175B with FSDP on p4d, over EFA and over TCP.
#![allow(clippy::print_stdout, reason = "an example prints")]
use bedplate_calibrate::EFA_TCP_FIGURES;
use bedplate_catalog::Catalog;
use bedplate_perf::Constants;

fn main() {
    let (catalog, constants) = (Catalog::builtin(), Constants::builtin());
    for figure in EFA_TCP_FIGURES {
        let predicted = figure.predicted(&constants, &catalog).unwrap_or(f64::NAN);
        println!(
            "{:>4} GPUs, {}: {predicted:.0} TFLOP/s per GPU, stated {:.0} ({:+.1} %)",
            8 * figure.nodes,
            if figure.has_efa { "EFA" } else { "TCP" },
            figure.stated,
            100.0 * (predicted / figure.stated - 1.0)
        );
    }
}
