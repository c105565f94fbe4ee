//! Who wrote a line: the labels that launchers put before the lines of ranks.

use crate::stamp::{Stamp, StampClock};

/// What labels and names of files say of a line's writer.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    pub rank: Option<u32>,
    pub local_rank: Option<u32>,
    /// A host's name or address, or a pod's name.
    pub node: Option<String>,
    /// The process of Ray or of a server's engine, such as `TaskRunner` or `EngineCore_DP1`.
    pub process: Option<String>,
}

/// No launcher writes more labels than these before a line.
const MOST_LABELS: usize = 6;
const LONGEST_NAME: usize = 128;

impl Origin {
    /// What the labels say over what the file's name says.
    pub(crate) fn or(&self, other: &Origin) -> Origin {
        Origin {
            rank: self.rank.or(other.rank),
            local_rank: self.local_rank.or(other.local_rank),
            node: self.node.clone().or_else(|| other.node.clone()),
            process: self.process.clone().or_else(|| other.process.clone()),
        }
    }

    /// What the path of a log says: `rank_3.log`, `worker-3.out`, `default_x/attempt_0/3/stderr.log`, `logs/node04/dmesg.txt`.
    pub fn of_path(path: &str) -> Origin {
        let mut origin = Origin::default();
        let parts: Vec<&str> = path.split(['/', '\\']).filter(|part| !part.is_empty()).collect();
        for (depth, part) in parts.iter().enumerate() {
            let is_file = depth + 1 == parts.len();
            let stem = part.split('.').next().unwrap_or(part);
            for (word, number) in numbered_words(stem) {
                match word.as_str() {
                    "rank" | "global_rank" | "task" | "worker" | "proc" => origin.rank = Some(number),
                    "local_rank" | "gpu" => origin.local_rank = Some(number),
                    "node" | "host" => origin.node = Some(stem.to_owned()),
                    _ => {}
                }
            }
            let is_of_torchrun = !is_file && depth > 0 && parts[depth - 1].starts_with("attempt_");
            if is_of_torchrun {
                origin.local_rank = part.parse().ok();
            }
        }
        origin
    }
}

/// `rank_3` and `node04-rank12` as words with their numbers.
fn numbered_words(stem: &str) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    let mut word = String::new();
    let mut digits = String::new();
    for each in stem.chars().chain(['\0']) {
        if each.is_ascii_digit() && !word.is_empty() {
            digits.push(each);
            continue;
        }
        if !digits.is_empty() {
            let name = word.trim_end_matches(['_', '-']).to_ascii_lowercase();
            found.extend(digits.parse().ok().map(|number| (name, number)));
            word.clear();
            digits.clear();
        }
        match each {
            '_' if word.is_empty() => {}
            '-' | ' ' | '=' if word.is_empty() || each == ' ' => word.clear(),
            '-' | '=' => word.push('_'),
            each if each.is_ascii_alphabetic() || each == '_' => word.push(each),
            _ => word.clear(),
        }
    }
    found
}

/// A line without its labels, and what they said.
pub(crate) struct Labelled<'a> {
    pub(crate) origin: Origin,
    /// The time that a container's runtime put in front.
    pub(crate) stamp: Option<Stamp>,
    pub(crate) text: &'a [u8],
}

/// Takes the labels off a line.
pub(crate) fn labels(line: &[u8]) -> Labelled<'_> {
    let mut labelled = Labelled { origin: Origin::default(), stamp: None, text: line };
    for _ in 0..MOST_LABELS {
        let Some(rest) = label(&mut labelled) else { break };
        labelled.text = rest;
    }
    source_of_nccl(&mut labelled);
    labelled
}

/// The line behind its first label, if it has one.
fn label<'a>(labelled: &mut Labelled<'a>) -> Option<&'a [u8]> {
    let line = labelled.text;
    match line.first()? {
        b'[' => bracket(line, labelled),
        b'(' => parenthesis(line, &mut labelled.origin),
        b'0'..=b'9' | b' ' => task(line, &mut labelled.origin).or_else(|| container(line, labelled)),
        byte if byte.is_ascii_alphabetic() => name(line, &mut labelled.origin),
        _ => None,
    }
}

