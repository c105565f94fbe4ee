//! What slowed or stopped a job, whatever it runs.
//!
//! A [`Case`] holds what was observed: logs as `logs` recognised them, flight records of collectives, what a step should take.
//! [`diagnose`] gives [`JobVerdict`]s: what is wrong, whether hardware, network, storage, the application or memory is the reason,
//! who is to blame, since when, how sure that is, what it costs, why, and what to do next. Where the observations do not
//! tell, the verdict is `unknown` and says what would. Everything is a function of the case: the same files give the same
//! verdicts, on a job that runs and on one of last year.
//!
//! ```
//! use bedplate_diagnose::{Case, Cause, ProblemKind, NamedLog, diagnose};
//! use bedplate_logs::{LogReader, Recognizer};
//!
//! let recognizer = Recognizer::built_in();
//! let mut reader = LogReader::new(&recognizer);
//! reader.feed(b"[rank5]: OSError: [Errno 28] No space left on device: '/scratch/ckpt/iter_500.pt'\n");
//! let case = Case { logs: vec![NamedLog { name: "job.log".into(), log: reader.finish() }], ..Case::default() };
//! let verdict = &diagnose(&case, &recognizer).verdicts[0];
//! assert_eq!((verdict.kind, verdict.cause), (ProblemKind::Crashed, Cause::Storage));
//! assert_eq!(verdict.culprits[0].to_string(), "rank 5");
//! ```

mod advice;
mod bill;
mod case;
mod compare;
mod corroborate;
mod errors;
mod gang;
mod judge;
mod monitor;
mod pace;
mod pickle;
mod planned;
mod policy;
mod ras;
mod record;
mod series;
mod slow;
mod stack;
mod stall;
mod stalled;
mod verdict;
mod waits;
mod weigh;

pub use advice::{Lever, levers_of_layouts, levers_of_parts};
pub use bill::{Bill, RunScale};
pub use case::{Case, NamedLog};
pub use compare::{LossDifference, PartDifference, RunDifference, RunFacts, SettingDifference, compare};
pub use corroborate::NodeMove;
pub use judge::{Diagnosis, Observed, diagnose};
pub use monitor::Monitor;
pub use pace::{Pace, Slowdown};
pub use pickle::{PickleError, unpickle};
pub use planned::{Machines, Planned, plan_of};
pub use policy::{FollowUp, Policy, PolicyRule};
pub use ras::{Communicator, Member, Ras};
pub use record::{CallState, FlightCall, ProcessGroup, Record, RecordError};
pub use series::{By, Point, Series, series};
pub use slow::usual_step;
pub use stack::{Doing, ProcessStack};
pub use verdict::{Cause, Culprit, JobVerdict, Observation, ProblemKind, Since, TimeLost};
pub use waits::{Held, Holder, Waits, waits};
