//! The grammar: `dp8.tp4.pp2.ep8`, parts joined by dots.
//!
//! Numbered parts: `dp tp cp pp vpp first last ep etp mb hsdp`. Plain parts: `sp`, `zero-bubble dualpipe`,
//! `zero1 zero2 zero3` (`fsdp`), `recompute-selective recompute-full`, `fp32 bf16 fp16 fp8 fp4`. On input the order is free and case does
//! not matter; printing follows the order above and leaves defaults out.

use std::fmt;
use std::str::FromStr;

use bedplate_diag::{Class, Diagnostic, Page, nearest, shown};

use crate::{ComputePrecision, Layout, Recompute, Schedule, Sharding};

const NUMBERED: [&str; 11] = ["dp", "tp", "cp", "pp", "vpp", "first", "last", "ep", "etp", "mb", "hsdp"];
const SCHEDULES: [(&str, Schedule); 2] =
    [("zero-bubble", Schedule::ZeroBubble), ("dualpipe", Schedule::DualPipe)];
const SHARDINGS: [(&str, Sharding); 4] = [
    ("zero1", Sharding::Optimizer),
    ("zero2", Sharding::Gradients),
    ("zero3", Sharding::Weights),
    ("fsdp", Sharding::Weights),
];
const RECOMPUTES: [(&str, Recompute); 2] =
    [("recompute-selective", Recompute::Selective), ("recompute-full", Recompute::Full)];
const PRECISIONS: [(&str, ComputePrecision); 5] = [
    ("fp32", ComputePrecision::Fp32),
    ("bf16", ComputePrecision::Bf16),
    ("fp16", ComputePrecision::Fp16),
    ("fp8", ComputePrecision::Fp8),
    ("fp4", ComputePrecision::Fp4),
];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseLayoutError {
    #[error("a layout is missing")]
    Empty,
    #[error("`{part}` is not a part of a layout")]
    UnknownPart { part: String },
    #[error("`{part}` needs a whole number from 1 to 1,000,000 after `{name}`")]
    BadNumber { part: String, name: &'static str },
    #[error("the layout says `{first}` and `{second}`, which set the same thing")]
    Twice { first: String, second: String },
}

pub const PAGES: &[&Page] = &[&BAD_LAYOUT];

static BAD_LAYOUT: Page = Page {
    code: "layout/bad-spelling",
    class: Class::User,
    meaning: "A layout could not be read. A layout is written as parts joined by dots, in any order: dp8 (data), tp4 (tensor), sp (sequence parallel), cp2 (context), pp2 (pipeline), vpp2 (virtual stages), first7 and last6 (layers of the first and the last stage), zero-bubble or dualpipe (schedules), ep8 (expert), etp1 (expert tensor), zero1, zero2, zero3 or fsdp, hsdp8, mb1 (micro-batch), recompute-selective, recompute-full, fp32, bf16, fp16, fp8, fp4.",
    remedy: "write it like `dp8.tp4.pp2` or `dp64.tp8.sp.zero1.mb2`",
};

impl Diagnostic for ParseLayoutError {
    fn page(&self) -> &'static Page {
        &BAD_LAYOUT
    }

    fn help(&self) -> Option<String> {
        let ParseLayoutError::UnknownPart { part } = self else { return None };
        let letters = part.trim_end_matches(|c: char| c.is_ascii_digit());
        let plain = SHARDINGS.iter().map(|(name, _)| *name);
        let plain = plain.chain(RECOMPUTES.iter().map(|(name, _)| *name));
        let plain = plain.chain(SCHEDULES.iter().map(|(name, _)| *name));
        let plain = plain.chain(PRECISIONS.iter().map(|(name, _)| *name)).chain(["sp"]);
        let near = nearest(part, plain).or_else(|| nearest(letters, NUMBERED))?;
        Some(format!("did you mean `{near}`?"))
    }
}

impl FromStr for Layout {
    type Err = ParseLayoutError;

    fn from_str(text: &str) -> Result<Self, ParseLayoutError> {
        if text.trim().is_empty() {
            return Err(ParseLayoutError::Empty);
        }
        let mut reader = Reader::default();
        for part in text.trim().split('.') {
            reader.take(part)?;
        }
        Ok(reader.layout)
    }
}

