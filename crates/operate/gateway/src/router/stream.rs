//! Events on their way from a replica to a client, whole ones only: a stream that breaks never shows half an event.

use bytes::{Bytes, BytesMut};

/// A longer event is passed on in pieces.
const MOST_WAITING: usize = 1 << 20;

/// The end of an event that has not come yet.
#[derive(Default)]
pub(super) struct EventEnd(BytesMut);

impl EventEnd {
    /// What can be passed on now that these bytes are here.
    pub(super) fn push(&mut self, bytes: Bytes) -> Option<Bytes> {
        if self.0.is_empty() && ends_event(&bytes) {
            return Some(bytes);
        }
        // An end may lie across what came before.
        let from = self.0.len().saturating_sub(3);
        self.0.extend_from_slice(&bytes);
        let end = last_end(&self.0[from..]).map(|end| from + end);
        let end = end.or_else(|| (self.0.len() > MOST_WAITING).then_some(self.0.len()))?;
        Some(self.0.split_to(end).freeze())
    }

    /// What is left at the end of a stream that ended by itself.
    pub(super) fn finish(self) -> Option<Bytes> {
        (!self.0.is_empty()).then(|| self.0.freeze())
    }
}

fn ends_event(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\n\n") || bytes.ends_with(b"\r\n\r\n")
}

/// Behind the last empty line.
fn last_end(bytes: &[u8]) -> Option<usize> {
    (1..=bytes.len()).rev().find(|end| ends_event(&bytes[..*end]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_an_event_waits_for_its_end() {
        let mut events = EventEnd::default();
        let mut push = |text: &'static str| events.push(Bytes::from(text));
        assert_eq!(push("data: 1\n\n"), Some(Bytes::from("data: 1\n\n")));
        assert_eq!(push("data: 2\n\ndata"), Some(Bytes::from("data: 2\n\n")));
        assert_eq!(push(": 3\r\n"), None);
        assert_eq!(push("\r\n"), Some(Bytes::from("data: 3\r\n\r\n")));
        assert_eq!(push("data: 4\n"), None);
        assert_eq!(events.finish(), Some(Bytes::from("data: 4\n")));
    }

    proptest! {
        #[test]
        fn however_a_stream_is_cut_all_of_it_arrives_in_whole_events(
            texts in prop::collection::vec("[a-z]{0,12}", 0..20),
            cuts in prop::collection::vec(1usize..9, 1..100),
        ) {
            let whole: String = texts.iter().map(|text| format!("data: {text}\n\n")).collect();
            let (mut events, mut out, mut rest) = (EventEnd::default(), Vec::new(), whole.as_bytes());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                rest = later;
                let passed = events.push(Bytes::copy_from_slice(now));
                prop_assert!(passed.as_ref().is_none_or(|bytes| ends_event(bytes)));
                out.extend(passed.unwrap_or_default());
            }
            prop_assert_eq!(events.finish(), None);
            prop_assert_eq!(out, whole.as_bytes());
        }
    }
}
