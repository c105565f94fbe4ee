//! API keys: who may ask.

use std::path::Path;

use bedplate_batching::TenantId;
use bedplate_http::{HeaderMap, bearer, is_same_secret};

use crate::error::GatewayError;
use crate::refusal::ApiError;

/// The keys of which a request shows one. Each is a tenant of its own.
pub(crate) struct ApiKeys(Vec<String>);

impl ApiKeys {
    pub(crate) fn load(given: &[String], file: Option<&Path>) -> Result<Self, GatewayError> {
        let mut keys = given.to_vec();
        if let Some(path) = file {
            let read = read(path)?;
            if read.is_empty() {
                return Err(GatewayError::NoKeys { path: path.to_owned() });
            }
            keys.extend(read);
        }
        Ok(Self(keys))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whose request it is.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> Result<TenantId, ApiError> {
        if self.0.is_empty() {
            return Ok(TenantId::default());
        }
        let shown = bearer(headers).ok_or(ApiError::Unauthorized)?;
        // Every key is compared, so that the time does not tell which one is nearly right.
        let matching =
            self.0.iter().enumerate().filter(|(_, key)| is_same_secret(shown.as_bytes(), key.as_bytes()));
        let found = matching.fold(None, |first, (at, _)| first.or(Some(at)));
        found.map(|at| TenantId(at as u32)).ok_or(ApiError::Unauthorized)
    }
}

fn read(path: &Path) -> Result<Vec<String>, GatewayError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|source| GatewayError::Keys { path: path.to_owned(), source })?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}
