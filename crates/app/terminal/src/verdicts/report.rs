//! The report as one HTML page: verdicts, evidence, the steps drawn.

use bedplate_diagnose::{Diagnosis, series};
use bedplate_evidence::Gathered;
use bedplate_logs::Recognizer;

use crate::html::{Plot, Point, Report, Series};

/// Points of a drawing; of more, every n-th is drawn.
const MOST_POINTS: usize = 2000;

pub fn html(diagnosis: &Diagnosis, gathered: &Gathered, recognizer: &Recognizer) -> String {
    let summary = diagnosis
        .verdicts
        .first()
        .map_or("healthy, as far as these logs tell".to_owned(), ToString::to_string);
    let mut report = Report::new("What slowed or stopped the job", &summary);
    for verdict in &diagnosis.verdicts {
        report.section(&verdict.to_string(), &verdict.next.join("; "));
        let titles =
            vec!["evidence".to_owned(), "where".to_owned(), "speaks for".to_owned(), "weight".to_owned()];
        let rows = verdict.evidence.iter().map(|evidence| {
            let cause = evidence.speaks_for.map_or(String::new(), |cause| cause.to_string());
            vec![evidence.what.clone(), evidence.source.clone(), cause, format!("{:.1}", evidence.weight)]
        });
        let rows: Vec<Vec<String>> = std::iter::once(titles).chain(rows).collect();
        report.table(&rows);
    }
    for log in &gathered.case.logs {
        let Some(longest) = series(&log.log, recognizer).into_iter().next() else { continue };
        let every = longest.points.len().div_ceil(MOST_POINTS).max(1);
        let points = longest.points.iter().step_by(every).map(|point| Point {
            x: point.step as f64,
            y: point.seconds,
            label: String::new(),
        });
        let plot = Plot {
            x_title: "step".to_owned(),
            y_title: "seconds".to_owned(),
            is_x_logarithmic: false,
            is_y_logarithmic: false,
            series: vec![Series {
                name: recognizer.formats()[longest.format].name.clone(),
                points: points.collect(),
                is_line: true,
            }],
        };
        report.section(&format!("Steps in {}", log.name), longest.by.words());
        report.chart(&plot.svg());
    }
    for note in diagnosis.notes.iter().chain(&gathered.left_out) {
        report.section("Note", note);
    }
    report.html()
}
