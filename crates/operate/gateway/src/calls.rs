//! Calls of tools in the text of an answer, in the styles that models were trained on.
//!
//! Text is passed on as it comes until a call may begin. A call begins once its name and the beginning of its arguments are there; from then
//! on the arguments are passed on as they are written. What turns out not to be a call before it has begun is text. What comes out does not
//! depend on how the text is cut into pieces.

mod json;
mod object;
mod tagged;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use self::object::{Arguments, CallObject, CallRules};
use self::tagged::{CODER, GLM, Kind, Tags};

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>`: Qwen3-Coder.
    Coder,
    /// `<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`: GLM.
    Glm,
    /// The whole answer is `{"name": …, "parameters": …}`, or what is behind `<|python_tag|>`: Llama 3.
    Llama,
    /// `[TOOL_CALLS]` and a list, or a name, perhaps `[CALL_ID]`, and `[ARGS]`: Mistral.
    Mistral,
    /// Between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`: DeepSeek.
    DeepSeek,
    /// Between `<|tool_call_begin|>` and `<|tool_call_end|>`: Kimi.
    Kimi,
    /// The whole answer is a list of calls: what we make a model write that must call.
    Forced,
}

const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const MISTRAL: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";
const PYTHON: &str = "<|python_tag|>";

/// The marks of models that have one for everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Marks {
    section: &'static str,
    begin: &'static str,
    /// Behind the head of a call.
    head_end: &'static str,
    end: &'static str,
    section_end: &'static str,
}

const DEEPSEEK: Marks = Marks {
    section: "<｜tool▁calls▁begin｜>",
    begin: "<｜tool▁call▁begin｜>",
    head_end: "<｜tool▁sep｜>",
    end: "<｜tool▁call▁end｜>",
    section_end: "<｜tool▁calls▁end｜>",
};
const KIMI: Marks = Marks {
    section: "<|tool_calls_section_begin|>",
    begin: "<|tool_call_begin|>",
    head_end: "<|tool_call_argument_begin|>",
    end: "<|tool_call_end|>",
    section_end: "<|tool_calls_section_end|>",
};
/// What DeepSeek V3 puts around arguments.
const FENCE: &str = "```json";
const FENCE_END: &str = "```";
/// Bytes of a function's name, of the mark before it and the space around it, beyond which it is none.
const LONGEST_HEAD: usize = 1024;

impl CallStyle {
    /// By what a chat template writes.
    pub(crate) fn of_template(source: &str) -> Self {
        let marked = [
            (MISTRAL, CallStyle::Mistral),
            (DEEPSEEK.begin, CallStyle::DeepSeek),
            (KIMI.begin, CallStyle::Kimi),
            ("<arg_key>", CallStyle::Glm),
            (FUNCTION, CallStyle::Coder),
            ("python_tag", CallStyle::Llama),
        ];
        let is_llama = source.contains("\"parameters\"") && source.contains("ipython");
        let found = marked.into_iter().find(|(mark, _)| source.contains(mark)).map(|(_, style)| style);
        found.unwrap_or(if is_llama { CallStyle::Llama } else { CallStyle::Hermes })
    }

    /// What a call may begin with in the midst of a text.
    fn marks(self) -> &'static [&'static str] {
        match self {
            CallStyle::Hermes | CallStyle::Glm => &[CALL],
            CallStyle::Coder => &[CALL, FUNCTION],
            CallStyle::Llama => &[PYTHON],
            CallStyle::Mistral => &[MISTRAL],
            CallStyle::DeepSeek => &[DEEPSEEK.section, DEEPSEEK.begin],
            CallStyle::Kimi => &[KIMI.section, KIMI.begin],
            CallStyle::Forced => &[],
        }
    }

    fn own_marks(self) -> Option<&'static Marks> {
        match self {
            CallStyle::DeepSeek => Some(&DEEPSEEK),
            CallStyle::Kimi => Some(&KIMI),
            _ => None,
        }
    }
}

/// How the calls of an answer are looked for.
#[derive(Debug, Clone)]
pub(crate) struct CallSettings {
    pub(crate) style: CallStyle,
    /// Names with the schemas of their parameters.
    pub(crate) functions: Arc<[(String, Value)]>,
    /// Whether more than one call is wanted.
    pub(crate) is_parallel: bool,
}

