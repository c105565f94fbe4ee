//! One file: opened without waiting, unpacked, told apart.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bedplate_diagnose::{ProcessStack, Ras, Record};
use bedplate_host::open_regular;
use bedplate_logs::{Log, LogReader, Origin, Recognizer};
use bedplate_units::UtcTime;
use flate2::read::MultiGzDecoder;

use crate::EvidenceError;

/// No log is unpacked to more than this.
const MOST_UNPACKED: u64 = 64 << 30;
/// Flight records of a rank have some megabytes.
const LARGEST_RECORD: u64 = 512 << 20;
/// So have answers of RAS and stacks of one process.
const LARGEST_ANSWER: u64 = 64 << 20;
const PIECE: usize = 1 << 20;
/// Enough to tell what a file is.
const HEAD: usize = 4096;

/// What a file turned out to be.
pub(crate) enum Found {
    Log(Log),
    Record(Record),
    /// An answer of NCCL's RAS.
    Ras(Ras),
    Stack(ProcessStack),
    /// It was left out, for this reason.
    LeftOut(String),
}

/// Opens a file that may be anything.
pub(crate) fn open(path: &Path) -> Result<File, EvidenceError> {
    open_regular(path).map_err(|source| match source.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory => {
            EvidenceError::NotAFile { path: path.to_owned() }
        }
        _ => EvidenceError::Read { path: path.to_owned(), source },
    })
}

/// Reads one file; `name` is what evidence calls it.
pub(crate) fn read(mut file: File, name: &str, recognizer: &Recognizer) -> io::Result<Found> {
    let about = file.metadata()?;
    let mut head = Vec::with_capacity(HEAD);
    file.by_ref().take(HEAD as u64).read_to_end(&mut head)?;
    if is_record(&head) && about.len() <= LARGEST_RECORD {
        let mut bytes = head;
        file.take(LARGEST_RECORD).read_to_end(&mut bytes)?;
        return Ok(match Record::read(name, &bytes) {
            Ok(record) => Found::Record(record),
            Err(error) => Found::LeftOut(error.to_string()),
        });
    }
    if is_answer(&head) && about.len() <= LARGEST_ANSWER {
        let mut bytes = head;
        file.take(LARGEST_ANSWER).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        return Ok(
            match Ras::read(&text)
                .map(Found::Ras)
                .or_else(|| ProcessStack::read(name, &text).map(Found::Stack))
            {
                Some(found) => found,
                // A log that quotes one.
                None => log(&bytes[..], name, 1970, recognizer).map(Found::Log)?,
            },
        );
    }
    let packed = head.as_slice().chain(file);
    let unpacked: Box<dyn Read + '_> = match &head[..] {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(packed)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::stream::read::Decoder::new(packed)?),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => {
            return Ok(Found::LeftOut("it is packed with xz: unpack it first".to_owned()));
        }
        [b'B', b'Z', b'h', ..] => {
            return Ok(Found::LeftOut("it is packed with bzip2: unpack it first".to_owned()));
        }
        [b'P', b'K', 3, 4, ..] => {
            return Ok(Found::LeftOut("it is a zip archive: unpack it first".to_owned()));
        }
        _ => Box::new(packed),
    };
    // Times without a year are of the year in which the file was written last.
    let year = u64::try_from(about.mtime()).map_or(1970, |modified| UtcTime::of(modified).date.year);
    log(unpacked.take(MOST_UNPACKED), name, year, recognizer).map(Found::Log)
}

/// Reads a log to its end.
pub(crate) fn log(mut source: impl Read, name: &str, year: u64, recognizer: &Recognizer) -> io::Result<Log> {
    let mut reader = LogReader::new(recognizer).of(Origin::of_path(name)).in_year(year);
    let mut piece = vec![0; PIECE];
    loop {
        match source.read(&mut piece) {
            Ok(0) => return Ok(reader.finish()),
            Ok(count) => reader.feed(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A damaged end does not take what came before it.
            Err(_) if !reader.so_far().steps.is_empty() || !reader.so_far().signs.is_empty() => {
                return Ok(reader.finish());
            }
            Err(error) => return Err(error),
        }
    }
}

/// What `ncclras`, `py-spy dump` or faulthandler begin with.
fn is_answer(head: &[u8]) -> bool {
    let has = |word: &[u8]| head.windows(word.len()).any(|part| part == word);
    let starts = |word: &[u8]| head.trim_ascii_start().starts_with(word);
    let is_ras = has(b"Communicators...") || has(b"\"collective_counts\"") || has(b"\"missing_ranks_count\"");
    let is_py_spy = starts(b"Process ") && has(b"Python v") && has(b"\nThread ");
    let is_faulthandler =
        (starts(b"Thread 0x") || starts(b"Current thread 0x")) && has(b"(most recent call first)");
    is_ras || is_py_spy || is_faulthandler
}

/// A pickle of some protocol, or JSON with the words of a flight record.
fn is_record(head: &[u8]) -> bool {
    if let [0x80, 2..=5, ..] = head {
        return true;
    }
    let has = |word: &[u8]| head.windows(word.len()).any(|part| part == word);
    head.trim_ascii_start().first() == Some(&b'{')
        && (has(b"\"pg_config\"") || has(b"\"nccl_version\"") || (has(b"\"epoch\"") && has(b"\"calls\"")))
}
