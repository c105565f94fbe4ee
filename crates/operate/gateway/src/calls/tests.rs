//! Answers of models in every style, cut at every place.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// What is left of an answer when pieces of one thing are put together.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Whole {
    Text(String),
    Call { name: String, id: Option<String>, arguments: String },
}

fn call(name: &str, arguments: &str) -> Whole {
    Whole::Call { name: name.into(), id: None, arguments: arguments.into() }
}

fn known(name: &str, id: &str, arguments: &str) -> Whole {
    Whole::Call { name: name.into(), id: Some(id.into()), arguments: arguments.into() }
}

fn text(text: &str) -> Whole {
    Whole::Text(text.into())
}

fn settings(style: CallStyle) -> CallSettings {
    let schema = json!({ "type": "object", "properties": {
        "city": { "type": "string" }, "days": { "type": "integer" }, "exact": { "type": "boolean" },
        "tags": { "type": "array" }, "unit": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
    } });
    let functions = [("f".to_owned(), schema.clone()), ("g".to_owned(), schema)];
    CallSettings { style, functions: functions.into(), is_parallel: true }
}

fn joined(parts: Vec<CallPart>) -> Vec<Whole> {
    let mut all: Vec<Whole> = Vec::new();
    for part in parts {
        match (all.last_mut(), part) {
            (Some(Whole::Text(before)), CallPart::Text(more)) => before.push_str(&more),
            (_, CallPart::Text(text)) => all.push(Whole::Text(text)),
            (_, CallPart::Begin(CallHead { name, id })) => {
                all.push(Whole::Call { name, id, arguments: String::new() });
            }
            (Some(Whole::Call { arguments, .. }), CallPart::Arguments(more)) => arguments.push_str(&more),
            (before, CallPart::Arguments(more)) => panic!("{more} belongs to no call but to {before:?}"),
        }
    }
    all
}

/// An answer that comes in these pieces.
fn of_pieces<'a>(settings: CallSettings, pieces: impl Iterator<Item = &'a str>) -> Vec<Whole> {
    let mut search = CallSearch::new(settings);
    let mut parts: Vec<CallPart> = pieces.flat_map(|piece| search.push(piece)).collect();
    parts.extend(search.finish());
    joined(parts)
}

/// The pieces of a text that is cut at some characters.
fn cut<'a>(answer: &'a str, is_cut: &dyn Fn(usize) -> bool) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut from = 0;
    for (number, (at, _)) in answer.char_indices().enumerate().skip(1) {
        if is_cut(number) {
            pieces.push(&answer[from..at]);
            from = at;
        }
    }
    pieces.push(&answer[from..]);
    pieces
}

const BIG: &str = "{\"a\": 123456789012345678901234567890, \"b\": 1e400, \"c\": 0.10000000000000000000001}";

