//! The text of a conversation, split where what is learned begins and ends.
//!
//! Templates that mark it by `{% generation %}` are rendered a second time with characters in place of the marks. In others an answer
//! is what the template adds to a conversation when it is given one more turn of the assistant.

use minijinja::Environment;
use minijinja::value::Kwargs;
use serde_json::{Map, Value};

use super::{ASSISTANT, Answers, ChatTemplate, Conversation, Message};
use crate::error::DataError;

/// Text, and whether it is learned.
pub(super) type Piece = (String, bool);

/// What stands where something to be learned begins and ends: characters that no text may have.
const BEGIN: char = '\u{fdd0}';
const END: char = '\u{fdd1}';
/// The names by which templates write them.
const BEGINS: &str = "__generation_begins";
const ENDS: &str = "__generation_ends";

pub(super) fn extend(environment: &mut Environment<'static>) {
    environment.add_global(BEGINS, BEGIN.to_string());
    environment.add_global(ENDS, END.to_string());
}

/// What a template with marks has in place of a word that marks.
pub(super) fn shown(word: &str) -> String {
    format!("{{{{{}}}}}", if word == "generation" { BEGINS } else { ENDS })
}

impl ChatTemplate {
    /// The text of a conversation in pieces. Arguments of calls are written as texts of JSON where the template takes no values.
    pub(super) fn pieces(
        &self,
        messages: &[Message],
        tools: Option<&[Value]>,
    ) -> Result<(Vec<Piece>, Answers), DataError> {
        let found = self.pieces_of(messages, tools);
        if found.is_err()
            && let Some(messages) = with_arguments_as_texts(messages)
            && let Ok(found) = self.pieces_of(&messages, tools)
        {
            return Ok(found);
        }
        found
    }

    fn pieces_of(
        &self,
        messages: &[Message],
        tools: Option<&[Value]>,
    ) -> Result<(Vec<Piece>, Answers), DataError> {
        let (pieces, answers) = if self.is_marked[usize::from(self.has_tools && tools.is_some())] {
            self.marked(messages, tools)?
        } else {
            self.answered(messages, tools)?
        };
        if answers.learned == 0 {
            return Err(bad("it has no assistant answer that the template renders as at inference"));
        }
        Ok((pieces, answers))
    }

    /// What the template marks.
    fn marked(
        &self,
        messages: &[Message],
        tools: Option<&[Value]>,
    ) -> Result<(Vec<Piece>, Answers), DataError> {
        let conversation = Conversation { messages, tools, asks: false, variables: Map::new() };
        let [plain, marked] = self.names(tools);
        let (plain, marked) = (self.render_as(plain, &conversation)?, self.render_as(marked, &conversation)?);
        let mut pieces = split(&marked)?;
        if pieces.iter().map(|(text, _)| text.as_str()).collect::<String>() != plain {
            return Err(bad("the marks of its template (`{% generation %}`) change what it writes"));
        }
        let wanted: Vec<bool> =
            messages.iter().filter(|message| message.role == ASSISTANT).map(is_learned).collect();
        let spans = pieces.iter().filter(|(_, is_learned)| *is_learned).count();
        if wanted.contains(&false) {
            if spans != wanted.len() {
                let reason = format!(
                    "some of its answers are not to be learned, but the template marks {spans} places and not one for each of its {} answers",
                    wanted.len()
                );
                return Err(bad(&reason));
            }
            let marked = pieces.iter_mut().filter(|(_, is_learned)| *is_learned);
            marked.zip(wanted).for_each(|((_, is_learned), is_wanted)| *is_learned = is_wanted);
        }
        pieces.retain(|(text, _)| !text.is_empty());
        let learned = pieces.iter().filter(|(_, is_learned)| *is_learned).count() as u64;
        Ok((pieces, Answers { learned, left_out: 0 }))
    }

