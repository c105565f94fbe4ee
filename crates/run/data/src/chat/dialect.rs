//! What templates of Hugging Face models use beyond Jinja: Python's JSON, the date, and a tag for training.

use bedplate_host::clock;
use bedplate_units::{Date, UtcTime};
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io;

/// Adds the functions and filters that `transformers` gives to templates.
pub(super) fn extend(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| date(&format, clock::unix_time().as_secs()));
    environment.add_filter("tojson", to_json);
}

/// The source without `{% generation %}`, which marks what is learned and changes no text.
pub(super) fn without_marks(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(end) = rest[at..].find("%}").map(|length| at + length + 2) else { break };
        let inside = rest[at + 2..end - 2].trim_matches(['-', '+']).trim();
        let is_mark = inside == "generation" || inside == "endgeneration";
        // An empty comment keeps what the tag says about the white space around it.
        let tag = if is_mark {
            rest[at..end].replace("{%", "{#").replace("%}", "#}").replace(inside, "")
        } else {
            rest[at..end].into()
        };
        text.push_str(&rest[..at]);
        text.push_str(&tag);
        rest = &rest[end..];
    }
    text + rest
}

/// JSON as Python writes it: a space after commas and colons, and nothing escaped for HTML.
fn to_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Python escapes by default and templates ask it not to; letters other than ASCII stay as they are here.
    let _: Option<bool> = options.get("ensure_ascii")?;
    let _: Option<Value> = options.get("separators")?;
    let _: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let mut text = Vec::new();
    let written = match indent {
        Some(width) => {
            let spaces = vec![b' '; width.min(16)];
            value.serialize(&mut Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(&spaces)))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut text, Python)),
    };
    let failed = |error: String| Error::new(ErrorKind::BadSerialization, error);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(text).map_err(|error| failed(error.to_string()))
}

struct Python;

impl Formatter for Python {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// A time in UTC by `strftime`'s usual letters; others stay as they are.
fn date(format: &str, unix_seconds: u64) -> String {
    let UtcTime { date: Date { year, month, day }, hour, minute, second } = UtcTime::of(unix_seconds);
    let weekday = DAYS[(unix_seconds / 86_400 % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let part = match letters.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        };
        text.push_str(&part);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 Thursday 12:00:00 AM"),
            (951_827_696, "2000-02-29 Tuesday 12:34:56 PM"),
            (1_794_787_199, "2026-11-15 Sunday 11:59:59 PM"),
        ] {
            assert_eq!(date("%Y-%m-%d %A %I:%M:%S %p", seconds), expected);
        }
        assert_eq!(date("%d %b %Y %% %q %", 0), "01 Jan 1970 % %q %");
    }

    #[test]
    fn marks_of_training_are_left_out() {
        let source = "{%- if a %}x{% generation %}y{%- endgeneration -%} z{% endif %}";
        assert_eq!(without_marks(source), "{%- if a %}x{#  #}y{#-  -#} z{% endif %}");
        assert_eq!(without_marks("{% generation"), "{% generation");
    }
}
