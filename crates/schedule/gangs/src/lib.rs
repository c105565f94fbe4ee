//! The cluster scheduler: who runs where and when, with reasons.
//!
//! A job is a gang: all its nodes at once or none. [`Scheduler::apply`] takes an event and the time and
//! returns decisions; there is no clock, no thread and no randomness inside, so the daemon, the replay of
//! traces and the tests run the same code and equal inputs give equal decisions.
//!
//! Gangs are considered in order of priority. One that does not fit now reserves the earliest time at
//! which it will, on given nodes; one behind it may start early only where that delays no reservation.
//!
//! ```
//! use bedplate_catalog::Catalog;
//! use bedplate_gangs::{Decision, Event, JobId, GangRequest, RoleRequest, Scheduler, Settings, Span, Time};
//! use bedplate_topology::Cluster;
//!
//! let cluster = Cluster::from_spec("p5.48xlarge:4", &Catalog::builtin())?;
//! let mut scheduler = Scheduler::new(cluster, Settings::default());
//! let mut submit = |id, nodes, minutes| {
//!     let request = GangRequest { time_limit: Span::minutes(minutes), ..GangRequest::new(JobId(id), RoleRequest::new(nodes, 8)) };
//!     scheduler.apply(Event::Submit(Box::new(request)), Time::ZERO)
//! };
//! assert!(matches!(submit(1, 3, 60)[..], [Decision::Start { .. }]));
//! assert!(submit(2, 4, 30).is_empty(), "one node is missing");
//! assert!(submit(3, 1, 300).is_empty(), "it would delay the gang of four");
//! assert!(matches!(submit(4, 1, 60)[..], [Decision::Start { .. }]), "it ends in time");
//! assert_eq!(scheduler.reservation(JobId(2)).unwrap().start, Time::ZERO + Span::minutes(60));
//! # Ok::<(), bedplate_topology::TopologyError>(())
//! ```

mod accounting;
mod admission;
mod adopt;
mod amount;
mod calendar;
pub mod counted;
mod cycle;
mod dependencies;
mod devices;
mod elastic;
mod eligible;
mod event;
mod experience;
mod explain;
mod fairshare;
mod find;
mod fleet;
mod guard;
mod heal;
mod intake;
mod jobs;
mod levels;
mod lifecycle;
mod limits;
mod news;
mod opening;
mod outlook;
mod pass;
mod place;
mod places;
mod preempt;
mod priority;
mod queue;
mod quota;
mod ranking;
mod rates;
mod reason;
mod recall;
mod request;
mod reservations;
mod resize;
mod scheduler;
mod settings;
mod site;
mod sizes;
mod suspend;
mod tally;
mod time;
mod timeline;
mod victims;
mod view;
mod views;

pub use adopt::{Adopted, AdoptedState, Leaving, Misfit};
pub use amount::Amount;
pub use event::{
    Decision, Event, GangOutcome, Maintenance, NodeOrder, NodeShare, NodeState, StartReason, StopReason, Then,
};
pub use experience::RunRecord;
pub use explain::{Question, Remedy, WaitExplanation};
pub use fairshare::{Accounts, FairShares, Usage, UsageRecord};
pub use guard::{Guard, GuardRecord};
pub use priority::Priority;
pub use quota::{ANY_GPU, Grant, Queues};
pub use rates::{BadRates, Rates};
pub use reason::{Never, Wait};
pub use request::{
    AccountId, ArrayTask, Closeness, DependencyKind, Elastic, Expected, GangDependency, GangRequest, History,
    JobId, NodeFilter, PartitionId, Preemption, QosId, QueueId, RoleRequest, UserId,
};
pub use reservations::{Reservation, Reserved};
pub use scheduler::Scheduler;
pub use settings::{
    Backfill, ElasticRules, Packing, Partition, PreemptionRules, PriorityWeights, Qos, QueueOrder, Score,
    Settings, SizesBy,
};
pub use site::{PAGES, SettingsError};
pub use tally::{LeftOut, NodeHolder, NodeTally};
pub use time::{Span, Time};

#[cfg(test)]
mod books;
mod borrow_order;
