//! A generation under way: events of the engine become steps of choices.

use std::time::Instant;

use bedplate_batching::TenantId;
use bedplate_serve::{Answer, Ask, Ender, Logprobs, SampleEvent, Wants};
use tokio::sync::mpsc;

use crate::account::Account;
use crate::choice::{AnswerChoice, Delta};
use crate::generation::Generation;
use crate::refusal::ApiError;

/// Answers to all prompts of a generation. Dropping it cancels them.
pub(crate) struct Sources {
    events: Events,
    /// Of each prompt.
    enders: Vec<Ender>,
}

enum Events {
    One(Box<Answer>),
    /// Events with the number of their prompt.
    Many(mpsc::UnboundedReceiver<(usize, SampleEvent)>),
}

impl Sources {
    /// Asks for every prompt, or for none.
    pub(crate) fn start(generation: &Generation, tenant: TenantId) -> Result<Self, ApiError> {
        let ask = |prompt: &Vec<u32>| {
            let ask = Ask {
                prompt: prompt.clone(),
                wants: Wants::Text(generation.continuation.clone()),
                tenant,
                priority: generation.priority,
                adapter: generation.adapter.clone(),
            };
            generation.model.ask(ask).map_err(ApiError::from)
        };
        let mut answers = generation.prompts.iter().map(ask).collect::<Result<Vec<Answer>, ApiError>>()?;
        let enders = answers.iter().map(Answer::ender).collect();
        let events = match (answers.len(), answers.pop()) {
            (1, Some(answer)) => Events::One(Box::new(answer)),
            (_, last) => {
                answers.extend(last);
                let (sender, events) = mpsc::unbounded_channel();
                for (prompt, answer) in answers.into_iter().enumerate() {
                    tokio::spawn(forward(prompt, answer, sender.clone()));
                }
                Events::Many(events)
            }
        };
        Ok(Self { events, enders })
    }

    async fn next(&mut self) -> Option<(usize, SampleEvent)> {
        match &mut self.events {
            Events::One(answer) => answer.next().await.map(|event| (0, event)),
            Events::Many(events) => events.recv().await,
        }
    }
}

/// Hands on the events of one prompt for as long as they are wanted.
async fn forward(prompt: usize, mut answer: Answer, events: mpsc::UnboundedSender<(usize, SampleEvent)>) {
    loop {
        let event = tokio::select! {
            event = answer.next() => event,
            () = events.closed() => None,
        };
        let Some(event) = event else { return };
        if events.send((prompt, event)).is_err() {
            return;
        }
    }
}

/// What happened to one choice.
#[derive(Debug)]
pub(crate) struct ChoiceStep {
    pub(crate) choice: usize,
    pub(crate) delta: Delta,
}

pub(crate) struct RunningChoices<'a> {
    sources: Sources,
    samples: usize,
    pub(crate) choices: Vec<AnswerChoice<'a>>,
    /// Log-probabilities of each prompt's tokens but the first, where they are wanted.
    pub(crate) prompts: Vec<Vec<Logprobs>>,
    pub(crate) account: Account,
}

impl<'a> RunningChoices<'a> {
    pub(crate) fn new(generation: &'a Generation, sources: Sources, account: Account) -> Self {
        let samples = usize::from(generation.continuation.samples);
        let prompts = generation.prompts.len();
        let choices = (0..prompts * samples).map(|at| AnswerChoice::new(generation, at / samples)).collect();
        Self { sources, samples, choices, prompts: vec![Vec::new(); prompts], account }
    }

    /// The next step; none once every choice has ended.
    pub(crate) async fn next(&mut self) -> Result<Option<ChoiceStep>, ApiError> {
        while self.choices.iter().any(|choice| !choice.has_ended) {
            let Some((prompt, event)) = self.sources.next().await else {
                return Err(ApiError::Failed { reason: "the engine broke the answer off".into() });
            };
            if let Some(step) = self.take(prompt, event)? {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }

    fn take(&mut self, prompt: usize, event: SampleEvent) -> Result<Option<ChoiceStep>, ApiError> {
        match event {
            SampleEvent::Admitted { cached_tokens } => self.account.admitted(cached_tokens, Instant::now()),
            SampleEvent::Prompt { logprobs, .. } => self.prompts[prompt].extend(logprobs),
            SampleEvent::Token { sample, token, logprobs } => {
                let at = prompt * self.samples + usize::from(sample);
                // A choice that ended by its text has no more tokens, though some may be on their way.
                let Some(choice) = self.choices.get_mut(at).filter(|choice| !choice.has_ended) else {
                    return Ok(None);
                };
                self.account.token(at, Instant::now());
                let delta = choice.push(token, logprobs);
                if choice.has_ended {
                    self.sources.enders[prompt].end(sample);
                }
                return Ok(self.step(at, delta));
            }
            SampleEvent::End { sample, reason } => {
                let at = prompt * self.samples + usize::from(sample);
                let Some(choice) = self.choices.get_mut(at).filter(|choice| !choice.has_ended) else {
                    return Ok(None);
                };
                let delta = choice.finish(reason);
                return Ok(self.step(at, delta));
            }
            SampleEvent::Failed(reason) => return Err(ApiError::Failed { reason }),
            SampleEvent::Embedding(_) | SampleEvent::Blocks { .. } => {}
        }
        Ok(None)
    }

    fn step(&mut self, choice: usize, delta: Delta) -> Option<ChoiceStep> {
        if let Some(finish) = &delta.finish {
            self.account.ended(choice, finish.name());
        }
        (!delta.is_empty()).then_some(ChoiceStep { choice, delta })
    }

    pub(crate) fn completion_tokens(&self) -> usize {
        self.choices.iter().map(|choice| choice.tokens as usize).sum()
    }
}
