//! Horizontal bars of segments: a waterfall when each begins where the last one ended, a stack otherwise.

use super::{colour, escaped};

pub struct Bar {
    pub label: String,
    /// Where the bar begins; zero for a stack.
    pub start: f64,
    pub segments: Vec<Segment>,
    /// The text after the bar.
    pub remark: String,
}

pub struct Segment {
    pub name: String,
    pub length: f64,
    /// Which colour; equal numbers mean equal things in a drawing.
    pub kind: usize,
    /// Drawn as an outline: hidden behind other work.
    pub is_hidden: bool,
}

const WIDTH: f64 = 900.0;
const LABELS: f64 = 150.0;
const REMARKS: f64 = 190.0;
const ROW: f64 = 26.0;

/// The drawing; `limit` marks a line that bars should not cross, such as the available memory.
pub fn bars(bars: &[Bar], limit: Option<(f64, &str)>) -> String {
    let end = |bar: &Bar| bar.start + bar.segments.iter().map(|segment| segment.length).sum::<f64>();
    let longest = bars.iter().map(end).chain(limit.map(|(at, _)| at)).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LABELS - REMARKS) / longest;
    let height = bars.len() as f64 * ROW + 30.0;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">");
    for (row, bar) in bars.iter().enumerate() {
        let top = row as f64 * ROW + 4.0;
        let text_line = top + 14.0;
        svg += &format!(
            "<text x=\"{:.1}\" y=\"{text_line:.1}\" text-anchor=\"end\">{}</text>",
            LABELS - 8.0,
            escaped(&bar.label)
        );
        let mut left = LABELS + bar.start * scale;
        for segment in bar.segments.iter().filter(|segment| segment.length > 0.0) {
            svg += &drawn(segment, left, top, segment.length * scale);
            left += segment.length * scale;
        }
        svg += &format!("<text x=\"{:.1}\" y=\"{text_line:.1}\">{}</text>", left + 6.0, escaped(&bar.remark));
    }
    if let Some((at, name)) = limit {
        let x = LABELS + at * scale;
        let bottom = height - 22.0;
        svg += &format!(
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{bottom:.1}\" stroke=\"#1b1f24\" stroke-dasharray=\"4 3\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            height - 8.0,
            escaped(name)
        );
    }
    svg + "</svg>"
}

fn drawn(segment: &Segment, left: f64, top: f64, width: f64) -> String {
    let paint = match segment.is_hidden {
        true => format!("fill=\"none\" stroke=\"{}\" stroke-dasharray=\"3 2\"", colour(segment.kind)),
        false => format!("fill=\"{}\"", colour(segment.kind)),
    };
    let title = format!("<title>{}</title>", escaped(&segment.name));
    let body = format!(
        "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" {paint}>{title}</rect>",
        ROW - 8.0
    );
    // A name inside where it fits: about seven pixels per letter.
    let fits = segment.name.chars().count() as f64 * 7.0 + 6.0 < width && !segment.is_hidden;
    let name = match fits {
        true => format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" style=\"fill:#fff\">{}</text>",
            left + 4.0,
            top + 13.0,
            escaped(&segment.name)
        ),
        false => String::new(),
    };
    body + &name
}
