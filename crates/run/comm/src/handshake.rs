//! Two sides prove to each other that they know the same secret, without telling it, and agree on keys.
//!
//! Each sends the public half of a pair that it made for the connection and gets it back signed together with the other's. The keys follow
//! from the secret and from what only the holders of the pairs can compute, so the secret found later opens nothing of today.

use std::fmt;
use std::io::{self, Read, Write};

use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::rendezvous::Encryption;
use crate::sealed::SessionKeys;
use crate::wire::{read_short_frame as read_frame, write_frame};

/// Changes when ranks of different versions would misunderstand each other.
const PROTOCOL: &str = "bedplate-comm-2";
/// Behind the number of a side that would do without encryption.
const IN_THE_CLEAR: &str = "/clear";

/// What all ranks of a world know and strangers do not.
#[derive(Clone)]
pub struct Secret {
    key: hmac::Key,
    encryption: Encryption,
}

impl Secret {
    pub fn new(secret: &[u8]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, secret), encryption: Encryption::default() }
    }

    pub(crate) fn with_encryption(self, encryption: Encryption) -> Self {
        Self { encryption, ..self }
    }

    fn may_be_clear(&self, is_within_host: bool) -> bool {
        match self.encryption {
            Encryption::BetweenHosts => is_within_host,
            Encryption::Always => false,
            Encryption::Never => true,
        }
    }

    fn sign(&self, role: &str, first: &str, second: &str) -> String {
        let text = format!("{PROTOCOL}/{role}/{first}/{second}");
        hex(hmac::sign(&self.key, text.as_bytes()).as_ref())
    }

    fn is_signed(&self, role: &str, first: &str, second: &str, signature: &str) -> bool {
        let text = format!("{PROTOCOL}/{role}/{first}/{second}");
        unhex(signature).is_some_and(|tag| hmac::verify(&self.key, text.as_bytes(), &tag).is_ok())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why a connection was not accepted.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    Io(io::Error),
    WrongSecret,
    Protocol(String),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Protocol(error.to_string()),
            _ => Self::Io(error),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Hello {
    protocol: String,
    number: String,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    number: String,
    proof: String,
}

#[derive(Serialize, Deserialize)]
struct Proof {
    proof: String,
}

#[derive(Serialize, Deserialize)]
struct Verdict {
    is_welcome: bool,
}

/// A key pair for one connection, and its public half as the other side gets it.
struct Pair {
    private: EphemeralPrivateKey,
    number: String,
}

impl Pair {
    fn new(secret: &Secret, is_within_host: bool) -> io::Result<Self> {
        let none = |_| io::Error::other("the system gives no random numbers");
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(none)?;
        let public = private.compute_public_key().map_err(none)?;
        let clear = if secret.may_be_clear(is_within_host) { IN_THE_CLEAR } else { "" };
        Ok(Self { private, number: hex(public.as_ref()) + clear })
    }

    /// The keys of the connection, which both sides derive alike; none where both would do without.
    fn keys(self, secret: &Secret, role: &str, other: &str) -> Result<SessionKeys, HandshakeError> {
        let clear = self.number.strip_suffix(IN_THE_CLEAR).zip(other.strip_suffix(IN_THE_CLEAR));
        if clear.is_some() {
            return Ok(SessionKeys::none());
        }
        let wrong = || HandshakeError::Protocol("it sent no key".into());
        let public = unhex(other.strip_suffix(IN_THE_CLEAR).unwrap_or(other)).ok_or_else(wrong)?;
        let (first, second) =
            if role == "caller" { (self.number.as_str(), other) } else { (other, self.number.as_str()) };
        let derived = agree_ephemeral(self.private, &UnparsedPublicKey::new(&X25519, public), |shared| {
            ["caller", "listener"].map(|sender| {
                let text = [PROTOCOL, "/encrypts/", sender, "/", first, "/", second, "/"].concat();
                hmac::sign(&secret.key, &[text.as_bytes(), shared].concat())
            })
        });
        let [caller, listener] = derived.map_err(|_| wrong())?;
        let (sent, received) = if role == "caller" { (caller, listener) } else { (listener, caller) };
        Ok(SessionKeys::new(sent.as_ref(), received.as_ref())?)
    }
}

/// The side that connects.
pub(crate) fn connect(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    is_within_host: bool,
) -> Result<SessionKeys, HandshakeError> {
    let pair = Pair::new(secret, is_within_host)?;
    let mine = pair.number.clone();
    write_frame(stream, &Hello { protocol: PROTOCOL.to_owned(), number: mine.clone() })?;
    let answer: Answer = read_frame(stream)?;
    // The proof is sent in any case, so that the other side also learns that the secrets differ.
    write_frame(stream, &Proof { proof: secret.sign("caller", &answer.number, &mine) })?;
    if !secret.is_signed("listener", &mine, &answer.number, &answer.proof) {
        return Err(HandshakeError::WrongSecret);
    }
    let verdict: Verdict = read_frame(stream)?;
    if verdict.is_welcome {
        pair.keys(secret, "caller", &answer.number)
    } else {
        Err(HandshakeError::WrongSecret)
    }
}

/// The side that listens.
pub(crate) fn accept(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    is_within_host: bool,
) -> Result<SessionKeys, HandshakeError> {
    let hello: Hello = read_frame(stream)?;
    if hello.protocol != PROTOCOL {
        return Err(HandshakeError::Protocol(format!(
            "it speaks `{}`, not `{PROTOCOL}`",
            bounded(&hello.protocol)
        )));
    }
    let pair = Pair::new(secret, is_within_host)?;
    let mine = pair.number.clone();
    let proof = secret.sign("listener", &hello.number, &mine);
    write_frame(stream, &Answer { number: mine.clone(), proof })?;
    let theirs: Proof = read_frame(stream)?;
    let is_welcome = secret.is_signed("caller", &mine, &hello.number, &theirs.proof);
    write_frame(stream, &Verdict { is_welcome })?;
    if is_welcome { pair.keys(secret, "listener", &hello.number) } else { Err(HandshakeError::WrongSecret) }
}

/// 128 random bits in hexadecimal, such as a secret for ranks that are about to be started.
pub fn random_text() -> io::Result<String> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(hex(&bytes))
}

fn bounded(text: &str) -> String {
    text.chars().take(40).filter(|letter| !letter.is_control()).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| {
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two hexadecimal digits");
        (0..text.len()).step_by(2).map(byte).collect()
    })
}
