//! The shapes in which people keep conversations, told apart by their keys.

use serde_json::{Map, Value, json};

use super::Message;

type Object = Map<String, Value>;

/// The keys of records that are looked at.
pub(crate) const RECORD_KEYS: [&str; 12] = [
    "messages",
    "conversations",
    "conversation",
    "prompt",
    "response",
    "completion",
    "instruction",
    "input",
    "output",
    "history",
    "system",
    "tools",
];

/// The turns of a record:
/// - `messages`, as OpenAI and most libraries have them, with `role` and `content`;
/// - `conversations`, as ShareGPT has them, with `from` and `value`;
/// - `prompt` with `response` or `completion`, texts or lists of messages;
/// - `instruction`, `input` and `output`, as Alpaca has them.
pub(crate) fn turns_of(record: &Value) -> Result<Vec<Message>, String> {
    let record = record.as_object().ok_or("it is not an object")?;
    let mut turns = if let Some((key, listed)) = listed(record) {
        messages(listed).map_err(|reason| format!("its `{key}` are wrong: {reason}"))?
    } else if let Some(prompt) = given(record, "prompt") {
        prompted(record, prompt)?
    } else if given(record, "instruction").is_some() {
        instructed(record)?
    } else {
        let keys: Vec<&str> = record.keys().map(String::as_str).take(12).collect();
        return Err(format!(
            "it has no `messages`, `conversations`, `prompt` with `response`, or `instruction` with `output`, but {}",
            keys.join(", ")
        ));
    };
    if let Some(system) = text(record, "system")?.filter(|system| !system.is_empty())
        && turns.first().is_none_or(|first| first.role != "system")
    {
        turns.insert(0, Message::new("system", system));
    }
    Ok(turns)
}

fn given<'a>(record: &'a Object, key: &str) -> Option<&'a Value> {
    record.get(key).filter(|value| !value.is_null())
}

fn text<'a>(record: &'a Object, key: &str) -> Result<Option<&'a str>, String> {
    given(record, key)
        .map(|value| value.as_str().ok_or_else(|| format!("its `{key}` is not a text")))
        .transpose()
}

fn listed(record: &Object) -> Option<(&'static str, &Value)> {
    ["messages", "conversations", "conversation"].into_iter().find_map(|key| Some((key, given(record, key)?)))
}

fn messages(listed: &Value) -> Result<Vec<Message>, String> {
    let listed = listed.as_array().ok_or("they are not a list")?;
    listed.iter().map(message).collect()
}

fn message(value: &Value) -> Result<Message, String> {
    let object = value.as_object().ok_or("one is not an object")?;
    let role = given(object, "role").or(given(object, "from")).ok_or("one has neither `role` nor `from`")?;
    let role = role_of(role.as_str().ok_or("one has a `role` that is not a text")?);
    let content = given(object, "content").or(given(object, "value"));
    let calls = ["tool_calls", "function_call"].iter().find_map(|key| given(object, key));
    let content = match (content, calls) {
        (Some(content), _) => Some(content_of(content)?),
        // A turn may consist of calls alone.
        (None, Some(_)) => None,
        (None, None) => return Err("one has neither `content` nor `value`".to_owned()),
    };
    if role == FUNCTION_CALL {
        return called(&content.unwrap_or_default(), object);
    }
    let is_more = |key: &str| !["role", "from", "content", "value"].contains(&key);
    let more = object.iter().filter(|(key, _)| is_more(key)).map(|(key, value)| (key.clone(), value.clone()));
    let mut more: Object = more.collect();
    // How OpenAI's files had one call, before there were several.
    if let Some(call) = more.remove("function_call").filter(|call| !call.is_null()) {
        more.entry("tool_calls").or_insert_with(|| json!([{ "type": "function", "function": call }]));
    }
    if let Some(calls) = more.get_mut("tool_calls") {
        calls.as_array_mut().into_iter().flatten().for_each(read_arguments);
    }
    Ok(Message { role: role.to_owned(), content, more })
}

/// A turn of ShareGPT's files that is nothing but a call, or a list of calls, as a text of JSON.
fn called(text: &str, object: &Object) -> Result<Message, String> {
    let wrong = || "one has a `function_call` that is no call with `name` and `arguments` in JSON".to_owned();
    let calls = match serde_json::from_str(text.trim()).map_err(|_| wrong())? {
        Value::Array(calls) => calls,
        call => vec![call],
    };
    if calls.is_empty() || calls.iter().any(|call| call.get("name").is_none()) {
        return Err(wrong());
    }
    let call = |call: Value| {
        let mut call = json!({ "type": "function", "function": call });
        read_arguments(&mut call);
        call
    };
    let calls: Vec<Value> = calls.into_iter().map(call).collect();
    let mut more = Object::new();
    more.insert("tool_calls".to_owned(), calls.into());
    let kept = ["weight", "train"].into_iter().filter_map(|key| Some((key, given(object, key)?)));
    more.extend(kept.map(|(key, value)| (key.to_owned(), value.clone())));
    Ok(Message { role: "assistant".to_owned(), content: None, more })
}

