//! TLS: on every address unless a test says otherwise, with a certificate that stays and that clients pin.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bedplate_daemon::{DaemonOptions, Whereabouts};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};

use crate::support::{Client, Daemon, cluster};

/// Accepts the one certificate with this fingerprint.
#[derive(Debug)]
struct Pinned {
    fingerprint: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let digest = ::ring::digest::digest(&::ring::digest::SHA256, certificate);
        let found: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        match found == self.fingerprint {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::General(format!("the fingerprint is {found}"))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// What the daemon answers to a question about its health, if its certificate has this fingerprint.
fn ask(address: SocketAddr, fingerprint: &str) -> std::io::Result<String> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Pinned { fingerprint: fingerprint.to_owned(), provider: provider.clone() };
    let configuration = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let name = ServerName::try_from("bedplate").unwrap();
    let connection = ClientConnection::new(Arc::new(configuration), name).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    // Some servers close without a farewell.
    let _ = stream.read_to_string(&mut answer);
    Ok(answer)
}

fn fingerprint(daemon: &Daemon) -> Option<String> {
    Whereabouts::read(daemon.folder.path()).unwrap().unwrap().fingerprint
}

#[test]
fn beyond_loopback_only_encrypted_requests_are_answered() {
    let daemon = Daemon::start_with(|options| options.listen = SocketAddr::from(([0, 0, 0, 0], 0)));
    let address = SocketAddr::from(([127, 0, 0, 1], daemon.address.port()));
    let pinned = fingerprint(&daemon).expect("it encrypts");
    assert!(ask(address, &pinned).unwrap().starts_with("HTTP/1.1 200"));
    assert!(ask(address, &"0".repeat(64)).is_err(), "another certificate is not accepted");
    let mut plain = Client::connect(address, "");
    plain.send("GET", "/healthz", &[], b"");
    assert!(plain.read_line().is_none_or(|line| !line.starts_with("HTTP/")));
}

#[test]
fn on_loopback_too_a_daemon_proves_who_it_is_and_its_certificate_stays() {
    let usual = |options: &mut DaemonOptions| options.tls = DaemonOptions::new("/".into(), cluster()).tls;
    let mut daemon = Daemon::start_with(usual);
    let pinned = fingerprint(&daemon).expect("it encrypts");
    assert!(ask(daemon.address, &pinned).unwrap().starts_with("HTTP/1.1 200"));
    let mut plain = Client::connect(daemon.address, "");
    plain.send("GET", "/healthz", &[], b"");
    assert!(plain.read_line().is_none_or(|line| !line.starts_with("HTTP/")));
    daemon.running.take().unwrap().stop().unwrap();
    let mut options = crate::support::options(&daemon.folder);
    options.tls = true;
    let running = bedplate_daemon::start(options).unwrap();
    daemon.address = running.address();
    daemon.running = Some(running);
    assert_eq!(fingerprint(&daemon), Some(pinned.clone()));
    assert!(ask(daemon.address, &pinned).unwrap().starts_with("HTTP/1.1 200"));
}
