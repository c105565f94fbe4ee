//! Seeded mutation of texts: the same seed gives the same inputs everywhere.

/// Makes broken variants of a text: cut, doubled, swapped, sprinkled with troublesome words and bytes.
pub struct Mutator {
    state: u64,
    /// Words that trouble one kind of text.
    own: &'static [&'static [u8]],
}

/// What trips parsers: numbers at the edge, brackets, quotes, control characters.
const TROUBLE: [&[u8]; 24] = [
    b"99999999999999999999999",
    b"-1",
    b"0",
    b"1e309",
    b"NaN",
    b"[",
    b"]",
    b"{",
    b"}",
    b"\"",
    b"'",
    b"\\",
    b",",
    b"=",
    b":",
    b"\n",
    b"\t",
    b"\0",
    b"\xff\xfe",
    b"\xf0\x9f\x92\xa5",
    b"null",
    b"[1-999999999]",
    b"#",
    b"\x1b[4m",
];

impl Mutator {
    pub fn new(seed: u64) -> Self {
        Self { state: seed | 1, own: &[] }
    }

    /// The same with more words that trouble this kind of text.
    #[must_use]
    pub fn with(self, own: &'static [&'static [u8]]) -> Self {
        Self { own, ..self }
    }

    fn trouble(&mut self) -> &'static [u8] {
        let at = self.below(TROUBLE.len() + self.own.len());
        TROUBLE.get(at).copied().unwrap_or_else(|| self.own[at - TROUBLE.len()])
    }

    /// A number below `bound`, by xorshift; good enough to wander, and the same on every machine.
    pub fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % bound.max(1) as u64) as usize
    }

    /// A variant of `text` with one to four changes.
    pub fn mutate(&mut self, text: &[u8]) -> Vec<u8> {
        let mut bytes = text.to_vec();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len() + 1);
        let end = (at + self.below(24)).min(bytes.len());
        match self.below(6) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let copy = bytes[at..end].to_vec();
                let to = self.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            2 => {
                let trouble = self.trouble();
                bytes.splice(at..at, trouble.iter().copied());
            }
            3 => {
                let trouble = self.trouble();
                bytes.splice(at..end, trouble.iter().copied());
            }
            4 if at < bytes.len() => bytes[at] = self.below(256) as u8,
            _ => bytes.truncate(at),
        }
    }
}
