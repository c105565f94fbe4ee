//! Encryption with a certificate of our own: nobody vouches for it, so clients pin its fingerprint.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::error::DaemonError;
use crate::state::StateDirectory;
use crate::tokens::{hash, hexadecimal};

const CERTIFICATE: &str = "certificate.der";
const KEY: &str = "key.der";

/// What the daemon proves itself with.
pub(crate) struct Encryption {
    pub(crate) acceptor: TlsAcceptor,
    /// SHA-256 of the certificate.
    pub(crate) fingerprint: String,
}

impl Encryption {
    /// From the certificate in the state directory; makes one when there is none.
    pub(crate) fn prepare(
        state: &StateDirectory,
        names: &[String],
        address: IpAddr,
    ) -> Result<Self, DaemonError> {
        let failed = |why: String| DaemonError::Certificate { path: state.file(CERTIFICATE), why };
        let (certificate, key) = match (state.read(CERTIFICATE)?, state.read(KEY)?) {
            (Some(certificate), Some(key)) => (certificate, key),
            _ => make(state, names, address)?,
        };
        let fingerprint = hexadecimal(&hash(&certificate));
        let chain = vec![CertificateDer::from(certificate)];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
        let configuration = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
        let mut configuration = configuration.map_err(|error| failed(error.to_string()))?;
        configuration.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(configuration)), fingerprint })
    }
}

fn make(
    state: &StateDirectory,
    names: &[String],
    address: IpAddr,
) -> Result<(Vec<u8>, Vec<u8>), DaemonError> {
    let failed = |error: rcgen::Error| DaemonError::Certificate {
        path: state.file(CERTIFICATE),
        why: error.to_string(),
    };
    let mut all = vec!["localhost".to_owned(), "bedplate".to_owned()];
    if !address.is_unspecified() {
        all.push(address.to_string());
    }
    all.extend(names.iter().cloned());
    let key = KeyPair::generate().map_err(failed)?;
    let certificate =
        CertificateParams::new(all).and_then(|params| params.self_signed(&key)).map_err(failed)?;
    let (certificate, key) = (certificate.der().to_vec(), key.serialize_der());
    state.write(KEY, &key)?;
    state.write(CERTIFICATE, &certificate)?;
    Ok((certificate, key))
}
