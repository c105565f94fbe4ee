//! Scores the serving side on a table of measurements.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example prints and may stop")]
use std::collections::BTreeMap;

use bedplate_calibrate::Score;
use bedplate_calibrate::serving::ServingCases;
use bedplate_catalog::Catalog;
use bedplate_perf::serving::ServingConstants;

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let cases = ServingCases::read(&std::fs::read_to_string(path).unwrap(), &Catalog::builtin()).unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../data/serving/constants.toml");
    let text = std::fs::read_to_string(file).unwrap();
    let constants =
        ServingConstants::read(bedplate_diag::Source::new(file, &text), ServingConstants::priors()).unwrap();
    let start = std::time::Instant::now();
    let errors: Vec<_> = cases.used.iter().map(|case| case.log_errors(&constants)).collect();
    eprintln!("{:?}", start.elapsed());
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for skipped in &cases.skipped {
        let reason = skipped.reason.to_string();
        let key = if reason.contains("repeats") || reason.contains("duplicate") {
            reason[..8].to_owned()
        } else {
            reason
        };
        *reasons.entry(key).or_default() += 1;
    }
    eprintln!("{reasons:?}");
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, case) in cases.used.iter().enumerate() {
        let family = case.engine.split(' ').next().unwrap();
        for key in [
            "all".to_owned(),
            format!("c {:?} {}", case.campaign, if case.pools.is_some() { "pools" } else { "" }),
            format!("e {family}"),
            format!("g {}", case.accelerator),
            format!("m {} {}", case.model, case.accelerator),
        ] {
            groups.entry(key).or_default().push(index);
        }
    }
    for (name, members) in groups {
        let score = |value: &dyn Fn(usize) -> f64| {
            let errors: Vec<f64> = members.iter().map(|index| value(*index).exp() - 1.0).collect();
            let score = Score::of(&errors);
            format!(
                "{:+5.1} {:5.1}/{:5.1}",
                100.0 * score.bias,
                100.0 * score.median_abs_error,
                100.0 * score.p90_abs_error
            )
        };
        println!(
            "{name:<32} {:>5}  itl {}  thr {}  ttft {}",
            members.len(),
            score(&|index| errors[index].inter_token),
            score(&|index| errors[index].throughput),
            score(&|index| errors[index].first_token),
        );
    }
    if let Some(path) = std::env::args().nth(2) {
        let mut text = String::from(
            "id,campaign,model,gpu,engine,tp,ep,da,drafts,weights,isl,osl,c,m_ttft,m_itl,e_ttft,e_itl,e_thr,repaired,mfu,share,susp\n",
        );
        for (case, error) in cases.used.iter().zip(&errors) {
            let p = case.deployment.parallel;
            text += &format!(
                "{},{:?},{},{},{},{},{},{},{},{}/{},{},{},{},{},{},{:.4},{:.4},{:.4},{},{:.3},{:.2},{}\n",
                case.id,
                case.campaign,
                if case.pools.is_some() { format!("P-{}", case.model) } else { case.model.clone() },
                case.accelerator,
                case.engine,
                p.tensor,
                p.expert,
                p.attention_data,
                case.drafts,
                case.deployment.weights.attention,
                case.deployment.weights.experts,
                case.load.input.longest,
                case.load.output.longest,
                case.load.concurrency,
                case.measured.first_token,
                case.measured.inter_token,
                error.first_token,
                error.inter_token,
                error.throughput,
                case.is_repaired,
                2.0 * case.deployment.model.transformer.parameters().active_without_embedding as f64
                    * case.measured.throughput
                    * (1.0 + case.load.input.mean() / case.load.output.mean())
                    / case.deployment.hardware.peak_bf16,
                case.measured.first_token
                    / (case.measured.first_token
                        + case.measured.inter_token * (case.load.output.mean() - 1.0)),
                case.suspicion.is_some()
            );
        }
        std::fs::write(path, text).unwrap();
    }
}
