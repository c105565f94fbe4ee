//! TensorBoard's events in protocol buffers, as far as needed for scalars and texts.
//!
//! Field numbers are those of `event.proto`, `summary.proto` and `tensor.proto` of TensorFlow.

/// What an event may say.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum What<'a> {
    /// Opens every file.
    Version,
    /// A run begins at the event's step: readers drop what earlier files have for that step and later ones.
    Start,
    Values(&'a [(String, EventValue<'a>)]),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum EventValue<'a> {
    Scalar(f32),
    Text(&'a str),
}

/// An event as bytes; `time` in seconds since 1970.
pub(crate) fn event(time: f64, step: u64, what: &What<'_>) -> Vec<u8> {
    let mut message = Message::default();
    message.double(1, time);
    message.number(2, step);
    match what {
        What::Version => message.bytes(3, b"brain.Event:2"),
        What::Start => message.message(7, |log| log.number(1, 1)),
        What::Values(values) => message.message(5, |summary| {
            for (tag, value) in *values {
                summary.message(1, |entry| add_value(entry, tag, *value));
            }
        }),
    }
    message.0
}

fn add_value(entry: &mut Message, tag: &str, value: EventValue<'_>) {
    entry.bytes(1, tag.as_bytes());
    match value {
        EventValue::Scalar(number) => entry.float(2, number),
        EventValue::Text(text) => {
            entry.message(8, |tensor| {
                const STRINGS: u64 = 7;
                tensor.number(1, STRINGS);
                tensor.message(2, |shape| shape.message(2, |dimension| dimension.number(1, 1)));
                tensor.bytes(8, text.as_bytes());
            });
            entry.message(9, |metadata| metadata.message(1, |plugin| plugin.bytes(1, b"text")));
        }
    }
}

/// A message that is being written, field by field.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn key(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.key(field, 0);
        self.varint(number);
    }

    fn double(&mut self, field: u64, number: f64) {
        self.key(field, 1);
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn float(&mut self, field: u64, number: f32) {
        self.key(field, 5);
        self.0.extend(number.to_le_bytes());
    }

    fn message(&mut self, field: u64, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }
}
