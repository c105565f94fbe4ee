//! The thread of a rank that hears its peers: it notices who is gone or silent, and receives what they share.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

use crate::core::{Core, SegmentSent};
use crate::links::{LinkState, Received};
use crate::shared::mapping::Mapping;
use crate::watch::OwnTime;
use crate::wire::{Message, Purpose, Refusal, Reply, write_frame};
use crate::{Call, Fault};

/// A call that lasts this long is worth a flight record.
const STALL: Duration = Duration::from_secs(15);

struct Monitor<'a> {
    core: &'a Arc<Core>,
    time: OwnTime,
    /// How long each rank has been silent while this one ran.
    silent: Vec<Duration>,
    since_sign: Duration,
    since_record: Duration,
    has_recorded_fault: bool,
    /// Writes a flight record: signs of life must not wait for a disk.
    writer: Option<JoinHandle<()>>,
}

pub(crate) fn watch_over(core: &Arc<Core>) {
    let silent = vec![Duration::ZERO; core.links.len()];
    let time = OwnTime::start();
    let (since_sign, since_record) = (Duration::ZERO, Duration::ZERO);
    let (has_recorded_fault, writer) = (false, None);
    let mut monitor = Monitor { core, time, silent, since_sign, since_record, has_recorded_fault, writer };
    while !core.is_closing.load(Ordering::Acquire) {
        monitor.look();
    }
    monitor.record();
}

