//! What the log of a job says, whichever trainer or server wrote it.
//!
//! A log is bytes from somebody else's program: several ranks in turns, launchers' labels before lines, progress bars
//! that redraw themselves, colours, lines that were wrapped when they were pasted. [`LogReader`] takes it in pieces of any
//! size and keeps what matters, in bounded memory: steps with their times, phases in which steps are slow for a reason
//! (evaluation, checkpoints, compilation), and errors with their roles.
//!
//! What is recognised is a table, [`Recognizer`], read from TOML: the built-in formats and signatures, and a user's own
//! before them. What the findings of a log mean together is decided by `diagnose`; where logs come from, too.
//!
//! ```
//! use bedplate_logs::{Field, LogReader, Recognizer};
//!
//! let recognizer = Recognizer::built_in();
//! let mut reader = LogReader::new(&recognizer);
//! reader.feed(b"[2025-12-19 10:49:15] iteration       10/     100 | consumed samples: 1280 | elapsed time per");
//! reader.feed(b" iteration (ms): 2028.1 | global batch size: 128 | lm loss: 1.258695E+01 | grad norm: 10.275 |\n");
//! let log = reader.finish();
//! let step = &log.steps[0];
//! assert_eq!((step.step, step.seconds), (10, Some(2.0281)));
//! assert_eq!(step.value(Field::Loss), Some(12.58695));
//! ```

mod arguments;
mod error;
mod field;
mod format;
mod lines;
mod live;
mod log;
mod origin;
mod pairs;
mod reader;
mod recognizer;
mod settings;
mod signature;
mod stamp;

pub use error::{LogsError, PAGES};
pub use field::Field;
pub use format::{Format, FormatKind};
pub use lines::plain;
pub use live::{LiveLog, LiveStep, Observed};
pub use log::{Log, PhaseKind, PhaseMark, Sign, StepLine};
pub use origin::Origin;
pub use reader::LogReader;
pub use recognizer::{Recognized, Recognizer, Trial};
pub use signature::{Role, Signature, Where};
pub use stamp::{Stamp, StampClock};
