//! Conversations: rendered by a model's chat template, with the assistant's tokens marked.

mod allowance;
mod dialect;
mod pieces;
mod python;
mod rewrite;
mod shape;

use minijinja::{Environment, Error, context};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::DataError;
use crate::tokenizer::{Encoder, Tokenizer};

pub(crate) use shape::{RECORD_KEYS, tools_of, turns_of};

/// The template for tokenizers without one: ChatML.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const ASSISTANT: &str = "assistant";
/// The names of the templates of a tokenizer, as they are and with marks in what they write where something is to be learned.
const CHAT: [&str; 2] = ["chat", "chat with marks"];
const TOOLS: [&str; 2] = ["tools", "tools with marks"];
/// Instructions that a template may execute: a hundred times what a long conversation needs.
const MOST_STEPS: u64 = 10_000_000;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or another role that the template knows.
    pub role: String,
    /// Absent where a turn consists of calls alone.
    pub content: Option<String>,
    /// What else a template may read, such as calls of tools.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Message {
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: Some(content.to_owned()), more: Map::new() }
    }

    /// What is said; nothing where a turn consists of calls alone.
    pub fn text(&self) -> &str {
        self.content.as_deref().unwrap_or_default()
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
    /// Whether there is one of its own for conversations with tools.
    has_tools: bool,
    /// Whether the template of conversations, and that of conversations with tools, mark what is learned.
    is_marked: [bool; 2],
    /// How special tokens are spelled.
    special: Vec<String>,
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
        let mut template = Self::compile(source, spelled(tokenizer.begin())?, spelled(tokenizer.end())?)?;
        if let Some(source) = tokenizer.tool_template() {
            template.is_marked[1] = template.add(TOOLS, &source)?;
            template.has_tools = true;
        }
        template.special = tokenizer.special_tokens();
        Ok(template)
    }

    /// A template without the marks of a tokenizer.
    pub fn from_source(source: &str) -> Result<Self, DataError> {
        Self::compile(source.to_owned(), String::new(), String::new())
    }

    fn compile(source: String, begin: String, end: String) -> Result<Self, DataError> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(MOST_STEPS));
        dialect::extend(&mut environment);
        allowance::limit(&mut environment);
        pieces::extend(&mut environment);
        let (is_marked, special) = ([false; 2], Vec::new());
        let mut template = Self { environment, has_tools: false, is_marked, special, begin, end };
        template.is_marked[0] = template.add(CHAT, &source)?;
        Ok(template)
    }

    /// Whether it marks what is learned.
    fn add(&mut self, [name, marked]: [&'static str; 2], source: &str) -> Result<bool, DataError> {
        let mut add = |name, source: &str| {
            let rewritten = rewrite::rewritten(source).map_err(failed)?;
            self.environment.add_template_owned(name, rewritten).map_err(failed)
        };
        let plain = dialect::replace_marks(source, &|_| String::new());
        add(name, &plain)?;
        let shown = dialect::replace_marks(source, &pieces::shown);
        let is_marked = shown != plain;
        if is_marked {
            add(marked, &shown)?;
        }
        Ok(is_marked)
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
        self.render_as(self.names(conversation.tools)[0], conversation)
    }

    fn names(&self, tools: Option<&[Value]>) -> [&'static str; 2] {
        if self.has_tools && tools.is_some() { TOOLS } else { CHAT }
    }

    fn render_as<M: Serialize>(
        &self,
        name: &str,
        conversation: &Conversation<'_, M>,
    ) -> Result<String, DataError> {
        let template = self.environment.get_template(name).map_err(failed)?;
        let fixed = context! {
            messages => conversation.messages,
            tools => conversation.tools,
            add_generation_prompt => conversation.asks,
            bos_token => self.begin,
            eos_token => self.end,
        };
        let variables = context! { ..fixed, ..minijinja::Value::from_serialize(&conversation.variables) };
        allowance::begin();
        template.render(variables).map_err(failed)
    }

    /// The tokens of a conversation, and which of them count in the loss: what the template marks by `{% generation %}`, or the
    /// assistant's turns with the token that ends each. What is learned and what is not are encoded separately, as at inference.
    ///
    /// An answer with `"weight": 0`, as OpenAI's files have it, or with `"train": false`, as axolotl's have it, is shown and not learned.
    pub fn encode(
        &self,
        messages: &[Message],
        tools: Option<&[Value]>,
        encoder: &mut Encoder<'_>,
        ids: &mut Vec<u32>,
        counts: &mut Vec<bool>,
    ) -> Result<Answers, DataError> {
        let (pieces, answers) = self.pieces(messages, tools)?;
        for (text, is_answer) in pieces {
            encoder.encode(&text, ids)?;
            counts.resize(ids.len(), is_answer);
        }
        Ok(answers)
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
        template.encode(messages, None, &mut tokenizer.encoder(), &mut ids, &mut counts).unwrap();
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
            template.encode(messages, None, &mut tokenizer.encoder(), &mut Vec::new(), &mut Vec::new())
        };
        assert_eq!(answers(&messages).unwrap(), Answers { learned: 2, left_out: 0 });
        messages[2].content = Some("two and two</think>4".to_owned());
        assert_eq!(answers(&messages).unwrap(), Answers { learned: 1, left_out: 1 });
        assert_eq!(counted(&template, &tokenizer, &messages), ["Yes.<|im_end|>"]);
        messages[4].more.insert("weight".to_owned(), 0.into());
        assert!(answers(&messages).is_err(), "nothing is left to learn");
        messages[2].content = Some("4".to_owned());
        assert_eq!(counted(&template, &tokenizer, &messages), ["4<|im_end|>"]);
    }

    /// In the style of Qwen's, with tools.
    const TOOLS: &str = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}\
        {% if thinking is defined and thinking %}<think>{% endif %}{{ strftime_now('%Y')[:2] }}{{ messages[0].content }}";

    #[test]
    fn the_tools_of_a_record_are_shown_and_not_learned() {
        let tokenizer = tokenizer();
        let source = format!("{{% for tool in tools %}}{{{{ tool | tojson }}}}{{% endfor %}}{CHATML}");
        let template = ChatTemplate::from_source(&source).unwrap();
        let tools = [serde_json::json!({"name": "f"})];
        let (mut ids, mut counts) = (Vec::new(), Vec::new());
        template
            .encode(&conversation(), Some(&tools), &mut tokenizer.encoder(), &mut ids, &mut counts)
            .unwrap();
        let text = tokenizer.decode(&ids).unwrap();
        assert!(text.starts_with(r#"{"name": "f"}<|im_start|>system"#), "{text}");
        assert!(!counts[0] && counts.contains(&true));
    }

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

    /// Each would make gigabytes, or lists in lists until the stack is full, within a few instructions.
    #[test]
    fn a_template_that_grows_is_stopped() {
        let doubled = "{% set ns = namespace(x='x' * 1000) %}{% for a in range(60) %}";
        for body in [
            "{% set ns.x = ns.x + ns.x %}",
            "{% set ns.x = ns.x ~ ns.x %}",
            "{% set ns.x = ns.x * 2 %}",
            "{% set ns.x = ns.x.replace('x', ns.x) %}",
            "{% set ns.x = ns.x | replace('x', ns.x) %}",
            "{% set ns.x = [ns.x, ns.x] %}",
            "{% set ns.x = [ns.x, ns.x] | join(ns.x) %}",
            "{% set ns.x = ns.x.join(ns.x) %}",
            "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}",
            "{% set ns.x = ns.x | indent(1000000000) %}",
            "{% set ns.x = '%1000000000s' | format(ns.x) %}",
            "{% set ns.x = '%1000000000s' % ns.x %}",
            "{% set ns.x = ['a'] | batch(1000000000000, 'x') | list %}",
            "{% set ns.x = {'a': ns.x, 'b': ns.x} %}",
            "{% set ns.x = [ns] %}",
            "{% set ns.x = {'a': ns.x} | tojson(indent=8) %}",
            "{{ 'x' * 60000000 }}",
        ] {
            let source = format!("{doubled}{body}{{% endfor %}}{{{{ ns.x }}}}");
            let template = ChatTemplate::compile(source, String::new(), String::new()).unwrap();
            let error = template.render(&conversation(), false).unwrap_err().to_string();
            assert!(
                error.contains("the template makes")
                    || error.contains("cannot hold")
                    || error.contains("too large"),
                "{body}: {error}"
            );
        }
        let raw = format!("{{% for a in range(90000) %}}{}{{% endfor %}}", "x".repeat(10_000));
        let template = ChatTemplate::compile(raw, String::new(), String::new()).unwrap();
        assert!(template.render(&conversation(), false).unwrap_err().to_string().contains("more text"));
    }

    /// What the filters around its expressions must not change.
    #[test]
    fn a_template_says_the_same_with_its_limits() {
        const ODD: &str = "{%- macro show(item, end='.') -%}\n  {{- item ~ end }}{{ caller() if caller else '' }}\n{%- endmacro -%}\n\
            {%- set ns = namespace(n=0, last=none) -%}\n\
            {%- for message in messages if message.role != 'system' -%}\n\
            {%- if loop.first and not loop.last %}[{% elif message.role in ['user', 'tool'] %}, {% else %}; {% endif -%}\n\
            {%- set ns.n = ns.n + 1 -%}{%- set ns.last = message -%}\n\
            {{- show(message.content[::-1] | upper, end='!' * ns.n) }}\n\
            {%- if loop.index0 % 2 == 1 -%}{%- continue -%}{%- endif -%}<{{ loop.index }}>\n\
            {%- else -%}nobody{%- endfor -%}]\n\
            {%- call show('a' + 'b' + \"c\\n\\t\" + 'é') -%}({{ (1, 2.5, -3)[1:] | list }}){%- endcall -%}\n\
            {%- set block | trim %}  {{ ns.last['content'] }} {% endset -%}{{ block }}{{ {'k': [none, true]}['k'][1] }}\n\
            {%- filter upper %}x{{ 7 // 2 ** 1 }}{% endfilter -%}{{ 1 < 2 <= 2 }}{{ 'x' is string and nothing is not defined }}\n\
            {%- with a = 1, b = [1, 2] %}{{ a - b | length }}{% endwith -%}\n";
        let mut plain = Environment::new();
        plain.set_trim_blocks(true);
        plain.set_lstrip_blocks(true);
        dialect::extend(&mut plain);
        allowance::limit(&mut plain);
        allowance::begin();
        for source in [ODD, OTHER, FORGETFUL, CHATML] {
            plain.add_template_owned("chat", source.to_owned()).unwrap();
            let expected = plain.get_template("chat").unwrap().render(
                context! { messages => conversation(), add_generation_prompt => true, bos_token => "", eos_token => "</s>" },
            );
            let template =
                ChatTemplate::compile(source.to_owned(), String::new(), "</s>".to_owned()).unwrap();
            assert_eq!(template.render(&conversation(), true).unwrap(), expected.unwrap(), "{source}");
        }
    }

    #[test]
    fn errors_name_the_line_of_the_template() {
        let source = "{% if true %}\n\na\n{% set x = [1,\n 2] %}\n{{ raise_exception('no') }}\n{% endif %}";
        let template = ChatTemplate::compile(source.to_owned(), String::new(), String::new()).unwrap();
        let error = template.render(&conversation(), false).unwrap_err().to_string();
        assert!(error.contains("no (line 6)"), "{error}");
    }
}
