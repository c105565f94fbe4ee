//! Encryption with a certificate of our own: nobody vouches for it, so clients pin its fingerprint.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bedplate_http::{Certificate, CertificateError};
use tokio_rustls::TlsAcceptor;

use crate::error::DaemonError;
use crate::state::StateDirectory;
use crate::tokens::{hash, hexadecimal};

const CERTIFICATE: &str = "certificate.der";
const KEY: &str = "key.der";
/// The certificate once more, as curl and Prometheus read it.
const PEM: &str = "certificate.pem";

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
        let failed = |error: CertificateError| DaemonError::Certificate {
            path: state.file(CERTIFICATE),
            why: error.to_string(),
        };
        let certificate = match (state.read(CERTIFICATE)?, state.read(KEY)?) {
            (Some(certificate), Some(key)) => Certificate { certificate, key },
            _ => {
                let made = Certificate::make(all_names(names, address)).map_err(failed)?;
                state.write(KEY, &made.key)?;
                state.write(CERTIFICATE, &made.certificate)?;
                made
            }
        };
        let pem = pem(&certificate.certificate);
        if state.read(PEM)?.as_deref() != Some(pem.as_bytes()) {
            state.write(PEM, pem.as_bytes())?;
        }
        let fingerprint = hexadecimal(&hash(&certificate.certificate));
        Ok(Self { acceptor: certificate.acceptor().map_err(failed)?, fingerprint })
    }
}

fn pem(certificate: &[u8]) -> String {
    let text = STANDARD.encode(certificate);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n");
    format!("-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n", lines.collect::<String>())
}

fn all_names(names: &[String], address: IpAddr) -> Vec<String> {
    let mut all = vec!["localhost".to_owned(), "bedplate".to_owned()];
    if !address.is_unspecified() {
        all.push(address.to_string());
    }
    all.extend(names.iter().cloned());
    all
}
