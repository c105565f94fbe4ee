//! A cluster scheduler for pods: whole gangs are bound at once, by the rules of [`bedplate_gangs`].
//!
//! [`PodScheduler`] is told what an API server says of nodes and pods, and decides: which pods are bound to which nodes, which are
//! evicted, what a waiting pod is told. It keeps little of its own. Every decision starts from the pods and nodes as they are now,
//! so a scheduler that is started again after a crash goes on where the last one stopped: what is bound is read from the
//! pods, and a gang that is bound in part is completed before anything else starts.
//!
//! What it does remember is short-lived: places that were given to pods whose binding has not been seen yet, since when a
//! gang is bound in part, who makes room for whom. Places are taken for a whole gang before the first of its pods is bound.
//!
//! What fails is judged by [`bedplate_blame`]: nodes are taken out of service, gangs that lost a node find another, with spares first,
//! and jobs that fail pause before they start again.
//!
//! Pods of other schedulers are counted as they are. Where the API server asks before it binds them, [`PodScheduler::judge`] says
//! whether they fit; where another scheduler binds to the same node in the same moment unasked, the younger of our gangs there
//! goes back to the queue.

mod action;
mod brief;
mod cluster;
mod constraint;
mod free_resources;
mod gang;
mod growth;
mod heal;
mod leave;
mod node;
mod others;
mod pod;
mod resources;
mod scheduler;
mod shape;
mod words;

pub use action::{BindOutcome, PodAction, SchedulerRemark, Waiting};
pub use constraint::{Constraints, Operator, Requirement, Term, Toleration};
pub use node::{Effect, Node, NodeFinding, Taint};
pub use others::{AskedBinding, Judged};
pub use pod::{GangPolicy, Pod, PodPhase};
pub use resources::Resources;
pub use scheduler::{PodScheduler, SiteRules};
