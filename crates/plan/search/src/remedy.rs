//! The smallest change of a layout that makes it legal or makes it fit.

use bedplate_layout::{Layout, Recompute, Sharding};

use crate::{LayoutCandidate, Setup, Space};

/// A changed layout that works.
#[derive(Debug, Clone, PartialEq)]
pub struct Remedy {
    /// The parts that differ.
    pub changed: Vec<&'static str>,
    pub candidate: LayoutCandidate,
}

/// Changes that make a layout fit, fewest changes first, then fastest. At most two changes are tried.
pub fn remedies(setup: &Setup<'_>, layout: &Layout, limit: usize) -> Vec<Remedy> {
    let mut tried = vec![*layout];
    let mut frontier = vec![*layout];
    for _ in 0..2 {
        let mut next: Vec<Layout> = Vec::new();
        for neighbour in frontier.iter().flat_map(|layout| neighbours(layout, setup.hardware.domain)) {
            if !tried.contains(&neighbour) {
                tried.push(neighbour);
                next.push(neighbour);
            }
        }
        let mut found: Vec<Remedy> =
            next.iter().filter_map(|changed| fitting(setup, layout, changed)).collect();
        if !found.is_empty() {
            found.sort_by(|a, b| a.candidate.rank_order(&b.candidate));
            found.truncate(limit);
            return found;
        }
        frontier = next;
    }
    Vec::new()
}

fn fitting(setup: &Setup<'_>, original: &Layout, layout: &Layout) -> Option<Remedy> {
    let refusals = layout.refusals(setup.model, Some(setup.gpus().into()), Some(setup.batch()));
    if !refusals.is_empty() {
        return None;
    }
    let step = setup.predict(layout).ok().filter(|step| step.fit.is_possible())?;
    let candidate = setup.candidate(layout, &step);
    Some(Remedy { changed: changed_parts(original, layout), candidate })
}

/// Layouts one deliberate change away. A degree that grows takes its ranks from another.
fn neighbours(layout: &Layout, domain: u32) -> Vec<Layout> {
    let base = *layout;
    let mut all = Vec::new();
    all.extend([Recompute::Selective, Recompute::Full].map(|recompute| Layout { recompute, ..base }));
    let group = (domain / base.tensor.max(1)).max(2);
    let shardings =
        [Sharding::Optimizer, Sharding::Gradients, Sharding::Weights, Sharding::WeightsWithin(group)];
    all.extend(shardings.map(|sharding| Layout { sharding, ..base }));
    all.push(Layout { is_sequence_parallel: true, ..base });
    all.push(Layout { virtual_stages: 1, ..base });
    if base.micro_batch > 1 {
        all.push(Layout { micro_batch: base.micro_batch / 2, ..base });
        all.push(Layout { micro_batch: 1, ..base });
    }
    for factor in [2, 4, 8] {
        if base.data.is_multiple_of(factor) {
            let data = base.data / factor;
            all.push(Layout { data, tensor: base.tensor.saturating_mul(factor), ..base });
            all.push(Layout { data, pipeline: base.pipeline.saturating_mul(factor), ..base });
            all.push(Layout { data, context: base.context.saturating_mul(factor), ..base });
        }
        if base.pipeline.is_multiple_of(factor) {
            all.push(Layout {
                pipeline: base.pipeline / factor,
                tensor: base.tensor.saturating_mul(factor),
                ..base
            });
        }
        all.push(Layout { expert: base.expert.saturating_mul(factor), ..base });
    }
    all
}

/// Names of the parts in which two layouts differ.
pub(crate) fn changed_parts(a: &Layout, b: &Layout) -> Vec<&'static str> {
    let parts = [
        ("dp", a.data != b.data),
        ("tp", a.tensor != b.tensor),
        ("sp", a.is_sequence_parallel != b.is_sequence_parallel),
        ("cp", a.context != b.context),
        ("pp", a.pipeline != b.pipeline),
        ("vpp", a.virtual_stages != b.virtual_stages),
        ("first and last stage", a.ends != b.ends),
        ("schedule", a.schedule != b.schedule),
        ("ep", a.expert != b.expert),
        ("etp", a.expert_tensor != b.expert_tensor),
        ("sharding", a.sharding != b.sharding),
        ("mb", a.micro_batch != b.micro_batch),
        ("recompute", a.recompute != b.recompute),
        ("precision", a.precision != b.precision),
    ];
    parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect()
}

/// Of the layouts in a space that fit, the one with the fewest parts changed, then the best. Examines all of them.
pub(crate) fn nearest_in_space(setup: &Setup<'_>, space: &Space, layout: &Layout) -> Option<Remedy> {
    let mut nearest: Option<Remedy> = None;
    for other in space.layouts() {
        let distance = changed_parts(layout, &other).len();
        if nearest.as_ref().is_some_and(|known| distance > known.changed.len()) {
            continue;
        }
        let Some(remedy) = fitting(setup, layout, &other) else { continue };
        let is_nearer = nearest.as_ref().is_none_or(|known| {
            let order = remedy.changed.len().cmp(&known.changed.len());
            order.then_with(|| remedy.candidate.rank_order(&known.candidate)).is_lt()
        });
        if is_nearer {
            nearest = Some(remedy);
        }
    }
    nearest
}
