//! The parts of a step as bars in the terminal.

use bedplate_breakdown::{Breakdown, Predicted};

/// Widest bar, in characters.
const WIDEST: f64 = 30.0;

/// One line per part that takes time: a bar that begins where the last one ended, seconds and share.
pub(super) fn waterfall(time: &Breakdown<Predicted>) -> String {
    let total = time.total().get();
    let mut text = String::new();
    let mut start = 0.0;
    for (part, span) in time.parts() {
        let exposed = span.exposed.get();
        if span.busy().is_zero() {
            continue;
        }
        let from = (start / total * WIDEST).round() as usize;
        let to = ((start + exposed) / total * WIDEST).round() as usize;
        let bar = format!("{}{}", " ".repeat(from), "█".repeat(to.saturating_sub(from)));
        let share = format!("{:.1}%", exposed / total * 100.0);
        let hidden = match span.hidden.is_zero() {
            true => String::new(),
            false => format!(" (+{:.3} hidden)", span.hidden),
        };
        let widest = WIDEST as usize;
        let line = format!(
            "  {:<9} {bar:<widest$} {:>9} {share:>6}{hidden}",
            part.name(),
            format!("{:.3}", span.exposed)
        );
        text += &format!("{}\n", line.trim_end());
        start += exposed;
    }
    text
}