/// What is known of a call when it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallHead {
    pub(crate) name: String,
    /// The model's own name for the call.
    pub(crate) id: Option<String>,
}

/// What a piece of text turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallPart {
    Text(String),
    Begin(CallHead),
    /// More of the arguments of the call that began last: JSON, unless the model wrote something else.
    Arguments(String),
}

/// Separates text and calls.
#[derive(Debug)]
pub(crate) struct CallSearch {
    settings: CallSettings,
    /// What has come and has not been looked at.
    held: String,
    /// What was taken since the mark of a call that has not begun: text, if it is none.
    taken: String,
    /// How much of that is the mark.
    mark: usize,
    place: Place,
    has_called: bool,
}

#[derive(Debug)]
enum Place {
    /// Nothing but white space so far.
    Beginning,
    Text,
    /// Behind a mark.
    Open,
    /// Behind the bracket of a list of calls, or behind one of them.
    List,
    Object {
        object: Box<CallObject>,
        is_listed: bool,
    },
    /// Before the name of a function whose arguments follow in tags.
    Function(&'static Tags),
    /// Behind that name.
    Named {
        name: String,
        tags: &'static Tags,
    },
    /// Between tagged arguments.
    Between(Tagged),
    /// In a tagged argument.
    Within {
        tagged: Tagged,
        kind: Kind,
        is_first: bool,
    },
    /// In arguments as JSON.
    Json {
        head: Option<CallHead>,
        arguments: Box<Arguments>,
    },
    /// In arguments that are no JSON: all up to the end of the call.
    Broken(&'static [&'static str]),
    /// Behind arguments, before these marks.
    Closing(&'static [&'static str]),
    /// White space between calls is no text.
    AfterCall,
    /// No more calls are wanted, and what is behind the last is none.
    Ended,
}

#[derive(Debug, Clone)]
struct Tagged {
    tags: &'static Tags,
    function: String,
    count: usize,
}

/// What a step over the held text led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Forward,
    /// More text must come first.
    Wait,
    /// It is no call.
    NoCall,
}

impl CallSearch {
    pub(crate) fn new(settings: CallSettings) -> Self {
        Self {
            settings,
            held: String::new(),
            taken: String::new(),
            mark: 0,
            place: Place::Beginning,
            has_called: false,
        }
    }

    pub(crate) fn push(&mut self, piece: &str) -> Vec<CallPart> {
        self.held.push_str(piece);
        let mut parts = Vec::new();
        loop {
            match self.step(&mut parts) {
                Step::Forward => {}
                Step::Wait => return parts,
                Step::NoCall => self.give_up(&mut parts),
            }
        }
    }

    /// What was held back, when no more text comes.
    pub(crate) fn finish(&mut self) -> Vec<CallPart> {
        let (held, taken) = (std::mem::take(&mut self.held), std::mem::take(&mut self.taken));
        let mut parts = Vec::new();
        match std::mem::replace(&mut self.place, Place::Ended) {
            Place::Ended => {}
            Place::Broken(_) => parts.push(CallPart::Arguments(held)),
            // The model has ended the call without its last tag.
            Place::Between(tagged) => {
                parts.push(CallPart::Arguments(tagged.end().to_owned()));
                push_text(&mut parts, held.trim_start());
            }
            Place::Within { kind: Kind::Text, is_first, .. } => {
                let text = if is_first { held.strip_prefix('\n').unwrap_or(&held) } else { &held };
                let quote = if is_first { "\"" } else { "" };
                parts.push(CallPart::Arguments(format!("{quote}{}", tagged::escaped(text))));
            }
            Place::Within { .. } => parts.push(CallPart::Arguments(held)),
            Place::Json { head: None, .. } => push_text(&mut parts, &held),
            Place::AfterCall => push_text(&mut parts, held.trim_start()),
            Place::List | Place::Closing(_) if taken.trim().is_empty() && held.is_empty() => {}
            Place::Object { object, .. } if object.has_begun => {}
            _ => push_text(&mut parts, &format!("{taken}{held}")),
        }
        parts.retain(|part| *part != CallPart::Arguments(String::new()));
        parts
    }

    /// What was taken is text, but for what comes behind its mark, which may be a call.
    fn give_up(&mut self, parts: &mut Vec<CallPart>) {
        let behind = self.taken.split_off(self.mark.min(self.taken.len()));
        push_text(parts, &std::mem::take(&mut self.taken));
        self.held.insert_str(0, &behind);
        (self.place, self.mark) = (Place::Text, 0);
    }

