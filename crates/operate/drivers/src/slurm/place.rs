//! Where a Slurm is: the address of its REST server, the file that its commands read, and who asks.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::Slurm;
use super::error::SlurmError;
use super::rest::{Endpoint, Rest};
use super::tools::Tools;
use super::transport::SlurmTransport;
use crate::{ClusterPlace, DriverError};

/// Unless a context says otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// How to reach a Slurm.
#[derive(Clone, PartialEq, Eq)]
pub struct SlurmPlace {
    /// `unix:/path`, `http://host:port` or `https://host:port`.
    pub rest: Option<String>,
    /// Of the server's certificate, for `https`.
    pub fingerprint: Option<String>,
    /// A JWT for the REST server.
    pub token: Option<String>,
    /// Instead of the usual `slurm.conf`.
    pub configuration: Option<PathBuf>,
    /// Slurm's commands may be used.
    pub has_commands: bool,
    /// They print tables, as those of old versions do.
    pub is_plain: bool,
    /// How long any answer may take.
    pub patience: Duration,
}

impl Default for SlurmPlace {
    /// The commands of this machine.
    fn default() -> Self {
        Self {
            rest: None,
            fingerprint: None,
            token: None,
            configuration: None,
            has_commands: true,
            is_plain: false,
            patience: PATIENCE,
        }
    }
}

impl std::fmt::Debug for SlurmPlace {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlurmPlace({})", self.rest.as_deref().unwrap_or("its commands"))
    }
}

/// A transport that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportFound {
    /// `slurmrestd at unix:/run/rest.sock`.
    pub transport: String,
    /// The version of Slurm, or why it does not work.
    pub outcome: Result<String, String>,
}

impl SlurmPlace {
    pub(super) fn transports(&self) -> Result<(Option<Rest>, Option<Tools>), DriverError> {
        let rest = self.rest.as_ref().map(|text| self.rest(text)).transpose()?;
        let tools = || {
            let tools = Tools::new(self.configuration.clone(), self.patience);
            if self.is_plain { tools.plain() } else { tools }
        };
        let tools = (self.has_commands && Tools::missing().is_none()).then(tools);
        Ok((rest, tools))
    }

    fn rest(&self, text: &str) -> Result<Rest, DriverError> {
        let token = self.token.clone().map(|token| (user_of_token(&token).unwrap_or_else(own_name), token));
        let path = text.strip_prefix("unix:").map(|path| path.trim_start_matches("//"));
        let endpoint = match path {
            Some(path) if path.starts_with('/') => Endpoint::Socket(path.into()),
            Some(_) => {
                let reason = "a socket is named by its whole path, as unix:/run/slurmrestd.sock".to_owned();
                return Err(DriverError::Address { text: text.to_owned(), reason });
            }
            None if text.starts_with('/') => Endpoint::Socket(text.into()),
            None => {
                // One set of rules for what may cross a network in clear.
                let place = ClusterPlace::from_url(text, Some(String::new()), self.fingerprint.clone())
                    .map_err(for_slurm)?;
                Endpoint::Address { address: place.address, fingerprint: place.fingerprint }
            }
        };
        Ok(Rest::new(endpoint, text.to_owned(), token, self.patience))
    }

    /// Whose jobs these are: the owner of the token, else of this process.
    pub(super) fn user(&self) -> String {
        let by_token = self.token.as_deref().filter(|_| self.rest.is_some()).and_then(user_of_token);
        by_token.unwrap_or_else(own_name)
    }

    /// Tries every transport, the one that would be asked first at the beginning.
    pub fn try_transports(&self) -> Result<Vec<TransportFound>, DriverError> {
        let (rest, tools) = self.transports()?;
        let found = |transport: &dyn SlurmTransport| {
            let outcome = transport.version().map_err(|error| with_cause(&error));
            TransportFound { transport: transport.name(), outcome }
        };
        let mut all: Vec<TransportFound> = rest.iter().map(|rest| found(rest)).collect();
        match &tools {
            Some(tools) => all.push(found(tools)),
            None if self.has_commands => {
                let missing = Tools::missing().unwrap_or("squeue");
                all.push(TransportFound {
                    transport: "Slurm's commands".to_owned(),
                    outcome: Err(format!("`{missing}` is not installed here")),
                });
            }
            None => {}
        }
        Ok(all)
    }

    /// The transports that were tried, and an error where none works.
    pub fn check(&self) -> Result<Vec<TransportFound>, DriverError> {
        let transports = self.try_transports()?;
        if transports.iter().any(|transport| transport.outcome.is_ok()) {
            return Ok(transports);
        }
        let reasons = transports.iter().filter_map(|transport| {
            Some(format!("{}: {}", transport.transport, transport.outcome.as_ref().err()?))
        });
        Err(SlurmError::NoTransport { reasons: reasons.collect::<Vec<_>>().join("; ") }.into())
    }

    /// The driver; asks nothing yet.
    pub fn driver(&self) -> Result<Slurm, DriverError> {
        Slurm::new(self)
    }
}

/// What to do about an address, where it is not one of our own daemons.
fn for_slurm(error: DriverError) -> DriverError {
    match error {
        DriverError::Address { text, reason } if reason.contains("in clear") => {
            let reason = "the token would cross the network in clear. Use a socket, https with the fingerprint of the \
                          certificate (--fingerprint), or insecure+http:// where the network itself is trusted";
            DriverError::Address { text, reason: reason.to_owned() }
        }
        other => other,
    }
}

/// An error in one line, with what caused it.
fn with_cause(error: &DriverError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text += &format!(": {inner}");
        cause = inner.source();
    }
    text
}

/// The name under which this process runs.
fn own_name() -> String {
    let found = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
    found.map(|user| user.name).or_else(|| std::env::var("USER").ok()).unwrap_or_default()
}

/// The user for whom a JWT was made, in the middle one of its three parts: `{"sun": "ada", …}`.
fn user_of_token(token: &str) -> Option<String> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&payload).ok()?;
    let name = ["sun", "username", "sub"].iter().find_map(|claim| claims[*claim].as_str())?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_user_and_is_never_shown() {
        let token = "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjE3OTQ4MTI2NzUsInN1biI6ImFkYSJ9.c2lnbmF0dXJl";
        assert_eq!(user_of_token(token).as_deref(), Some("ada"));
        assert_eq!(user_of_token("not a token"), None);
        let place =
            SlurmPlace { rest: Some("unix:/x".into()), token: Some(token.into()), ..SlurmPlace::default() };
        assert!(!format!("{place:?}").contains("c2lnbmF0dXJl"));
        assert_eq!(place.user(), "ada");
    }

    #[test]
    fn addresses_are_sockets_or_ports_and_tokens_do_not_cross_networks_in_clear() {
        let outcome = |text: &str| {
            let place = SlurmPlace { rest: Some(text.into()), ..SlurmPlace::default() };
            place.transports().map(drop).map_err(|error| error.to_string())
        };
        for good in [
            "unix:/run/rest.sock",
            "/run/rest.sock",
            "unix:///run/rest.sock",
            "http://127.0.0.1:6820",
            "localhost:6820",
        ] {
            assert_eq!(outcome(good), Ok(()), "{good}");
        }
        assert!(outcome("unix:rest.sock").unwrap_err().contains("whole path"));
        assert!(outcome("http://slurm:6820").unwrap_err().contains("in clear"));
    }
}
