//! Where a cluster is, and the token that opens it.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::DriverError;

/// How to reach a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterPlace {
    /// `host:port`.
    pub address: String,
    /// SHA-256 of the certificate in hexadecimal, which every daemon of ours has; the connection is not encrypted without it.
    pub fingerprint: Option<String>,
    pub token: String,
}

impl ClusterPlace {
    /// The place of a daemon of ours. It proves itself by its certificate on every address: on loopback too, any program could have
    /// taken the port and would be handed the token.
    pub fn of_daemon(
        url: &str,
        token: Option<String>,
        fingerprint: Option<String>,
    ) -> Result<Self, DriverError> {
        let is_cleartext = url.split_once("://").is_some_and(|(scheme, _)| scheme != "https");
        match fingerprint {
            Some(fingerprint) if !is_cleartext => Self::from_url(url, token, Some(fingerprint)),
            _ => Err(DriverError::Unproven { server: url.to_owned() }),
        }
    }

    /// A place from `http://HOST:PORT`, `https://HOST:PORT` or `HOST:PORT`.
    ///
    /// A token is not sent in clear to another host, unless the address asks for it: `insecure+http://HOST:PORT`.
    pub fn from_url(
        url: &str,
        token: Option<String>,
        fingerprint: Option<String>,
    ) -> Result<Self, DriverError> {
        let wrong = |reason: &str| DriverError::Address { text: url.to_owned(), reason: reason.to_owned() };
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let address = rest.trim_end_matches('/');
        let (host, port) = address.rsplit_once(':').ok_or_else(|| wrong("it names no port"))?;
        if host.is_empty() || address.contains('/') || port.parse::<u16>().is_err() {
            return Err(wrong("it must be a host and a port"));
        }
        match (scheme, &fingerprint) {
            ("http" | "", None) if !is_loopback(host) => {
                return Err(wrong(
                    "the token would cross the network in clear. Use https with the fingerprint that `bedplate up --listen` \
                     prints, or insecure+http:// where the network itself is trusted",
                ));
            }
            ("insecure+http" | "http" | "", None) | ("https" | "", Some(_)) => {}
            ("https", None) => {
                return Err(wrong("https needs the certificate's fingerprint in BEDPLATE_FINGERPRINT"));
            }
            ("insecure+http" | "http", Some(_)) => return Err(wrong("with a fingerprint it must be https")),
            _ => return Err(wrong("only http and https are spoken")),
        }
        let token = token.ok_or_else(|| DriverError::NoToken { server: url.to_owned() })?;
        Ok(Self { address: address.to_owned(), fingerprint, token })
    }

    /// As people and `--server` write it.
    pub fn url(&self) -> String {
        match self.fingerprint {
            Some(_) => format!("https://{}", self.address),
            None => format!("http://{}", self.address),
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

impl std::fmt::Debug for ClusterPlace {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Place({})", self.url())
    }
}

/// The file that a daemon leaves when it ends because it was told to, as the daemon names it.
const CONCLUDED: &str = "concluded";

/// What a daemon writes about itself into its state directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beacon {
    /// Of the host, without the port.
    pub address: String,
    pub port: u16,
    pub pid: u32,
    #[serde(default)]
    pub fingerprint: Option<String>,
}

impl Beacon {
    /// `host:port`.
    pub fn socket(&self) -> String {
        match self.address.contains(':') {
            true => format!("[{}]:{}", self.address, self.port),
            false => format!("{}:{}", self.address, self.port),
        }
    }
}

/// The directory of a cluster that was started here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDirectory(pub PathBuf);

impl StateDirectory {
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn beacon_path(&self) -> PathBuf {
        self.0.join("daemon.json")
    }

    /// What the daemon that was last started here said about itself; nothing when none was.
    pub fn beacon(&self) -> Result<Option<Beacon>, DriverError> {
        let path = self.beacon_path();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(DriverError::State { path, source }),
        };
        let beacon = serde_json::from_str(&text);
        beacon.map(Some).map_err(|error| DriverError::State { path, source: error.into() })
    }