    fn step(&mut self, parts: &mut Vec<CallPart>) -> Step {
        match &self.place {
            Place::Beginning => self.begin(),
            Place::Text => self.pass_text(parts),
            Place::Open => self.open(),
            Place::List => self.list(),
            Place::Object { .. } => self.object(parts),
            Place::Function(tags) => self.function(tags),
            Place::Named { .. } => self.named(parts),
            Place::Between(_) => self.between(parts),
            Place::Within { .. } => self.within(parts),
            Place::Json { .. } => self.json(parts),
            Place::Broken(ends) => self.broken(ends, parts),
            Place::Closing(ends) => self.close(ends),
            Place::AfterCall => self.after_call(),
            Place::Ended => {
                self.held.clear();
                Step::Wait
            }
        }
    }

    /// Moves so many bytes of what is held to what was taken.
    fn take(&mut self, bytes: usize) {
        let rest = self.held.split_off(bytes);
        self.taken.push_str(&self.held);
        self.held = rest;
    }

    fn take_space(&mut self) {
        self.take(self.held.len() - self.held.trim_start().len());
    }

    /// Takes a word that comes next; waits where it may.
    fn take_word(&mut self, word: &str) -> Step {
        if self.held.starts_with(word) {
            self.take(word.len());
            Step::Forward
        } else if word.starts_with(self.held.as_str()) {
            Step::Wait
        } else {
            Step::NoCall
        }
    }

    /// A call has begun, so that what was taken is none of the text.
    fn begun(&mut self) {
        (self.has_called, self.mark) = (true, 0);
        self.taken.clear();
    }

    /// The whole answer may be calls; its beginning decides.
    fn begin(&mut self) -> Step {
        let opening = match self.settings.style {
            CallStyle::Llama => "{",
            CallStyle::Forced => "[",
            _ => {
                self.place = Place::Text;
                return Step::Forward;
            }
        };
        self.take_space();
        if self.held.is_empty() {
            return Step::Wait;
        }
        if !self.held.starts_with(opening) {
            return Step::NoCall;
        }
        self.place = match self.settings.style {
            CallStyle::Forced => {
                self.take(1);
                Place::List
            }
            _ => self.new_object(false),
        };
        Step::Forward
    }

    fn new_object(&self, is_listed: bool) -> Place {
        let names = || self.settings.functions.iter().map(|(name, _)| name.clone()).collect();
        let is_bare = self.settings.style == CallStyle::Llama && self.mark == 0;
        let rules = CallRules { names: is_bare.then(names) };
        Place::Object { object: Box::new(CallObject::new(rules)), is_listed }
    }