/// `[default7]:`, `[rank3]:`, `[1,12]<stdout>:`, `[pod/name/container] `, `[3] ` of MPI.
fn bracket<'a>(line: &'a [u8], labelled: &mut Labelled<'_>) -> Option<&'a [u8]> {
    let end = memchr::memchr(b']', &line[..line.len().min(LONGEST_NAME)])?;
    let (inside, behind) = (std::str::from_utf8(&line[1..end]).ok()?, &line[end + 1..]);
    let origin = &mut labelled.origin;
    if let Some((job, task)) = inside.split_once(',') {
        let _: u32 = job.parse().ok()?;
        origin.rank = Some(task.trim().parse().ok()?);
        let stream = [&b"<stdout>:"[..], b"<stderr>:", b"<stdout>", b"<stderr>"];
        let rest = stream.into_iter().find_map(|stream| behind.strip_prefix(stream))?;
        return Some(rest.strip_prefix(b" ").unwrap_or(rest));
    }
    if let Some(pod) = inside.strip_prefix("pod/") {
        origin.node = Some(pod.split('/').next()?.to_owned());
        return behind.strip_prefix(b" ");
    }
    let rest = behind.strip_prefix(b":")?;
    let digits = inside.find(|each: char| each.is_ascii_digit()).filter(|at| *at > 0)?;
    let number = inside[digits..].parse().ok()?;
    let is_role = inside[..digits].bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    is_role.then_some(())?;
    match &inside[..digits] {
        "rank" => origin.rank = Some(number),
        _ => origin.local_rank = Some(number),
    }
    // Megatron's own lines begin with a space that labels of torchrun do not have.
    Some(rest)
}

/// `(TaskRunner pid=1, ip=10.0.0.1) ` of Ray and of vLLM's processes.
fn parenthesis<'a>(line: &'a [u8], origin: &mut Origin) -> Option<&'a [u8]> {
    let end = memchr::memchr(b')', &line[..line.len().min(LONGEST_NAME)])?;
    let inside = std::str::from_utf8(&line[1..end]).ok()?;
    let (process, rest) = inside.split_once(" pid=")?;
    if let Some((_, address)) = rest.split_once("ip=") {
        origin.node = Some(address.trim().to_owned());
    }
    if let Some((_, rank)) = process.rsplit_once("_TP") {
        origin.local_rank = rank.parse().ok();
    }
    origin.process = Some(process.to_owned());
    Some(line[end + 1..].strip_prefix(b" ").unwrap_or(&line[end + 1..]))
}

/// `12: ` of `srun --label`, right-aligned.
fn task<'a>(line: &'a [u8], origin: &mut Origin) -> Option<&'a [u8]> {
    let text = line.trim_ascii_start();
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    ((1..=6).contains(&length) && line.len() - text.len() < 6 && origin.rank.is_none()).then_some(())?;
    let rest = text[length..].strip_prefix(b": ").or_else(|| text[length..].strip_prefix(b":\t"))?;
    origin.rank = std::str::from_utf8(&text[..length]).ok()?.parse().ok();
    Some(rest)
}

/// `2025-11-24T03:20:21.001234567Z ` of container runtimes, with `stdout F ` of CRI behind it.
fn container<'a>(line: &'a [u8], labelled: &mut Labelled<'_>) -> Option<&'a [u8]> {
    let space = memchr::memchr(b' ', &line[..line.len().min(40)]).filter(|at| *at >= 20)?;
    (line.get(10) == Some(&b'T') && labelled.stamp.is_none()).then_some(())?;
    labelled.stamp =
        Some(Stamp::find(&line[..space], 1970).filter(|stamp| stamp.clock == StampClock::Universal)?);
    let rest = &line[space + 1..];
    let streams = [&b"stdout F "[..], b"stderr F ", b"stdout P ", b"stderr P "];
    Some(streams.into_iter().find_map(|stream| rest.strip_prefix(stream)).unwrap_or(rest))
}

