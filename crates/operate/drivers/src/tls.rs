//! Encrypted connections to a daemon.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

pub(crate) type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Speaks TLS on a connection, and only with the owner of the certificate with this fingerprint.
pub(crate) fn wrap(stream: TcpStream, fingerprint: &str) -> io::Result<Stream> {
    let malformed = || io::Error::other("a fingerprint has 64 hexadecimal digits");
    let configuration = bedplate_pinned::client_config(fingerprint).ok_or_else(malformed)?;
    let name = ServerName::try_from("bedplate").map_err(io::Error::other)?;
    let client = ClientConnection::new(Arc::new(configuration), name).map_err(io::Error::other)?;
    Ok(StreamOwned::new(client, stream))
}
