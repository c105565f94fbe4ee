//! Rules that turn what a node says into findings.
//!
//! Readings of metrics, kernel log lines and XIDs go in with the time, findings come out. What they mean is data:
//! the rules of `data/health/rules.toml` and the XID catalog of `data/health/xid.csv`, under a [`Profile`]; a site adds
//! rules of its own in the same form. This crate reads nothing, and what is done about a finding is decided elsewhere.
//!
//! ```
//! use bedplate_finding::Action;
//! use bedplate_health::{Health, Profile, Rules, XidSeen, XidSource};
//!
//! let mut health = Health::new("n1", Rules::built_in(Profile::Nvidia));
//! let text = "GPU has fallen off the bus.";
//! let seen = XidSeen { gpu: Some(3), xid: 79, process: None, text, source: XidSource::KernelLog };
//! health.saw_xid(seen, 1_000);
//! let open = health.findings();
//! assert_eq!((open[0].finding.rule.as_str(), open[0].finding.action), ("gpu/xid-79", Action::Reboot));
//! ```

mod catalog;
pub mod counters;
mod error;
mod health;
mod history;
pub mod kernel_log;
mod profile;
mod reading;
mod rule;
mod rules;
mod xids;

pub use catalog::{Decode, XidCatalog, XidEntry};
pub use error::{HealthError, PAGES};
pub use health::Health;
pub use profile::Profile;
pub use reading::{Reading, ReadingPlace};
pub use rule::{Condition, Rule, Threshold, Trend};
pub use rules::Rules;
pub use xids::{XidSeen, XidSource};