/// `node04: ` of pdsh and DeepSpeed, `trainer-0  | ` of compose and stern.
fn name<'a>(line: &'a [u8], origin: &mut Origin) -> Option<&'a [u8]> {
    let is_in_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._/".contains(byte);
    let length = line.iter().take(LONGEST_NAME).take_while(|byte| is_in_name(byte)).count();
    let (name, behind) = (&line[..length], &line[length..]);
    origin.node.is_none().then_some(())?;
    let has_digit = name.iter().any(u8::is_ascii_digit) && length >= 3;
    if has_digit && let Some(rest) = behind.strip_prefix(b": ") {
        origin.node = Some(String::from_utf8_lossy(name).into_owned());
        return Some(rest);
    }
    let bar = behind.trim_ascii_start();
    let is_padded = behind.len() > bar.len() && behind.len() - bar.len() <= 40;
    if is_padded
        && has_digit
        && let Some(rest) = bar.strip_prefix(b"| ")
    {
        origin.node = Some(String::from_utf8_lossy(name).into_owned());
        return Some(rest);
    }
    None
}

/// NCCL names host, process and GPU itself: `node-1:1234:1300 [3] NCCL WARN …`. The line keeps that text.
fn source_of_nccl(labelled: &mut Labelled<'_>) {
    let head = &labelled.text[..labelled.text.len().min(LONGEST_NAME)];
    if memchr::memmem::find(head, b" NCCL ").is_none() {
        return;
    }
    let Ok(head) = std::str::from_utf8(head) else { return };
    let word = head.split_whitespace().find(|word| word.matches(':').count() == 2);
    if let Some((host, rest)) = word.and_then(|word| word.split_once(':'))
        && rest.split(':').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
        && !host.is_empty()
    {
        labelled.origin.node.get_or_insert_with(|| host.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> (Origin, String) {
        let labelled = labels(line.as_bytes());
        (labelled.origin, String::from_utf8_lossy(labelled.text).into_owned())
    }

    #[test]
    fn labels_of_launchers_are_taken_off() {
        let rank = |rank| Origin { rank: Some(rank), ..Origin::default() };
        let local = |rank| Origin { local_rank: Some(rank), ..Origin::default() };
        let node = |node: &str| Origin { node: Some(node.to_owned()), ..Origin::default() };
        let cases = [
            ("[default7]: iteration 5/10", local(7), " iteration 5/10"),
            ("[rank3]:[titan] 2025 x", rank(3), "[titan] 2025 x"),
            ("[rank3]:[rank3]: Traceback", rank(3), " Traceback"),
            (" 12: hello", rank(12), "hello"),
            ("[1,12]<stdout>: hello", rank(12), "hello"),
            ("node04: [2024-07-12 19:13:00] x", node("node04"), "[2024-07-12 19:13:00] x"),
            ("trainer-0  | step", node("trainer-0"), "step"),
            ("[pod/job-0/main] step", node("job-0"), "step"),
            ("2025-11-24T03:20:21.001Z stdout F step", Origin::default(), "step"),
            // What looks like a label and is none.
            ("Epoch 1: 6%", Origin::default(), "Epoch 1: 6%"),
            ("iter 100: loss 3", Origin::default(), "iter 100: loss 3"),
            ("[2025-12-19 10:49:15] iteration", Origin::default(), "[2025-12-19 10:49:15] iteration"),
            ("| epoch 001:    200 / 1374", Origin::default(), "| epoch 001:    200 / 1374"),
            ("10:49:15 INFO", Origin::default(), "10:49:15 INFO"),
        ];
        for (line, origin, rest) in cases {
            assert_eq!(read(line), (origin, rest.to_owned()), "{line}");
        }
        let (origin, rest) = read("(WorkerDict pid=77, ip=10.0.0.1) step:3 - a:1");
        assert_eq!(
            (origin.node.as_deref(), origin.process.as_deref()),
            (Some("10.0.0.1"), Some("WorkerDict"))
        );
        assert_eq!(rest, "step:3 - a:1");
        assert_eq!(read("node-1:1234:1300 [3] NCCL WARN x").0.node.as_deref(), Some("node-1"));
    }

    #[test]
    fn names_of_files_tell_ranks() {
        let of = Origin::of_path;
        assert_eq!(of("logs/rank_3.log").rank, Some(3));
        assert_eq!(of("logs/slurm-123/node04-rank12.out").rank, Some(12));
        assert_eq!(of("logs/node04/dmesg.txt").node.as_deref(), Some("node04"));
        assert_eq!(of("x/default_ab12/attempt_0/5/stderr.log").local_rank, Some(5));
        assert_eq!(of("slurm-4711.out"), Origin::default());
    }
}
