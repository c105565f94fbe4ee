//! Messages over a connection between two sides that know a secret.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use super::Secret;

/// How long a silent peer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection and the proofs of the secret may take: a worker that does not answer must not delay the prompt for longer than computing it would.
pub(super) const CONNECTING: Duration = Duration::from_secs(2);

/// Both directions of a connection with a deadline for each read and write.
pub(super) struct TransferLink {
    reader: BufReader<TcpStream>,
    writer: BufWriter<TcpStream>,
}

impl TransferLink {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(CONNECTING))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { reader: BufReader::new(stream.try_clone()?), writer: BufWriter::new(stream) })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(&(bytes.len() as u64).to_le_bytes())?;
        self.writer.write_all(bytes)
    }

    pub(super) fn receive(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut length = [0; 8];
        self.reader.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > most as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
        }
        let mut bytes = vec![0; length as usize];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Each side proves that it knows the secret, about a number that the other one made up.
    pub(super) fn prove(&mut self, secret: &Secret, own: &[u8], others: &[u8]) -> io::Result<()> {
        let denied =
            |_| io::Error::new(io::ErrorKind::PermissionDenied, "the other side does not know the secret");
        let mut challenge = [0; 32];
        SystemRandom::new().fill(&mut challenge).map_err(|_| io::Error::other("no randomness"))?;
        self.send(&challenge)?;
        self.writer.flush()?;
        let asked = self.receive(32)?;
        let tag = hmac::sign(&secret.0, &[own, &asked].concat());
        self.send(tag.as_ref())?;
        self.writer.flush()?;
        let answer = self.receive(64)?;
        hmac::verify(&secret.0, &[others, &challenge].concat(), &answer).map_err(denied)?;
        // From now on the other side may have to compute before it answers.
        self.reader.get_ref().set_read_timeout(Some(PATIENCE))
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// Whether both ends are on this host.
    pub(super) fn is_local(&self) -> bool {
        let stream = self.reader.get_ref();
        let ends = (stream.local_addr(), stream.peer_addr());
        matches!(ends, (Ok(own), Ok(other)) if own.ip() == other.ip())
    }
}
