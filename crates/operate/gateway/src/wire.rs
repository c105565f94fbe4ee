//! Answers as clients read them.

mod chat;
mod completion;
mod logprobs;
pub(crate) mod response;

use serde_json::{Value, json};

use bedplate_serve::Logprobs;

use crate::choice::{Delta, TokenShown};
use crate::generation::Generation;

/// What every object of an answer repeats.
pub(crate) struct Head {
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// Which API the answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Choices, and chunks of them.
    Choices(ChoiceShape),
    /// Items of a response, and events about them.
    Response,
}

impl Form {
    pub(crate) fn id(self, unique: &str) -> String {
        match self {
            Form::Choices(ChoiceShape::Chat) => format!("chatcmpl-{unique}"),
            Form::Choices(ChoiceShape::Completion) => format!("cmpl-{unique}"),
            Form::Response => format!("resp_{unique}"),
        }
    }
}

/// What choices look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChoiceShape {
    Chat,
    Completion,
}

/// What an answer used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
    pub(crate) cached: u64,
}

impl Usage {
    pub(crate) fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}

/// A choice that is complete.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) index: usize,
    /// What stands in front of it, where the prompt is repeated.
    pub(crate) echo: ShownEcho,
    /// The number of its prompt and the log-probabilities of that, where they are shown by themselves.
    pub(crate) scores: Option<(usize, Vec<Logprobs>)>,
    pub(crate) delta: Delta,
}

/// A prompt in front of a choice.
#[derive(Debug, Default)]
pub(crate) struct ShownEcho {
    pub(crate) text: String,
    /// Where log-probabilities are shown.
    pub(crate) tokens: Vec<TokenShown>,
}

impl ShownEcho {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty()
    }
}

impl ChoiceShape {
    /// The whole answer.
    pub(crate) fn whole(self, head: &Head, generation: &Generation, all: &[Whole], usage: Usage) -> Value {
        let (object, choices): (_, Vec<Value>) = match self {
            ChoiceShape::Chat => {
                ("chat.completion", all.iter().map(|whole| chat::message(head, generation, whole)).collect())
            }
            ChoiceShape::Completion => {
                ("text_completion", all.iter().map(|whole| completion::choice(generation, whole)).collect())
            }
        };
        let mut answer = json!({ "id": head.id, "object": object, "created": head.created, "model": head.model,
                                 "choices": choices, "usage": usage.to_json(), "system_fingerprint": null });
        // A chat has one prompt for all choices, a completion one for each.
        for (at, whole) in all.iter().enumerate() {
            if let Some(scores) = logprobs::of_prompt(generation, whole) {
                match self {
                    ChoiceShape::Chat => answer["prompt_logprobs"] = scores,
                    ChoiceShape::Completion => answer["choices"][at]["prompt_logprobs"] = scores,
                }
            }
        }
        answer
    }

    /// What announces a choice of a stream.
    pub(crate) fn beginning(self, head: &Head, generation: &Generation, whole: &Whole) -> Option<Value> {
        match self {
            ChoiceShape::Chat => Some(self.chunk(head, chat::role(whole.index))),
            ChoiceShape::Completion if whole.echo.is_empty() => None,
            ChoiceShape::Completion => Some(self.chunk(head, completion::choice(generation, whole))),
        }
    }

    /// What a step adds. `place` is where the choice's calls have got to.
    pub(crate) fn addition(
        self,
        head: &Head,
        generation: &Generation,
        whole: &Whole,
        place: &mut usize,
    ) -> Value {
        match self {
            ChoiceShape::Chat => self.chunk(head, chat::delta(head, generation, whole, place)),
            ChoiceShape::Completion => self.chunk(head, completion::choice(generation, whole)),
        }
    }

    fn chunk(self, head: &Head, choice: Value) -> Value {
        json!({ "id": head.id, "object": self.chunk_name(), "created": head.created, "model": head.model,
                "choices": [choice] })
    }

    /// The last chunk, with what was used.
    pub(crate) fn usage(self, head: &Head, usage: Usage) -> Value {
        json!({ "id": head.id, "object": self.chunk_name(), "created": head.created, "model": head.model,
                "choices": [], "usage": usage.to_json() })
    }

    fn chunk_name(self) -> &'static str {
        match self {
            ChoiceShape::Chat => "chat.completion.chunk",
            ChoiceShape::Completion => "text_completion",
        }
    }
}
