//! A job that runs, asked: NCCL's RAS by its port, and processes of this host by what the kernel and py-spy say of them.
//!
//! Nothing here stops or signals a process, and nothing waits longer than its deadline: what is asked may be stuck itself.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_diagnose::{ProcessStack, Ras};

use crate::EvidenceError;

/// Where RAS listens unless NCCL_RAS_ADDR says otherwise.
pub const RAS_ADDRESS: &str = "localhost:28028";
/// An answer of ten thousand ranks has some megabytes.
const LARGEST_ANSWER: u64 = 64 << 20;
const CONNECTING: Duration = Duration::from_secs(3);
/// RAS gives ranks that do not answer five seconds, as it is told to, and then answers for the others.
const ANSWERING: Duration = Duration::from_secs(20);
/// Two answers so far apart show whether counts grow.
const APART: Duration = Duration::from_secs(3);
/// py-spy reads the memory of another process, which takes a moment and may never end.
const LOOKING: Duration = Duration::from_secs(5);

/// Asks RAS twice: the later answer, and whether the job goes on.
pub fn ask_ras(address: &str) -> Result<(Ras, bool), EvidenceError> {
    let failed = |source| EvidenceError::Ras { address: address.to_owned(), source };
    let first = ask_once(address).map_err(failed)?;
    thread::sleep(APART);
    let second = ask_once(address).map_err(failed)?;
    let goes_on = second.goes_on_since(&first);
    Ok((second, goes_on))
}

fn ask_once(address: &str) -> io::Result<Ras> {
    let until = Instant::now() + ANSWERING;
    let addresses = address.to_socket_addrs()?;
    let mut refused = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECTING) {
            Ok(stream) => return talk(stream, until),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Each command has an answer of one line; what an older RAS does not know it says so, and answers as text.
fn talk(mut stream: TcpStream, until: Instant) -> io::Result<Ras> {
    for command in ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json"] {
        writeln!(stream, "{command}")?;
        line(&mut stream, until)?;
    }
    writeln!(stream, "VERBOSE STATUS")?;
    let mut answer = Vec::new();
    let mut piece = [0; 1 << 14];
    while answer.len() as u64 <= LARGEST_ANSWER {
        match read(&mut stream, &mut piece, until)? {
            0 => break,
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    Ras::read(&String::from_utf8_lossy(&answer))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is none of RAS's"))
}

fn line(stream: &mut TcpStream, until: Instant) -> io::Result<()> {
    const LONGEST: usize = 4096;
    for _ in 0..LONGEST {
        let mut byte = [0];
        if read(stream, &mut byte, until)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if byte == *b"\n" {
            return Ok(());
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "a line of the answer has no end"))
}

fn read(stream: &mut TcpStream, into: &mut [u8], until: Instant) -> io::Result<usize> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))?;
    stream.read(into)
}

/// Where a process of this host stands.
pub fn stack_of(process: u32) -> Result<ProcessStack, EvidenceError> {
    let folder = Path::new("/proc").join(process.to_string());
    let about = fs::read_to_string(folder.join("stat"))
        .map_err(|source| EvidenceError::Process { process, source })?;
    let mut stack = ProcessStack {
        source: format!("process {process}"),
        kernel: kernel(&folder, &about),
        ..ProcessStack::default()
    };
    if let Some(seen) = by_py_spy(process).and_then(|text| ProcessStack::read(&stack.source, &text)) {
        stack.frames = seen.frames;
        stack.source = format!("py-spy dump --pid {process}");
    }
    stack.rank = rank(&folder);
    Ok(stack)
}

/// The state of a process, and what it sleeps in: `D in rpc_wait_bit_killable`.
fn kernel(folder: &Path, about: &str) -> Option<String> {
    // The name of the program is in parentheses and may contain anything.
    let state = about.rsplit(')').next()?.split_whitespace().next()?;
    let frames = fs::read_to_string(folder.join("stack")).unwrap_or_default();
    let mut functions: Vec<&str> =
        frames.lines().filter_map(|line| line.split("] ").nth(1)?.split('+').next()).take(4).collect();
    let sleeps_in = fs::read_to_string(folder.join("wchan")).unwrap_or_default();
    if functions.is_empty() && !matches!(sleeps_in.trim(), "" | "0") {
        functions.push(sleeps_in.trim());
    }
    match &functions[..] {
        [] => Some(format!("state {state}")),
        functions => Some(format!("state {state} in {}", functions.join(" < "))),
    }
}

