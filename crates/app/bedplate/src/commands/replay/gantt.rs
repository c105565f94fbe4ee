//! The largest jobs of a replay as bars: waiting as an outline, running as a block.

use bedplate_gangs::{Span, Time};
use bedplate_replay::jobs::{JobTimeline, Trace};
use bedplate_terminal::html::{Bar, Segment};

/// Bars in hours, the first job on top.
pub(super) fn gantt(trace: &Trace, timelines: &[JobTimeline]) -> Vec<Bar> {
    timelines.iter().map(|timeline| bar(trace, timeline)).collect()
}

fn bar(trace: &Trace, timeline: &JobTimeline) -> Bar {
    let job = &trace.jobs[timeline.job];
    let mut reached = job.submit;
    let mut segments = Vec::new();
    for ran in timeline.segments.iter().filter(|segment| segment.until < Time::NEVER) {
        segments.push(piece("waits".into(), ran.from.since(reached), 6, true));
        segments.push(piece(format!("{} nodes", ran.nodes), ran.until.since(ran.from), 0, false));
        reached = ran.until;
    }
    Bar {
        label: format!("{} ({:.0} GPUs)", job.name, job.gpus()),
        start: hours(job.submit.since(Time::ZERO)),
        segments,
        remark: String::new(),
    }
}

fn piece(name: String, span: Span, kind: usize, is_hidden: bool) -> Segment {
    Segment { name, length: hours(span), kind, is_hidden }
}

fn hours(span: Span) -> f64 {
    span.as_seconds() / 3600.0
}
