//! An encrypted link to the control plane.

use std::sync::Arc;

use tokio_rustls::TlsConnector;

use crate::error::AgentError;

/// Makes connections to the one server whose certificate has this fingerprint.
pub(crate) fn connector(fingerprint: &str) -> Result<TlsConnector, AgentError> {
    let config = bedplate_pinned::client_config(fingerprint)
        .ok_or_else(|| AgentError::Fingerprint { text: fingerprint.to_owned() })?;
    Ok(TlsConnector::from(Arc::new(config)))
}
