//! Where a replica answers.

use std::fmt;
use std::str::FromStr;

use bedplate_http::Uri;

/// `http://HOST[:PORT][/BASE]`. A base of `/v1` is left out: paths have it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaUrl {
    host: String,
    port: u16,
    base: String,
}

/// Why a text is not the URL of a replica.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlFlaw {
    #[error("`{text}` is not a URL such as http://10.0.0.5:8000")]
    Malformed { text: String },
    #[error("`{text}` is encrypted; replicas are asked by http:// on a network that is trusted")]
    Encrypted { text: String },
    #[error("`{text}` has a query or a user; give the key of replicas by itself")]
    TooMuch { text: String },
}

impl ReplicaUrl {
    /// `host:port`, for connecting; a host with colons is in brackets.
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The path of a request on this replica.
    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

impl FromStr for ReplicaUrl {
    type Err = UrlFlaw;

    fn from_str(text: &str) -> Result<Self, UrlFlaw> {
        let malformed = || UrlFlaw::Malformed { text: text.to_owned() };
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = full.parse().map_err(|_| malformed())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(UrlFlaw::Encrypted { text: text.to_owned() }),
            _ => return Err(malformed()),
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(malformed)?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if uri.query().is_some() || authority.contains('@') || full.contains('#') {
            return Err(UrlFlaw::TooMuch { text: text.to_owned() });
        }
        let port = authority.strip_prefix(host).and_then(|rest| rest.strip_prefix(':'));
        let port = port.map_or(Ok(80), str::parse).map_err(|_| malformed())?;
        let base = uri.path().trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base).to_owned();
        Ok(Self { host: host.to_owned(), port, base })
    }
}

impl fmt::Display for ReplicaUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}{}", self.host, self.port, self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_with_and_without_scheme_port_and_base() {
        for (text, url) in [
            ("http://10.0.0.5:8000", "http://10.0.0.5:8000"),
            ("10.0.0.5:8000", "http://10.0.0.5:8000"),
            ("http://node-1/", "http://node-1:80"),
            ("http://[::1]:9/v1/", "http://[::1]:9"),
            ("http://host:1/models/a/v1", "http://host:1/models/a"),
        ] {
            let read: ReplicaUrl = text.parse().unwrap();
            assert_eq!(read.to_string(), url);
            assert_eq!(read.to_string().parse(), Ok(read));
        }
    }

    #[test]
    fn what_is_no_url_of_a_replica_says_why() {
        for (text, why) in [
            ("", "not a URL"),
            ("http://", "not a URL"),
            ("ftp://host", "not a URL"),
            ("https://host", "encrypted"),
            ("http://user:secret@host", "a user"),
            ("http://host/?a=b", "a query"),
            ("a b", "not a URL"),
            ("http://host:99999", "not a URL"),
        ] {
            let flaw = text.parse::<ReplicaUrl>().expect_err(text).to_string();
            assert!(flaw.contains(why), "{text}: {flaw}");
        }
    }
}