/// The layout so far, and which part has set which field.
#[derive(Default)]
struct Reader {
    layout: Layout,
    set: Vec<(&'static str, String)>,
}

impl Reader {
    fn take(&mut self, part: &str) -> Result<(), ParseLayoutError> {
        let lower = part.trim().to_ascii_lowercase();
        if lower == "sp" {
            self.claim("sp", part)?;
            self.layout.is_sequence_parallel = true;
        } else if let Some((_, sharding)) = SHARDINGS.iter().find(|(name, _)| *name == lower) {
            self.claim("sharding", part)?;
            self.layout.sharding = *sharding;
        } else if let Some((_, schedule)) = SCHEDULES.iter().find(|(name, _)| *name == lower) {
            self.claim("schedule", part)?;
            self.layout.schedule = *schedule;
        } else if let Some((_, recompute)) = RECOMPUTES.iter().find(|(name, _)| *name == lower) {
            self.claim("recompute", part)?;
            self.layout.recompute = *recompute;
        } else if let Some((_, precision)) = PRECISIONS.iter().find(|(name, _)| *name == lower) {
            self.claim("precision", part)?;
            self.layout.precision = *precision;
        } else {
            self.take_numbered(part, &lower)?;
        }
        Ok(())
    }

    fn take_numbered(&mut self, part: &str, lower: &str) -> Result<(), ParseLayoutError> {
        let digits_at = lower.find(|c: char| c.is_ascii_digit()).unwrap_or(lower.len());
        let (letters, digits) = lower.split_at(digits_at);
        let Some(name) = NUMBERED.into_iter().find(|known| *known == letters) else {
            return Err(ParseLayoutError::UnknownPart { part: shown(part) });
        };
        let number = digits.parse().ok().filter(|number| (1..=1_000_000).contains(number));
        let number: u32 = number.ok_or_else(|| ParseLayoutError::BadNumber { part: shown(part), name })?;
        self.claim(if name == "hsdp" { "sharding" } else { name }, part)?;
        match name {
            "dp" => self.layout.data = number,
            "tp" => self.layout.tensor = number,
            "cp" => self.layout.context = number,
            "pp" => self.layout.pipeline = number,
            "vpp" => self.layout.virtual_stages = number,
            "first" => self.layout.ends.first = Some(number),
            "last" => self.layout.ends.last = Some(number),
            "ep" => self.layout.expert = number,
            "etp" => self.layout.expert_tensor = number,
            "mb" => self.layout.micro_batch = number,
            _ => self.layout.sharding = Sharding::WeightsWithin(number),
        }
        Ok(())
    }

    fn claim(&mut self, field: &'static str, part: &str) -> Result<(), ParseLayoutError> {
        if let Some((_, first)) = self.set.iter().find(|(name, _)| *name == field) {
            return Err(ParseLayoutError::Twice { first: first.clone(), second: part.to_owned() });
        }
        self.set.push((field, part.to_owned()));
        Ok(())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbered = |name: &str, degree: u32| (degree != 1).then(|| format!("{name}{degree}"));
        let mut parts: Vec<String> = Vec::new();
        parts.extend(numbered("dp", self.data));
        parts.extend(numbered("tp", self.tensor));
        parts.extend(self.is_sequence_parallel.then(|| "sp".to_owned()));
        parts.extend(numbered("cp", self.context));
        parts.extend(numbered("pp", self.pipeline));
        parts.extend(numbered("vpp", self.virtual_stages));
        parts.extend(self.ends.first.map(|layers| format!("first{layers}")));
        parts.extend(self.ends.last.map(|layers| format!("last{layers}")));
        parts.extend(spelling(&SCHEDULES, &self.schedule));
        parts.extend(numbered("ep", self.expert));
        parts.extend(numbered("etp", self.expert_tensor));
        match self.sharding {
            Sharding::WeightsWithin(group) => parts.push(format!("hsdp{group}")),
            plain => parts.extend(spelling(&SHARDINGS, &plain)),
        }
        parts.extend(numbered("mb", self.micro_batch));
        parts.extend(spelling(&RECOMPUTES, &self.recompute));
        if self.precision != ComputePrecision::default() {
            parts.extend(spelling(&PRECISIONS, &self.precision));
        }
        f.pad(&if parts.is_empty() { "dp1".to_owned() } else { parts.join(".") })
    }
}

/// The first spelling of a value; the default has none and is left out.
fn spelling<T: PartialEq>(names: &[(&str, T)], value: &T) -> Option<String> {
    names.iter().find(|(_, known)| known == value).map(|(name, _)| (*name).to_owned())
}
