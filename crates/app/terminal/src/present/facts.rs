//! Aligned label-value pairs, for the page of a single thing.

use super::{printable_line, wrap};

/// The wrapping width where lines have no limit: wider prose is hard to read.
const PROSE_WIDTH: usize = 100;

/// Labelled values under a heading. Long values wrap next to their label.
#[derive(Default)]
pub struct Facts {
    rows: Vec<(String, String)>,
}

impl Facts {
    pub fn add(&mut self, label: &str, value: impl Into<String>) -> &mut Self {
        self.rows.push((label.to_owned(), printable_line(&value.into())));
        self
    }

    /// Adds a value that may be unknown; unknown ones have no line.
    pub fn add_known<T: ToString>(&mut self, label: &str, value: Option<T>) -> &mut Self {
        if let Some(value) = value {
            self.add(label, value.to_string());
        }
        self
    }

    /// Labels and values as rows of a table.
    pub fn rows(&self) -> impl Iterator<Item = Vec<String>> {
        self.rows.iter().map(|(label, value)| vec![label.clone(), value.clone()])
    }

    pub fn render(&self, width: Option<usize>) -> String {
        let label_width = self.rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        let indent = 2 + label_width + 2;
        let value_width = width.unwrap_or(PROSE_WIDTH).min(PROSE_WIDTH).saturating_sub(indent).max(20);
        let mut text = String::new();
        for (label, value) in &self.rows {
            for (index, line) in wrap(value, value_width).iter().enumerate() {
                let label = if index == 0 { label.as_str() } else { "" };
                text += &format!("  {label:label_width$}  {line}\n");
            }
        }
        text
    }
}
