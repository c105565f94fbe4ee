//! The signal that tells a job to write a checkpoint.

use bedplate_units::Seconds;

/// Tells the job to write a checkpoint before it is stopped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CheckpointSignal {
    /// Signal number.
    pub signal: i32,
    /// How long before the stop it is sent.
    pub before: Seconds,
    pub receiver: Receiver,
}

/// Who gets the signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Receiver {
    /// Every task of the job; of a script those that it started with `srun`, but not the shell.
    #[default]
    Tasks,
    /// The shell of a script only.
    Script,
}

/// Names and numbers of Linux on x86 and Arm.
const SIGNALS: [(&str, i32); 16] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("URG", 23),
    ("WINCH", 28),
];

impl CheckpointSignal {
    /// The number of `USR1`, `SIGUSR1`, `usr1` or `10`.
    pub fn number_of(signal: &str) -> Option<i32> {
        let upper = signal.trim().to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let named = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
        named.or_else(|| name.parse().ok().filter(|number| (1..=64).contains(number)))
    }

    /// The name of a signal, where it has one.
    pub fn name_of(signal: i32) -> Option<&'static str> {
        SIGNALS.iter().find(|(_, number)| *number == signal).map(|(name, _)| *name)
    }
}