/// Many keep the arguments of a call as a text of JSON; templates write them out as a value.
fn read_arguments(call: &mut Value) {
    for path in ["/function/arguments", "/arguments"] {
        if let Some(arguments) = call.pointer_mut(path)
            && let Some(Ok(value @ Value::Object(_))) = arguments.as_str().map(serde_json::from_str)
        {
            *arguments = value;
        }
    }
}

/// The functions that the assistant of a record may call: a list, or a text of one.
pub(crate) fn tools_of(record: &Value) -> Result<Option<Vec<Value>>, String> {
    let listed = match record.get("tools") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
        Some(Value::String(text)) => {
            serde_json::from_str(text).map_err(|_| "its `tools` are a text that is not JSON")?
        }
        Some(tools) => tools.clone(),
    };
    match listed {
        Value::Array(tools) => Ok((!tools.is_empty()).then_some(tools)),
        _ => Err("its `tools` are not a list".to_owned()),
    }
}

/// What ShareGPT's files call a turn that calls a function.
const FUNCTION_CALL: &str = "function_call";

/// The names that templates know.
fn role_of(role: &str) -> &str {
    match role {
        "human" => "user",
        "gpt" | "chatgpt" | "bing" | "bard" | "model" => "assistant",
        "observation" | "function_response" => "tool",
        other => other,
    }
}

/// A text, or the texts of its parts.
fn content_of(content: &Value) -> Result<String, String> {
    if let Some(text) = content.as_str() {
        return Ok(text.to_owned());
    }
    let parts = content.as_array().ok_or("one has a content that is neither a text nor a list of parts")?;
    let part = |part: &Value| match part.get("text").and_then(Value::as_str) {
        Some(text) if part.get("type").is_none_or(|kind| kind == "text") => Ok(text.to_owned()),
        _ => Err("one has a part that is not text".to_owned()),
    };
    parts.iter().map(part).collect()
}

fn prompted(record: &Object, prompt: &Value) -> Result<Vec<Message>, String> {
    let answer = given(record, "response").or(given(record, "completion"));
    let answer = answer.ok_or("it has a `prompt`, but no `response` or `completion`")?;
    let turns = |value: &Value, role: &str| match value.as_str() {
        Some(text) => Ok(vec![Message::new(role, text)]),
        None => messages(value).map_err(|reason| format!("its `prompt` or `response` is wrong: {reason}")),
    };
    Ok([turns(prompt, "user")?, turns(answer, "assistant")?].concat())
}

