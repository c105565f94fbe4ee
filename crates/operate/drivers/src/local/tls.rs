//! Encrypted connections to a daemon whose certificate is known by its fingerprint.
//!
//! The daemon makes its certificate itself, so no authority vouches for it: the fingerprint, which travels beside the
//! token, is what makes sure that nobody else answers.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme,
    StreamOwned,
};

pub(super) type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Speaks TLS on a connection, and with nobody but the owner of that certificate.
pub(super) fn wrap(stream: TcpStream, fingerprint: &str) -> io::Result<Stream> {
    let provider = Arc::new(provider::default_provider());
    let pinned = Arc::new(Pinned { fingerprint: plain(fingerprint), provider: provider.clone() });
    let configuration = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(pinned)
        .with_no_client_auth();
    let name = ServerName::try_from("bedplate").map_err(io::Error::other)?;
    let client = ClientConnection::new(Arc::new(configuration), name).map_err(io::Error::other)?;
    Ok(StreamOwned::new(client, stream))
}

/// Fingerprints are compared without colons and in lower case.
fn plain(fingerprint: &str) -> String {
    fingerprint.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_ascii_lowercase()
}

#[derive(Debug)]
struct Pinned {
    fingerprint: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        let found: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        match found == self.fingerprint {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
