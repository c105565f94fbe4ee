//! Kendall's tau: how well predicted order agrees with measured order.

use crate::Case;

/// Agreement over all groups that can be ranked.
pub(crate) struct Agreement {
    pub(crate) tau: Option<f64>,
    pub(crate) rows: usize,
}

/// Pairs of rows of one model, GPU and GPU count, counted as agreeing or not. Rows that differ by less
/// than 2 % are ties, for repeats differ by as much.
pub(crate) fn agreement(cases: &[Case], errors: &[f64]) -> Agreement {
    let mut agreeing = 0.0;
    let mut pairs = 0.0;
    let mut ranked = vec![false; cases.len()];
    for (i, (a, error_a)) in cases.iter().zip(errors).enumerate() {
        for (j, (b, error_b)) in cases.iter().zip(errors).enumerate().skip(i + 1) {
            if !are_comparable(a, b) {
                continue;
            }
            let measured = (a.tokens_per_second / b.tokens_per_second).ln();
            let predicted = measured + ((1.0 + error_a) / (1.0 + error_b)).ln();
            // Equal predictions are one layout under two releases: nothing to rank.
            if measured.abs() < 0.02 || predicted.abs() < 1e-9 {
                continue;
            }
            agreeing += if measured * predicted > 0.0 { 1.0 } else { -1.0 };
            pairs += 1.0;
            ranked[i] = true;
            ranked[j] = true;
        }
    }
    let rows = ranked.into_iter().filter(|is_ranked| *is_ranked).count();
    Agreement { tau: (pairs > 0.0).then(|| agreeing / pairs), rows }
}

fn are_comparable(a: &Case, b: &Case) -> bool {
    a.hardware.gpus == b.hardware.gpus
        && a.accelerator == b.accelerator
        && a.source == b.source
        && a.model.hidden == b.model.hidden
        && a.model.layer_count() == b.model.layer_count()
        && a.workload.sequence == b.workload.sequence
}
