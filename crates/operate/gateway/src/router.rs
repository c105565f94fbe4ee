//! A router in front of replicas: any servers that speak OpenAI's API.
//!
//! [`route`] passes requests on to the replica that `schedule/batching`'s router chooses: by the prefix of the prompt, which it
//! knows from the text alone, and by load. A replica that fails its checks gets nothing. A request is tried elsewhere as long as no
//! byte of an answer has been passed on; after that a broken stream ends with an error, because a second attempt would repeat tokens.

mod asked;
mod checks;
mod front;
mod listing;
mod member;
mod members;
mod options;
mod passing;
mod running;
mod stream;
mod url;

pub use member::ReplicaHealth;
pub use members::{Departure, Members};
pub use options::{Checks, RouteOptions};
pub use running::{RunningRouter, route};
pub use url::{ReplicaUrl, UrlFlaw};
