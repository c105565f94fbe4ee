//! Server-sent events in the bytes of a stream, however they are cut.

/// Takes bytes and gives the data of complete events.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    held: Vec<u8>,
}

impl EventReader {
    pub(crate) fn push(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) {
        self.held.extend(bytes);
        let mut from = 0;
        while let Some(length) = self.held[from..].iter().position(|byte| *byte == b'\n') {
            let line =
                self.held[from..from + length].strip_suffix(b"\r").unwrap_or(&self.held[from..from + length]);
            if let Some(data) = line.strip_prefix(b"data:") {
                take(data.strip_prefix(b" ").unwrap_or(data));
            }
            from += length + 1;
        }
        self.held.drain(..from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
        let stream = b"data: {\"a\":1}\n\n: remark\n\ndata:b\r\n\r\nevent: x\ndata: [DONE]\n\n";
        for size in 1..stream.len() {
            let mut found = Vec::new();
            let mut events = EventReader::default();
            for piece in stream.chunks(size) {
                events.push(piece, |data| found.push(String::from_utf8(data.to_vec()).unwrap()));
            }
            assert_eq!(found, ["{\"a\":1}", "b", "[DONE]"], "by {size}");
        }
    }
}
