//! Two sides prove to each other that they know the same secret, without telling it.
//!
//! Each sends a number of its choice and gets it back signed together with its own. What follows on the connection is neither
//! encrypted nor signed: the secret keeps strangers out, it does not hide data from who can read the network.

use std::fmt;
use std::io::{self, Read, Write};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::wire::{read_short_frame as read_frame, write_frame};

/// Changes when ranks of different versions would misunderstand each other.
const PROTOCOL: &str = "bedplate-comm-1";

/// What all ranks of a world know and strangers do not.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl Secret {
    pub fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    fn sign(&self, role: &str, first: &str, second: &str) -> String {
        let text = format!("{PROTOCOL}/{role}/{first}/{second}");
        hex(hmac::sign(&self.0, text.as_bytes()).as_ref())
    }

    fn is_signed(&self, role: &str, first: &str, second: &str, signature: &str) -> bool {
        let text = format!("{PROTOCOL}/{role}/{first}/{second}");
        unhex(signature).is_some_and(|tag| hmac::verify(&self.0, text.as_bytes(), &tag).is_ok())
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

/// The side that connects.
pub(crate) fn connect(stream: &mut (impl Read + Write), secret: &Secret) -> Result<(), HandshakeError> {
    let mine = random_text()?;
    write_frame(stream, &Hello { protocol: PROTOCOL.to_owned(), number: mine.clone() })?;
    let answer: Answer = read_frame(stream)?;
    // The proof is sent in any case, so that the other side also learns that the secrets differ.
    write_frame(stream, &Proof { proof: secret.sign("caller", &answer.number, &mine) })?;
    if !secret.is_signed("listener", &mine, &answer.number, &answer.proof) {
        return Err(HandshakeError::WrongSecret);
    }
    let verdict: Verdict = read_frame(stream)?;
    if verdict.is_welcome { Ok(()) } else { Err(HandshakeError::WrongSecret) }
}

/// The side that listens.
pub(crate) fn accept(stream: &mut (impl Read + Write), secret: &Secret) -> Result<(), HandshakeError> {
    let hello: Hello = read_frame(stream)?;
    if hello.protocol != PROTOCOL {
        return Err(HandshakeError::Protocol(format!(
            "it speaks `{}`, not `{PROTOCOL}`",
            bounded(&hello.protocol)
        )));
    }
    let mine = random_text()?;
    let proof = secret.sign("listener", &hello.number, &mine);
    write_frame(stream, &Answer { number: mine.clone(), proof })?;
    let theirs: Proof = read_frame(stream)?;
    let is_welcome = secret.is_signed("caller", &mine, &hello.number, &theirs.proof);
    write_frame(stream, &Verdict { is_welcome })?;
    if is_welcome { Ok(()) } else { Err(HandshakeError::WrongSecret) }
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
