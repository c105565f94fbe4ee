//! What templates expect of Python: how values are written, and methods of texts and lists.

use std::io;

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// A value as `str` writes it.
pub(super) fn text(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let mut text = String::new();
            write(value, &mut text);
            text
        }
    }
}

/// A value as `repr` writes it.
fn write(value: &Value, text: &mut String) {
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => text.push_str("None"),
        ValueKind::Bool => text.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), text),
        ValueKind::Seq | ValueKind::Iterable => {
            text.push('[');
            for (at, item) in value.try_iter().into_iter().flatten().enumerate() {
                text.push_str(if at > 0 { ", " } else { "" });
                write(&item, text);
            }
            text.push(']');
        }
        ValueKind::Map => {
            text.push('{');
            for (at, key) in value.try_iter().into_iter().flatten().enumerate() {
                text.push_str(if at > 0 { ", " } else { "" });
                write(&key, text);
                text.push_str(": ");
                write(&value.get_item(&key).unwrap_or_default(), text);
            }
            text.push('}');
        }
        _ => text.push_str(&value.to_string()),
    }
}

/// In single quotes, unless the text has some and no double ones.
fn quote(inner: &str, text: &mut String) {
    let mark = if inner.contains('\'') && !inner.contains('"') { '"' } else { '\'' };
    text.push(mark);
    for letter in inner.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            letter if letter == mark => text.extend(['\\', letter]),
            letter if (letter as u32) < 0x20 || letter as u32 == 0x7f => {
                text.push_str(&format!("\\x{:02x}", letter as u32));
            }
            letter => text.push(letter),
        }
    }
    text.push(mark);
}

/// Methods that minijinja has not; none where there is no such method.
pub(super) fn method(value: &Value, method: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    match (value.as_str(), method) {
        (Some(text), "rsplit") => Some(right_split(text, arguments)),
        (Some(text), "index" | "rindex") => Some(index_in_text(text, method, arguments)),
        (Some(text), "removeprefix") => {
            Some(of_text(arguments, |part| text.strip_prefix(part).unwrap_or(text).into()))
        }
        (Some(text), "removesuffix") => {
            Some(of_text(arguments, |part| text.strip_suffix(part).unwrap_or(text).into()))
        }
        (Some(text), "partition") => Some(of_text(arguments, |part| match text.split_once(part) {
            Some((before, after)) => list([before, part, after]),
            None => list([text, "", ""]),
        })),
        (Some(text), "rpartition") => Some(of_text(arguments, |part| match text.rsplit_once(part) {
            Some((before, after)) => list([before, part, after]),
            None => list(["", "", text]),
        })),
        (None, "index") if value.kind() == ValueKind::Seq => Some(index_in_list(value, arguments)),
        _ => None,
    }
}

fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    texts.into_iter().map(Value::from).collect()
}

fn of_text(arguments: &[Value], make: impl FnOnce(&str) -> Value) -> Result<Value, Error> {
    let (part,): (&str,) = from_args(arguments)?;
    Ok(make(part))
}

fn right_split(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (separator, most, options): (Option<&str>, Option<i64>, Kwargs) = from_args(arguments)?;
    let most = match most {
        Some(most) => most,
        None => options.get::<Option<i64>>("maxsplit")?.unwrap_or(-1),
    };
    options.assert_all_used()?;
    let pieces = usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) => text.rsplitn(pieces, separator).collect(),
        None => {
            let (mut rest, mut parts) = (text.trim(), Vec::new());
            while parts.len() + 1 < pieces
                && let Some((before, last)) = rest.rsplit_once(char::is_whitespace)
            {
                parts.push(last);
                rest = before.trim_end();
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            parts
        }
    };
    parts.reverse();
    Ok(list(parts))
}

fn index_in_text(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (part,): (&str,) = from_args(arguments)?;
    let at = if method == "index" { text.find(part) } else { text.rfind(part) };
    let at = at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
    Ok(text[..at].chars().count().into())
}

fn index_in_list(list: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let (wanted,): (Value,) = from_args(arguments)?;
    let at = list.try_iter()?.position(|item| item == wanted);
    at.map(Value::from).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "it is not in the list"))
}

