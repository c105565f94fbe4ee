//! TLS to one server, identified by the fingerprint of its certificate.
//!
//! The daemon creates its own certificate, so no authority vouches for it; the fingerprint, which is handed out with
//! the token, ensures that no other server answers. Agents and the command line connect this way.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

/// For connections to the server whose certificate has this fingerprint, 64 hexadecimal digits with or without
/// colons; `None` for anything else.
pub fn client_config(fingerprint: &str) -> Option<ClientConfig> {
    let expected = parse_fingerprint(fingerprint)?;
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let config = ClientConfig::builder_with_provider(Arc::<CryptoProvider>::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider speaks the default versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { expected, algorithms }))
        .with_no_client_auth();
    Some(config)
}

fn parse_fingerprint(text: &str) -> Option<[u8; 32]> {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[derive(Debug)]
struct Pinned {
    expected: [u8; 32],
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = ::ring::digest::digest(&::ring::digest::SHA256, end_entity);
        match found.as_ref() == self.expected {
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
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_with_and_without_colons() {
        let plain = "ab".repeat(32);
        let with_colons = vec!["AB"; 32].join(":");
        assert_eq!(parse_fingerprint(&plain), Some([0xab; 32]));
        assert_eq!(parse_fingerprint(&with_colons), Some([0xab; 32]));
        for wrong in ["", "abc", &"zz".repeat(32), &"ab".repeat(31)] {
            assert_eq!(parse_fingerprint(wrong), None);
        }
    }
}
