//! Tables that stay aligned in 80 columns and lose nothing in pipes.
//!
//! Columns have a rank. When the terminal is too narrow, the columns of the highest rank are left out
//! first, and reported to the caller.

use super::printable_line;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

pub struct Column {
    pub title: &'static str,
    pub align: Align,
    /// 0 always stays; the larger the rank, the earlier a column is left out.
    pub rank: u8,
}

impl Column {
    pub fn left(title: &'static str, rank: u8) -> Self {
        Self { title, align: Align::Left, rank }
    }

    pub fn right(title: &'static str, rank: u8) -> Self {
        Self { title, align: Align::Right, rank }
    }

    /// Median and 90th percentile of the errors of predicted serving: time between tokens, tokens, first token.
    pub fn errors_of_serving() -> [Self; 6] {
        [("ITL", 0), ("P90", 1), ("TOKENS/S/GPU", 0), ("P90", 1), ("TTFT", 0), ("P90", 1)]
            .map(|(title, rank)| Self::right(title, rank))
    }
}

pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// A table as text, and the titles of the columns left out.
pub struct Fitted {
    pub text: String,
    pub left_out: Vec<String>,
}

/// Between columns.
const GAP: usize = 2;

impl Table {
    pub fn new(columns: Vec<Column>) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row; it has one cell per column, and an empty cell prints as a dash.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells.iter().map(|cell| printable_line(cell)).collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Titles and rows as they are, for pages.
    pub fn cells(&self) -> Vec<Vec<String>> {
        let titles = self.columns.iter().map(|column| column.title.to_lowercase()).collect();
        std::iter::once(titles).chain(self.rows.iter().cloned()).collect()
    }

    pub fn fit(&self, width: Option<usize>) -> Fitted {
        let widths: Vec<usize> = (0..self.columns.len()).map(|column| self.width_of(column)).collect();
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        while width.is_some_and(|limit| total(&kept, &widths) > limit) {
            // The last column of the highest rank is dropped first; rank 0 never is, and then lines overflow.
            let Some(at) = (0..kept.len()).max_by_key(|at| (self.columns[kept[*at]].rank, *at)) else {
                break;
            };
            if self.columns[kept[at]].rank == 0 {
                break;
            }
            kept.remove(at);
        }
        let left_out = (0..self.columns.len()).filter(|column| !kept.contains(column));
        Fitted {
            left_out: left_out.map(|column| self.columns[column].title.to_owned()).collect(),
            text: self.render(&kept, &widths),
        }
    }

    fn width_of(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| shown(&row[column]).chars().count());
        cells.max().unwrap_or(0).max(self.columns[column].title.chars().count())
    }

    fn render(&self, kept: &[usize], widths: &[usize]) -> String {
        let titles = kept.iter().map(|column| self.columns[*column].title);
        let mut text = self.render_row(kept, widths, titles);
        for row in &self.rows {
            text += &self.render_row(kept, widths, kept.iter().map(|column| shown(&row[*column])));
        }
        text
    }

    fn render_row<'a>(
        &self,
        kept: &[usize],
        widths: &[usize],
        cells: impl Iterator<Item = &'a str>,
    ) -> String {
        let mut line = String::new();
        for (column, cell) in kept.iter().zip(cells) {
            let width = widths[*column];
            match self.columns[*column].align {
                Align::Left => line += &format!("{cell:<width$}"),
                Align::Right => line += &format!("{cell:>width$}"),
            }
            line += &" ".repeat(GAP);
        }
        format!("{}\n", line.trim_end())
    }
}

fn shown(cell: &str) -> &str {
    if cell.is_empty() { "-" } else { cell }
}

fn total(kept: &[usize], widths: &[usize]) -> usize {
    kept.iter().map(|column| widths[*column] + GAP).sum::<usize>().saturating_sub(GAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table =
            Table::new(vec![Column::left("NAME", 0), Column::right("MEMORY", 1), Column::left("NOTES", 2)]);
        table.row(vec!["h100".into(), "80 GB".into(), "a very long remark".into()]);
        table.row(vec!["h200".into(), String::new(), "short".into()]);
        table
    }

    #[test]
    fn a_pipe_gets_every_column() {
        let fitted = table().fit(None);
        assert_eq!(
            fitted.text,
            "NAME  MEMORY  NOTES\nh100   80 GB  a very long remark\nh200       -  short\n"
        );
        assert!(fitted.left_out.is_empty());
    }

    #[test]
    fn a_narrow_terminal_gets_what_matters_and_the_names_of_the_rest() {
        let fitted = table().fit(Some(20));
        assert_eq!(fitted.text, "NAME  MEMORY\nh100   80 GB\nh200       -\n");
        assert_eq!(fitted.left_out, ["NOTES"]);
        assert_eq!(table().fit(Some(3)).text, "NAME\nh100\nh200\n");
    }
}
