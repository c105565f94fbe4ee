//! What templates of Hugging Face models use beyond Jinja: Python's JSON, the date, and a tag for training.

use bedplate_host::clock;
use bedplate_units::{Date, UtcTime};
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};

use super::{allowance, python};

/// Adds the functions and filters that `transformers` gives to templates.
pub(super) fn extend(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        allowance::fits_method(value, method, arguments)?;
        match python::method(value, method, arguments) {
            Some(result) => result,
            None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments),
        }
    });
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| date(&format, clock::unix_time().as_secs()));
    environment.add_filter("tojson", python::to_json);
    environment.add_filter("string", |value: Value| python::text(&value));
    // Only what is not there is more lenient here than in Python.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
}

/// The source with something else for `{% generation %}` and its end, which mark what is learned and change no text. What stands in a
/// comment, in a text or between `{% raw %}` and `{% endraw %}` is no mark.
pub(super) fn replace_marks(source: &str, replacement: &dyn Fn(&str) -> String) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = ["{%", "{#", "{{"].iter().filter_map(|begin| rest.find(begin)).min() {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some(length) = tag_length(rest) else { break };
        let (tag, after) = rest.split_at(length);
        rest = after;
        let inside = tag.strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}")).unwrap_or_default();
        match inside.trim_matches(['-', '+']).trim() {
            // Empty comments keep what the tag says about the white space around it.
            word @ ("generation" | "endgeneration") => {
                let (before, after) = inside.split_once(word).unwrap_or_default();
                let between = replacement(word);
                let between = if between.is_empty() { between } else { format!("#}}{between}{{#") };
                text.push_str(&format!("{{#{before}{between}{after}#}}"));
            }
            "raw" => {
                let end = rest.find("endraw").unwrap_or(rest.len());
                text.push_str(tag);
                text.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            _ => text.push_str(tag),
        }
    }
    text + rest
}

/// How long a comment, a statement or an expression is, with its brackets.
fn tag_length(source: &str) -> Option<usize> {
    if source.starts_with("{#") {
        return source.find("#}").map(|end| end + 2);
    }
    let close = if source.starts_with("{%") { "%}" } else { "}}" };
    let (mut quote, mut is_escaped) = (None, false);
    for (at, letter) in source.char_indices().skip(2) {
        match (quote, letter) {
            _ if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(open), letter) if open == letter => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, _) if source[at..].starts_with(close) => return Some(at + 2),
            (None, _) => {}
        }
    }
    None
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

    fn without_marks(source: &str) -> String {
        replace_marks(source, &|_| String::new())
    }

    #[test]
    fn marks_of_training_are_left_out_or_shown() {
        let shown =
            replace_marks("a\n{%- generation %}\nb{% endgeneration -%} c", &|word| format!("{{{{{word}}}}}"));
        assert_eq!(shown, "a\n{#- #}{{generation}}{# #}\nb{# #}{{endgeneration}}{# -#} c");
        let source = "{%- if a %}x{% generation %}y{%- endgeneration -%} z{% endif %}";
        assert_eq!(without_marks(source), "{%- if a %}x{#  #}y{#-  -#} z{% endif %}");
        assert_eq!(without_marks("{% generation"), "{% generation");
        for kept in [
            "{#- in `{% generation %}` and {%- endgeneration %} -#}x",
            "{{ '{% generation %}' }}{% set a = \"%}{% generation %}\" %}",
            "{% raw %}{% generation %}{% endraw %}",
            "{# {% generation %}",
        ] {
            assert_eq!(without_marks(kept), kept);
        }
        assert_eq!(without_marks("{# a #}{% generation %}b"), "{# a #}{#  #}b");
    }
}
