//! Ranks as processes of their own: this test program, started again for one of its tests.

use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use bedplate_comm::{Rendezvous, Transport, World, WorldOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::{SECRET, free_port, options};

/// A rank, and what it prints.
pub(crate) struct RankProcess {
    rank: u32,
    child: Child,
    orders: ChildStdin,
    lines: BufReader<PipeReader>,
    /// What it has printed so far: also what is not for the test, such as why it panics.
    printed: String,
}

impl RankProcess {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("the rank has not been waited for");
    }

    /// The next line that the rank says to the test.
    pub(crate) fn line(&mut self) -> String {
        loop {
            let mut line = Vec::new();
            let length = self.lines.read_until(b'\n', &mut line).expect("a pipe can be read");
            assert!(length > 0, "rank {} ended with nothing more to say:\n{}", self.rank, self.printed);
            let line = String::from_utf8_lossy(&line);
            self.printed += &line;
            // The test program prints lines of its own, and may leave one open.
            if let Some((_, said)) = line.split_once("RANK ") {
                return said.trim_end().to_owned();
            }
        }
    }

    pub(crate) fn expect_line(&mut self, expected: &str) {
        let said = self.line();
        assert_eq!(said, expected, "of rank {}, which printed:\n{}", self.rank, self.printed);
    }

    /// Lets a rank that [awaits its turn](await_turn) go on.
    pub(crate) fn give_turn(&mut self) {
        self.orders.write_all(b"go on\n").expect("the rank lives");
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How ranks are started.
pub(crate) struct Launch {
    /// The test that each runs.
    pub(crate) test: &'static str,
    pub(crate) world: u32,
    pub(crate) transport: Transport,
    pub(crate) deadline: Duration,
    /// Where rank 0 listens.
    pub(crate) address: String,
    pub(crate) port: u16,
    /// What is put in front of a rank's command.
    pub(crate) prefix: fn(u32) -> Vec<String>,
    pub(crate) flight: Option<PathBuf>,
}

impl Launch {
    pub(crate) fn new(test: &'static str, world: u32, transport: Transport, deadline: Duration) -> Self {
        let (address, port) = ("127.0.0.1".to_owned(), free_port());
        Self { test, world, transport, deadline, address, port, prefix: |_| Vec::new(), flight: None }
    }

    pub(crate) fn start(&self) -> Vec<RankProcess> {
        (0..self.world).map(|rank| self.start_rank(rank)).collect()
    }

    fn start_rank(&self, rank: u32) -> RankProcess {
        let transport = match self.transport {
            Transport::Automatic => "0".to_owned(),
            Transport::Tcp => "1".to_owned(),
            Transport::Hosts(ranks) => format!("{}", ranks + 1),
        };
        let program = std::env::current_exe().expect("the test has a program").display().to_string();
        let words =
            [program.as_str(), "--exact", self.test, "--nocapture", "--test-threads=1"].map(str::to_owned);
        let words: Vec<String> = (self.prefix)(rank).into_iter().chain(words).collect();
        let mut command = Command::new(&words[0]);
        let (world, port, deadline) = (self.world, self.port, self.deadline.as_millis());
        command.args(&words[1..]).env("COMM_RANK", format!("{rank} {world} {port} {transport} {deadline}"));
        command.env("COMM_ADDRESS", &self.address);
        if let Some(folder) = &self.flight {
            command.env("BEDPLATE_FLIGHT", folder);
        }
        let (lines, printing) = io::pipe().expect("the test may open files");
        let errors = printing.try_clone().expect("the test may open files");
        command.stdin(Stdio::piped()).stdout(printing).stderr(errors);
        let mut child = command.spawn().expect("a rank starts");
        let orders = child.stdin.take().expect("its input is a pipe");
        RankProcess { rank, child, orders, lines: BufReader::new(lines), printed: String::new() }
    }
}

/// Starts all ranks of a world on this machine.
pub(crate) fn start(
    test: &'static str,
    world: u32,
    transport: Transport,
    deadline: Duration,
) -> Vec<RankProcess> {
    Launch::new(test, world, transport, deadline).start()
}

/// In a process that [`start`] started: its world.
pub(crate) fn world() -> Option<World> {
    let place = std::env::var("COMM_RANK").ok()?;
    let elements: Vec<u64> = place.split(' ').map(|number| number.parse().expect("a number")).collect();
    let transport = match elements[3] {
        0 => Transport::Automatic,
        1 => Transport::Tcp,
        ranks => Transport::Hosts(ranks as u32 - 1),
    };
    let flight = std::env::var_os("BEDPLATE_FLIGHT").map(PathBuf::from);
    let options = WorldOptions { deadline: Duration::from_millis(elements[4]), flight, ..options(transport) };
    let (rank, size, port) = (elements[0] as u32, elements[1] as u32, elements[2] as u16);
    let address = std::env::var("COMM_ADDRESS").expect("the rank is told where to meet");
    let rendezvous = Rendezvous { address, ..Rendezvous::on_this_machine(rank, size, port, SECRET) };
    Some(World::join(&rendezvous, &options).expect("all ranks join"))
}

/// Says something to the test.
pub(crate) fn say(what: &str) {
    // On a line of its own, whatever the test program has printed, and in one piece: errors go to the same pipe.
    let line = format!("\nRANK {what}\n");
    print!("{line}");
}

/// Waits until the test lets this rank go on.
pub(crate) fn await_turn() {
    let length = io::stdin().read_line(&mut String::new()).expect("a pipe can be read");
    assert!(length > 0, "the test is over");
}
