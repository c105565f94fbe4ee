//! Conversations: rendered by a model's chat template, with the assistant's tokens marked.

mod dialect;
mod shape;

use minijinja::{Environment, Error, context};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::DataError;
use crate::tokenizer::{Encoder, Tokenizer};

pub(crate) use shape::turns_of;

/// The template for tokenizers without one: ChatML.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const ASSISTANT: &str = "assistant";
/// Instructions that a template may execute: a hundred times what a long conversation needs.
const MOST_STEPS: u64 = 10_000_000;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or another role that the template knows.
    pub role: String,
    pub content: String,
    /// What else a template may read, such as calls of tools.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Message {
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned(), more: Map::new() }
    }
}

/// What a template renders.
#[derive(Debug, Clone)]
pub struct Conversation<'a, M> {
    pub messages: &'a [M],
    /// The definitions of functions that the model may call.
    pub tools: Option<&'a [Value]>,
    /// Whether the text ends where the assistant's answer begins.
    pub asks: bool,
    /// What else the template reads, such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    begin: String,
    end: String,
}

impl ChatTemplate {
    /// The source of the tokenizer's own template, or of ChatML where it has none but has ChatML's tokens.
    pub fn source_of(tokenizer: &Tokenizer) -> Option<String> {
        let has_tokens = ["<|im_start|>", "<|im_end|>"].iter().all(|token| tokenizer.id(token).is_some());
        tokenizer.chat_template().or_else(|| has_tokens.then(|| CHATML.to_owned()))
    }

    /// The template of a tokenizer.
    pub fn of(tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let source = Self::source_of(tokenizer).ok_or_else(|| DataError::BadTemplate {
            reason:
                "the tokenizer has no template, and no tokens for the usual one (<|im_start|>, <|im_end|>)"
                    .to_owned(),
        })?;
        let spelled = |id: Option<u32>| id.map_or(Ok(String::new()), |id| tokenizer.decode(&[id]));
        Self::compile(source, spelled(tokenizer.begin())?, spelled(tokenizer.end())?)
    }

    fn compile(source: String, begin: String, end: String) -> Result<Self, DataError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(MOST_STEPS));
        dialect::extend(&mut environment);
        environment.add_template_owned("chat", dialect::without_marks(&source)).map_err(failed)?;
        Ok(Self { environment, begin, end })
    }

    /// The text of a conversation; with `asks` it ends where the assistant's answer begins.
    pub fn render(&self, messages: &[Message], asks: bool) -> Result<String, DataError> {
        self.render_conversation(&Conversation { messages, tools: None, asks, variables: Map::new() })
    }

    /// The same with tools, variables of the template's own, and messages of any shape that the template knows.
    pub fn render_conversation<M: Serialize>(
        &self,
        conversation: &Conversation<'_, M>,
    ) -> Result<String, DataError> {
        let template = self.environment.get_template("chat").map_err(failed)?;
        let fixed = context! {
            messages => conversation.messages,
            tools => conversation.tools,
            add_generation_prompt => conversation.asks,
            bos_token => self.begin,
            eos_token => self.end,
        };
        let variables = context! { ..fixed, ..minijinja::Value::from_serialize(&conversation.variables) };
        template.render(variables).map_err(failed)
    }

    /// The tokens of a conversation, and which of them count in the loss: the assistant's, and the token that ends
    /// its turn. Prompt and answer are encoded separately, as at inference.
    ///
    /// An answer with `"weight": 0` is shown and not learned, as OpenAI's files ask.
    pub fn encode(
        &self,
        messages: &[Message],
        encoder: &mut Encoder<'_>,
        ids: &mut Vec<u32>,
        counts: &mut Vec<bool>,
    ) -> Result<Answers, DataError> {
        let (pieces, answers) = self.pieces(messages)?;
        for (text, is_answer) in pieces {
            encoder.encode(&text, ids)?;
            counts.resize(ids.len(), is_answer);
        }
        Ok(answers)
    }

    /// The text, split where answers begin and end.
    fn pieces(&self, messages: &[Message]) -> Result<(Vec<(String, bool)>, Answers), DataError> {
        let whole = self.render(messages, false)?;
        let mut pieces = Vec::new();
        let mut answers = Answers::default();
        let mut at = 0;
        let is_unweighted =
            |message: &Message| message.more.get("weight").and_then(Value::as_f64) == Some(0.0);
        let is_learned = |message: &Message| message.role == ASSISTANT && !is_unweighted(message);
        for answer in (0..messages.len()).filter(|answer| is_learned(&messages[*answer])) {
            let asked = self.render(&messages[..answer], true)?;
            let answered = self.render(&messages[..=answer], false)?;
            // A template may write a turn differently once more turns follow; such a turn is not trained on.
            if asked.len() < at || !answered.starts_with(&asked) || !whole.starts_with(&answered) {
                answers.left_out += 1;
                continue;
            }
            let text = whole[asked.len()..answered.len()].trim_end();
            pieces.push((whole[at..asked.len()].to_owned(), false));
            pieces.push((text.to_owned(), true));
            at = asked.len() + text.len();
            answers.learned += 1;
        }
        if pieces.is_empty() {
            let reason = "it has no assistant answer that the template renders as at inference";
            return Err(DataError::BadTemplate { reason: reason.to_owned() });
        }
        pieces.push((whole[at..].to_owned(), false));
        Ok((pieces, answers))
    }
}

