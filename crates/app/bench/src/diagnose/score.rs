//! Answers against what is true: the confusion matrix and what follows from it.

use std::collections::BTreeMap;

use bedplate_diagnose::Cause;
use bedplate_terminal::present::{Column, Table};
use serde_json::{Value, json};

/// What is true of a case, or was answered. Of a healthy one nothing is to be said.
pub(super) type Answer = Option<Cause>;

#[derive(Debug, Default)]
pub(super) struct Confusion {
    counts: BTreeMap<(Answer, Answer), usize>,
}

impl Confusion {
    pub(super) fn add(&mut self, truth: Answer, answer: Answer) {
        *self.counts.entry((truth, answer)).or_default() += 1;
    }

    fn count(&self, admits: impl Fn(Answer, Answer) -> bool) -> usize {
        self.counts
            .iter()
            .filter(|((truth, answer), _)| admits(*truth, *answer))
            .map(|(_, count)| count)
            .sum()
    }

    /// Over all causes together: of the causes that were named, how many are right, and of those that there are, how many were
    /// named.
    pub(super) fn precision(&self) -> f64 {
        let named = self.count(|_, answer| is_named(answer));
        self.count(|truth, answer| is_named(answer) && truth == answer) as f64 / named.max(1) as f64
    }

    pub(super) fn recall(&self) -> f64 {
        let there = self.count(|truth, _| is_named(truth));
        self.count(|truth, answer| is_named(truth) && truth == answer) as f64 / there.max(1) as f64
    }

    pub(super) fn f1(&self) -> f64 {
        let (precision, recall) = (self.precision(), self.recall());
        2.0 * precision * recall / (precision + recall).max(1e-9)
    }

    pub(super) fn table(&self) -> Table {
        let answers: Vec<Answer> = all().collect();
        let titles = std::iter::once(Column::left("TRUE, ANSWERED", 0));
        let mut table =
            Table::new(titles.chain(answers.iter().map(|answer| Column::right(name(*answer), 0))).collect());
        for truth in &answers {
            let row: Vec<usize> = answers
                .iter()
                .map(|answer| self.counts.get(&(*truth, *answer)).copied().unwrap_or(0))
                .collect();
            if row.iter().any(|count| *count > 0) {
                let cells =
                    row.iter().map(|count| if *count > 0 { count.to_string() } else { "-".to_owned() });
                table.row(std::iter::once(name(*truth).to_owned()).chain(cells).collect());
            }
        }
        table
    }

    pub(super) fn json(&self) -> Value {
        let counts: Vec<Value> = self
            .counts
            .iter()
            .map(|((truth, answer), count)| json!({ "true": name(*truth), "answered": name(*answer), "count": count }))
            .collect();
        json!({ "counts": counts, "precision": self.precision(), "recall": self.recall(), "f1": self.f1() })
    }
}

fn is_named(answer: Answer) -> bool {
    answer.is_some_and(|cause| cause != Cause::Unknown)
}

fn all() -> impl Iterator<Item = Answer> {
    Cause::KNOWN.into_iter().map(Some).chain([Some(Cause::Unknown), None])
}

pub(super) fn name(answer: Answer) -> &'static str {
    answer.map_or("healthy", Cause::name)
}
