//! A response as it grows, whole or told event by event.

use serde_json::{Value, json};

use crate::answering::{ClientEvents, Gone};
use crate::calls::CallHead;
use crate::choice::{CallDelta, Delta, Finish};
use crate::generation::Generation;
use crate::refusal::ApiError;
use crate::running::RunningChoices;
use crate::wire::response::{self, ResponseProgress};
use crate::wire::{Head, Usage};

/// Items that are complete, and the text or the call that is being written.
struct Draft<'a> {
    head: &'a Head,
    items: Vec<Value>,
    text: Option<String>,
    /// The call that is being written, with its arguments.
    call: Option<(CallHead, String)>,
    /// What has happened since this was last asked: types and contents of events.
    news: Vec<(&'static str, Value)>,
}

impl<'a> Draft<'a> {
    fn new(head: &'a Head) -> Self {
        Self { head, items: Vec::new(), text: None, call: None, news: Vec::new() }
    }

    fn take(&mut self, delta: &Delta) {
        if !delta.text.is_empty() {
            self.end_call();
            self.write(&delta.text);
        }
        for call in &delta.calls {
            self.end_text();
            self.call(call);
        }
        if delta.finish.is_some() {
            self.end_text();
            self.end_call();
        }
    }

    fn index(&self) -> usize {
        self.items.len()
    }

    fn write(&mut self, piece: &str) {
        let index = self.index();
        let item = response::message(self.head, index, None);
        let id = item["id"].clone();
        if self.text.is_none() {
            self.text = Some(String::new());
            self.news.push(("response.output_item.added", json!({ "output_index": index, "item": item })));
            let part = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": response::part("") });
            self.news.push(("response.content_part.added", part));
        }
        self.text.get_or_insert_default().push_str(piece);
        let delta = json!({ "item_id": id, "output_index": index, "content_index": 0, "delta": piece, "logprobs": [] });
        self.news.push(("response.output_text.delta", delta));
    }

    fn end_text(&mut self) {
        let Some(text) = self.text.take() else { return };
        let index = self.index();
        let item = response::message(self.head, index, Some(&text));
        let place = |more: Value| {
            let mut event = json!({ "item_id": item["id"], "output_index": index, "content_index": 0 });
            event
                .as_object_mut()
                .into_iter()
                .for_each(|event| event.extend(more.as_object().cloned().unwrap_or_default()));
            event
        };
        self.news.push(("response.output_text.done", place(json!({ "text": text, "logprobs": [] }))));
        self.news.push(("response.content_part.done", place(json!({ "part": response::part(&text) }))));
        self.news.push(("response.output_item.done", json!({ "output_index": index, "item": item })));
        self.items.push(item);
    }

    fn call(&mut self, call: &CallDelta) {
        if call.head.is_some() {
            self.end_call();
        }
        let index = self.index();
        if let Some(head) = &call.head {
            let item = response::call(self.head, index, head, None);
            self.news.push(("response.output_item.added", json!({ "output_index": index, "item": item })));
            self.call = Some((head.clone(), String::new()));
        }
        let Some((head, arguments)) = &mut self.call else { return };
        if call.arguments.is_empty() {
            return;
        }
        arguments.push_str(&call.arguments);
        let id = &response::call(self.head, index, head, None)["id"];
        let delta = json!({ "item_id": id, "output_index": index, "delta": call.arguments });
        self.news.push(("response.function_call_arguments.delta", delta));
    }

    fn end_call(&mut self) {
        let Some((head, arguments)) = self.call.take() else { return };
        let index = self.index();
        let item = response::call(self.head, index, &head, Some(&arguments));
        let done = json!({ "item_id": item["id"], "output_index": index, "name": head.name, "arguments": arguments });
        self.news.push(("response.function_call_arguments.done", done));
        self.news.push(("response.output_item.done", json!({ "output_index": index, "item": item })));
        self.items.push(item);
    }
}

/// The whole response.
pub(crate) fn whole(head: &Head, generation: &Generation, delta: &Delta, usage: Usage) -> Value {
    let mut draft = Draft::new(head);
    draft.take(delta);
    draft.end_text();
    draft.end_call();
    let progress =
        ResponseProgress { items: &draft.items, finish: delta.finish.as_ref(), usage: Some(usage) };
    response::object(head, generation, &progress)
}

/// Tells a response event by event.
pub(crate) async fn tell(
    generation: &Generation,
    head: &Head,
    mut running: RunningChoices<'_>,
    events: &ClientEvents,
) -> Result<(), Gone> {
    let mut number = 0;
    let mut draft = Draft::new(head);
    let begun =
        response::object(head, generation, &ResponseProgress { items: &[], finish: None, usage: None });
    draft.news.push(("response.created", json!({ "response": begun })));
    draft.news.push(("response.in_progress", json!({ "response": begun })));
    let mut finish: Option<Finish> = None;
    loop {
        for (kind, event) in draft.news.drain(..) {
            send(events, kind, event, &mut number).await?;
        }
        match events.next(&mut running).await? {
            Ok(Some(step)) => {
                draft.take(&step.delta);
                finish = step.delta.finish.or(finish);
            }
            Ok(None) => break,
            Err(error) => return send(events, "error", failed(&error), &mut number).await,
        }
    }
    let usage = crate::answering::usage(generation, &running);
    // Books the request before the client knows that it has ended.
    drop(running);
    let progress = ResponseProgress { items: &draft.items, finish: finish.as_ref(), usage: Some(usage) };
    let kind = if finish == Some(Finish::Length) { "response.incomplete" } else { "response.completed" };
    send(events, kind, json!({ "response": response::object(head, generation, &progress) }), &mut number)
        .await
}

fn failed(error: &ApiError) -> Value {
    let error = error.to_json();
    json!({ "message": error["error"]["message"], "code": error["error"]["code"], "param": null })
}

async fn send(
    events: &ClientEvents,
    kind: &'static str,
    mut event: Value,
    number: &mut u64,
) -> Result<(), Gone> {
    event["type"] = kind.into();
    event["sequence_number"] = (*number).into();
    *number += 1;
    events.send_named(kind, &event).await
}
