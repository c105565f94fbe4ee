//! What well-formed requests get.

use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;
use std::time::Duration;

use bedplate_gateway::{GatewayOptions, ServedModel, start};
use bedplate_serve::Sampling;
use bedplate_testkit::{wait_for, wait_until};
use serde_json::{Value, json};

use crate::support::{Fixture, Parrot, TOKENIZER, chat, request, send_chat};

#[test]
fn a_chat_is_answered_whole() {
    let fixture = Fixture::start(Parrot::echoing());
    let reply = fixture.chat("the garden é 日本語 🌍", json!({}));
    let body = reply.json();
    assert_eq!(reply.status, 200, "{body}");
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "parrot");
    assert_eq!(
        body["choices"][0]["message"],
        json!({ "role": "assistant", "content": "the garden é 日本語 🌍", "refusal": null })
    );
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["choices"][0]["logprobs"], Value::Null);
    let usage = &body["usage"];
    let answered = TOKENIZER.encode("the garden é 日本語 🌍").unwrap().len();
    assert_eq!(usage["completion_tokens"], answered);
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["prompt_tokens"].as_u64().unwrap() + answered as u64)
    );
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let own = fixture.send(
        "POST",
        "/v1/chat/completions",
        &[("X-Request-Id", "mine-1")],
        chat("x", json!({})).to_string().as_bytes(),
    );
    assert_eq!(
        (own.headers["x-request-id"].as_str(), own.json()["id"].as_str()),
        ("mine-1", Some("chatcmpl-mine-1"))
    );
}

#[test]
fn a_stream_has_the_text_of_the_whole_answer_then_usage_then_done() {
    let fixture = Fixture::start(Parrot::echoing());
    let text = "the lamp é 日本語 🌍 is in the garden";
    let reply =
        fixture.chat(text, json!({ "stream": true, "n": 2, "stream_options": { "include_usage": true } }));
    assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8");
    let events = reply.events();
    let (last, chunks) = events.split_last().unwrap();
    for choice in 0..2 {
        let of_choice: Vec<&Value> =
            chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|part| part["index"] == choice).collect();
        assert_eq!(of_choice[0]["delta"], json!({ "role": "assistant", "content": "" }));
        let joined: String = of_choice.iter().filter_map(|part| part["delta"]["content"].as_str()).collect();
        assert_eq!(joined, text);
        let finishes: Vec<&Value> =
            of_choice.iter().map(|part| &part["finish_reason"]).filter(|reason| !reason.is_null()).collect();
        assert_eq!(finishes, ["stop"]);
    }
    assert!(
        chunks.iter().all(|chunk| chunk["usage"].is_null() && chunk["object"] == "chat.completion.chunk")
    );
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 2 * TOKENIZER.encode(text).unwrap().len());
}

