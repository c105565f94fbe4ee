//! Adjustments from a site's own measurements: what still differs between deployments is mostly the engine's
//! version and its choice of kernels, which one measured row reveals.

use std::collections::BTreeMap;

use bedplate_perf::serving::{Adjustment, ServingConstants, Site, Speculation};

use super::{ServingCase, ServingCases};
use bedplate_units::statistics::quantile;

/// An adjustment for every deployment of the rows, from all its trusted rows.
pub fn fit_site(cases: &ServingCases, constants: &ServingConstants) -> Site {
    let mut deployments: BTreeMap<String, Vec<&ServingCase>> = BTreeMap::new();
    for case in cases.used.iter().filter(|case| case.suspicion.is_none() && case.pools.is_none()) {
        deployments.entry(case.site_key()).or_default().push(case);
    }
    let mut site = Site::default();
    for (key, rows) in deployments {
        site.add(key, adjustment(&rows, constants));
    }
    site
}

/// Rounds of adjustment: latency is not quite proportional to step time.
const ROUNDS: u32 = 4;

fn adjustment(rows: &[&ServingCase], constants: &ServingConstants) -> Adjustment {
    let mut found = Adjustment::default();
    for _ in 0..ROUNDS {
        let errors: Vec<f64> =
            rows.iter().map(|row| row.adjusted(found).log_errors(constants).inter_token).collect();
        found.step = (found.step * (-quantile(&errors, 0.5)).exp()).clamp(0.05, 20.0);
    }
    let later = |row: &&ServingCase| {
        let predicted =
            row.adjusted(found).predict(constants).map_or(row.measured.first_token, |p| p.first_token);
        row.measured.first_token - predicted
    };
    let later: Vec<f64> = rows.iter().map(later).collect();
    found.first_token = quantile(&later, 0.5).clamp(-60.0, 600.0);
    found
}

impl ServingCase {
    pub fn site_key(&self) -> String {
        let mut deployment = self.deployment.clone();
        let speculation = Speculation { drafts: self.drafts, tokens_per_step: 1.0 };
        deployment.speculation = (self.drafts > 0).then_some(speculation);
        Site::key(&deployment, &self.accelerator)
    }

    /// The same row with its deployment adjusted.
    pub fn adjusted(&self, adjustment: Adjustment) -> Self {
        let mut case = self.clone();
        case.deployment.adjustment = adjustment;
        case
    }
}