/// By what launchers put into a rank's environment.
fn rank(folder: &Path) -> Option<u32> {
    let environment = fs::read(folder.join("environ")).ok()?;
    let value = |name: &str| {
        let of = |entry: &[u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
        environment.split(|byte| *byte == 0).find_map(of)
    };
    let names = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];
    names.iter().find_map(|name| String::from_utf8(value(name)?).ok()?.parse().ok())
}

/// What py-spy says, where it is installed and may look; the process is not paused.
fn by_py_spy(process: u32) -> Option<String> {
    let mut child = Command::new("py-spy")
        .args(["dump", "--nonblocking", "--pid", &process.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut output = child.stdout.take()?;
    let reading = thread::spawn(move || {
        let mut text = Vec::new();
        let _ = output.by_ref().take(1 << 20).read_to_end(&mut text);
        text
    });
    let until = Instant::now() + LOOKING;
    while Instant::now() < until && !matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
        thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
    reading.join().ok().map(|text| String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use super::*;

    /// A RAS that answers as NCCL 2.28 does, or as 2.24 did, which knew no formats.
    fn ras(knows_json: bool, answers: Vec<String>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                for line in lines.map_while(Result::ok) {
                    let said = match &*line {
                        "CLIENT PROTOCOL 2" => "SERVER PROTOCOL 2",
                        "SET FORMAT json" if !knows_json => "ERROR: Unknown command SET FORMAT json",
                        "VERBOSE STATUS" => &answer,
                        _ => "OK",
                    };
                    writeln!(stream, "{said}").unwrap();
                    if line == "VERBOSE STATUS" {
                        break;
                    }
                }
            }
        });
        address
    }

    fn counts(counts: [u32; 2]) -> String {
        let rank = |(rank, count): (usize, &u32)| {
            format!(
                r#"{{"rank":{rank},"host":"n1","pid":{rank},"cuda_dev":{rank},"collective_counts":{{"AllReduce":{count}}}}}"#
            )
        };
        let ranks: Vec<String> = counts.iter().enumerate().map(rank).collect();
        format!(
            r#"{{"communicators":[{{"hash":"0x1","size":2,"ranks":[{}],"missing_ranks":[]}}]}}"#,
            ranks.join(",")
        )
    }

    #[test]
    fn ras_is_asked_twice_whether_the_job_goes_on() {
        let stands = ras(true, vec![counts([9, 8]), counts([9, 8])]);
        let (answer, goes_on) = ask_ras(&stands).unwrap();
        assert_eq!((answer.communicators[0].members[&1].launched["AllReduce"], goes_on), (8, false));
        let text = "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    #  in group  per comm  per node  per comm  in group\n    0         1         1         2         2         2   RUNNING      OK";
        let (answer, _) = ask_ras(&ras(false, vec![text.to_owned(), text.to_owned()])).unwrap();
        assert_eq!(answer, Ras::default());
        assert!(matches!(ask_ras("127.0.0.1:1"), Err(EvidenceError::Ras { .. })));
        assert!(matches!(ask_ras(&ras(true, vec!["SSH-2.0".to_owned()])), Err(EvidenceError::Ras { .. })));
    }

    #[test]
    fn a_process_says_its_rank_and_what_it_sleeps_in() {
        let mut child = Command::new("sleep").arg("60").env("RANK", "7").spawn().unwrap();
        let stack = stack_of(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(stack.rank, Some(7));
        assert!(stack.kernel.unwrap().starts_with("state "));
        assert!(matches!(stack_of(u32::MAX), Err(EvidenceError::Process { .. })));
    }
}
