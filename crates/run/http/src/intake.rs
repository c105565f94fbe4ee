//! Bodies of requests, bounded in size and time.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HeaderMap};
use tokio::time::{Instant, timeout_at};

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

/// Bytes of a body that earn its client the time of [`Limits::body_trickle`] once more.
const TRICKLE_BYTES: f64 = 65_536.0;

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
    let begun = Instant::now();
    let mut whole = BytesMut::new();
    loop {
        // Who has sent more may take longer, so that a trickle ends soon.
        let earned = limits.body_trickle.mul_f64(1.0 + whole.len() as f64 / TRICKLE_BYTES);
        let until = begun + earned.min(limits.body);
        let seconds = until.duration_since(begun).as_secs();
        let frame = timeout_at(until, body.frame()).await.map_err(|_| BodyError::TooSlow { seconds })?;
        let Some(frame) = frame else { return Ok(whole.freeze()) };
        let frame = frame.map_err(|error| BodyError::Broken { why: error.to_string() })?;
        let Ok(bytes) = frame.into_data() else { continue };
        if whole.len() + bytes.len() > limit {
            return Err(BodyError::TooLarge { limit });
        }
        whole.extend_from_slice(&bytes);
    }
}

/// How large a request says that its body is.
pub fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