impl Monitor<'_> {
    fn look(&mut self) {
        let tick =
            (self.core.options.deadline / 20).clamp(Duration::from_millis(10), Duration::from_millis(250));
        let speaking = self.wait(tick);
        for rank in speaking {
            self.silent[rank] = Duration::ZERO;
            self.hear(rank);
        }
        let passed = self.time.look(tick);
        self.give_sign(passed);
        self.count_silence(passed);
        self.refuse_latecomers();
        self.record_when_due(passed);
    }

    /// The ranks that say something, or whose link has ended.
    fn wait(&self, tick: Duration) -> Vec<usize> {
        let links = self.core.links.iter().enumerate();
        let alive: Vec<(usize, _)> = links
            .filter_map(|(rank, link)| Some((rank, link.as_ref()?)))
            .filter(|(_, link)| link.state() == LinkState::Alive)
            .collect();
        let mut watched: Vec<PollFd<'_>> =
            alive.iter().map(|(_, link)| PollFd::new(link.descriptor(), PollFlags::POLLIN)).collect();
        watched.push(PollFd::new(self.core.wake.as_fd(), PollFlags::POLLIN));
        if poll(&mut watched, PollTimeout::try_from(tick).expect("a short time")).is_err() {
            return Vec::new();
        }
        let ready = alive.iter().zip(&watched);
        ready.filter(|(_, watched)| watched.any().unwrap_or(true)).map(|((rank, _), _)| *rank).collect()
    }

    fn hear(&mut self, rank: usize) {
        let Some(link) = &self.core.links[rank] else { return };
        // A bounded number at once, so that one rank cannot keep the others from being heard.
        for _ in 0..64 {
            match link.receive() {
                Ok(None) => return,
                Ok(Some(received)) => self.take(rank as u32, received),
                Err(error) => return self.lose(rank as u32, &error),
            }
            if link.state() != LinkState::Alive {
                return;
            }
        }
    }

    fn take(&self, rank: u32, (message, descriptor): Received) {
        match (message, descriptor) {
            (Message::Fault(fault), _) => self.take_fault(rank, fault),
            (Message::Leave, _) => self.core.note_left(rank),
            (Message::Waits { group, number, call }, _) => self.answer(rank, &group, number, call),
            (Message::Forget { id }, _) => self.core.windows.remove_theirs(rank, id),
            (Message::Window { id, bytes }, Some(descriptor)) => {
                match Mapping::map(descriptor, bytes as usize) {
                    Ok(mapping) => self.core.windows.add_theirs(rank, id, mapping),
                    Err(error) => {
                        let reason = format!("it cannot map memory of rank {rank}: {error}");
                        self.core.fail(Fault::Revoked { rank: self.core.rank, reason });
                    }
                }
            }
            (Message::Segment { group, members }, Some(descriptor)) => {
                let mut segments = self.core.segments.lock().expect("no holder of this lock panics");
                segments.push(SegmentSent { group, members, descriptor });
                self.core.segment_came.notify_all();
            }
            (Message::Window { .. } | Message::Segment { .. }, None) => {
                let reason = format!(
                    "it could not take memory that rank {rank} shares: it has too many open files or mappings"
                );
                self.core.fail(Fault::Revoked { rank: self.core.rank, reason });
            }
            (Message::Alive, _) => {}
        }
    }

    /// A rank waits in a call: this one may have made another under the same number.
    fn answer(&self, rank: u32, group: &str, number: u64, theirs: Call) {
        let Some((group, mine)) = self.core.recorder.find(group, number) else { return };
        if mine != theirs {
            let (a_rank, b_rank) = (self.core.rank, rank);
            self.core.fail(Fault::Mismatch {
                group,
                number,
                a_rank,
                a: mine,
                b_rank,
                b_number: number,
                b: theirs,
            });
        }
    }

    /// A rank that is told of its own loss has lost the one that tells it. Only the first fault says who is gone: where two
    /// ranks have lost each other, each blames the other, and who hears both must not give up both.
    fn take_fault(&self, from: u32, fault: Fault) {
        let fault = match fault.lost_rank() {
            Some(lost) if lost == self.core.rank => {
                Fault::Lost { rank: from, why: format!("it has lost contact with this rank, {lost}") }
            }
            _ => fault,
        };
        let lost = fault.lost_rank().and_then(|lost| self.core.links.get(lost as usize)?.as_ref());
        // Before the fault is known: who learns of it asks who is left.
        if let (Some(link), Ok(())) = (lost, self.core.watch.check()) {
            link.set_state(LinkState::Gone);
        }
        self.core.watch.raise(fault);
    }

    fn lose(&self, rank: u32, error: &std::io::Error) {
        if let Some(link) = &self.core.links[rank as usize] {
            link.set_state(LinkState::Gone);
        }
        let who = &self.core.members[rank as usize].who;
        let why = match error.kind() {
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => {
                format!("its process ended or its connection was cut ({who})")
            }
            _ => format!("{error} ({who})"),
        };
        self.core.fail(Fault::Lost { rank, why });
    }

    fn give_sign(&mut self, passed: Duration) {
        self.since_sign += passed;
        if self.since_sign < self.core.options.deadline / 10 {
            return;
        }
        self.since_sign = Duration::ZERO;
        for link in self.core.links.iter().flatten().filter(|link| link.state() == LinkState::Alive) {
            link.send_sign();
        }
    }

    fn count_silence(&mut self, passed: Duration) {
        let deadline = self.core.options.deadline;
        for (rank, link) in self.core.links.iter().enumerate() {
            let Some(link) = link.as_ref().filter(|link| link.state() == LinkState::Alive) else { continue };
            self.silent[rank] += passed;
            if self.silent[rank] > deadline {
                link.set_state(LinkState::Gone);
                self.core.fail(Fault::Silent { rank: rank as u32, seconds: self.silent[rank].as_secs() });
            }
        }
    }

    /// A rank that was given up and comes back finds that the others have gone on.
    fn refuse_latecomers(&self) {
        let is_late = |purpose: &Purpose| matches!(purpose, Purpose::Arrive(arrival) if arrival.epoch <= self.core.epoch);
        while let Some(mut visitor) = self.core.listener.fetch(is_late, Duration::ZERO) {
            let why = format!("epoch {} has begun", self.core.epoch);
            let _ = write_frame(&mut visitor.stream, &Reply::Refused(Refusal::LeftOut { why }));
        }
    }

    fn record_when_due(&mut self, passed: Duration) {
        self.since_record += passed;
        let is_stalled = self.since_record >= STALL
            && Duration::from_micros(self.core.recorder.longest_open_us()) >= STALL;
        let has_fault = self.core.watch.check().is_err() && !self.has_recorded_fault;
        let is_writing = self.writer.as_ref().is_some_and(|writer| !writer.is_finished());
        if (is_stalled || has_fault) && !is_writing {
            self.has_recorded_fault |= has_fault;
            self.since_record = Duration::ZERO;
            let core = Arc::clone(self.core);
            let writer = thread::Builder::new().name("comm-flight".into());
            self.writer = writer.spawn(move || core.write_flight()).ok();
        }
    }

    /// A world that ends after a fault leaves its record.
    fn record(self) {
        if let Some(writer) = self.writer {
            let _ = writer.join();
        }
        if self.core.watch.check().is_err() && !self.has_recorded_fault {
            self.core.write_flight();
        }
    }
}
