//! The plan as an HTML page: waterfall, memory, front, and other requested parts.

use bedplate_breakdown::{Breakdown, Predicted};
use bedplate_perf::MemoryUse;
use bedplate_search::{Counterfactual, LayoutCandidate, ScaledStep, ScalingPoint, WhatIfOutcome};
use bedplate_terminal::html::{Bar, Plot, Point, Segment, Series, bars};
use bedplate_units::Bytes;

/// Each part of the step as a bar that begins where the last one ended; hidden time as an outline behind it.
pub(super) fn step_chart(time: &Breakdown<Predicted>) -> String {
    let total = time.total();
    let mut start = 0.0;
    let mut rows = Vec::new();
    for (index, (part, span)) in time.parts().enumerate() {
        if span.busy().is_zero() {
            continue;
        }
        let share = span.exposed / total * 100.0;
        let hidden = match span.hidden.is_zero() {
            true => String::new(),
            false => format!(", {:.3} hidden", span.hidden),
        };
        let segment = |length: f64, is_hidden: bool| Segment {
            name: if is_hidden { format!("{part}, hidden") } else { part.to_string() },
            length,
            kind: index,
            is_hidden,
        };
        rows.push(Bar {
            label: part.to_string(),
            start,
            segments: vec![segment(span.exposed.get(), false), segment(span.hidden.get(), true)],
            remark: format!("{:.3} ({share:.1}%){hidden}", span.exposed),
        });
        start += span.exposed.get();
    }
    bars(&rows, None)
}

/// The memory of one GPU as a stacked bar, with its limit.
pub(super) fn memory_chart(memory: &MemoryUse, available: Bytes) -> String {
    let segments = memory.parts().into_iter().enumerate().map(|(index, (name, bytes))| Segment {
        name: name.to_owned(),
        length: bytes.get() / 1e9,
        kind: index,
        is_hidden: false,
    });
    let bar = Bar {
        label: "one GPU".into(),
        start: 0.0,
        segments: segments.collect(),
        remark: memory.total().to_string(),
    };
    bars(&[bar], Some((available.get() / 1e9, &format!("{available} usable"))))
}

/// Layouts more than this many times slower than the best are left out, however small.
const SLOWEST_SHOWN: f64 = 4.0;

/// The Pareto front of step time and memory.
pub(super) fn front_chart(front: &[LayoutCandidate]) -> String {
    let best = front.first().map_or(0.0, |fastest| fastest.seconds.get());
    let shown = front.partition_point(|candidate| candidate.seconds.get() <= best * SLOWEST_SHOWN);
    let front = &front[..shown];
    // Labels only at the ends of the front; others would overlap.
    let last = front.len().saturating_sub(1);
    let point = |(index, candidate): (usize, &LayoutCandidate)| Point {
        x: candidate.seconds.get(),
        y: candidate.memory.get() / 1e9,
        label: if index == 0 || index == last { candidate.layout.to_string() } else { String::new() },
    };
    Plot {
        x_title: "step time, seconds".into(),
        y_title: "memory per GPU, GB".into(),
        is_x_logarithmic: false,
        is_y_logarithmic: false,
        series: vec![Series {
            name: "Pareto front".into(),
            points: front.iter().enumerate().map(point).collect(),
            is_line: true,
        }],
    }
    .svg()
}

/// Tokens per second over GPUs, and ideal scaling.
pub(super) fn scaling_chart(points: &[ScalingPoint]) -> String {
    let scaled: Vec<(f64, &ScaledStep)> = points
        .iter()
        .filter_map(|point| Some((f64::from(point.gpus), point.outcome.as_ref().ok()?)))
        .collect();
    let point = |x: f64, y: f64| Point { x, y, label: String::new() };
    let reached = scaled.iter().map(|(gpus, step)| point(*gpus, step.rate.get()));
    let ideal = scaled.first().map(|(gpus, step)| step.rate.get() / gpus).unwrap_or_default();
    let without_loss = scaled.iter().map(|(gpus, _)| point(*gpus, gpus * ideal));
    let series = |name: &str, points: Vec<Point>| Series { name: name.into(), points, is_line: true };
    Plot {
        x_title: "GPUs".into(),
        y_title: "tokens per second".into(),
        is_x_logarithmic: true,
        is_y_logarithmic: true,
        series: vec![series("predicted", reached.collect()), series("without loss", without_loss.collect())],
    }
    .svg()
}

/// Time per token in changed setups, relative to now.
pub(super) fn sensitivity_chart(counterfactuals: &[Counterfactual]) -> String {
    let bar = |each: &Counterfactual| {
        let WhatIfOutcome::Runs { ratio, .. } = &each.outcome else { return None };
        Some(Bar {
            // The name is inside the bar, which is always long enough.
            label: String::new(),
            start: 0.0,
            segments: vec![Segment {
                name: each.what.to_string(),
                length: ratio * 100.0,
                kind: usize::from(*ratio > 1.0) * 3,
                is_hidden: false,
            }],
            remark: format!("{:+.1}%", (ratio - 1.0) * 100.0),
        })
    };
    bars(&counterfactuals.iter().filter_map(bar).collect::<Vec<_>>(), Some((100.0, "now")))
}
