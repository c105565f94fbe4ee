//! Messages over a connection between two sides that know a secret: encrypted, in order, each as it was sent.
//!
//! Both sides make a key pair for the connection and send its public half. Each proves by the secret that it saw both halves, so nobody
//! stands between them, and the keys of the two directions follow from the secret and from what only the holders of the pairs can compute:
//! the secret found later opens no connection of today.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::hmac;
use ring::rand::SystemRandom;

use super::Secret;

/// How long a silent peer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection and the proofs of the secret may take: a worker that does not answer must not delay the prompt for longer than computing it would.
pub(super) const CONNECTING: Duration = Duration::from_secs(2);
/// The longest message before the proofs.
const LONGEST_PROOF: usize = 64;

/// Which side of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Computes prompts.
    Giver,
    Taker,
}

impl Side {
    fn name(self) -> &'static [u8] {
        match self {
            Side::Giver => b"gives",
            Side::Taker => b"takes",
        }
    }

    fn other(self) -> Self {
        match self {
            Side::Giver => Side::Taker,
            Side::Taker => Side::Giver,
        }
    }
}

/// Both directions of a connection with a deadline for each read and write.
pub(super) struct TransferLink {
    reader: BufReader<Timed>,
    writer: BufWriter<TcpStream>,
    /// Of what is received and of what is sent; none before the proofs.
    ciphers: Option<[Cipher; 2]>,
}

/// A stream that is read until a moment, however slowly bytes trickle in, or else waited for between two of them.
struct Timed {
    stream: TcpStream,
    until: Option<Instant>,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.map_or(PATIENCE, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

/// The key of one direction, and how many messages it has had.
struct Cipher {
    key: LessSafeKey,
    messages: u64,
}

impl Cipher {
    /// The key of what one side sends.
    fn of(secret: &Secret, sender: Side, keys: &[u8], shared: &[u8]) -> io::Result<Self> {
        let bytes = hmac::sign(&secret.0, &[b"encrypts ", sender.name(), keys, shared].concat());
        let key = UnboundKey::new(&AES_256_GCM, bytes.as_ref()).map_err(|_| io::Error::other("no cipher"))?;
        Ok(Self { key: LessSafeKey::new(key), messages: 0 })
    }

    /// No two messages have the same.
    fn nonce(&mut self) -> Nonce {
        let mut bytes = [0; NONCE_LEN];
        bytes[..8].copy_from_slice(&self.messages.to_le_bytes());
        self.messages += 1;
        Nonce::assume_unique_for_key(bytes)
    }

    fn seal(&mut self, message: &mut Vec<u8>) -> io::Result<()> {
        let nonce = self.nonce();
        let sealed = self.key.seal_in_place_append_tag(nonce, Aad::empty(), message);
        sealed.map_err(|_| io::Error::other("a message that is too long"))
    }

    fn open(&mut self, message: &mut Vec<u8>) -> io::Result<()> {
        let nonce = self.nonce();
        let length = self.key.open_in_place(nonce, Aad::empty(), message).map(|opened| opened.len());
        let length =
            length.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a message that was altered"))?;
        message.truncate(length);
        Ok(())
    }
}

impl TransferLink {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let reading = Timed { stream: stream.try_clone()?, until: Some(Instant::now() + CONNECTING) };
        Ok(Self { reader: BufReader::new(reading), writer: BufWriter::new(stream), ciphers: None })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.send_owned(bytes.to_vec())
    }

    /// The same without a copy.
    pub(super) fn send_owned(&mut self, mut bytes: Vec<u8>) -> io::Result<()> {
        if let Some([_, cipher]) = &mut self.ciphers {
            cipher.seal(&mut bytes)?;
        }
        self.writer.write_all(&(bytes.len() as u64).to_le_bytes())?;
        self.writer.write_all(&bytes)
    }

    pub(super) fn receive(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let most = most + if self.ciphers.is_some() { AES_256_GCM.tag_len() } else { 0 };
        let mut length = [0; 8];
        self.reader.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > most as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
        }
        let mut bytes = vec![0; length as usize];
        self.reader.read_exact(&mut bytes)?;
        if let Some([cipher, _]) = &mut self.ciphers {
            cipher.open(&mut bytes)?;
        }
        Ok(bytes)
    }

