//! Connections between ranks that have proved themselves: encrypted where they leave the host.
//!
//! Bytes travel in records: the length, then as many bytes encrypted and authenticated under a key of the connection and direction, with
//! the record's number as the nonce. One record is read at a time, so that nothing waits here that [`poll`](nix::poll::poll) does not know of
//! once reading has found nothing more.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// Bytes of a record before they are encrypted.
const RECORD: usize = 128 << 10;
const LENGTH: usize = 4;
const TAG: usize = 16;

/// The keys of both directions; none on a host.
pub(crate) struct SessionKeys(Option<[Cipher; 2]>);

impl SessionKeys {
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Keys of 32 bytes: of what is sent, and of what is received.
    pub(crate) fn new(sent: &[u8], received: &[u8]) -> io::Result<Self> {
        Ok(Self(Some([Cipher::new(sent)?, Cipher::new(received)?])))
    }
}

struct Cipher {
    key: LessSafeKey,
    records: u64,
}

impl Cipher {
    fn new(key: &[u8]) -> io::Result<Self> {
        let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| io::Error::other("no cipher"))?;
        Ok(Self { key: LessSafeKey::new(key), records: 0 })
    }

    /// No two records have the same.
    fn nonce(&mut self) -> Nonce {
        let mut bytes = [0; NONCE_LEN];
        bytes[..8].copy_from_slice(&self.records.to_le_bytes());
        self.records += 1;
        Nonce::assume_unique_for_key(bytes)
    }
}

/// A connection in both directions.
#[derive(Debug)]
pub(crate) struct SealedStream {
    pub(crate) reader: SealedReader,
    pub(crate) writer: SealedWriter,
}

pub(crate) struct SealedWriter {
    stream: Arc<TcpStream>,
    cipher: Option<Cipher>,
    /// A record on its way, how much of it has gone, and how many bytes of the caller's it has.
    record: Vec<u8>,
    gone: usize,
    taken: usize,
}

pub(crate) struct SealedReader {
    stream: Arc<TcpStream>,
    cipher: Option<Cipher>,
    /// A record that comes, or what is left of one that came.
    record: Vec<u8>,
    come: usize,
    left: std::ops::Range<usize>,
}

impl std::fmt::Debug for SealedWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealedWriter")
    }
}

impl std::fmt::Debug for SealedReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealedReader")
    }
}

impl SealedStream {
    pub(crate) fn new(stream: TcpStream, keys: SessionKeys) -> Self {
        let stream = Arc::new(stream);
        let [sent, received] = keys.0.map_or([None, None], |keys| keys.map(Some));
        Self {
            reader: SealedReader {
                stream: Arc::clone(&stream),
                cipher: received,
                record: Vec::new(),
                come: 0,
                left: 0..0,
            },
            writer: SealedWriter { stream, cipher: sent, record: Vec::new(), gone: 0, taken: 0 },
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.reader.stream
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    pub(crate) fn set_read_timeout(&self, at_most: Option<Duration>) -> io::Result<()> {
        self.socket().set_read_timeout(at_most)
    }
}

impl Read for SealedStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.reader.read(bytes)
    }
}

impl Write for SealedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for SealedReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl SealedWriter {
    /// Writes the beginning of two parts, one after the other, and says how much of them. Where the socket would have to be waited for, the
    /// caller comes again with the same bytes: a record counts once all of it has gone.
    pub(crate) fn write_parts(&mut self, parts: [&[u8]; 2]) -> io::Result<usize> {
        if self.cipher.is_none() {
            return (&*self.stream).write_vectored(&parts.map(IoSlice::new));
        }
        if self.record.is_empty() {
            self.seal(parts)?;
        }
        while self.gone < self.record.len() {
            match (&*self.stream).write(&self.record[self.gone..])? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => self.gone += count,
            }
        }
        self.record.clear();
        self.gone = 0;
        Ok(std::mem::take(&mut self.taken))
    }

    fn seal(&mut self, [first, second]: [&[u8]; 2]) -> io::Result<()> {
        let Some(cipher) = &mut self.cipher else { return Ok(()) };
        let first = &first[..first.len().min(RECORD)];
        let second = &second[..second.len().min(RECORD - first.len())];
        self.taken = first.len() + second.len();
        let length = (self.taken + TAG) as u32;
        self.record.extend_from_slice(&length.to_le_bytes());
        self.record.extend_from_slice(first);
        self.record.extend_from_slice(second);
        let nonce = cipher.nonce();
        let (head, body) = self.record.split_at_mut(LENGTH);
        let tag = cipher.key.seal_in_place_separate_tag(nonce, Aad::from(&*head), body);
        let tag = tag.map_err(|_| io::Error::other("a record could not be encrypted"))?;
        self.record.extend_from_slice(tag.as_ref());
        Ok(())
    }
}

