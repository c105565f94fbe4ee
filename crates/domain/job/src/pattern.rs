//! File names with a different text for every job, node and task: `logs/%x-%j_%a.%t.out`.
//!
//! What is substituted never changes the folder: slashes, control characters and leading dots of names
//! become underscores, so a job called `../../etc` writes where its pattern says.

use crate::JobError;

/// No file system takes longer paths.
const LONGEST: usize = 4096;
/// Slurm's limit for the width of a number.
const WIDEST: usize = 10;

/// What the letters of a pattern stand for.
#[derive(Debug, Clone, Copy)]
pub struct FileNames<'a> {
    /// `%j`.
    pub job: u64,
    /// `%A` and `%a`; a job without an array is its own array, without an index.
    pub array: Option<ArrayMember>,
    /// `%x`.
    pub name: &'a str,
    /// `%u`.
    pub user: &'a str,
    /// `%N`.
    pub host: &'a str,
    /// `%n`: the node, counted from 0 in the gang.
    pub node: u32,
    /// `%t`: the task, counted from 0 in the gang.
    pub task: u32,
    /// `%s`: the step of the job, `batch` or a number.
    pub step: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayMember {
    pub array: u64,
    pub index: u32,
}

/// Slurm writes the largest number for the index of a job without an array.
const NO_INDEX: u32 = u32::MAX - 1;

const LETTERS: &str = "%j job, %A array, %a index, %x name, %u user, %N host, %n node, %t task, %s step, %J job.step, %% per cent";

impl FileNames<'_> {
    /// The path that `pattern` stands for.
    ///
    /// A number between `%` and a letter pads numbers with zeros: `%4t` is `0007`.
    pub fn expand(&self, pattern: &str) -> Result<String, JobError> {
        let mut path = String::new();
        for piece in pieces(pattern) {
            match piece.map_err(|reason| bad(pattern, reason))? {
                Piece::Text(text) => path.push_str(text),
                Piece::Letter { letter, width } => {
                    path += &self.value(letter, width).ok_or_else(|| bad(pattern, unknown(letter)))?;
                }
            }
            if path.len() > LONGEST {
                return Err(bad(pattern, format!("the path has more than {LONGEST} bytes")));
            }
        }
        Ok(path)
    }

    fn value(&self, letter: char, width: usize) -> Option<String> {
        let number = |number: u64| format!("{number:0width$}");
        Some(match letter {
            'j' => number(self.job),
            'A' => number(self.array.map_or(self.job, |member| member.array)),
            'a' => number(self.array.map_or(NO_INDEX, |member| member.index).into()),
            'x' => harmless(self.name),
            'u' => harmless(self.user),
            'N' => harmless(self.host),
            'n' => number(self.node.into()),
            't' => number(self.task.into()),
            's' => harmless(self.step),
            'J' => format!("{}.{}", number(self.job), harmless(self.step)),
            _ => return None,
        })
    }
}

/// Whether a pattern can be expanded whatever the job; the reason where it cannot.
pub(crate) fn fault_of(pattern: &str) -> Option<String> {
    let example =
        FileNames { job: 1, array: None, name: "x", user: "u", host: "h", node: 0, task: 0, step: "0" };
    match example.expand(pattern) {
        Ok(_) if pattern.contains('\0') => Some("it contains a NUL character".into()),
        Ok(_) => None,
        Err(JobError::BadPattern { reason, .. }) => Some(reason),
        Err(other) => Some(other.to_string()),
    }
}

enum Piece<'a> {
    Text(&'a str),
    Letter { letter: char, width: usize },
}

/// The texts and letters of a pattern, in order.
fn pieces(pattern: &str) -> impl Iterator<Item = Result<Piece<'_>, String>> {
    let mut rest = pattern;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(after) = rest.strip_prefix('%') else {
            let (text, next) = rest.split_at(rest.find('%').unwrap_or(rest.len()));
            rest = next;
            return Some(Ok(Piece::Text(text)));
        };
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let letter = after[digits..].chars().next();
        rest = &after[digits + letter.map_or(0, char::len_utf8)..];
        Some(piece(&after[..digits], letter))
    })
}

fn piece(digits: &str, letter: Option<char>) -> Result<Piece<'static>, String> {
    match letter {
        None => Err(format!("nothing follows its last `%`; the letters are {LETTERS}")),
        Some('%') if digits.is_empty() => Ok(Piece::Text("%")),
        Some(letter) if digits.is_empty() => Ok(Piece::Letter { letter, width: 0 }),
        Some(letter) => match digits.parse() {
            Ok(width) if width <= WIDEST => Ok(Piece::Letter { letter, width }),
            _ => Err(format!("a number is padded to at most {WIDEST} digits")),
        },
    }
}

fn unknown(letter: char) -> String {
    format!("`%{}` stands for nothing; the letters are {LETTERS}", letter.escape_default())
}

fn bad(pattern: &str, reason: String) -> JobError {
    JobError::BadPattern { pattern: crate::NotationError::shown(pattern), reason }
}

/// A name as a part of a file name: it stays in its folder and is never hidden.
fn harmless(name: &str) -> String {
    let mut is_leading = true;
    let harmless: String = name
        .chars()
        .map(|c| {
            is_leading &= c == '.';
            if is_leading || c == '/' || c.is_control() { '_' } else { c }
        })
        .collect();
    if harmless.is_empty() { "_".to_owned() } else { harmless }
}
