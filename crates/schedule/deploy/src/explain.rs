//! Why a deployment was not taken, or was.

use bedplate_diag::shown;
use bedplate_perf::serving::{Parallel, WeightFormat};
use bedplate_transformer::Precision;

use crate::candidate::fit;
use crate::{DeployAnswer, DeployError, Need, ServingLayout, Supply, Tried, TriedSubject, Verdict};

/// A user's query: degrees and formats, any of them open; a second one for the decode pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    pub first: LayoutPattern,
    pub second: Option<LayoutPattern>,
}

/// A partly specified layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayoutPattern {
    pub tensor: Option<u32>,
    pub pipeline: Option<u32>,
    pub expert: Option<u32>,
    pub attention_data: Option<u32>,
    pub weights: Option<WeightFormat>,
    pub kv: Option<Precision>,
    pub chunk: Option<u32>,
}

/// The verdicts on everything that matches, those that got furthest first.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanExplanation {
    pub matches: Vec<Tried>,
}

/// Looks up a pattern among what was tried; anything else is judged by the rules.
pub fn explain(
    need: &Need<'_>,
    supplies: &[Supply],
    answer: &DeployAnswer,
    pattern: &Pattern,
) -> PlanExplanation {
    let mut matches: Vec<Tried> =
        answer.tried.iter().filter(|tried| pattern.matches(&tried.what)).cloned().collect();
    if matches.is_empty() {
        matches = supplies.iter().enumerate().map(|(index, it)| judge(need, index, it, pattern)).collect();
    }
    matches.sort_by_key(|tried| std::cmp::Reverse(tried.verdict.stage()));
    PlanExplanation { matches }
}

fn judge(need: &Need<'_>, index: usize, supply: &Supply, pattern: &Pattern) -> Tried {
    let layout = pattern.second.unwrap_or(pattern.first).completed(need);
    let verdict = match fit(need, supply, &layout) {
        Err(refusal) => Verdict::Refused(refusal),
        Ok(_) => Verdict::NotReplayed,
    };
    Tried { supply: index, what: TriedSubject::Layout(layout), verdict }
}

impl Pattern {
    fn matches(&self, what: &TriedSubject) -> bool {
        let (first, second) = what.layouts();
        let is_pair = matches!((self.second, second), (Some(wanted), Some(found)) if wanted.matches(&found));
        self.first.matches(&first) && (is_pair || (self.second.is_none() && second.is_none()))
    }
}

impl LayoutPattern {
    fn matches(&self, layout: &ServingLayout) -> bool {
        fn is<T: PartialEq>(wanted: Option<T>, found: T) -> bool {
            wanted.is_none_or(|wanted| wanted == found)
        }
        let Parallel { tensor, pipeline, expert, attention_data } = layout.parallel;
        // Missing degrees are 1, unless only formats are given.
        let says_degrees = self.tensor.is_some();
        let degree = |wanted: Option<u32>| wanted.or(says_degrees.then_some(1));
        is(self.tensor, tensor)
            && is(degree(self.pipeline), pipeline)
            && is(self.expert, expert)
            && is(degree(self.attention_data), attention_data)
            && is(self.weights, layout.weights)
            && is(self.kv, layout.kv)
            && is(self.chunk, layout.chunk)
    }

    /// The layout, with 1 for missing degrees and the need's first choice for missing formats.
    pub fn completed(&self, need: &Need<'_>) -> ServingLayout {
        let one = |degree: Option<u32>| degree.unwrap_or(1);
        ServingLayout {
            parallel: Parallel {
                tensor: one(self.tensor),
                pipeline: one(self.pipeline),
                expert: one(self.expert),
                attention_data: one(self.attention_data),
            },
            weights: self.weights.unwrap_or(need.options.weights[0]),
            kv: self.kv.unwrap_or(need.options.kv[0]),
            chunk: self.chunk.unwrap_or(need.options.chunks[0]),
        }
    }

    fn read(text: &str) -> Result<Self, String> {
        let mut pattern = Self::default();
        for term in text.trim().split('.') {
            pattern.add(term.trim())?;
        }
        Ok(pattern)
    }

    fn add(&mut self, term: &str) -> Result<(), String> {
        if let Some(format) = WeightFormat::find(term) {
            self.weights = Some(format);
            return Ok(());
        }
        if let Some(kv) = term.strip_prefix("kv-").and_then(Precision::find) {
            self.kv = Some(kv);
            return Ok(());
        }
        let digits = term.find(|letter: char| letter.is_ascii_digit()).unwrap_or(term.len());
        let (name, number) = term.split_at(digits);
        let number = number.parse::<u32>().ok().filter(|number| *number > 0);
        let field = match name {
            "tp" => &mut self.tensor,
            "pp" => &mut self.pipeline,
            "ep" => &mut self.expert,
            "adp" => &mut self.attention_data,
            "chunk" => &mut self.chunk,
            _ => return Err(format!("`{}` is not a degree or format", shown(term))),
        };
        *field = Some(number.ok_or_else(|| format!("`{}` needs a number above 0", shown(term)))?);
        Ok(())
    }
}

impl std::str::FromStr for Pattern {
    type Err = DeployError;

    fn from_str(text: &str) -> Result<Self, DeployError> {
        let unknown = |reason| DeployError::UnknownPattern { text: shown(text), reason };
        let (first, second) = match text.split_once('+') {
            Some((first, second)) => (first, Some(second)),
            None => (text, None),
        };
        Ok(Self {
            first: LayoutPattern::read(first).map_err(unknown)?,
            second: second.map(LayoutPattern::read).transpose().map_err(unknown)?,
        })
    }
}