    /// Whether the daemon that was last started here ended because it was told to, so that nothing is to start it again.
    pub fn has_concluded(&self) -> bool {
        self.0.join(CONCLUDED).exists()
    }

    /// How to reach the cluster of this directory, as its administrator.
    pub fn place(&self) -> Result<ClusterPlace, DriverError> {
        let Some(beacon) = self.beacon()? else {
            return Err(DriverError::NotRunning { beacon: self.beacon_path() });
        };
        let path = self.0.join("admin.token");
        let token = fs::read_to_string(&path).map_err(|source| DriverError::State { path, source })?;
        if beacon.fingerprint.is_none() {
            return Err(DriverError::Unproven { server: beacon.socket() });
        }
        Ok(ClusterPlace {
            address: beacon.socket(),
            fingerprint: beacon.fingerprint,
            token: token.trim().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_wrong_ones_say_why() {
        let read = |url: &str, fingerprint: Option<&str>| match ClusterPlace::from_url(
            url,
            Some("t".into()),
            fingerprint.map(str::to_owned),
        ) {
            Ok(place) => place.url(),
            Err(error) => error.to_string(),
        };
        assert_eq!(read("http://127.0.0.1:8080/", None), "http://127.0.0.1:8080");
        assert_eq!(read("[::1]:80", None), "http://[::1]:80");
        assert_eq!(read("https://lab:443", Some("ab")), "https://lab:443");
        assert_eq!(read("localhost:80", None), "http://localhost:80");
        assert_eq!(read("insecure+http://lab:80", None), "http://lab:80");
        for clear in ["http://lab:80", "lab:80", "http://10.0.0.7:80", "http://localhost.evil:80"] {
            assert!(read(clear, None).contains("in clear"), "{clear}");
        }
        assert!(read("lab", None).ends_with("it names no port"));
        assert!(read("lab:x", None).ends_with("a host and a port"));
        assert!(read("http://lab:1/v1", None).ends_with("a host and a port"));
        assert!(read("https://lab:443", None).contains("BEDPLATE_FINGERPRINT"));
        assert!(read("http://lab:443", Some("ab")).ends_with("must be https"));
        assert!(read("ftp://lab:21", None).ends_with("only http and https are spoken"));
        assert!(matches!(
            ClusterPlace::from_url("localhost:1", None, None),
            Err(DriverError::NoToken { .. })
        ));
    }

    #[test]
    fn a_daemon_without_proof_is_given_no_token() {
        let read = |url: &str, fingerprint: Option<&str>| {
            ClusterPlace::of_daemon(url, Some("t".into()), fingerprint.map(str::to_owned))
        };
        assert_eq!(read("https://127.0.0.1:1", Some("ab")).unwrap().url(), "https://127.0.0.1:1");
        assert_eq!(read("127.0.0.1:1", Some("ab")).unwrap().url(), "https://127.0.0.1:1");
        for url in ["http://127.0.0.1:1", "127.0.0.1:1", "insecure+http://lab:1", "https://lab:1"] {
            assert!(matches!(read(url, None), Err(DriverError::Unproven { .. })), "{url}");
        }
        assert!(matches!(read("http://127.0.0.1:1", Some("ab")), Err(DriverError::Unproven { .. })));
    }

    #[test]
    fn a_beacon_names_its_socket() {
        let text = r#"{"address":"::1","port":7431,"pid":3,"fingerprint":null,"version":"0.1.0"}"#;
        let mut beacon: Beacon = serde_json::from_str(text).unwrap();
        assert_eq!(beacon.socket(), "[::1]:7431");
        beacon.address = "127.0.0.1".into();
        assert_eq!(beacon.socket(), "127.0.0.1:7431");
    }

    #[test]
    fn a_directory_without_a_daemon_is_no_cluster() {
        let nowhere = StateDirectory(std::env::temp_dir().join("bedplate-no-such-state"));
        assert!(matches!(nowhere.place(), Err(DriverError::NotRunning { .. })));
    }
}