/// JSON as Python writes it: a space after commas and colons, and nothing escaped for HTML.
pub(super) fn to_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let escapes = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sorts = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let failed = |error: String| Error::new(ErrorKind::BadSerialization, error);
    let mut value = serde_json::to_value(&value).map_err(|error| failed(error.to_string()))?;
    if sorts {
        value.sort_all_objects();
    }
    let [comma, colon] = match separators.as_deref() {
        Some([comma, colon]) => [comma.clone(), colon.clone()],
        Some(_) => return Err(failed("`separators` are two texts".into())),
        None if indent.is_some() => [",".into(), ": ".into()],
        None => [", ".into(), ": ".into()],
    };
    let spaces = vec![b' '; indent.unwrap_or(0).min(16)];
    let pretty = indent.map(|_| PrettyFormatter::with_indent(&spaces));
    let mut text = Vec::new();
    let python = Python { comma, colon, escapes, pretty };
    value
        .serialize(&mut Serializer::with_formatter(&mut text, python))
        .map_err(|error| failed(error.to_string()))?;
    String::from_utf8(text).map_err(|error| failed(error.to_string()))
}

struct Python<'a> {
    comma: String,
    colon: String,
    escapes: bool,
    pretty: Option<PrettyFormatter<'a>>,
}

impl Python<'_> {
    fn begin<W: ?Sized + io::Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if !is_first {
            writer.write_all(self.comma.as_bytes())?;
        }
        // The comma is written above; what is left to do is the new line.
        self.pretty.as_mut().map_or(Ok(()), |pretty| pretty.begin_array_value(writer, true))
    }
}

impl Formatter for Python<'_> {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.begin_array(writer),
            None => writer.write_all(b"["),
        }
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.end_array(writer),
            None => writer.write_all(b"]"),
        }
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.begin_object(writer),
            None => writer.write_all(b"{"),
        }
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.end_object(writer),
            None => writer.write_all(b"}"),
        }
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        self.begin(writer, is_first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.as_mut().map_or(Ok(()), |pretty| pretty.end_array_value(writer))
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        self.begin(writer, is_first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.colon.as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.as_mut().map_or(Ok(()), |pretty| pretty.end_object_value(writer))
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.escapes {
            return writer.write_all(fragment.as_bytes());
        }
        let mut units = [0; 2];
        for letter in fragment.chars() {
            if letter.is_ascii() {
                write!(writer, "{letter}")?;
            } else {
                letter
                    .encode_utf16(&mut units)
                    .iter()
                    .try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};

    use super::super::dialect;

    /// What CPython and Jinja2 give, as transformers calls them.
    #[test]
    fn values_are_written_and_methods_answer_as_in_python() {
        let mut environment = Environment::new();
        super::super::allowance::limit(&mut environment);
        dialect::extend(&mut environment);
        for (source, expected) in [
            ("{{ [1, 'a', none, true, 2.5] }}", "[1, 'a', None, True, 2.5]"),
            ("{{ {'k': [false], \"it's\": 'a\"b'} }}", "{'k': [False], \"it's\": 'a\"b'}"),
            ("{{ true }}{{ none }}{{ '' ~ false }}", "TrueNoneFalse"),
            ("{{ ['a\\n', 'b\\\\'] | string }}", "['a\\n', 'b\\\\']"),
            ("{{ none is iterable }}{{ [] is iterable }}{{ 'a' is iterable }}", "FalseTrueTrue"),
            (
                "{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a b  c '.rsplit() }}{{ 'a b c'.rsplit(maxsplit=1) }}",
                "['a,b', 'c']['a', 'b', 'c']['a b', 'c']",
            ),
            ("{{ 'éab'.index('b') }}{{ ['x', 'y'].index('y') }}{{ 'abab'.rindex('a') }}", "212"),
            ("{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=')[0] }}", "['a', '=', 'b=c']a=b"),
            ("{{ 'abc'.removeprefix('a').removesuffix('c') }}", "b"),
            ("{{ '%s is %d, %.1f' % ('x', 3, 0.25) }}", "x is 3, 0.2"),
            ("{{ value | tojson }}", r#"{"b": [1, {"é": null}], "a": "<&>"}"#),
            (
                "{{ value | tojson(sort_keys=true, ensure_ascii=true) }}",
                r#"{"a": "<&>", "b": [1, {"\u00e9": null}]}"#,
            ),
            ("{{ value | tojson(separators=(',', ':')) }}", r#"{"b":[1,{"é":null}],"a":"<&>"}"#),
            ("{{ [1, {'a': []}] | tojson(indent=2) }}", "[\n  1,\n  {\n    \"a\": []\n  }\n]"),
        ] {
            super::super::allowance::begin();
            let rewritten = super::super::rewrite::rewritten(source).unwrap();
            let value: serde_json::Value =
                serde_json::from_str(r#"{"b": [1, {"é": null}], "a": "<&>"}"#).unwrap();
            let found = environment.render_str(&rewritten, context! { value }).unwrap();
            assert_eq!(found, expected, "{source}");
        }
    }
}
