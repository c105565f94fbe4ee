//! The layout with which ranks of one host are predicted to be fastest, among those that fit.

use bedplate_catalog::Accelerator;
use bedplate_layout::{Batch, Layout, LayoutRefusal, Sharding};
use bedplate_perf::{HostRun, MemoryUse, memory_on_host, predict_on_host};
use bedplate_transformer::Transformer;
use bedplate_units::{Bytes, Seconds};

/// Times closer than this are no reason to prefer the less simple layout.
const TIE: f64 = 0.1;

/// A layout and why it was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct HostChoice {
    pub layout: Layout,
    pub why: String,
}

/// Why no layout can be used.
#[derive(Debug, Clone, PartialEq)]
pub enum NoHostLayout {
    /// What a rank holds with the smallest layout is more than it has.
    TooLarge { memory: MemoryUse },
    /// A step has fewer micro-batches than there are ranks.
    TooFewMicroBatches,
}

/// Ranks that share a host and train a model; all of them come to the same result.
#[derive(Debug, Clone, Copy)]
pub struct HostQuestion<'a> {
    pub model: &'a Transformer,
    /// The run with any layout.
    pub run: HostRun,
    pub ranks: u32,
    /// Memory of a rank.
    pub each: Bytes,
}

struct Priced {
    layout: Layout,
    seconds: Seconds,
    memory: Bytes,
}

impl HostQuestion<'_> {
    /// By prediction on a measured host; by rule where it is not measured or its collectives are not.
    pub fn choose(&self, host: Option<&Accelerator>) -> Result<HostChoice, NoHostLayout> {
        let priced = host.map_or(Vec::new(), |host| self.priced(host));
        best(&priced).map_or_else(|| self.by_rule(), Ok)
    }

    fn run(&self, layout: Layout) -> HostRun {
        HostRun { layout, ..self.run }
    }

    /// Layouts that can be used, the simplest first.
    fn legal(&self) -> Vec<Layout> {
        let HostRun { sequence, global_batch, micro_batch, .. } = self.run;
        let batch = Batch { sequence, global_batch };
        let is_legal = |layout: &Layout| {
            let layout = Layout { micro_batch, ..*layout };
            let mut reasons = layout.refusals(self.model, Some(self.ranks.into()), Some(batch));
            // Ranks with fewer micro-batches wait for the others.
            reasons.retain(|reason| !matches!(reason, LayoutRefusal::BatchDoesNotDivide { .. }));
            let has_work = u64::from(layout.data) <= global_batch / u64::from(micro_batch.max(1));
            let kv_heads = self.model.layers().map(|layer| layer.attention.kv_heads());
            let divides = |heads: u64| heads.is_multiple_of(layout.tensor.into());
            reasons.is_empty() && has_work && kv_heads.into_iter().all(divides)
        };
        candidates(self.ranks, self.model.is_mixture()).into_iter().filter(is_legal).collect()
    }

    /// Those that fit and whose collectives were measured.
    fn priced(&self, host: &Accelerator) -> Vec<Priced> {
        let price = |layout: Layout| {
            let step = predict_on_host(self.model, host, &self.run(layout)).ok()?;
            let memory = step.memory.total();
            (memory <= self.each).then(|| Priced { layout, seconds: step.seconds(), memory })
        };
        self.legal().into_iter().filter_map(price).collect()
    }

    /// Whole weights where they fit, split ones otherwise.
    fn by_rule(&self) -> Result<HostChoice, NoHostLayout> {
        let data = |sharding| Layout { data: self.ranks, sharding, ..Layout::ONE };
        let rule = [
            (data(Sharding::None), "whole weights fit"),
            (data(Sharding::Weights), "only split weights fit"),
        ];
        let legal = self.legal();
        let mut least = None;
        for (layout, why) in rule.into_iter().filter(|(layout, _)| legal.contains(layout)) {
            let memory = memory_on_host(self.model, &self.run(layout));
            if memory.total() <= self.each {
                let needs = memory.total();
                let why = format!(
                    "{layout}: {why}, {needs} a rank; `bedplate bench machine` and `bench comm --save` let the plan compare layouts"
                );
                return Ok(HostChoice { layout, why });
            }
            least = Some(memory);
        }
        Err(least.map_or(NoHostLayout::TooFewMicroBatches, |memory| NoHostLayout::TooLarge { memory }))
    }
}

/// All ways to share the work of `ranks` ranks by data, tensor and pipeline ranks, with all ways to split state.
fn candidates(ranks: u32, is_mixture: bool) -> Vec<Layout> {
    let divisors = |of: u32| (1..=of).filter(move |degree| of.is_multiple_of(*degree));
    let mut found = Vec::new();
    for tensor in divisors(ranks) {
        for pipeline in divisors(ranks / tensor) {
            let data = ranks / tensor / pipeline;
            let expert_tensor = if is_mixture { tensor } else { 1 };
            let plain = Layout { data, tensor, pipeline, expert_tensor, ..Layout::ONE };
            let all = [Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Weights];
            for sharding in all.into_iter().take(if data > 1 { 4 } else { 1 }) {
                found.push(Layout { sharding, ..plain });
                if tensor > 1 {
                    found.push(Layout { sharding, is_sequence_parallel: true, ..plain });
                }
            }
        }
    }
    let cuts = |layout: &Layout| u32::from(layout.tensor > 1) + u32::from(layout.pipeline > 1);
    found.sort_by_key(cuts);
    found
}

/// The simplest of those that are as good as the fastest.
fn best(priced: &[Priced]) -> Option<HostChoice> {
    let fastest = priced.iter().map(|one| one.seconds.get()).min_by(f64::total_cmp)?;
    let chosen = priced.iter().find(|one| one.seconds.get() <= (1.0 + TIE) * fastest)?;
    let Priced { layout, seconds, memory } = chosen;
    let place = match seconds.get() == fastest {
        true => "the fastest".to_owned(),
        false => format!("the simplest within {:.0} % of the fastest", 100.0 * TIE),
    };
    let count = priced.len();
    let why =
        format!("{layout}: {seconds} a step predicted, {memory} a rank; {place} of {count} layouts that fit");
    Some(HostChoice { layout: *layout, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priced(layout: &str, seconds: f64) -> Priced {
        Priced { layout: layout.parse().unwrap(), seconds: Seconds::new(seconds), memory: Bytes::new(1e9) }
    }

    #[test]
    fn a_simple_layout_wins_a_tie_and_loses_a_race() {
        let name = |priced: &[Priced]| best(priced).map(|choice| choice.layout.to_string());
        assert_eq!(name(&[priced("dp4", 1.05), priced("pp4", 1.0)]).as_deref(), Some("dp4"));
        assert_eq!(name(&[priced("dp4", 1.5), priced("pp4", 1.0)]).as_deref(), Some("pp4"));
        assert_eq!(name(&[]), None);
    }

    #[test]
    fn candidates_use_all_ranks_and_begin_with_plain_data_ranks() {
        let all = candidates(4, false);
        assert!(all.iter().all(|layout| layout.world() == 4));
        let first: Vec<String> = all.iter().take(4).map(Layout::to_string).collect();
        assert_eq!(first, ["dp4", "dp4.zero1", "dp4.zero2", "dp4.zero3"]);
        assert!(all.iter().any(|layout| layout.to_string() == "dp2.tp2.sp.zero3"));
    }
}