    /// The assistant's turns.
    fn answered(
        &self,
        messages: &[Message],
        tools: Option<&[Value]>,
    ) -> Result<(Vec<Piece>, Answers), DataError> {
        let render = |messages: &[Message], asks: bool| {
            self.render_conversation(&Conversation { messages, tools, asks, variables: Map::new() })
        };
        let whole = render(messages, false)?;
        let (mut pieces, mut answers, mut at) = (Vec::new(), Answers::default(), 0);
        let is_wanted =
            |answer: &usize| messages[*answer].role == ASSISTANT && is_learned(&messages[*answer]);
        for answer in (0..messages.len()).filter(is_wanted) {
            let asked = render(&messages[..answer], true)?;
            let answered = render(&messages[..=answer], false)?;
            let begin = if answered.starts_with(&asked) && whole.starts_with(&asked) {
                Some(asked.len())
            } else {
                let bare = render(&messages[..answer], false).unwrap_or_default();
                self.common(&asked, &whole).filter(|common| self.has_history(&asked, *common, &bare))
            };
            let is_exact = whole.starts_with(&answered);
            let end = if is_exact { Some(answered.len()) } else { self.common(&answered, &whole) };
            // A template may write a turn differently once more turns follow; such a turn is not trained on.
            let (Some(begin), Some(end)) = (begin.filter(|begin| *begin >= at), end) else {
                answers.left_out += 1;
                continue;
            };
            let text = whole.get(begin..end).unwrap_or_default().trim_end();
            if text.is_empty() || !(is_exact || holds(text, &messages[answer])) {
                answers.left_out += 1;
                continue;
            }
            pieces.push((whole[at..begin].to_owned(), false));
            pieces.push((text.to_owned(), true));
            at = begin + text.len();
            answers.learned += 1;
        }
        pieces.push((whole[at..].to_owned(), false));
        Ok((pieces, answers))
    }

    /// Up to where two texts are the same, without a part of a special token.
    ///
    /// What a template puts at the very end, such as a mark of the end of the text, or behind the question, such as the beginning of a
    /// thought, is not in a longer conversation.
    fn common(&self, one: &str, other: &str) -> Option<usize> {
        let same = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        let mut at = (0..=same).rev().find(|at| one.is_char_boundary(*at) && other.is_char_boundary(*at))?;
        for mark in &self.special {
            let first = at.saturating_sub(mark.len() - 1);
            let cut = (first..at).find(|start| {
                [one, other]
                    .iter()
                    .any(|text| text.get(*start..).is_some_and(|rest| rest.starts_with(mark.as_str())))
            });
            at = cut.unwrap_or(at);
        }
        Some(at)
    }

    /// Whether so much of a question has all turns before it, which alone are written as `bare`.
    fn has_history(&self, asked: &str, common: usize, bare: &str) -> bool {
        self.common(bare, asked).is_some_and(|history| common >= history)
    }
}

/// Whether a text is of that answer: it has what the answer says last.
fn holds(text: &str, answer: &Message) -> bool {
    let said = answer.text();
    let last = said.trim().lines().next_back().unwrap_or_default();
    text.contains(last.trim())
}

fn is_learned(message: &Message) -> bool {
    let is_off = |key: &str| match message.more.get(key) {
        Some(Value::Bool(is_on)) => !is_on,
        Some(value) => value.as_f64() == Some(0.0),
        None => false,
    };
    !is_off("weight") && !is_off("train")
}

/// A text at its marks. They alternate, as a mark has an end and none is within another.
fn split(marked: &str) -> Result<Vec<Piece>, DataError> {
    let (mut pieces, mut is_learned) = (Vec::new(), false);
    let mut rest = marked;
    while let Some(at) = rest.find([BEGIN, END]) {
        if rest[at..].starts_with(BEGIN) == is_learned {
            return Err(bad(
                "what its template marks by `{% generation %}` has no end, or it has the characters U+FDD0 or U+FDD1",
            ));
        }
        pieces.push((rest[..at].to_owned(), is_learned));
        is_learned = !is_learned;
        rest = &rest[at + BEGIN.len_utf8()..];
    }
    pieces.push((rest.to_owned(), is_learned));
    Ok(pieces)
}

/// The same turns with the arguments of calls as DeepSeek's templates take them; `None` where no call has values.
fn with_arguments_as_texts(messages: &[Message]) -> Option<Vec<Message>> {
    let mut messages = messages.to_vec();
    let calls = messages.iter_mut().filter_map(|message| message.more.get_mut("tool_calls"));
    let mut is_changed = false;
    for call in calls.filter_map(Value::as_array_mut).flatten() {
        if let Some(arguments) = call.pointer_mut("/function/arguments").filter(|value| value.is_object()) {
            let value = minijinja::Value::from_serialize(&*arguments);
            let none = Kwargs::from_iter(std::iter::empty::<(&str, minijinja::Value)>());
            *arguments = Value::String(super::python::to_json(value, none).ok()?);
            is_changed = true;
        }
    }
    is_changed.then_some(messages)
}