    /// Text up to a mark; what may be its beginning stays.
    fn pass_text(&mut self, parts: &mut Vec<CallPart>) -> Step {
        let marks = self.settings.style.marks();
        let found = marks.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark))).min();
        let Some((at, mark)) = found else {
            let kept = marks.iter().map(|mark| beginning(&self.held, mark)).max().unwrap_or(0);
            let rest = self.held.split_off(self.held.len() - kept);
            push_text(parts, &std::mem::replace(&mut self.held, rest));
            return Step::Wait;
        };
        let rest = self.held.split_off(at);
        push_text(parts, &std::mem::replace(&mut self.held, rest));
        self.taken.clear();
        self.mark = mark.len();
        self.take(mark.len());
        self.place = if mark == FUNCTION { Place::Function(&CODER) } else { Place::Open };
        Step::Forward
    }

    /// Behind a mark.
    fn open(&mut self) -> Step {
        self.take_space();
        if self.held.is_empty() {
            return Step::Wait;
        }
        match self.settings.style {
            CallStyle::Mistral if self.held.starts_with('[') => {
                self.take(1);
                self.place = Place::List;
                Step::Forward
            }
            CallStyle::Mistral => self.mistral_head(),
            CallStyle::DeepSeek => self.marked_head(&DEEPSEEK),
            CallStyle::Kimi => self.marked_head(&KIMI),
            CallStyle::Glm if !self.held.starts_with('{') => {
                self.place = Place::Function(&GLM);
                Step::Forward
            }
            CallStyle::Coder | CallStyle::Hermes if self.held.starts_with('<') => {
                let step = self.take_word(FUNCTION);
                if step == Step::Forward {
                    self.place = Place::Function(&CODER);
                }
                step
            }
            _ if self.held.starts_with('{') => {
                self.place = self.new_object(false);
                Step::Forward
            }
            _ => Step::NoCall,
        }
    }

    /// Between the calls of a list.
    fn list(&mut self) -> Step {
        self.take_space();
        match self.held.chars().next() {
            None => Step::Wait,
            Some('{') => {
                self.place = self.new_object(true);
                Step::Forward
            }
            // A list that is no list of calls has nothing before the comma.
            Some(',') if self.has_called => {
                self.take(1);
                Step::Forward
            }
            Some(']') if self.has_called => {
                self.take(1);
                self.taken.clear();
                self.end_call();
                Step::Forward
            }
            Some(_) => Step::NoCall,
        }
    }

    fn object(&mut self, parts: &mut Vec<CallPart>) -> Step {
        let Place::Object { object, is_listed } = &mut self.place else { return Step::NoCall };
        let (is_listed, mut used, mut outcome) = (*is_listed, 0, Ok(false));
        for next in self.held.chars() {
            outcome = object.push(next, parts);
            if outcome.is_err() {
                break;
            }
            used += next.len_utf8();
            if outcome == Ok(true) {
                break;
            }
        }
        let has_begun = object.has_begun;
        self.take(used);
        if has_begun {
            self.begun();
        }
        match outcome {
            Ok(false) => Step::Wait,
            Ok(true) => {
                if is_listed && !self.is_last() {
                    self.place = Place::List;
                } else {
                    self.end_object();
                }
                Step::Forward
            }
            Err(_) if has_begun => {
                self.place = Place::Broken(self.ends());
                Step::Forward
            }
            Err(_) => Step::NoCall,
        }
    }

    fn end_object(&mut self) {
        match self.settings.style {
            CallStyle::Hermes | CallStyle::Coder | CallStyle::Glm => self.place = Place::Closing(self.ends()),
            _ => self.end_call(),
        }
    }

    /// Whether no more calls are wanted behind one that is complete.
    fn is_last(&self) -> bool {
        !self.settings.is_parallel
    }

    fn end_call(&mut self) {
        self.place = if self.is_last() { Place::Ended } else { Place::AfterCall };
    }

    /// What ends a call that is no JSON.
    fn ends(&self) -> &'static [&'static str] {
        match self.settings.style {
            CallStyle::Hermes | CallStyle::Coder | CallStyle::Glm => &[CALL_END],
            CallStyle::DeepSeek => &[DEEPSEEK.end],
            CallStyle::Kimi => &[KIMI.end],
            CallStyle::Mistral | CallStyle::Llama | CallStyle::Forced => &[],
        }
    }

    /// `name{…}`, `name[ARGS]{…}` or `name[CALL_ID]id[ARGS]{…}`.
    fn mistral_head(&mut self) -> Step {
        let Some(at) = self.held.find(['[', '{']) else { return self.wait_for_head() };
        let (name, rest) = self.held.split_at(at);
        let name = name.trim().to_owned();
        if !is_name(&name) {
            return Step::NoCall;
        }
        let (bytes, id) = if rest.starts_with('{') {
            (at, None)
        } else if rest.starts_with(ARGS) {
            (at + ARGS.len(), None)
        } else if let Some(behind) = rest.strip_prefix(CALL_ID) {
            match behind.find(ARGS) {
                Some(end) => (at + CALL_ID.len() + end + ARGS.len(), Some(behind[..end].trim().to_owned())),
                None if behind.len() > LONGEST_HEAD || behind.contains('{') => return Step::NoCall,
                None => return Step::Wait,
            }
        } else if [ARGS, CALL_ID].iter().any(|mark| mark.starts_with(rest)) {
            return Step::Wait;
        } else {
            return Step::NoCall;
        };
        self.take(bytes);
        self.begin_json(CallHead { name, id: id.filter(|id| !id.is_empty()) });
        Step::Forward
    }

    fn wait_for_head(&self) -> Step {
        if self.held.len() > LONGEST_HEAD { Step::NoCall } else { Step::Wait }
    }

    fn begin_json(&mut self, head: CallHead) {
        self.place = Place::Json { head: Some(head), arguments: Box::new(Arguments::new()) };
    }

    /// The head of a call between marks, which names the function, or says what kind of call it is and names the function behind it.
    fn marked_head(&mut self, marks: &Marks) -> Step {
        if self.taken.starts_with(marks.section) && !self.taken.contains(marks.begin) {
            return self.take_word(marks.begin);
        }
        let Some(at) = self.held.find(marks.head_end) else {
            return if self.held.contains('{') { Step::NoCall } else { self.wait_for_head() };
        };
        let head = self.held[..at].trim().to_owned();
        let behind = at + marks.head_end.len();
        if self.settings.style == CallStyle::Kimi {
            // `functions.name:0`
            let name = head.rsplit_once(':').map_or(head.as_str(), |(name, _)| name);
            let name = name.split_once('.').map_or(name, |(_, name)| name).to_owned();
            if !is_name(&name) {
                return Step::NoCall;
            }
            self.take(behind);
            self.begin_json(CallHead { name, id: Some(head) });
            return Step::Forward;
        }
        if head != "function" {
            if !is_name(&head) {
                return Step::NoCall;
            }
            self.take(behind);
            self.begin_json(CallHead { name: head, id: None });
            return Step::Forward;
        }
        let Some((name, rest)) = self.held[behind..].split_once('\n') else { return self.wait_for_head() };
        let fence = rest.trim_start();
        if !fence.starts_with(FENCE) {
            let may_come = FENCE.starts_with(fence);
            return if may_come { Step::Wait } else { Step::NoCall };
        }
        let name = name.trim().to_owned();
        if !is_name(&name) {
            return Step::NoCall;
        }
        let bytes = self.held.len() - fence.len() + FENCE.len();
        self.take(bytes);
        self.begin_json(CallHead { name, id: None });
        Step::Forward
    }

    fn json(&mut self, parts: &mut Vec<CallPart>) -> Step {
        let Place::Json { head, arguments } = &mut self.place else { return Step::NoCall };
        let (mut used, mut outcome) = (0, Ok(false));
        for next in self.held.chars() {
            outcome = arguments.push(next);
            if outcome.is_err() {
                break;
            }
            used += next.len_utf8();
            if outcome == Ok(true) {
                break;
            }
        }
        if let Some(head) = head.take_if(|_| arguments.looks_right()) {
            parts.push(CallPart::Begin(head));
        }
        let has_begun = head.is_none();
        if has_begun {
            let told = arguments.take();
            push_arguments(parts, told);
        }
        self.take(used);
        if has_begun {
            self.begun();
        }
        match outcome {
            Ok(false) => Step::Wait,
            Ok(true) => {
                match self.settings.style.own_marks() {
                    Some(_) => self.place = Place::Closing(self.ends()),
                    None => self.end_call(),
                }
                Step::Forward
            }
            Err(_) if has_begun => {
                self.place = Place::Broken(self.ends());
                Step::Forward
            }
            Err(_) => Step::NoCall,
        }
    }

    /// Arguments that are no JSON are passed on as they are up to the end of the call.
    fn broken(&mut self, ends: &'static [&'static str], parts: &mut Vec<CallPart>) -> Step {
        let marks = self.settings.style.marks();
        let all = || ends.iter().chain(marks).copied();
        let Some((at, mark)) = all().filter_map(|mark| Some((self.held.find(mark)?, mark))).min() else {
            let kept = all().map(|mark| beginning(&self.held, mark)).max().unwrap_or(0);
            let rest = self.held.split_off(self.held.len() - kept);
            push_arguments(parts, std::mem::replace(&mut self.held, rest));
            return Step::Wait;
        };
        let is_end = ends.contains(&mark);
        let rest = self.held.split_off(if is_end { at + mark.len() } else { at });
        let mut told = std::mem::replace(&mut self.held, rest);
        told.truncate(at);
        push_arguments(parts, told);
        self.end_call();
        Step::Forward
    }

    /// Behind the arguments, before the mark that ends the call.
    fn close(&mut self, ends: &'static [&'static str]) -> Step {
        self.take_space();
        if self.held.is_empty() {
            return Step::Wait;
        }
        if self.settings.style == CallStyle::DeepSeek && self.held.starts_with('`') {
            return self.take_word(FENCE_END);
        }
        match ends.first().map(|end| self.take_word(end)) {
            None | Some(Step::Forward) => {
                self.taken.clear();
                self.end_call();
                Step::Forward
            }
            Some(Step::Wait) => Step::Wait,
            // The mark is missing, and something else is there.
            Some(Step::NoCall) => {
                self.end_call();
                Step::Forward
            }
        }
    }

    fn after_call(&mut self) -> Step {
        self.held = self.held.trim_start().to_owned();
        self.taken.clear();
        if self.held.is_empty() {
            return Step::Wait;
        }
        if self.settings.style == CallStyle::Llama && self.held.starts_with(';') {
            self.held.remove(0);
            self.place = Place::Beginning;
            return Step::Forward;
        }
        if let Some(marks) = self.settings.style.own_marks() {
            match self.take_word(marks.section_end) {
                Step::Forward => {
                    self.taken.clear();
                    return Step::Forward;
                }
                Step::Wait => return Step::Wait,
                Step::NoCall => {}
            }
        }
        self.place = Place::Text;
        Step::Forward
    }

    /// The name of a function whose arguments come in tags.
    fn function(&mut self, tags: &'static Tags) -> Step {
        let end = if *tags == CODER { self.held.find('>') } else { self.held.find(['<', '\n']) };
        let Some(end) = end else { return self.wait_for_head() };
        let name = self.held[..end].trim().to_owned();
        if !is_name(&name) {
            return Step::NoCall;
        }
        self.take(end + usize::from(*tags == CODER));
        self.place = Place::Named { name, tags };
        Step::Forward
    }

    /// What follows the name decides whether it was one.
    fn named(&mut self, parts: &mut Vec<CallPart>) -> Step {
        self.take_space();
        let Place::Named { name, tags } = &self.place else { return Step::NoCall };
        let words = [tags.open, tags.end];
        if words.iter().any(|word| self.held.starts_with(word)) {
            parts.push(CallPart::Begin(CallHead { name: name.clone(), id: None }));
            let tagged = Tagged { tags, function: name.clone(), count: 0 };
            self.begun();
            self.place = Place::Between(tagged);
            return Step::Forward;
        }
        if words.iter().any(|word| word.starts_with(self.held.as_str())) { Step::Wait } else { Step::NoCall }
    }

    fn between(&mut self, parts: &mut Vec<CallPart>) -> Step {
        self.held = self.held.trim_start().to_owned();
        let Place::Between(tagged) = &mut self.place else { return Step::NoCall };
        let tags = tagged.tags;
        if self.held.is_empty() {
            return Step::Wait;
        }
        if self.held.starts_with(tags.end) {
            push_arguments(parts, tagged.end().to_owned());
            self.held.drain(..tags.end.len());
            match *tags == GLM {
                true => self.end_call(),
                false => self.place = Place::Closing(&[CALL_END]),
            }
            return Step::Forward;
        }
        if let Some(behind) = self.held.strip_prefix(tags.open) {
            let Some((name, rest)) = behind.split_once(tags.named) else { return Step::Wait };
            let value = if tags.value.is_empty() { rest } else { rest.trim_start() };
            if !value.starts_with(tags.value) {
                if tags.value.starts_with(value) {
                    return Step::Wait;
                }
            } else {
                let name = name.trim();
                let schema = self.settings.functions.iter().find(|(known, _)| *known == tagged.function);
                let kind = tagged::kind_of(schema.map(|(_, schema)| schema), name, tags);
                let before = if tagged.count == 0 { "{" } else { ", " };
                push_arguments(parts, format!("{before}{}: ", tagged::quoted(name)));
                tagged.count += 1;
                let tagged = tagged.clone();
                self.held = value[tags.value.len()..].to_owned();
                self.place = Place::Within { tagged, kind, is_first: true };
                return Step::Forward;
            }
        } else if [tags.open, tags.end].iter().any(|word| word.starts_with(self.held.as_str())) {
            return Step::Wait;
        }
        // Something else: the call ends here, and the rest is text.
        push_arguments(parts, tagged.end().to_owned());
        self.end_call();
        Step::Forward
    }

    /// A tagged argument, whose text has a line break before and behind it that is none of it.
    fn within(&mut self, parts: &mut Vec<CallPart>) -> Step {
        let Place::Within { tagged, kind, is_first } = &mut self.place else { return Step::NoCall };
        let close = tagged.tags.close;
        let end = self.held.find(close);
        if *kind == Kind::Text && *is_first {
            if self.held.is_empty() {
                return Step::Wait;
            }
            let starts_line = self.held.starts_with('\n');
            // An empty value may have one line break for both.
            if starts_line && end.is_none() && beginning(&self.held[1..], close) == self.held.len() - 1 {
                return Step::Wait;
            }
            if starts_line && end != Some(1) {
                self.held.remove(0);
            }
            push_arguments(parts, "\"".to_owned());
            *is_first = false;
            return Step::Forward;
        }
        let Some(end) = end else {
            if *kind == Kind::Text {
                let kept = beginning(&self.held, close);
                let shown = &self.held[..self.held.len() - kept];
                let kept = kept + usize::from(shown.ends_with('\n'));
                let rest = self.held.split_off(self.held.len() - kept);
                push_arguments(parts, tagged::escaped(&std::mem::replace(&mut self.held, rest)));
            }
            return Step::Wait;
        };
        let rest = self.held.split_off(end + close.len());
        let mut value = std::mem::replace(&mut self.held, rest);
        value.truncate(end);
        let value = value.strip_suffix('\n').unwrap_or(&value);
        let told = match kind {
            Kind::Text => format!("{}\"", tagged::escaped(value)),
            kind => tagged::to_json(value.strip_prefix('\n').unwrap_or(value), *kind),
        };
        push_arguments(parts, told);
        self.place = Place::Between(tagged.clone());
        Step::Forward
    }
}