#[test]
fn completions_take_texts_tokens_and_lists_of_either() {
    let fixture = Fixture::start(Parrot::new(|prompt| format!("<{prompt}>")));
    let tokens = TOKENIZER.encode("lamp").unwrap();
    let texts = |prompt: Value, more: Value| {
        let mut body = json!({ "model": "parrot", "prompt": prompt, "max_tokens": 50 });
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let body = fixture.post("/v1/completions", &body).json();
        let choices = body["choices"].as_array().unwrap_or_else(|| panic!("{body}")).clone();
        let indices: Vec<u64> = choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
        assert_eq!(indices, (0..choices.len() as u64).collect::<Vec<_>>());
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(texts(json!("a"), json!({})), ["<a>"]);
    assert_eq!(texts(json!(tokens), json!({})), ["<lamp>"]);
    assert_eq!(texts(json!(["a", "b"]), json!({ "n": 2 })), ["<a>", "<a>", "<b>", "<b>"]);
    assert_eq!(texts(json!([tokens, tokens]), json!({ "echo": true })), ["lamp<lamp>", "lamp<lamp>"]);
    assert_eq!(texts(json!("a"), json!({ "best_of": 3 })), ["<a>"]);
    let short =
        fixture.post("/v1/completions", &json!({ "model": "parrot", "prompt": "a", "max_tokens": 1 })).json();
    assert_eq!(short["choices"][0]["finish_reason"], "length");
    assert_eq!(short["object"], "text_completion");
    let streamed = fixture.post(
        "/v1/completions",
        &json!({ "model": "parrot", "prompt": ["a", "b"], "echo": true, "stream": true }),
    );
    let mut joined = [String::new(), String::new()];
    for event in streamed.events() {
        let choice = &event["choices"][0];
        joined[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    assert_eq!(joined, ["a<a>", "b<b>"]);
}

#[test]
fn a_stop_string_ends_the_answer_and_the_work_and_never_shows() {
    let parrot = Arc::new(Parrot::new(|_| "the garden is green ".repeat(200)).slow(Duration::from_millis(1)));
    let fixture = Fixture::start_many(vec![parrot.clone()], |_| {});
    let asked = json!({ "stop": ["is gr", "zebra"], "stream": true });
    let events = fixture.chat("x", asked).events();
    let text: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "the garden ");
    let last = &events.last().unwrap()["choices"][0];
    assert_eq!((&last["finish_reason"], &last["stop_reason"]), (&json!("stop"), &json!("is gr")));
    wait_until("the engine was told", || parrot.cancelled.load(std::sync::atomic::Ordering::Relaxed) == 1);
    let shown = fixture.chat("x", json!({ "stop": "is gr", "include_stop_str_in_output": true })).json();
    assert_eq!(shown["choices"][0]["message"]["content"], "the garden is gr");
    let later = fixture.chat("x", json!({ "stop": "is gr", "min_tokens": 20 })).json();
    assert!(later["choices"][0]["message"]["content"].as_str().unwrap().len() > 30);
}

#[test]
fn log_probabilities_have_openais_shapes() {
    let fixture = Fixture::start(Parrot::echoing());
    let body = fixture.chat("é!", json!({ "logprobs": true, "top_logprobs": 2 })).json();
    let content = body["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), "é!");
    assert!(
        content
            .iter()
            .all(|entry| entry["logprob"] == -0.5 && entry["top_logprobs"].as_array().unwrap().len() == 2)
    );
    let streamed = fixture.chat("é!", json!({ "logprobs": true, "stream": true })).events();
    let entries: usize = streamed
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array().map(Vec::len))
        .sum();
    assert_eq!(entries, content.len(), "a token held back comes with the text that it completes");
    let body = fixture
        .post(
            "/v1/completions",
            &json!({ "model": "parrot", "prompt": "the lamp", "logprobs": 1, "max_tokens": 3, "best_of": 2 }),
        )
        .json();
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["token_logprobs"], json!([-0.5, -0.5, -0.5]), "the better sample is shown");
    assert_eq!(logprobs["text_offset"][0], 0);
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 3);
}

