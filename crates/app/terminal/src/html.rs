//! Self-contained HTML reports: one file, no scripts, no external fonts, readable without colour.

mod axis;
mod bars;
mod plot;

pub use bars::{Bar, Segment, bars};
pub use plot::{Plot, Point, Series};

/// A page made of sections, in order.
pub struct Report {
    title: String,
    body: String,
}

impl Report {
    pub fn new(title: &str, subtitle: &str) -> Self {
        let body = format!("<h1>{}</h1>\n<p class=\"subtitle\">{}</p>\n", escaped(title), escaped(subtitle));
        Self { title: title.to_owned(), body }
    }

    pub fn section(&mut self, heading: &str, prose: &str) -> &mut Self {
        self.body += &format!("<h2>{}</h2>\n<p>{}</p>\n", escaped(heading), escaped(prose));
        self
    }

    /// A drawing made by this module.
    pub fn chart(&mut self, svg: &str) -> &mut Self {
        self.body += &format!("<figure>{svg}</figure>\n");
        self
    }

    /// A table; the first row holds the titles.
    pub fn table(&mut self, rows: &[Vec<String>]) -> &mut Self {
        self.body += "<table>\n";
        for (index, row) in rows.iter().enumerate() {
            let tag = if index == 0 { "th" } else { "td" };
            let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
            self.body += &format!("<tr>{cells}</tr>\n");
        }
        self.body += "</table>\n";
        self
    }

    /// Labels and values, without titles.
    pub fn facts(&mut self, rows: impl Iterator<Item = Vec<String>>) -> &mut Self {
        self.body += "<table class=\"facts\">\n";
        for row in rows {
            let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
            self.body += &format!("<tr>{cells}</tr>\n");
        }
        self.body += "</table>\n";
        self
    }

    /// Monospaced text, such as launch settings.
    pub fn listing(&mut self, text: &str) -> &mut Self {
        self.body += &format!("<pre>{}</pre>\n", escaped(text));
        self
    }

    pub fn html(&self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
            escaped(&self.title),
            self.body
        )
    }
}

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.subtitle { color: #57606a; margin-top: .2rem; } figure { margin: 1rem 0; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #1b1f24; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid #d0d7de; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
td:not(:first-child) { white-space: nowrap; }
.facts td:not(:first-child) { text-align: left; white-space: normal; }
pre { background: #f6f8fa; padding: .8rem; overflow-x: auto; font-size: 13px; }
";

/// Colours that people with the usual kinds of colour blindness can tell apart (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#7f7f7f", "#f0e442"];

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Text escaped for HTML and SVG.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_name_cannot_break_out_of_the_page() {
        let mut report = Report::new("<script>alert(1)</script>", "a & b");
        report.section("\"quoted\"", "x < y").table(&[vec!["<b>".into()]]).listing("</pre>");
        let html = report.html();
        assert!(!html.contains("<script>") && !html.contains("<b>") && html.matches("</pre>").count() == 1);
    }
}