impl Tagged {
    /// What ends the object of its arguments.
    fn end(&self) -> &'static str {
        if self.count == 0 { "{}" } else { "}" }
    }
}

/// Bytes at the end of a text with which a word begins, but for the whole word.
fn beginning(text: &str, word: &str) -> usize {
    let most = word.len().saturating_sub(1).min(text.len());
    let is_one = |length: &usize| {
        text.is_char_boundary(text.len() - length) && word.starts_with(&text[text.len() - length..])
    };
    (1..=most).rev().find(is_one).unwrap_or(0)
}

/// Whether a text can be the name of a function.
fn is_name(text: &str) -> bool {
    let is_part = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-' | '.' | ':' | '/');
    !text.is_empty() && text.len() <= 256 && text.chars().all(is_part)
}

fn push_text(parts: &mut Vec<CallPart>, text: &str) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(CallPart::Text(before)) => before.push_str(text),
        _ => parts.push(CallPart::Text(text.to_owned())),
    }
}

fn push_arguments(parts: &mut Vec<CallPart>, text: String) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(CallPart::Arguments(before)) => before.push_str(&text),
        _ => parts.push(CallPart::Arguments(text)),
    }
}

/// The schema of a list of calls of these functions.
pub(crate) fn schema_of_calls(functions: &[(String, Value)], most: Option<u32>) -> Value {
    let mut definitions = Map::new();
    let mut one = |(number, (name, parameters)): (usize, &(String, Value))| {
        let mut parameters = parameters.clone();
        // What refers to a part of itself is looked for from the root.
        if refers(&mut parameters, &format!("#/$defs/{number}")) {
            definitions.insert(number.to_string(), parameters);
            parameters = json!({ "$ref": format!("#/$defs/{number}") });
        }
        json!({ "type": "object", "properties": { "name": { "const": name }, "arguments": parameters },
                "required": ["name", "arguments"], "additionalProperties": false })
    };
    let items: Vec<Value> = functions.iter().enumerate().map(&mut one).collect();
    let mut schema = json!({ "type": "array", "minItems": 1, "items": { "anyOf": items } });
    if let Some(most) = most {
        schema["maxItems"] = most.into();
    }
    if !definitions.is_empty() {
        schema["$defs"] = definitions.into();
    }
    schema
}

/// Whether a schema refers to parts of itself, which then lie beneath `place`.
fn refers(schema: &mut Value, place: &str) -> bool {
    match schema {
        Value::Object(object) => {
            let mut found = false;
            for (key, value) in object {
                let part = value.as_str().filter(|_| key == "$ref").and_then(|to| to.strip_prefix('#'));
                if let Some(part) = part {
                    *value = format!("{place}{part}").into();
                    found = true;
                } else {
                    found |= refers(value, place);
                }
            }
            found
        }
        Value::Array(listed) => listed.iter_mut().fold(false, |found, value| refers(value, place) | found),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