    /// Each side proves that it knows the secret, about the keys that both made for this connection; from then on all is encrypted.
    pub(super) fn prove(&mut self, secret: &Secret, side: Side) -> io::Result<()> {
        let denied =
            || io::Error::new(io::ErrorKind::PermissionDenied, "the other side does not know the secret");
        let random = SystemRandom::new();
        let own =
            EphemeralPrivateKey::generate(&X25519, &random).map_err(|_| io::Error::other("no randomness"))?;
        let public = own.compute_public_key().map_err(|_| io::Error::other("no randomness"))?;
        self.send(public.as_ref())?;
        self.writer.flush()?;
        let others = self.receive(LONGEST_PROOF)?;
        let keys = match side {
            Side::Giver => [public.as_ref(), &others].concat(),
            Side::Taker => [&others, public.as_ref()].concat(),
        };
        let tag = hmac::sign(&secret.0, &[side.name(), &keys].concat());
        self.send(tag.as_ref())?;
        self.writer.flush()?;
        let answer = self.receive(LONGEST_PROOF)?;
        hmac::verify(&secret.0, &[side.other().name(), &keys].concat(), &answer).map_err(|_| denied())?;
        let others = UnparsedPublicKey::new(&X25519, others);
        let ciphers = agree_ephemeral(own, &others, |shared| {
            [side.other(), side].map(|sender| Cipher::of(secret, sender, &keys, shared))
        });
        let [received, sent] = ciphers.map_err(|_| denied())?;
        self.ciphers = Some([received?, sent?]);
        // From now on the other side may have to compute before it answers.
        self.reader.get_mut().until = None;
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// Whether both ends are on this host.
    pub(super) fn is_local(&self) -> bool {
        let stream = self.writer.get_ref();
        let ends = (stream.local_addr(), stream.peer_addr());
        matches!(ends, (Ok(own), Ok(other)) if own.ip() == other.ip())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;

    /// Two links and everything that passes between them; `change` may alter what the giver sends.
    fn pair(
        secrets: [&[u8]; 2],
        change: fn(&mut [u8]),
    ) -> (io::Result<TransferLink>, io::Result<TransferLink>, Arc<Mutex<Vec<u8>>>) {
        let [inner, outer] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let (inner_address, outer_address) = (inner.local_addr().unwrap(), outer.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let watched = seen.clone();
        thread::spawn(move || {
            let taker = outer.accept().unwrap().0;
            let giver = TcpStream::connect(inner_address).unwrap();
            let (mut up_from, mut up_to) = (taker.try_clone().unwrap(), giver.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut up_from, &mut up_to));
            let (mut from, mut to) = (giver, taker);
            let mut buffer = [0; 1 << 16];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                change(&mut buffer[..count]);
                watched.lock().unwrap().extend_from_slice(&buffer[..count]);
                if to.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
        });
        let proven = |stream: TcpStream, secret: &[u8], side| {
            let mut link = TransferLink::new(stream)?;
            link.prove(&Secret::new(secret), side).map(|()| link)
        };
        let [giving, taking] = secrets;
        thread::scope(|scope| {
            let giver = scope.spawn(|| proven(inner.accept().unwrap().0, giving, Side::Giver));
            let taker = proven(TcpStream::connect(outer_address).unwrap(), taking, Side::Taker);
            (giver.join().unwrap(), taker, seen)
        })
    }

    const SECRET: &[u8] = b"a secret of both";
    const MESSAGE: &[u8] = b"keys and values of somebody's prompt";

    #[test]
    fn what_passes_is_read_by_the_other_side_alone() {
        let (giver, taker, seen) = pair([SECRET, SECRET], |_| {});
        let (mut giver, mut taker) = (giver.unwrap(), taker.unwrap());
        for _ in 0..2 {
            giver.send(MESSAGE).unwrap();
            giver.flush().unwrap();
            assert_eq!(taker.receive(MESSAGE.len()).unwrap(), MESSAGE);
        }
        taker.send(b"").unwrap();
        taker.flush().unwrap();
        assert_eq!(giver.receive(0).unwrap(), b"");
        let seen = seen.lock().unwrap();
        assert!(
            !seen.windows(8).any(|window| MESSAGE.windows(8).any(|piece| piece == window)),
            "it passed in the clear"
        );
    }

    #[test]
    fn what_was_altered_is_not_taken() {
        let alter = |bytes: &mut [u8]| {
            // Not the proofs: their messages are shorter, or follow at once.
            if bytes.len() > 45 && bytes.len() < 70 && bytes[0] == 52 {
                bytes[20] ^= 1;
            }
        };
        let (giver, taker, _) = pair([SECRET, SECRET], alter);
        let (mut giver, mut taker) = (giver.unwrap(), taker.unwrap());
        giver.send(MESSAGE).unwrap();
        giver.flush().unwrap();
        assert_eq!(taker.receive(1 << 10).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn another_secret_is_found_by_both() {
        let (giver, taker, _) = pair([SECRET, b"the secret of another"], |_| {});
        for side in [giver.err(), taker.err()] {
            assert_eq!(side.unwrap().kind(), io::ErrorKind::PermissionDenied);
        }
    }
}