/// Answers of models, and what is in them.
fn cases() -> Vec<(CallStyle, String, Vec<Whole>)> {
    use CallStyle::{Coder, DeepSeek, Forced, Glm, Hermes, Kimi, Llama, Mistral};
    let coder = "<tool_call>\n<function=f>\n<parameter=city>\nNew \"York\"\n</parameter>\n<parameter=days>\n12345678901234567890123\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=tags>\n[\"a\", 1]\n</parameter>\n</function>\n</tool_call>";
    let coder_arguments = "{\"city\": \"New \\\"York\\\"\", \"days\": 12345678901234567890123, \"exact\": true, \"tags\": [\"a\", 1]}";
    let glm = "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>";
    let deepseek = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"city\": \"Oslo\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let newer = "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"city\": \"Oslo\"}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    let case = |style, answer: &str, wholes: &[Whole]| (style, answer.to_owned(), wholes.to_vec());
    vec![
        case(
            Hermes,
            "Let me see.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
            &[text("Let me see."), call("f", "{\"a\": 1}"), call("g", "{}")],
        ),
        case(Hermes, "a < b <tool_calls", &[text("a < b <tool_calls")]),
        case(Hermes, "<tool_call>no</tool_call> x", &[text("<tool_call>no</tool_call> x")]),
        case(Hermes, "<tool_call>{\"name\": \"f\"}", &[call("f", "{}")]),
        case(Hermes, "<tool_call>{\"na", &[text("<tool_call>{\"na")]),
        case(
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {bad}}</tool_call>",
            &[text("<tool_call>{\"name\": \"f\", \"arguments\": {bad}}</tool_call>")],
        ),
        case(Hermes, "<tool_call>{\"a\": 1}</tool_call>", &[text("<tool_call>{\"a\": 1}</tool_call>")]),
        case(
            Hermes,
            "<tool_call><tool_call>{\"name\": \"f\"}</tool_call>",
            &[text("<tool_call>"), call("f", "{}")],
        ),
        case(
            Hermes,
            "<tool_call>{\"arguments\": {\"a\": [1]}, \"name\": \"f\", \"id\": \"x\"}</tool_call>",
            &[call("f", "{\"a\": [1]}")],
        ),
        case(
            Hermes,
            "<tool_call>{\"id\": \"x7\", \"name\": \"f\", \"arguments\": {}}</tool_call> ok",
            &[known("f", "x7", "{}"), text("ok")],
        ),
        case(
            Hermes,
            &format!("<tool_call>{{\"name\": \"f\", \"arguments\": {BIG}}}</tool_call>"),
            &[call("f", BIG)],
        ),
        case(
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"\\u00e9\\ud83d\\ude00\\\"}\"}</tool_call>",
            &[call("f", "{\"a\": \"é😀\"}")],
        ),
        case(Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", &[call("f", "{}")]),
        case(
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>",
            &[call("f", "{\"a\": \"x\\ny\"}")],
        ),
        // What is lost by a model that stops, or writes what is no JSON, is nothing of what it wrote.
        case(
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, oops}}</tool_call> so",
            &[call("f", "{\"a\": 1, oops}}"), text("so")],
        ),
        case(Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", &[call("f", "{\"a\": \"b")]),
        case(Coder, coder, &[call("f", coder_arguments)]),
        case(Hermes, coder, &[call("f", coder_arguments)]),
        case(Coder, "Hm.\n<function=g>\n</function>\n", &[text("Hm.\n"), call("g", "{}")]),
        case(
            Coder,
            "<tool_call>\n<function=g>\n<parameter=unit>\n\n</parameter>\n<parameter=city>\n</parameter>\n<parameter=new>7</parameter>\n</function>\n</tool_call>",
            &[call("g", "{\"unit\": \"\", \"city\": \"\", \"new\": \"7\"}")],
        ),
        case(
            Coder,
            "<tool_call>\n<function=g>\n<parameter=city>\na\n\nb </p\n</parameter>\n</function>\n</tool_call><tool_call>\n<function=f>\n</function>\n</tool_call>",
            &[call("g", "{\"city\": \"a\\n\\nb </p\"}"), call("f", "{}")],
        ),
        case(
            Coder,
            "<tool_call>\n<function=g>\n<parameter=days>\nmany\n</parameter>",
            &[call("g", "{\"days\": \"many\"}")],
        ),
        case(Coder, "<function=no>yes", &[text("<function=no>yes")]),
        case(Coder, "a <function x> b", &[text("a <function x> b")]),
        case(Glm, glm, &[call("f", "{\"city\": \"Oslo\", \"days\": 3}")]),
        case(
            Glm,
            "Yes.<tool_call>g</tool_call>\n<tool_call>f\n<arg_key>new</arg_key><arg_value>[1]</arg_value></tool_call>",
            &[text("Yes."), call("g", "{}"), call("f", "{\"new\": [1]}")],
        ),
        case(Glm, "<tool_call>two words</tool_call>", &[text("<tool_call>two words</tool_call>")]),
        case(
            Llama,
            "{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", \"parameters\": {}}",
            &[call("f", "{\"a\": 1}"), call("g", "{}")],
        ),
        case(Llama, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", &[call("f", "{}")]),
        case(
            Llama,
            "See: <|python_tag|>{\"type\": \"function\", \"name\": \"z\", \"parameters\": {}}",
            &[text("See: "), call("z", "{}")],
        ),
        case(Llama, "<|python_tag|>print(1)", &[text("<|python_tag|>print(1)")]),
        case(Llama, "{\"no\": 1}", &[text("{\"no\": 1}")]),
        case(Llama, "{\"name\": \"Ada\", \"age\": 36}", &[text("{\"name\": \"Ada\", \"age\": 36}")]),
        case(Llama, " <b> {\"name\": \"f\"}", &[text(" <b> {\"name\": \"f\"}")]),
        case(
            Mistral,
            "Hm.[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
            &[text("Hm."), call("f", "{\"a\": 1}"), call("g", "{}")],
        ),
        case(
            Mistral,
            "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g{}",
            &[call("f", "{\"a\": 1}"), call("g", "{}")],
        ),
        case(
            Mistral,
            "[TOOL_CALLS]f[CALL_ID]VvvODy9mT[ARGS]{\"a\": 1}[TOOL_CALLS] g [ARGS] {\"b\": {}} ",
            &[known("f", "VvvODy9mT", "{\"a\": 1}"), call("g", "{\"b\": {}}")],
        ),
        case(Mistral, "[TOOL_CALLS]nothing", &[text("[TOOL_CALLS]nothing")]),
        case(Mistral, "[TOOL_CALLS]no thing{}", &[text("[TOOL_CALLS]no thing{}")]),
        case(Mistral, "[TOOL_CALLS][1, 2]", &[text("[TOOL_CALLS][1, 2]")]),
        case(Mistral, "[TOOL_CALLS]f[CALL_ID]", &[text("[TOOL_CALLS]f[CALL_ID]")]),
        case(DeepSeek, deepseek, &[call("f", "{\"city\": \"Oslo\"}"), call("g", "{}")]),
        case(DeepSeek, newer, &[text("Hm."), call("f", "{\"city\": \"Oslo\"}")]),
        case(DeepSeek, "<｜tool▁calls▁begin｜>none", &[text("<｜tool▁calls▁begin｜>none")]),
        case(
            Kimi,
            kimi,
            &[known("f", "functions.f:0", "{\"city\": \"Oslo\"}"), known("g", "functions.g:1", "{}")],
        ),
        case(Forced, "[{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}]", &[call("f", "{\"a\": \"é\"}")]),
        case(Forced, "[{\"name\": \"f\", \"argu", &[text("[{\"name\": \"f\", \"argu")]),
        case(
            Forced,
            " [ {\"name\": \"f\", \"arguments\": {\"a\": 1} } , {\"name\": \"g\", \"arguments\": {} } ] ",
            &[call("f", "{\"a\": 1}"), call("g", "{}")],
        ),
    ]
}