impl Write for SealedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_parts([bytes, &[]])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SealedReader {
    /// Reads until the record has so many bytes; false at the end of the stream.
    fn fill(&mut self, until: usize) -> io::Result<bool> {
        self.record.resize(self.record.len().max(until), 0);
        while self.come < until {
            match (&*self.stream).read(&mut self.record[self.come..until])? {
                0 => return Ok(false),
                count => self.come += count,
            }
        }
        Ok(true)
    }
}

impl Read for SealedReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.cipher.is_none() {
            return (&*self.stream).read(bytes);
        }
        while self.left.is_empty() {
            if !self.fill(LENGTH)? {
                return if self.come == 0 { Ok(0) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            let altered = || io::Error::new(io::ErrorKind::InvalidData, "a record was altered on its way");
            let length = self.record.first_chunk().map_or(0, |length| u32::from_le_bytes(*length)) as usize;
            if !(TAG..=RECORD + TAG).contains(&length) {
                return Err(altered());
            }
            if !self.fill(LENGTH + length)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some(cipher) = &mut self.cipher else { return Ok(0) };
            let nonce = cipher.nonce();
            let (head, body) = self.record.split_at_mut(LENGTH);
            let opened = cipher.key.open_in_place(nonce, Aad::from(&*head), &mut body[..length]);
            let opened = opened.map_err(|_| altered())?.len();
            self.left = LENGTH..LENGTH + opened;
            self.come = 0;
        }
        let count = bytes.len().min(self.left.len());
        bytes[..count].copy_from_slice(&self.record[self.left.start..][..count]);
        self.left.start += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn sockets() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [near, listener.accept().unwrap().0]
    }

    fn pair() -> [SealedStream; 2] {
        let [near, far] = sockets();
        let keys = |sent: u8, received: u8| SessionKeys::new(&[sent; 32], &[received; 32]).unwrap();
        [SealedStream::new(near, keys(1, 2)), SealedStream::new(far, keys(2, 1))]
    }

    /// Larger than what sockets hold, so that records stop half-way.
    #[test]
    fn what_is_written_piece_by_piece_is_read_whole() {
        let [mut near, mut far] = pair();
        near.socket().set_nonblocking(true).unwrap();
        let sent: Vec<u8> = (0..9_000_000u32).map(|number| (number % 251) as u8).collect();
        let expected = sent.clone();
        let reading = thread::spawn(move || {
            let mut read = vec![0; expected.len()];
            far.read_exact(&mut read).unwrap();
            assert!(read == expected);
            far.write_all(b"all").unwrap();
        });
        let mut at = 0;
        while at < sent.len() {
            let end = sent.len().min(at + 300_000);
            match near.writer.write_parts([&sent[at..end.min(at + 7)], &sent[end.min(at + 7)..end]]) {
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        reading.join().unwrap();
        near.socket().set_nonblocking(false).unwrap();
        let mut answer = [0; 3];
        near.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"all");
    }

    #[test]
    fn nothing_passes_in_the_clear_and_nothing_that_was_altered_or_repeated_is_taken() {
        let [near, mut tapped] = sockets();
        let mut sender = SealedStream::new(near, SessionKeys::new(&[1; 32], &[2; 32]).unwrap());
        sender.write_all(b"gradients of a private model").unwrap();
        let mut record = [0; LENGTH + 28 + TAG];
        tapped.read_exact(&mut record).unwrap();
        assert!(!record.windows(5).any(|window| b"gradients of".windows(5).any(|piece| piece == window)));
        let deliver = |bytes: &[u8]| {
            let [mut near, far] = sockets();
            near.write_all(bytes).unwrap();
            drop(near);
            let mut reader = SealedStream::new(far, SessionKeys::new(&[2; 32], &[1; 32]).unwrap());
            let mut text = Vec::new();
            reader.read_to_end(&mut text).map(|_| text)
        };
        assert_eq!(deliver(&record).unwrap(), b"gradients of a private model");
        assert!(deliver(&[record, record].concat()).is_err(), "a record is taken once");
        for at in 0..record.len() {
            let mut altered = record;
            altered[at] ^= 0x10;
            assert!(deliver(&altered).is_err(), "byte {at}");
        }
        assert!(deliver(&record[..30]).is_err());
    }
}
