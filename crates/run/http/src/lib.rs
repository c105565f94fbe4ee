//! One small HTTP server: for the daemon, the gateway of served models, and the metrics of exporters and training runs.
//!
//! A [`Server`] owns what all of them need and get wrong separately: a limit of connections, deadlines against clients that
//! send slowly or do not read, bounded heads and bodies, encryption, and an end that finishes running requests. A handler
//! is a function from a request to an [`Answer`]; routes, roles and error texts belong to the caller. [`Background`] runs one
//! on a thread of its own, for programs without a runtime. [`client`] and [`blocking`] ask other servers, with the same care.
//!
//! ```
//! use bedplate_http::{Background, Limits, Request, StatusCode, json};
//!
//! let hello = |request: Request| async move { json(StatusCode::OK, &request.uri().path()) };
//! let server = Background::start("127.0.0.1:0".parse().unwrap(), Limits::default(), hello)?;
//! assert_ne!(server.address().port(), 0);
//! # Ok::<(), std::io::Error>(())
//! ```

mod answer;
mod background;
mod bearer;
pub mod blocking;
mod certificate;
pub mod client;
mod connection;
mod encoding;
mod files;
mod intake;
mod limits;
mod port;
mod server;

pub use answer::{Answer, Body, json, typed, with_header};
pub use background::Background;
pub use bearer::{bearer, is_same_secret, new_secret};
pub use certificate::{Certificate, CertificateError};
pub use encoding::decoded;
pub use files::raise_file_limit;
pub use hyper::body::Incoming;
pub use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
pub use hyper::{Method, StatusCode, Uri};
pub use intake::{BodyError, declared, read_body};
pub use limits::Limits;
pub use port::{HeldPort, bind, bind_beside};
pub use server::{Connections, Server};

/// A request whose body has not been read yet. Its extensions hold the [`ClientPeer`].
pub type Request = hyper::Request<Incoming>;

/// Where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientPeer(pub std::net::IpAddr);

/// Answers a request. Connections are compiled once for all handlers, not for each: a call goes through a pointer.
pub trait Handler: Clone + Send + Sync + 'static {
    fn answer(&self, request: Request) -> impl Future<Output = Answer> + Send;
}

impl<F, A> Handler for F
where
    F: Fn(Request) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Answer> + Send,
{
    fn answer(&self, request: Request) -> impl Future<Output = Answer> + Send {
        self(request)
    }
}
