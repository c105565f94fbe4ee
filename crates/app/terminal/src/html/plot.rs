//! Lines and points over two axes.

use super::axis::Axis;
use super::{colour, escaped};

pub struct Plot {
    pub x_title: String,
    pub y_title: String,
    /// Powers of two along x, as GPU counts are.
    pub is_x_logarithmic: bool,
    /// Powers of two along y too, so that proportional growth is a straight line.
    pub is_y_logarithmic: bool,
    pub series: Vec<Series>,
}

pub struct Series {
    pub name: String,
    pub points: Vec<Point>,
    /// Points joined by a line, else separate.
    pub is_line: bool,
}

pub struct Point {
    pub x: f64,
    pub y: f64,
    /// Shown next to the point; empty for none.
    pub label: String,
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 46.0;
const MOST_DOTS: usize = 40;

impl Plot {
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x_axis = Axis::over(points().map(|point| point.x), LEFT, WIDTH - RIGHT, self.is_x_logarithmic);
        let y_axis = Axis::over(points().map(|point| point.y), HEIGHT - BOTTOM, TOP, self.is_y_logarithmic);
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
        svg += &self.grid(&x_axis, &y_axis);
        for (index, series) in self.series.iter().enumerate() {
            svg += &series.drawn(index, &x_axis, &y_axis);
        }
        svg + "</svg>"
    }

    fn grid(&self, x_axis: &Axis, y_axis: &Axis) -> String {
        let mut svg = String::new();
        for mark in y_axis.marks() {
            let y = y_axis.place(mark);
            svg += &format!(
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#d0d7de\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                short(mark)
            );
        }
        for mark in x_axis.marks() {
            let x = x_axis.place(mark);
            svg += &format!(
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM + 18.0,
                short(mark)
            );
        }
        svg + &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text x=\"8\" y=\"14\">{}</text>",
            (LEFT + WIDTH) / 2.0,
            HEIGHT - 8.0,
            escaped(&self.x_title),
            escaped(&self.y_title)
        )
    }
}

impl Series {
    fn drawn(&self, index: usize, x_axis: &Axis, y_axis: &Axis) -> String {
        let places: Vec<(f64, f64)> =
            self.points.iter().map(|point| (x_axis.place(point.x), y_axis.place(point.y))).collect();
        let paint = colour(index);
        let mut svg = String::new();
        if self.is_line {
            let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            svg += &format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{paint}\" stroke-width=\"2\"/>",
                path.join(" ")
            );
        }
        // A line through many points needs no dots to be followed.
        let has_dots = !self.is_line || places.len() <= MOST_DOTS;
        for ((x, y), point) in places.iter().zip(&self.points) {
            if has_dots {
                svg += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{paint}\"/>");
            }
            if !point.label.is_empty() {
                let (at, anchor) = if *x > WIDTH * 0.75 { (x - 8.0, "end") } else { (x + 8.0, "start") };
                let label = escaped(&point.label);
                svg += &format!(
                    "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{label}</text>",
                    y - 6.0
                );
            }
        }
        let x = LEFT + 160.0 + index as f64 * 220.0;
        svg + &format!(
            "<rect x=\"{x:.1}\" y=\"6\" width=\"12\" height=\"4\" fill=\"{paint}\"/><text x=\"{:.1}\" y=\"13\">{}</text>",
            x + 18.0,
            escaped(&self.name)
        )
    }
}

/// A number for an axis: `16K`, `0.5`.
fn short(number: f64) -> String {
    match number.abs() {
        0.0 => "0".into(),
        size if size >= 1e6 => format!("{:.3}M", number / 1e6).replace(".000", ""),
        size if size >= 10_000.0 => format!("{:.0}K", number / 1e3),
        size if size >= 10.0 => format!("{number:.0}"),
        _ => format!("{number:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}
