//! Answers: a status, a few headers, and a body that is there or comes by and by.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;

pub type Answer = Response<Body>;

/// What is sent. It keeps whatever must last until all of it has been sent.
pub struct Body {
    content: Content,
    held: Vec<Box<dyn Send>>,
}

enum Content {
    Whole(Option<Bytes>),
    Stream(mpsc::Receiver<Bytes>),
}

impl Body {
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self { content: Content::Whole(Some(bytes.into())), held: Vec::new() }
    }

    pub fn stream(receiver: mpsc::Receiver<Bytes>) -> Self {
        Self { content: Content::Stream(receiver), held: Vec::new() }
    }

    /// Keeps something until the body has been sent.
    pub fn hold(&mut self, held: impl Send + 'static) {
        self.held.push(Box::new(held));
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = |bytes: Bytes| Ok(Frame::data(bytes));
        match &mut self.content {
            Content::Whole(bytes) => Poll::Ready(bytes.take().filter(|bytes| !bytes.is_empty()).map(frame)),
            Content::Stream(receiver) => receiver.poll_recv(cx).map(|bytes| bytes.map(frame)),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Whole(bytes) if bytes.as_ref().is_none_or(Bytes::is_empty))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Stream(_) => SizeHint::default(),
        }
    }
}

/// A value as JSON.
///
/// # Panics
/// Panics where a map of the value has keys that are not texts.
pub fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    let text = serde_json::to_vec(value).expect("answers have text keys only");
    typed(status, "application/json", Body::whole(text))
}

pub fn typed(status: StatusCode, content_type: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

pub fn with_header(mut answer: Answer, name: &'static str, value: &str) -> Answer {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(HeaderName::from_static(name), value);
    }
    answer
}