/// The input follows the instruction after a blank line; `history` holds earlier pairs.
fn instructed(record: &Object) -> Result<Vec<Message>, String> {
    let instruction = text(record, "instruction")?.unwrap_or_default();
    let output = text(record, "output")?.or(text(record, "response")?);
    let output = output.ok_or("it has an `instruction`, but no `output`")?;
    let mut turns = Vec::new();
    for pair in given(record, "history").and_then(Value::as_array).into_iter().flatten() {
        let [Some(asked), Some(answered)] = [0, 1].map(|at| pair.get(at).and_then(Value::as_str)) else {
            return Err("its `history` does not hold pairs of texts".to_owned());
        };
        turns.extend([Message::new("user", asked), Message::new("assistant", answered)]);
    }
    let asked = match text(record, "input")? {
        Some(input) if !input.is_empty() => format!("{instruction}\n\n{input}"),
        _ => instruction.to_owned(),
    };
    turns.extend([Message::new("user", &asked), Message::new("assistant", output)]);
    Ok(turns)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn turns(record: Value) -> Result<Vec<(String, String)>, String> {
        let said = |message: Message| (message.role, message.content.unwrap_or_default());
        Ok(turns_of(&record)?.into_iter().map(said).collect())
    }

    fn said(turns: &[(&str, &str)]) -> Vec<(String, String)> {
        turns.iter().map(|(role, content)| ((*role).to_owned(), (*content).to_owned())).collect()
    }

    #[test]
    fn every_shape_gives_its_turns() {
        let plain = said(&[("user", "2 + 2?"), ("assistant", "4")]);
        let with_system = said(&[("system", "Be brief."), ("user", "2 + 2?"), ("assistant", "4")]);
        for record in [
            json!({"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}),
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "2 "}, {"type": "text", "text": "+ 2?"}]},
                                {"role": "assistant", "content": "4"}]}),
            json!({"id": "x", "conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]}),
            json!({"conversations": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}),
            json!({"prompt": "2 + 2?", "response": "4"}),
            json!({"prompt": "2 + 2?", "completion": "4", "system": ""}),
            json!({"prompt": [{"role": "user", "content": "2 + 2?"}], "completion": [{"role": "assistant", "content": "4"}]}),
            json!({"instruction": "2 + 2?", "input": "", "output": "4"}),
            json!({"instruction": "2 + 2?", "output": "4", "input": null}),
        ] {
            assert_eq!(turns(record.clone()).unwrap(), plain, "{record}");
        }
        for record in [
            json!({"system": "Be brief.", "conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]}),
            json!({"conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]}),
            json!({"instruction": "2 + 2?", "output": "4", "system": "Be brief."}),
        ] {
            assert_eq!(turns(record.clone()).unwrap(), with_system, "{record}");
        }
        let record = json!({"instruction": "Add.", "input": "2, 2", "output": "4", "history": [["1?", "1"]]});
        let expected =
            said(&[("user", "1?"), ("assistant", "1"), ("user", "Add.\n\n2, 2"), ("assistant", "4")]);
        assert_eq!(turns(record).unwrap(), expected);
        let record = json!({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": 1}]}]});
        assert_eq!(turns_of(&record).unwrap()[0].more["tool_calls"], json!([{"id": 1}]));
    }

    #[test]
    fn tools_and_the_arguments_of_calls_are_values() {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let call = json!({"function": {"name": "f", "arguments": "{\"a\": [1]}"}});
        let record = json!({"tools": [tool], "messages": [{"role": "assistant", "tool_calls": [call]}]});
        assert_eq!(tools_of(&record).unwrap(), Some(vec![tool.clone()]));
        assert_eq!(
            turns_of(&record).unwrap()[0].more["tool_calls"][0]["function"]["arguments"],
            json!({"a": [1]})
        );
        assert_eq!(tools_of(&json!({"tools": json!([tool]).to_string()})).unwrap(), Some(vec![tool]));
        for none in [json!({}), json!({"tools": null}), json!({"tools": ""}), json!({"tools": []})] {
            assert_eq!(tools_of(&none).unwrap(), None);
        }
        assert!(tools_of(&json!({"tools": "x"})).is_err() && tools_of(&json!({"tools": 3})).is_err());
        let odd = json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "no JSON"}}]}]});
        assert_eq!(turns_of(&odd).unwrap()[0].more["tool_calls"][0]["function"]["arguments"], "no JSON");
    }

    #[test]
    fn calls_have_one_shape_however_they_are_kept() {
        let call = json!([{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]);
        for record in [
            json!({"conversations": [{"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"a\": 1}}"}]}),
            json!({"conversations": [{"from": "function_call", "value": "[{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}]"}]}),
            json!({"messages": [{"role": "assistant", "content": null,
                                 "function_call": {"name": "f", "arguments": "{\"a\": 1}"}}]}),
        ] {
            let turns = turns_of(&record).unwrap();
            assert_eq!((turns[0].role.as_str(), &turns[0].content), ("assistant", &None), "{record}");
            assert_eq!(turns[0].more, *json!({"tool_calls": call}).as_object().unwrap(), "{record}");
        }
        let odd = json!({"conversations": [{"from": "function_call", "value": "f(1)"}]});
        assert!(turns(odd).unwrap_err().contains("no call with `name`"));
    }

    #[test]
    fn what_is_none_of_them_is_described() {
        for (record, reason) in [
            (json!([1]), "it is not an object"),
            (json!({"text": "x"}), "but text"),
            (json!({"messages": "x"}), "`messages` are wrong: they are not a list"),
            (json!({"messages": [{"role": "user"}]}), "neither `content` nor `value`"),
            (json!({"conversations": [{"value": "x"}]}), "neither `role` nor `from`"),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
                "a part that is not text",
            ),
            (json!({"prompt": "x"}), "no `response` or `completion`"),
            (json!({"instruction": "x"}), "no `output`"),
            (json!({"instruction": "x", "output": 3}), "its `output` is not a text"),
            (json!({"instruction": "x", "output": "y", "history": [["a"]]}), "pairs of texts"),
        ] {
            let found = turns(record.clone()).unwrap_err();
            assert!(found.contains(reason), "{record}: {found}");
        }
    }
}
