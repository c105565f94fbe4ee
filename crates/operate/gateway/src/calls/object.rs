//! A call as an object of JSON, `{"name": …, "arguments": …}`, or its arguments alone, character by character.

use super::json::{JsonScan, Malformed, push_valid};
use super::{CallHead, CallPart};

/// The arguments of a call whose name is known. Nothing is told before they look like arguments.
#[derive(Debug)]
pub(super) struct Arguments {
    json: JsonScan,
    /// What has not been told.
    held: String,
    /// Characters that are no white space: the second decides.
    seen: usize,
}

impl Arguments {
    pub(super) fn new() -> Self {
        Self { json: JsonScan::new(), held: String::new(), seen: 0 }
    }

    /// Takes the next character; whether the value is complete.
    pub(super) fn push(&mut self, next: char) -> Result<bool, Malformed> {
        if self.seen == 0 && next.is_whitespace() {
            return Ok(false);
        }
        if self.seen == 0 && next != '{' && next != '[' {
            return Err(Malformed);
        }
        let is_in_string = self.json.is_in_string();
        self.json.push(next)?;
        push_valid(&mut self.held, next, is_in_string);
        self.seen += usize::from(!next.is_whitespace());
        Ok(self.json.is_done())
    }

    pub(super) fn looks_right(&self) -> bool {
        self.seen > 1
    }

    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// What the value of a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    BetweenKeys,
    Key,
    BeforeValue,
    Value(Slot),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Name,
    Id,
    Arguments,
    Other,
}

/// Which objects are calls.
#[derive(Debug, Clone, Default)]
pub(super) struct CallRules {
    /// The names that a call may have; any where there is no list.
    pub(super) names: Option<Vec<String>>,
}

#[derive(Debug)]
pub(super) struct CallObject {
    json: JsonScan,
    rules: CallRules,
    part: Part,
    key: String,
    value: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that have not been told.
    arguments: String,
    has_arguments: bool,
    /// How the arguments are written.
    writing: Writing,
    seen: usize,
    pub(super) has_begun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writing {
    /// As a value.
    Value,
    /// As a string with JSON in it.
    Text,
    /// As a number or a word, which are told when they are complete.
    Scalar,
}

impl CallObject {
    pub(super) fn new(rules: CallRules) -> Self {
        Self {
            json: JsonScan::new(),
            rules,
            part: Part::BetweenKeys,
            key: String::new(),
            value: String::new(),
            name: None,
            id: None,
            arguments: String::new(),
            has_arguments: false,
            writing: Writing::Value,
            seen: 0,
            has_begun: false,
        }
    }

    /// Takes the next character; whether the object is complete.
    pub(super) fn push(&mut self, next: char, parts: &mut Vec<CallPart>) -> Result<bool, Malformed> {
        let was_in_string = self.json.is_in_string();
        self.json.push(next)?;
        if let Part::Value(slot) = self.part {
            // A number ends before what follows it.
            let is_behind = matches!(next, ',' | '}' | ' ' | '\t' | '\n' | '\r')
                && !was_in_string
                && self.is_scalar()
                && self.json.depth() <= 1;
            if !is_behind {
                self.take_value(slot, next, was_in_string);
            }
            if is_behind || (self.json.depth() == 1 && self.json.is_behind_value()) {
                self.end_value(slot)?;
            }
            self.tell(parts, false);
            if !is_behind {
                return Ok(false);
            }
        }
        match self.part {
            Part::BetweenKeys if next == '"' => {
                self.part = Part::Key;
                self.key.clear();
            }
            Part::Key if !self.json.is_in_string() => self.part = Part::BeforeValue,
            Part::Key => self.key.push(next),
            Part::BeforeValue if next != ':' && !next.is_whitespace() => self.begin_value(next)?,
            _ => {}
        }
        if !self.json.is_done() {
            return Ok(false);
        }
        if self.name.is_none() {
            return Err(Malformed);
        }
        self.tell(parts, true);
        Ok(true)
    }