fn bad(reason: &str) -> DataError {
    DataError::BadTemplate { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::turns_of;

    /// What is learned, one entry per stretch, and what becomes of the answers.
    fn learned(source: &str, special: &[&str], turns: Value) -> Result<(Vec<String>, Answers), DataError> {
        let mut template = ChatTemplate::compile(source.to_owned(), "<s>".to_owned(), "</s>".to_owned())?;
        template.special = special.iter().map(|mark| (*mark).to_owned()).collect();
        let messages = turns_of(&json!({ "messages": turns })).unwrap();
        let (pieces, answers) = template.pieces(&messages, None)?;
        let whole: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(whole, template.render(&messages, false).unwrap_or(whole.clone()));
        Ok((
            pieces.into_iter().filter(|(_, is_learned)| *is_learned).map(|(text, _)| text).collect(),
            answers,
        ))
    }

    fn two_turns() -> Value {
        json!([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"},
               {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}])
    }

    /// In the manner of TRL's templates for training.
    const MARKED: &str = "{% for message in messages %}{% if message.role == 'assistant' %}<|im_start|>assistant\n\
        {% generation %}{{ message.content }}<|im_end|>{% endgeneration %}\n\
        {% else %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}";

    #[test]
    fn what_a_template_marks_is_learned_and_nothing_else() {
        let (found, answers) = learned(MARKED, &[], two_turns()).unwrap();
        assert_eq!(found, ["4<|im_end|>", "Yes.<|im_end|>"]);
        assert_eq!(answers, Answers { learned: 2, left_out: 0 });
        let mut turns = two_turns();
        turns[1]["train"] = json!(false);
        assert_eq!(learned(MARKED, &[], turns.clone()).unwrap().0, ["Yes.<|im_end|>"]);
        turns[3]["weight"] = json!(0);
        assert!(learned(MARKED, &[], turns).is_err());
        let thoughts =
            MARKED.replace("{{ message.content }}<|im_end|>{% end", "{{ message.content.strip('4') }}{% end");
        assert_eq!(learned(&thoughts, &[], two_turns()).unwrap().0, ["Yes."]);
        let open = MARKED.replace("{% endgeneration %}", "");
        assert!(learned(&open, &[], two_turns()).unwrap_err().to_string().contains("has no end"));
        let odd = MARKED.replace(
            "{{ message.content }}<|im_end|>{% end",
            "{% set a %}{% generation %}{% endset %}{% end",
        );
        assert!(learned(&odd, &[], two_turns()).is_err());
    }

    #[test]
    fn an_answer_with_train_false_is_shown_and_not_learned() {
        let mut turns = two_turns();
        turns[1]["train"] = json!(false);
        let plain = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "");
        let plain = format!("{plain}{{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}");
        assert_eq!(learned(&plain, &[], turns).unwrap().0, ["Yes.<|im_end|>"]);
    }

    const PHI_MARKS: [&str; 4] = ["<|end|>", "<|user|>", "<|assistant|>", "</s>"];

    #[test]
    fn every_answer_counts_where_the_template_ends_a_text_by_a_mark() {
        let source = "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}\
            {% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}";
        let (found, answers) = learned(source, &PHI_MARKS, two_turns()).unwrap();
        assert_eq!(found, ["4<|end|>", "Yes.<|end|>\n</s>"]);
        assert_eq!(answers.left_out, 0);
    }

    /// In the manner of DeepSeek R1, whose prompts begin a thought that conversations do not have.
    const THINKING: &str = "{% for message in messages %}{% if message.role == 'user' %}<｜User｜>{{ message.content }}\
        {% elif message.content is none %}<｜Assistant｜>\
        {% for call in message.tool_calls %}{{ call.type + '<｜sep｜>' + call.function.name + '\\n' + call.function.arguments }}{% endfor %}{{ eos_token }}\
        {% else %}<｜Assistant｜>{{ message.content.split('</think>')[-1] }}{{ eos_token }}{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}";

    #[test]
    fn answers_count_where_prompts_begin_a_thought() {
        let marks = ["<｜User｜>", "<｜Assistant｜>", "</s>"];
        let mut turns = two_turns();
        turns[3]["content"] = json!("<think>hm</think>Yes.");
        assert_eq!(learned(THINKING, &marks, turns.clone()).unwrap().0, ["4</s>", "Yes.</s>"]);
        let call = json!({"type": "function", "function": {"name": "add", "arguments": {"a": 2}}});
        turns[1] = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let (found, _) = learned(THINKING, &marks, turns).unwrap();
        assert_eq!(found, ["function<｜sep｜>add\n{\"a\": 2}</s>", "Yes.</s>"]);
    }
}
