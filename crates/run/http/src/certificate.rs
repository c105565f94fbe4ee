//! Certificates of our own: nobody vouches for them, so whoever calls is told which one to expect.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// A certificate and its key, in DER.
#[derive(Clone)]
pub struct Certificate {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CertificateError(String);

impl Certificate {
    /// A new one for these host names and addresses.
    pub fn make(names: Vec<String>) -> Result<Self, CertificateError> {
        let failed = |error: rcgen::Error| CertificateError(error.to_string());
        let key = KeyPair::generate().map_err(failed)?;
        let certificate =
            CertificateParams::new(names).and_then(|params| params.self_signed(&key)).map_err(failed)?;
        Ok(Self { certificate: certificate.der().to_vec(), key: key.serialize_der() })
    }

    /// For [`Server::encrypted`](crate::Server::encrypted).
    pub fn acceptor(&self) -> Result<TlsAcceptor, CertificateError> {
        let chain = vec![CertificateDer::from(self.certificate.clone())];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()));
        let configuration = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
        let mut configuration = configuration.map_err(|error| CertificateError(error.to_string()))?;
        configuration.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(configuration)))
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").finish_non_exhaustive()
    }
}
