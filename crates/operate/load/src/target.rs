//! A server: where it is, which of its models is asked, and with which key.

use crate::error::LoadError;

/// A server with OpenAI's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadTarget {
    /// As it was written, without a slash at the end.
    pub url: String,
    /// `host:port`.
    pub(crate) authority: String,
    /// What is in front of `/v1`.
    pub(crate) prefix: String,
    /// The server's first model where there is none.
    pub(crate) model: Option<String>,
    pub(crate) key: Option<String>,
}

impl LoadTarget {
    /// `http://host:port`, with or without `/v1` at the end.
    pub fn parse(url: &str) -> Result<Self, LoadError> {
        let bad = |why| LoadError::BadUrl { url: url.to_owned(), why };
        let rest = match (url.strip_prefix("http://"), url.contains("://")) {
            (Some(rest), _) => rest,
            (None, true) => return Err(bad("only http:// is measured")),
            (None, false) => url,
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.is_empty() || authority.contains(['@', '?', '#', ' ']) {
            return Err(bad("it has no host"));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let prefix = path.trim_end_matches('/');
        let prefix = prefix.strip_suffix("/v1").unwrap_or(prefix).to_owned();
        Ok(Self { url: url.trim_end_matches('/').to_owned(), authority, prefix, model: None, key: None })
    }

    /// Asks this model.
    pub fn with_model(mut self, model: Option<String>) -> Self {
        self.model = model;
        self
    }

    /// Shows this key.
    pub fn with_key(mut self, key: Option<String>) -> Self {
        self.key = key;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (url, authority, prefix) in [
            ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
            ("http://127.0.0.1:8000/v1/", "127.0.0.1:8000", ""),
            ("localhost:8000", "localhost:8000", ""),
            ("http://host/models/a/v1", "host:80", "/models/a"),
            ("http://[::1]:8000", "[::1]:8000", ""),
        ] {
            let target = LoadTarget::parse(url).unwrap();
            assert_eq!((target.authority.as_str(), target.prefix.as_str()), (authority, prefix), "{url}");
        }
        for url in ["https://a", "ftp://a", "http://", "", "http://a b"] {
            assert!(LoadTarget::parse(url).is_err(), "{url}");
        }
    }
}