#[test]
fn calls_are_found_in_every_style() {
    for (style, answer, expected) in cases() {
        assert_eq!(of_pieces(settings(style), [answer.as_str()].into_iter()), expected, "{answer}");
    }
}

#[test]
fn every_cut_in_two_and_every_size_of_pieces_give_the_same() {
    for (style, answer, expected) in cases() {
        let characters = answer.chars().count();
        for at in 1..characters {
            let pieces = cut(&answer, &|number| number == at);
            assert_eq!(of_pieces(settings(style), pieces.into_iter()), expected, "{answer} at {at}");
        }
        for size in 1..8 {
            let pieces = cut(&answer, &|number| number % size == 0);
            assert_eq!(of_pieces(settings(style), pieces.into_iter()), expected, "{answer} by {size}");
        }
    }
}

/// The beginning of an answer that is cut off loses nothing of its arguments, and what is told never has to be taken back.
#[test]
fn what_was_told_of_a_beginning_is_the_beginning_of_the_whole() {
    for (style, answer, _) in cases() {
        let (mut search, mut told) = (CallSearch::new(settings(style)), Vec::new());
        for (at, next) in answer.char_indices() {
            told.extend(search.push(&answer[at..at + next.len_utf8()]));
        }
        let before = joined(told.clone());
        told.extend(search.finish());
        let after = joined(told);
        assert!(before.len() <= after.len());
        for (before, after) in before.iter().zip(&after) {
            match (before, after) {
                (Whole::Text(before), Whole::Text(after)) => assert!(after.starts_with(before)),
                (Whole::Call { arguments: before, .. }, Whole::Call { arguments: after, .. }) => {
                    assert!(after.starts_with(before));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn arguments_come_as_they_are_written() {
    for (style, answer) in [
        (
            CallStyle::Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"city\": \"a long name of a city\"}}</tool_call>",
        ),
        (CallStyle::Mistral, "[TOOL_CALLS]f[ARGS]{\"city\": \"a long name of a city\"}"),
        (
            CallStyle::Coder,
            "<tool_call><function=f><parameter=city>a long name of a city</parameter></function></tool_call>",
        ),
        (CallStyle::Llama, "{\"name\": \"f\", \"parameters\": {\"city\": \"a long name of a city\"}}"),
        (
            CallStyle::DeepSeek,
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"city\": \"a long name of a city\"}<｜tool▁call▁end｜>",
        ),
    ] {
        let mut search = CallSearch::new(settings(style));
        let mut deltas = 0;
        for (at, next) in answer.char_indices() {
            let parts = search.push(&answer[at..at + next.len_utf8()]);
            deltas += parts.iter().filter(|part| matches!(part, CallPart::Arguments(_))).count();
        }
        assert!(deltas > 15, "{style:?}: {deltas}");
    }
}

#[test]
fn one_call_is_enough_where_they_are_not_parallel() {
    for (style, answer) in [
        (
            CallStyle::Hermes,
            "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"g\"}</tool_call>",
        ),
        (CallStyle::Mistral, "[TOOL_CALLS][{\"name\": \"f\"}, {\"name\": \"g\"}]"),
    ] {
        let settings = CallSettings { is_parallel: false, ..settings(style) };
        assert_eq!(of_pieces(settings, [answer].into_iter()), [call("f", "{}")]);
    }
}

#[test]
fn templates_tell_the_style() {
    for (source, style) in [
        ("… <tool_call> …", CallStyle::Hermes),
        ("… [TOOL_CALLS] …", CallStyle::Mistral),
        ("… <|python_tag|> …", CallStyle::Llama),
        ("… <tool_call>\n<function= …", CallStyle::Coder),
        ("… <tool_call> <arg_key> …", CallStyle::Glm),
        ("… <｜tool▁calls▁begin｜><｜tool▁call▁begin｜> …", CallStyle::DeepSeek),
        ("… <|tool_calls_section_begin|><|tool_call_begin|> …", CallStyle::Kimi),
        ("", CallStyle::Hermes),
    ] {
        assert_eq!(CallStyle::of_template(source), style, "{source}");
    }
}

fn any_style() -> impl Strategy<Value = CallStyle> {
    use CallStyle::{Coder, DeepSeek, Forced, Glm, Hermes, Kimi, Llama, Mistral};
    prop_oneof![
        Just(Hermes),
        Just(Coder),
        Just(Glm),
        Just(Llama),
        Just(Mistral),
        Just(DeepSeek),
        Just(Kimi),
        Just(Forced)
    ]
}

/// Pieces that calls are made of, in any order.
fn any_answer() -> impl Strategy<Value = String> {
    let words = [
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=city>",
        "<parameter=days>",
        "</parameter>",
        "<arg_key>",
        "city</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "function<｜tool▁sep｜>f\n```json\n",
        "<｜tool▁sep｜>",
        "\n```",
        "<｜tool▁call▁end｜>",
        "<|tool_call_begin|>",
        "functions.f:0",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "{\"name\": \"f\", \"arguments\": ",
        "{\"a\": [1, \"é\"]}",
        "{}",
        "}",
        "{",
        "[",
        "]",
        ",",
        ";",
        "f",
        " ",
        "\n",
        "\"",
        "12",
        "\"{\\\"a\\\"",
        "\\ud83d",
        "\"name\": \"g\"",
        "null",
        "x",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..16).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_answer_is_the_same_however_it_is_cut(style in any_style(), answer in any_answer(), seed in any::<u64>()) {
        let whole = of_pieces(settings(style), [answer.as_str()].into_iter());
        for pieces in [cut(&answer, &|_| true), cut(&answer, &|number| bedplate_random::mix(seed ^ number as u64).is_multiple_of(3))] {
            prop_assert_eq!(of_pieces(settings(style), pieces.into_iter()), whole.clone());
        }
        let is_plain = !answer.contains(['<', '[', '{']);
        prop_assert!(!is_plain || whole.iter().all(|whole| *whole == Whole::Text(answer.clone())));
    }
}
