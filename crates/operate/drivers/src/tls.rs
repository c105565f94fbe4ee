//! Encrypted connections to a daemon.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use bedplate_http::blocking::{Connection, Transport, connected};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

/// An encrypted connection.
struct Stream(StreamOwned<ClientConnection, TcpStream>);

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Transport for Stream {
    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.0.sock.set_read_timeout(patience)
    }
}

/// A connection to `host:port`, encrypted where the fingerprint of a certificate is known.
pub(crate) fn open(address: &str, fingerprint: Option<&str>, patience: Duration) -> io::Result<Connection> {
    match fingerprint {
        None => Connection::open(address, patience),
        Some(fingerprint) => {
            let stream = wrap(connected(address, patience)?, fingerprint)?;
            Ok(Connection::over(Box::new(stream)))
        }
    }
}

/// Speaks TLS on a connection, and only with the owner of the certificate with this fingerprint.
fn wrap(stream: TcpStream, fingerprint: &str) -> io::Result<Stream> {
    let malformed = || io::Error::other("a fingerprint has 64 hexadecimal digits");
    let configuration = bedplate_pinned::client_config(fingerprint).ok_or_else(malformed)?;
    let name = ServerName::try_from("bedplate").map_err(io::Error::other)?;
    let client = ClientConnection::new(Arc::new(configuration), name).map_err(io::Error::other)?;
    Ok(Stream(StreamOwned::new(client, stream)))
}
