//! What a template may make: texts and lists, counted as they are made.

use std::cell::Cell;

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, filters};

use super::python;
use super::rewrite::{ASSIGNED, BOUNDED, REMAINDER, TEXT};

/// Bytes of all texts that a template makes on its way to the prompt.
const MOST_BYTES: u64 = 512 << 20;
/// Bytes of one text, and of a list's texts together: more than the body of any request.
const LARGEST: usize = 64 << 20;
/// Values that are looked at to find the sizes of lists.
const MOST_VALUES: u64 = 50_000_000;
/// Lists within lists. Comparing, printing and freeing them recurses.
const DEEPEST: usize = 64;

thread_local! {
    /// Bytes and values that the template being rendered on this thread may still make.
    static LEFT: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// A template begins.
pub(super) fn begin() {
    LEFT.set((MOST_BYTES, MOST_VALUES));
}

/// Counts what the templates of an environment make and write.
pub(super) fn limit(environment: &mut Environment<'static>) {
    environment.add_filter(BOUNDED, bounded);
    environment.add_filter(ASSIGNED, assigned);
    environment.add_filter(REMAINDER, remainder);
    environment.add_filter(TEXT, |value: Value| measured(&value).map(|_| python::text(&value)));
    for (name, filter, check) in [
        ("replace", Value::from_function(filters::replace), fits_replaced as Check),
        ("join", Value::from_function(filters::join), fits_joined),
        ("indent", Value::from_function(filters::indent), fits_indented),
        ("batch", Value::from_function(filters::batch), fits_cut),
        ("slice", Value::from_function(filters::slice), fits_cut),
        ("format", Value::from_function(filters::format), fits_formatted),
    ] {
        let checked = move |state: &State<'_, '_>, arguments: Rest<Value>| {
            check(&arguments)?;
            filter.call(state, &arguments)
        };
        environment.add_filter(name, checked);
    }
    environment.set_formatter(|out, state, value| {
        take(measured(value)?)?;
        let text = (value.kind() != ValueKind::String).then(|| Value::from(python::text(value)));
        minijinja::escape_formatter(out, state, text.as_ref().unwrap_or(value))
    });
}

/// Whether what is made of some values can be too large.
type Check = fn(&[Value]) -> Result<(), Error>;

/// A method of a text, which may make one that is much larger than both.
pub(super) fn fits_method(text: &Value, method: &str, arguments: &[Value]) -> Result<(), Error> {
    let check = match method {
        "replace" => fits_replaced,
        "format" => fits_formatted,
        "join" => return fits_joined(&[arguments, std::slice::from_ref(text)].concat()),
        _ => return Ok(()),
    };
    check(&[std::slice::from_ref(text), arguments].concat())
}

fn too_much(what: &str) -> Error {
    Error::new(ErrorKind::OutOfFuel, format!("the template makes {what}"))
}

fn take(bytes: usize) -> Result<(), Error> {
    let (left, values) = LEFT.get();
    let left = left.checked_sub(bytes as u64).ok_or_else(|| too_much("more text than any prompt has"))?;
    LEFT.set((left, values));
    Ok(())
}

/// The bytes that a value has as a text, about. An error where they are too many.
fn measured(value: &Value) -> Result<usize, Error> {
    let mut bytes = 0;
    measure(value, DEEPEST, &mut bytes)?;
    Ok(bytes)
}

fn measure(value: &Value, depth: usize, bytes: &mut usize) -> Result<(), Error> {
    let (left, values) = LEFT.get();
    let values = values.checked_sub(1).ok_or_else(|| too_much("too many lists"))?;
    LEFT.set((left, values));
    *bytes += value.as_str().map_or(4, str::len);
    if *bytes > LARGEST {
        return Err(too_much(&format!("a text of more than {LARGEST} bytes")));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    let depth = depth.checked_sub(1).ok_or_else(|| too_much("lists that are nested too deep"))?;
    for item in value.try_iter()? {
        if value.kind() == ValueKind::Map {
            measure(&value.get_item(&item)?, depth, bytes)?;
        }
        measure(&item, depth, bytes)?;
    }
    Ok(())
}

/// What was made, if it may be. A list is made of what was counted before.
fn bounded(value: Value) -> Result<Value, Error> {
    let bytes = measured(&value)?;
    take(if value.kind() == ValueKind::String { bytes } else { 0 })?;
    Ok(value)
}

/// What a namespace is given: no namespace, which could hold itself.
fn assigned(value: Value) -> Result<Value, Error> {
    if holds_namespace(&value, DEEPEST) {
        return Err(Error::new(ErrorKind::InvalidOperation, "a namespace cannot hold another one"));
    }
    bounded(value)
}

fn holds_namespace(value: &Value, depth: usize) -> bool {
    if value.as_object().is_some_and(|object| object.type_name().ends_with("Namespace")) {
        return true;
    }
    match (value.kind(), depth.checked_sub(1)) {
        (ValueKind::Seq | ValueKind::Map | ValueKind::Iterable, Some(depth)) => {
            value.try_iter().into_iter().flatten().any(|item| {
                holds_namespace(&item, depth)
                    || value.kind() == ValueKind::Map
                        && value.get_item(&item).is_ok_and(|item| holds_namespace(&item, depth))
            })
        }
        _ => false,
    }
}

/// `%`: of texts what Python's operator formats, of numbers the remainder.
fn remainder(state: &State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    if left.kind() != ValueKind::String {
        let divided = state.env().compile_expression("left % right")?;
        return divided.eval(minijinja::context! { left, right });
    }
    let arguments = match right.kind() {
        ValueKind::Seq => right.try_iter()?.collect(),
        _ => vec![right],
    };
    let arguments = [vec![left], arguments].concat();
    fits_formatted(&arguments)?;
    Value::from_function(filters::format).call(state, &arguments)
}

fn text_of(arguments: &[Value], at: usize) -> Result<String, Error> {
    let Some(value) = arguments.get(at) else { return Ok(String::new()) };
    measured(value)?;
    Ok(value.to_string())
}

/// Each place where a text is found grows by the other one.
fn fits_replaced(arguments: &[Value]) -> Result<(), Error> {
    let [text, from, to] = [text_of(arguments, 0)?, text_of(arguments, 1)?, text_of(arguments, 2)?];
    let found = if from.is_empty() { text.len() + 1 } else { text.matches(&from).count() };
    fits(found, to.len(), text.len())
}

fn fits_joined(arguments: &[Value]) -> Result<(), Error> {
    let Some(list) = arguments.first() else { return Ok(()) };
    fits(list.len().unwrap_or_default(), text_of(arguments, 1)?.len(), measured(list)?)
}

fn fits_indented(arguments: &[Value]) -> Result<(), Error> {
    let text = text_of(arguments, 0)?;
    fits(text.matches('\n').count() + 1, asked(&arguments[1..]).max(4), text.len())
}

fn fits_cut(arguments: &[Value]) -> Result<(), Error> {
    fits(asked(&arguments[1..]), size_of::<Value>(), 0)
}

/// A width is a number of spaces.
fn fits_formatted(arguments: &[Value]) -> Result<(), Error> {
    let pattern = text_of(arguments, 0)?;
    if pattern.contains('*') {
        return Err(too_much("a text as wide as it asks for"));
    }
    let digits = pattern.split(|letter: char| !letter.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let widths = digits.map(|digits| digits.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add);
    let texts = arguments.iter().map(measured).try_fold(0, |sum, bytes| Ok::<usize, Error>(sum + bytes?))?;
    fits(pattern.matches(['%', '{']).count(), texts, widths)
}

/// The largest number that a filter is given, by place or by name.
fn asked(arguments: &[Value]) -> usize {
    let number = |value: &Value| value.as_usize().unwrap_or_default();
    let named = |value: &Value| {
        let values = value.try_iter().into_iter().flatten().filter_map(|key| value.get_item(&key).ok());
        if value.is_kwargs() {
            values.map(|value| number(&value)).max().unwrap_or_default()
        } else {
            number(value)
        }
    };
    arguments.iter().map(named).max().unwrap_or_default()
}

/// Whether so many pieces of a size and what is there already are bearable together.
fn fits(count: usize, size: usize, more: usize) -> Result<(), Error> {
    match count.saturating_mul(size).saturating_add(more) > LARGEST {
        true => Err(too_much(&format!("a text of more than {LARGEST} bytes"))),
        false => Ok(()),
    }
}