    fn begin_value(&mut self, next: char) -> Result<(), Malformed> {
        let slot = match self.key.as_str() {
            "name" => Slot::Name,
            "id" => Slot::Id,
            "arguments" | "parameters" if !self.has_arguments => Slot::Arguments,
            "type" => Slot::Other,
            // A plain answer in JSON is none of the calls.
            _ if self.rules.names.is_some() => return Err(Malformed),
            _ => Slot::Other,
        };
        self.part = Part::Value(slot);
        self.value.clear();
        self.writing = match next {
            '{' | '[' => Writing::Value,
            '"' => Writing::Text,
            _ => Writing::Scalar,
        };
        if slot == Slot::Arguments {
            (self.has_arguments, self.seen) = (true, 0);
        }
        self.take_value(slot, next, false);
        Ok(())
    }

    fn is_scalar(&self) -> bool {
        self.writing == Writing::Scalar
    }

    fn take_value(&mut self, slot: Slot, next: char, was_in_string: bool) {
        match (slot, self.writing) {
            (Slot::Other, _) => {}
            (Slot::Arguments, Writing::Value) => {
                push_valid(&mut self.arguments, next, was_in_string);
                self.seen += usize::from(!next.is_whitespace());
            }
            (Slot::Arguments, Writing::Text) => {
                push_valid(&mut self.value, next, was_in_string);
                self.seen += 1;
                self.decode();
            }
            _ => push_valid(&mut self.value, next, was_in_string),
        }
    }

    /// Moves what is complete of a string from `value`, which keeps its quote, to the arguments.
    fn decode(&mut self) {
        let inside = self.value.strip_prefix('"').unwrap_or(&self.value);
        let inside =
            if self.json.is_in_string() { inside } else { inside.strip_suffix('"').unwrap_or(inside) };
        // Half of a character that is written as two escapes waits for the other.
        if let Ok(text) = serde_json::from_str::<String>(&format!("\"{inside}\"")) {
            self.arguments.push_str(&text);
            self.value.clear();
            self.value.push('"');
        }
    }

    fn end_value(&mut self, slot: Slot) -> Result<(), Malformed> {
        self.part = Part::BetweenKeys;
        let text = || serde_json::from_str::<String>(&self.value).map_err(|_| Malformed);
        match slot {
            Slot::Name => {
                let name = text()?;
                let is_known = self.rules.names.as_ref().is_none_or(|names| names.contains(&name));
                if name.is_empty() || !is_known {
                    return Err(Malformed);
                }
                self.name = Some(name);
            }
            Slot::Id => self.id = text().ok().filter(|id| !id.is_empty()),
            Slot::Arguments => {
                self.seen = 2;
                match self.writing {
                    Writing::Scalar if self.value == "null" => self.arguments.push_str("{}"),
                    Writing::Scalar => self.arguments.push_str(&self.value),
                    // What is no text, such as half of a character, is kept as it is written.
                    Writing::Text => {
                        let left = self.value.trim_matches('"');
                        self.arguments.push_str(left);
                        if self.arguments.is_empty() && !self.has_begun {
                            self.arguments.push_str("{}");
                        }
                    }
                    Writing::Value => {}
                }
            }
            Slot::Other => {}
        }
        Ok(())
    }

    /// Tells what is known, once it is the beginning of a call.
    fn tell(&mut self, parts: &mut Vec<CallPart>, is_complete: bool) {
        let Some(name) = &self.name else { return };
        if !self.has_begun && (is_complete || self.seen > 1) {
            self.has_begun = true;
            parts.push(CallPart::Begin(CallHead { name: name.clone(), id: self.id.take() }));
        }
        if is_complete && !self.has_arguments {
            self.arguments.push_str("{}");
        }
        if self.has_begun && !self.arguments.is_empty() {
            parts.push(CallPart::Arguments(std::mem::take(&mut self.arguments)));
        }
    }
}
