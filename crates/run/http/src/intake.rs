//! Bodies of requests, bounded in size and time.

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HeaderMap};
use tokio::time::timeout;

use crate::{Limits, StatusCode};

/// Why a body was not read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BodyError {
    #[error("the body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the body took longer than {seconds} s")]
    TooSlow { seconds: u64 },
    #[error("the body broke off: {why}")]
    Broken { why: String },
}

impl BodyError {
    pub fn status(&self) -> StatusCode {
        match self {
            BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            BodyError::Broken { .. } => StatusCode::BAD_REQUEST,
        }
    }
}

/// The whole body, if it comes in time and is not too large. A declared length that is too large is refused at once.
pub async fn read_body(
    headers: &HeaderMap,
    body: &mut Incoming,
    limits: &Limits,
) -> Result<Bytes, BodyError> {
    let limit = limits.body_bytes;
    if declared(headers).is_some_and(|length| length > limit as u64) {
        return Err(BodyError::TooLarge { limit });
    }
    let collected = timeout(limits.body, Limited::new(body, limit).collect()).await;
    match collected.map_err(|_| BodyError::TooSlow { seconds: limits.body.as_secs() })? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge { limit }),
        Err(error) => Err(BodyError::Broken { why: error.to_string() }),
    }
}

fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