#[test]
fn prompts_are_scored_as_evaluations_ask_for_it() {
    let fixture = Fixture::start(Parrot::new(|_| " lamp".to_owned()));
    let ask = |more: Value| {
        let mut body = json!({ "model": "parrot", "echo": true, "logprobs": 1, "max_tokens": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fixture.post("/v1/completions", &body)
    };
    let text = "the garden é 日本";
    let tokens = TOKENIZER.encode(text).unwrap();
    let by_text = ask(json!({ "prompt": text })).json();
    let by_tokens = ask(json!({ "prompt": [tokens] })).json();
    assert_eq!(by_text["choices"], by_tokens["choices"]);
    let choice = &by_text["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &json!("length")));
    assert_eq!(by_text["usage"]["completion_tokens"], 0);
    assert_eq!(by_text["usage"]["total_tokens"], tokens.len());
    let logprobs = &choice["logprobs"];
    let list = |key: &str| logprobs[key].as_array().unwrap().clone();
    assert_eq!([list("tokens").len(), list("text_offset").len()], [tokens.len(); 2]);
    assert_eq!((&list("token_logprobs")[0], &list("top_logprobs")[0]), (&Value::Null, &Value::Null));
    for (at, logprob) in list("token_logprobs").iter().enumerate().skip(1) {
        assert_eq!(logprob.as_f64(), Some(-(at as f64)));
        let top = list("top_logprobs")[at].as_object().unwrap().clone();
        assert!(top.len() == 2 && top.values().any(|value| value == logprob), "{top:?}");
    }
    // Each token that is a text of its own stands where its offset says.
    for (token, offset) in list("tokens").iter().zip(list("text_offset")) {
        let token = token.as_str().unwrap();
        let rest: String = text.chars().skip(offset.as_u64().unwrap() as usize).collect();
        assert!(token.starts_with("bytes:") || rest.starts_with(token), "{token:?} at {offset}");
    }
    let more = ask(json!({ "prompt": ["the", text], "max_tokens": 1, "n": 2 })).json();
    let choices = more["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    let last = &choices[3]["logprobs"];
    assert_eq!(last["tokens"].as_array().unwrap().len(), tokens.len() + 1);
    assert_eq!(last["text_offset"][tokens.len()], text.chars().count());
    assert_eq!(last["token_logprobs"][tokens.len()], -1.5);
    let streamed = ask(json!({ "prompt": text, "max_tokens": 1, "stream": true })).events();
    assert_eq!(streamed[0]["choices"][0]["logprobs"], *logprobs);
    let offsets = &streamed[1]["choices"][0]["logprobs"]["text_offset"];
    assert_eq!(*offsets, json!([text.chars().count()]));
    let ids = ask(json!({ "prompt": text, "return_tokens_as_token_ids": true })).json();
    assert_eq!(ids["choices"][0]["logprobs"]["tokens"][1], format!("token_id:{}", tokens[1]));
}

#[test]
fn log_probabilities_of_prompts_have_vllms_shape() {
    let fixture = Fixture::start(Parrot::echoing());
    let body = json!({ "model": "parrot", "prompt": "the", "max_tokens": 1, "prompt_logprobs": 1 });
    let answer = fixture.post("/v1/completions", &body).json();
    let tokens = TOKENIZER.encode("the").unwrap();
    let listed = answer["choices"][0]["prompt_logprobs"].as_array().unwrap().clone();
    assert_eq!((listed.len(), &listed[0]), (tokens.len(), &Value::Null));
    if let Some(second) = tokens.get(1) {
        assert_eq!(listed[1][second.to_string()]["rank"], 3);
    }
    assert!(answer["choices"][0]["logprobs"].is_null());
    let chat = fixture.chat("the lamp", json!({ "prompt_logprobs": 0, "max_tokens": 2 })).json();
    let listed = chat["prompt_logprobs"].as_array().unwrap();
    assert_eq!(chat["usage"]["prompt_tokens"], listed.len());
    assert!(listed[1..].iter().all(|one| one.as_object().unwrap().len() == 1), "only the token itself");
    assert!(fixture.chat("x", json!({})).json().get("prompt_logprobs").is_none());
    let streamed = fixture.chat("x", json!({ "prompt_logprobs": 1, "stream": true }));
    assert_eq!(streamed.error().3, "prompt_logprobs");
}

#[test]
fn long_prompts_are_cut_to_their_end_where_that_is_asked_for() {
    let fixture = Fixture::start(Parrot::new(|prompt| format!("<{prompt}>")));
    let tokens = TOKENIZER.encode("the garden is green and the lamp").unwrap();
    let end = TOKENIZER.decode(&tokens[tokens.len() - 4..]).unwrap();
    let ask = |path: &str, more: Value| {
        let mut body = json!({ "model": "parrot", "max_tokens": 50, "truncate_prompt_tokens": 4 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fixture.post(path, &body).json()
    };
    for prompt in [json!("the garden is green and the lamp"), json!(tokens)] {
        let answer = ask("/v1/completions", json!({ "prompt": prompt }));
        assert_eq!(answer["choices"][0]["text"], format!("<{end}>"));
        assert_eq!(answer["usage"]["prompt_tokens"], 4);
    }
    let long = ask(
        "/v1/completions",
        json!({ "prompt": "x!".repeat(3000), "truncate_prompt_tokens": -1, "max_tokens": 1 }),
    );
    assert_eq!(long["usage"]["prompt_tokens"], 2047);
    let chat =
        ask("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "the lamp" }] }));
    assert_eq!(chat["usage"]["prompt_tokens"], 4);
    let embedded = ask("/v1/embeddings", json!({ "input": "the garden is green and the lamp" }));
    assert_eq!(embedded["usage"]["prompt_tokens"], 4);
}

#[test]
fn an_answer_goes_on_with_the_last_message_where_that_is_asked_for() {
    let fixture = Fixture::start(Parrot::new(str::to_owned));
    let messages = json!([{ "role": "user", "content": "the lamp" }, { "role": "assistant", "content": " the lamp is " }]);
    let body = json!({ "model": "parrot", "messages": messages, "continue_final_message": true });
    let answer = fixture.post("/v1/chat/completions", &body).json();
    let expected = "<|im_start|>user\nthe lamp<|im_end|>\n<|im_start|>assistant\n the lamp is ";
    let told = answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(told, expected.replace("<|im_start|>", "").replace("<|im_end|>", ""));
}

/// What the engine is asked for, by the model's own settings and by the request.
#[test]
fn a_models_own_settings_are_used_where_a_request_has_none() {
    let parrot = Parrot::echoing();
    let asked = parrot.asked.clone();
    let own = Sampling {
        temperature: 0.6,
        top_k: 20,
        top_p: 0.95,
        repetition_penalty: 1.05,
        ..Sampling::default()
    };
    let model = ServedModel::new("parrot", vec![Arc::new(parrot)], TOKENIZER.clone()).unwrap();
    let options = GatewayOptions { listen: "127.0.0.1:0".parse().unwrap(), ..GatewayOptions::default() };
    let running = start(vec![model.with_sampling(own.clone())], options).unwrap();
    let sampling = |more: Value| {
        assert_eq!(send_chat(running.address(), "x", more).status, 200);
        asked.lock().unwrap().take().unwrap().sampling
    };
    assert_eq!(sampling(json!({})), own);
    assert_eq!(
        sampling(json!({ "temperature": 0, "top_k": -1 })),
        Sampling { temperature: 0.0, top_k: 0, ..own }
    );
}

#[test]
fn tokens_that_are_allowed_and_words_that_are_not_reach_the_engine() {
    let parrot = Arc::new(Parrot::echoing());
    let fixture = Fixture::start_many(vec![parrot.clone()], |_| {});
    let answer = fixture.chat("x", json!({ "allowed_token_ids": [3, 40], "bad_words": ["lamp"] }));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let asked = parrot.asked.lock().unwrap().take().unwrap();
    let allowed = asked.allowed.unwrap();
    assert_eq!((allowed[0], allowed[1], allowed[2..].iter().max()), (1 << 3, 1 << 8, Some(&0)));
    assert_eq!(asked.bad_words[0], TOKENIZER.encode("lamp").unwrap());
}

#[test]
fn embeddings_come_as_numbers_or_as_base64() {
    let fixture = Fixture::start(Parrot::echoing());
    let body = fixture
        .post("/v1/embeddings", &json!({ "model": "parrot", "input": ["a", "the garden is green"] }))
        .json();
    assert_eq!(body["data"][0]["embedding"], json!([0.5, 0.5, 0.5, 1.0]));
    assert_eq!(body["data"][1]["index"], 1);
    assert!(body["usage"]["prompt_tokens"].as_u64() > Some(1));
    let encoded = fixture
        .post("/v1/embeddings", &json!({ "model": "parrot", "input": "a", "encoding_format": "base64" }))
        .json();
    assert_eq!(encoded["data"][0]["embedding"], "AAAAPwAAAD8AAAA/AACAPw==");
}

const WEATHER: &str = r#"{"type": "function", "function": {"name": "weather", "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false}}}"#;

fn weather() -> Value {
    serde_json::from_str(WEATHER).unwrap()
}

#[test]
fn calls_of_tools_are_parsed_whole_and_in_streams() {
    let fixture = Fixture::start(Parrot::new(|_| {
        "Let me look.<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>"
            .to_owned()
    }));
    let body = fixture.chat("Oslo?", json!({ "tools": [weather()] })).json();
    let choice = &body["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!("Let me look."))
    );
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({ "name": "weather", "arguments": "{\"city\": \"Oslo\"}" }));
    assert_eq!(
        (&call["type"], call["id"].as_str().unwrap().starts_with("call_")),
        (&json!("function"), true)
    );
    let events = fixture.chat("Oslo?", json!({ "tools": [weather()], "stream": true })).events();
    let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    let text: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(text, "Let me look.");
    let calls: Vec<&Value> =
        deltas.iter().filter_map(|delta| delta["tool_calls"].as_array()).flatten().collect();
    assert_eq!((&calls[0]["index"], &calls[0]["function"]["name"]), (&json!(0), &json!("weather")));
    assert!(calls.len() > 2 && calls[1..].iter().all(|call| call["function"].get("name").is_none()));
    let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, "{\"city\": \"Oslo\"}");
    let none = fixture.chat("Oslo?", json!({ "tools": [weather()], "tool_choice": "none" })).json();
    assert!(none["choices"][0]["message"]["content"].as_str().unwrap().contains("<tool_call>"));
}

#[test]
fn a_call_that_must_be_made_is_made() {
    let fixture = Fixture::start(Parrot::echoing());
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    for choice in [json!("required"), named] {
        for stream in [false, true] {
            let reply = fixture.chat(
                "I would rather talk.",
                json!({ "tools": [weather()], "tool_choice": choice, "stream": stream }),
            );
            let call = match stream {
                false => reply.json()["choices"][0]["message"]["tool_calls"][0].clone(),
                true => {
                    let events = reply.events();
                    let calls = events
                        .iter()
                        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array())
                        .flatten();
                    let mut whole = Value::Null;
                    for call in calls {
                        if whole.is_null() {
                            whole = call.clone();
                        } else {
                            let before = whole["function"]["arguments"].as_str().unwrap();
                            let more = call["function"]["arguments"].as_str().unwrap();
                            whole["function"]["arguments"] = format!("{before}{more}").into();
                        }
                    }
                    whole
                }
            };
            assert_eq!(call["function"]["name"], "weather");
            let arguments: Value =
                serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
            assert!(arguments["city"].is_string(), "{arguments}");
        }
    }
}

#[test]
fn parameters_of_functions_that_must_be_called_may_refer_to_their_parts() {
    let fixture = Fixture::start(Parrot::echoing());
    let place = json!({ "type": "object", "properties": { "city": { "enum": ["Oslo"] }, "next": { "$ref": "#/$defs/End" } },
                        "required": ["city", "next"], "additionalProperties": false });
    let parameters = json!({ "type": "object", "properties": { "place": { "$ref": "#/$defs/Place" } }, "required": ["place"],
                             "additionalProperties": false, "$defs": { "Place": place, "End": { "const": 1 } } });
    let tool = json!({ "type": "function", "function": { "name": "go", "parameters": parameters } });
    let reply = fixture.chat("x", json!({ "tools": [weather(), tool], "tool_choice": { "type": "function", "function": { "name": "go" } } }));
    let body = reply.json();
    let call = &body["choices"][0]["message"]["tool_calls"][0]["function"];
    let arguments: Value =
        serde_json::from_str(call["arguments"].as_str().unwrap_or_else(|| panic!("{body}"))).unwrap();
    assert_eq!(arguments, json!({ "place": { "city": "Oslo", "next": 1 } }));
}

#[test]
fn formats_are_enforced() {
    let fixture = Fixture::start(Parrot::echoing());
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string" }, "age": { "type": "integer" } },
                         "required": ["name", "age"], "additionalProperties": false });
    let content = |more: Value| {
        let body = fixture.chat("I would rather talk.", more).json();
        body["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned()
    };
    let format = json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": schema } });
    for more in [
        json!({ "response_format": format }),
        json!({ "guided_json": schema }),
        json!({ "structured_outputs": { "json": schema } }),
    ] {
        let person: Value = serde_json::from_str(&content(more)).unwrap();
        assert!(person["name"].is_string() && person["age"].is_i64(), "{person}");
    }
    let object: Value =
        serde_json::from_str(&content(json!({ "response_format": { "type": "json_object" } }))).unwrap();
    assert!(object.is_object());
    assert_eq!(
        content(json!({ "guided_choice": ["yes", "no"] })).len().clamp(2, 3),
        content(json!({ "guided_choice": ["yes", "no"] })).len()
    );
    assert_eq!(content(json!({ "guided_regex": "1{3}" })), "111");
    assert_eq!(content(json!({ "guided_grammar": "start: \"}\" \"]\"" })), "}]");
    assert_eq!(content(json!({ "response_format": { "type": "text" } })), "I would rather talk.");
}

#[test]
fn a_client_that_goes_away_ends_its_answer() {
    for stream in [true, false] {
        let parrot =
            Arc::new(Parrot::new(|_| "the garden is green ".repeat(400)).slow(Duration::from_millis(20)));
        let fixture = Fixture::start_many(vec![parrot.clone()], |_| {});
        let mut client = fixture.connect();
        let body = chat("x", json!({ "stream": stream })).to_string();
        client.write_all(&request("POST", "/v1/chat/completions", &[], body.as_bytes())).unwrap();
        if stream {
            BufReader::new(&mut client).read_line(&mut String::new()).unwrap();
        } else {
            wait_until("the request runs", || bedplate_serve::Replica::state(&*parrot).running == 1);
        }
        drop(client);
        wait_until("the answer is cancelled", || {
            parrot.cancelled.load(std::sync::atomic::Ordering::Relaxed) == 1
        });
    }
}

#[test]
fn an_end_finishes_what_runs_and_takes_nothing_new() {
    let mut fixture =
        Fixture::start(Parrot::new(|_| "the garden is green ".repeat(5)).slow(Duration::from_millis(20)));
    let address = fixture.address;
    let mut client = fixture.connect();
    let body = chat("x", json!({ "stream": true })).to_string();
    client.write_all(&request("POST", "/v1/chat/completions", &[], body.as_bytes())).unwrap();
    let mut reader = BufReader::new(client);
    let mut lines = String::new();
    while !lines.contains("data: ") {
        reader.read_line(&mut lines).unwrap();
    }
    let running = fixture.running.take().unwrap();
    running.stop();
    std::io::Read::read_to_string(&mut reader, &mut lines).unwrap();
    assert!(lines.contains("data: [DONE]"), "{lines}");
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn two_replicas_share_the_requests() {
    let slow = || Arc::new(Parrot::echoing().slow(Duration::from_millis(50)).max_seqs(1));
    let (one, two) = (slow(), slow());
    let fixture = Fixture::start_many(vec![one, two], |_| {});
    let bodies: Vec<u16> = std::thread::scope(|scope| {
        let ask = || fixture.chat("the garden is green", json!({})).status;
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(bodies, [200, 200]);
}

#[test]
fn the_server_says_what_it_serves_and_counts_under_vllms_names() {
    let fixture = Fixture::start(Parrot::echoing());
    let models = fixture.get("/v1/models").json();
    let names: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["parrot", "gpt-4o", "parrot-lora"]);
    assert_eq!(fixture.get("/v1/models/parrot").json()["max_model_len"], 2048);
    assert_eq!(fixture.get("/health").status, 200);
    assert_eq!(fixture.get("/ready").status, 200);
    fixture.chat("the garden", json!({}));
    // The answer arrives a moment before its sequence is no longer counted.
    let text = wait_for("the sequence to end", || {
        let text = fixture.get("/metrics").text();
        text.contains("vllm:num_requests_running{model_name=\"parrot\"} 0").then_some(text)
    });
    for line in [
        "vllm:kv_cache_usage_perc{model_name=\"parrot\"} 0.25",
        "vllm:request_success_total{model_name=\"parrot\",finished_reason=\"stop\"} 1",
        "vllm:time_to_first_token_seconds_count{model_name=\"parrot\"} 1",
        "vllm:e2e_request_latency_seconds_count{model_name=\"parrot\"} 1",
        "bedplate_gateway_requests_total{path=\"/v1/chat/completions\",status=\"200\"} 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let info = fixture.get("/tokenizer_info").json();
    assert_eq!(info["eos_token"].as_str(), TOKENIZER.spelled(TOKENIZER.end().unwrap()).as_deref());
    assert!(info["chat_template"].as_str().unwrap().contains("<|im_start|>"));
    let tokens = fixture.post("/tokenize", &json!({ "prompt": "the garden" })).json();
    assert_eq!(
        fixture.post("/detokenize", &json!({ "tokens": tokens["tokens"] })).json()["prompt"],
        "the garden"
    );
    assert!(fixture.post("/tokenize", &chat("x", json!({}))).json()["count"].as_u64() > Some(3));
}

#[test]
fn a_trace_can_be_replayed() {
    let folder = std::env::temp_dir().join(format!("bedplate-gateway-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("trace.jsonl");
    let mut fixture = Fixture::start_with(Parrot::echoing(), |options| options.trace = Some(path.clone()));
    for _ in 0..3 {
        fixture.chat(&"the garden is green ".repeat(10), json!({}));
    }
    fixture.running.take().unwrap().stop();
    let text = std::fs::read_to_string(&path).unwrap();
    let requests = bedplate_replay::requests::read_trace(bedplate_diag::Source::new("trace", &text)).unwrap();
    assert_eq!(requests.len(), 3);
    assert!(requests[0].prompt_tokens > 40 && requests[0].output_tokens > 20, "{text}");
    let hashes: Vec<Value> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["hash_ids"].clone()).collect();
    assert_eq!(hashes[0], hashes[1]);
    assert!(!hashes[0].as_array().unwrap().is_empty());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_answer_that_takes_too_long_is_given_up() {
    for stream in [false, true] {
        let parrot =
            Arc::new(Parrot::new(|_| "the garden is green ".repeat(400)).slow(Duration::from_millis(20)));
        let fixture = Fixture::start_many(vec![parrot.clone()], |options| {
            options.bounds.request = Duration::from_millis(300)
        });
        let reply = fixture.chat("x", json!({ "stream": stream }));
        if stream {
            let events = reply.events();
            assert_eq!(events.last().unwrap()["error"]["code"], "timeout");
        } else {
            assert_eq!(reply.error(), (504, "server_error".into(), "timeout".into(), String::new()));
        }
        wait_until("the engine was told", || {
            parrot.cancelled.load(std::sync::atomic::Ordering::Relaxed) == 1
        });
    }
}

/// A client that takes nothing of a stream holds up neither the engine nor other clients.
#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let parrot = Arc::new(Parrot::new(|_| "the garden is green ".repeat(300)));
    let fixture = Fixture::start_many(vec![parrot.clone()], |_| {});
    let idle: Vec<_> = (0..8)
        .map(|_| {
            let mut client = fixture.connect();
            let body = chat("x", json!({ "stream": true, "n": 20, "logprobs": true, "top_logprobs": 20 }))
                .to_string();
            client.write_all(&request("POST", "/v1/chat/completions", &[], body.as_bytes())).unwrap();
            client
        })
        .collect();
    wait_until("the engine is done with them", || bedplate_serve::Replica::state(&*parrot).running == 0);
    assert_eq!(fixture.chat("x", json!({ "max_tokens": 3 })).status, 200);
    drop(idle);
}

#[test]
fn promtool_takes_the_metrics() {
    use std::process::{Command, Stdio};
    let fixture = Fixture::start(Parrot::echoing());
    fixture.chat("the garden", json!({}));
    // Its lint frowns on vLLM's colons; they are legal.
    let text = fixture.get("/metrics").text().replace("vllm:", "vllm_");
    let checked = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = checked else {
        println!("SKIPPED: promtool is not installed");
        return;
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
