//! Server-sent events: named texts, a blank line between them.

use std::io::{self, BufRead};

/// One event of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) kind: String,
    pub(super) data: String,
}

/// The next event; nothing at the end of the stream. A comment, which keeps the connection alive, is an event without
/// kind and data.
pub(super) fn next_event(stream: &mut impl BufRead) -> io::Result<Option<Event>> {
    let mut event = Event::default();
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let text = line.trim_end_matches(['\n', '\r']);
        if text.is_empty() {
            return Ok(Some(event));
        }
        let (field, value) = text.split_once(':').unwrap_or((text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => event.kind = value.to_owned(),
            "data" if event.data.is_empty() => event.data = value.to_owned(),
            "data" => event.data = format!("{}\n{value}", event.data),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_and_comments_are_empty_ones() {
        let mut stream =
            &b": hello\n\nevent: job\ndata: {\"a\":1}\n\n:\n\ndata: x\r\ndata:y\r\nid: 3\r\n\r\ndata: torn"[..];
        assert_eq!(next_event(&mut stream).unwrap(), Some(Event::default()));
        let first = next_event(&mut stream).unwrap().unwrap();
        assert_eq!((first.kind.as_str(), first.data.as_str()), ("job", "{\"a\":1}"));
        assert_eq!(next_event(&mut stream).unwrap(), Some(Event::default()));
        let second = next_event(&mut stream).unwrap().unwrap();
        assert_eq!((second.kind.as_str(), second.data.as_str()), ("", "x\ny"));
        assert_eq!(next_event(&mut stream).unwrap(), None, "what was cut off is no event");
    }
}