/// What becomes of the assistant's turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answers {
    pub learned: u64,
    /// Those that the template writes differently once more turns follow.
    pub left_out: u64,
}

impl std::ops::AddAssign for Answers {
    fn add_assign(&mut self, more: Self) {
        self.learned += more.learned;
        self.left_out += more.left_out;
    }
}

fn failed(error: Error) -> DataError {
    let reason = match error.detail() {
        Some(detail) => format!("{detail} (line {})", error.line().unwrap_or(0)),
        None => error.to_string(),
    };
    DataError::BadTemplate { reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TrainingOptions, train_tokenizer};

    fn tokenizer() -> Tokenizer {
        train_tokenizer([], &TrainingOptions { vocabulary: 259, ..TrainingOptions::default() }).unwrap()
    }

    fn conversation() -> Vec<Message> {
        let turns = [
            ("system", "Be brief."),
            ("user", "2 + 2?"),
            ("assistant", "4"),
            ("user", "Sure?"),
            ("assistant", "Yes."),
        ];
        turns.map(|(role, content)| Message::new(role, content)).to_vec()
    }

    /// The text that counts in the loss, one entry per stretch.
    fn counted(template: &ChatTemplate, tokenizer: &Tokenizer, messages: &[Message]) -> Vec<String> {
        let (mut ids, mut counts) = (Vec::new(), Vec::new());
        template.encode(messages, &mut tokenizer.encoder(), &mut ids, &mut counts).unwrap();
        assert_eq!(ids.len(), counts.len());
        assert_eq!(tokenizer.decode(&ids).unwrap(), template.render(messages, false).unwrap());
        let pairs: Vec<(u32, bool)> = ids.into_iter().zip(counts).collect();
        let stretches = pairs.chunk_by(|one, next| one.1 == next.1).filter(|stretch| stretch[0].1);
        let text = |stretch: &[(u32, bool)]| {
            tokenizer.decode(&stretch.iter().map(|(id, _)| *id).collect::<Vec<_>>()).unwrap()
        };
        stretches.map(text).collect()
    }

    #[test]
    fn answers_and_their_end_marks_count_and_nothing_else() {
        let tokenizer = tokenizer();
        let template = ChatTemplate::of(&tokenizer).unwrap();
        assert_eq!(counted(&template, &tokenizer, &conversation()), ["4<|im_end|>", "Yes.<|im_end|>"]);
        assert!(template.render(&conversation()[..2], true).unwrap().ends_with("<|im_start|>assistant\n"));
    }

    /// In the style of Llama 2, with Python methods and an exception.
    const OTHER: &str = "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'].strip() %}\
        {% set messages = messages[1:] %}{% endif %}\
        {%- for message in messages %}\
        {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns must alternate') }}{% endif %}\
        {% if message['role'] == 'user' %}{{ '[INST] ' + (system + ' ' if loop.first and system else '') + message['content'] + ' [/INST]' }}\
        {% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}";

    #[test]
    fn templates_of_other_models_are_followed() {
        let tokenizer = tokenizer();
        let template =
            ChatTemplate::compile(OTHER.to_owned(), String::new(), "<|endoftext|>".to_owned()).unwrap();
        let text = template.render(&conversation(), false).unwrap();
        assert!(
            text.starts_with("[INST] Be brief. 2 + 2? [/INST] 4<|endoftext|>[INST] Sure? [/INST]"),
            "{text}"
        );
        assert_eq!(
            counted(&template, &tokenizer, &conversation()),
            [" 4<|endoftext|>", " Yes.<|endoftext|>"]
        );
        let wrong = template.render(&conversation()[2..], false).unwrap_err();
        assert!(wrong.to_string().contains("turns must alternate"), "{wrong}");
    }

    /// In the style of Qwen3, which drops the thoughts of all answers but the last.
    const FORGETFUL: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
        {{ message.content if loop.last else message.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    #[test]
    fn answers_that_are_not_learned_are_counted() {
        let tokenizer = tokenizer();
        let template = ChatTemplate::compile(FORGETFUL.to_owned(), String::new(), String::new()).unwrap();
        let mut messages = conversation();
        let answers = |messages: &[Message]| {
            template.encode(messages, &mut tokenizer.encoder(), &mut Vec::new(), &mut Vec::new())
        };
        assert_eq!(answers(&messages).unwrap(), Answers { learned: 2, left_out: 0 });
        messages[2].content = "two and two</think>4".to_owned();
        assert_eq!(answers(&messages).unwrap(), Answers { learned: 1, left_out: 1 });
        assert_eq!(counted(&template, &tokenizer, &messages), ["Yes.<|im_end|>"]);
        messages[4].more.insert("weight".to_owned(), 0.into());
        assert!(answers(&messages).is_err(), "nothing is left to learn");
        messages[2].content = "4".to_owned();
        assert_eq!(counted(&template, &tokenizer, &messages), ["4<|im_end|>"]);
    }

    /// In the style of Qwen's, with tools.
    const TOOLS: &str = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}\
        {% if thinking is defined and thinking %}<think>{% endif %}{{ strftime_now('%Y')[:2] }}{{ messages[0].content }}";

    #[test]
    fn tools_and_variables_reach_the_template_in_pythons_json() {
        let template = ChatTemplate::compile(TOOLS.to_owned(), String::new(), String::new()).unwrap();
        let tool: Value = serde_json::from_str(r#"{"name":"é<&>","more":[1,{"a":null}]}"#).unwrap();
        let variables: Map<String, Value> =
            serde_json::from_str(r#"{"thinking":true,"messages":0}"#).unwrap();
        let messages = [Message::new("user", "hi")];
        let tools = [tool];
        let conversation = Conversation { messages: &messages, tools: Some(&tools), asks: true, variables };
        let text = template.render_conversation(&conversation).unwrap();
        assert_eq!(text, "{\"name\": \"é<&>\", \"more\": [1, {\"a\": null}]}\n<think>20hi");
        let plain = template.render(&messages, true).unwrap();
        assert_eq!(plain, "20hi");
    }

    #[test]
    fn a_template_that_never_ends_is_stopped() {
        let endless = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
        let template = ChatTemplate::compile(endless.to_owned(), String::new(), String::new()).unwrap();
        assert!(template.render(&conversation(), false).is_err());
    }
}
