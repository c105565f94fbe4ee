//! The thread that looks after the processes of a fleet.

use std::collections::VecDeque;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::place::{Leaver, ReplicaPlace};
use super::process::{Ended, ReplicaProcess};
use super::{FleetOptions, FleetState, Shared};
use crate::router::Members;

const LOOK: Duration = Duration::from_millis(20);

pub(super) struct Supervisor {
    members: Members,
    options: FleetOptions,
    command: Box<dyn Fn(u32) -> Command + Send>,
    shared: Shared<FleetState>,
    places: Vec<ReplicaPlace>,
    leavers: Vec<Leaver>,
    /// Places that an update has yet to reach.
    to_update: VecDeque<usize>,
    updates: u64,
    has_been_ready: bool,
}

impl Supervisor {
    pub(super) fn new(
        members: Members,
        options: FleetOptions,
        command: Box<dyn Fn(u32) -> Command + Send>,
        shared: Shared<FleetState>,
    ) -> Self {
        let places = (0..options.replicas).map(|_| ReplicaPlace::new(&options)).collect();
        Self {
            members,
            options,
            command,
            shared,
            places,
            leavers: Vec::new(),
            to_update: VecDeque::new(),
            updates: 0,
            has_been_ready: false,
        }
    }

    pub(super) fn run(&mut self) {
        while !self.shared.lock().ends {
            (0..self.places.len()).for_each(|at| self.look_after(at));
            self.reap();
            self.begin_update();
            self.go_on_with_update();
            self.publish();
            if self.shared.lock().state.failure.is_some() {
                break;
            }
            thread::sleep(LOOK);
        }
        self.end();
    }

    fn look_after(&mut self, at: usize) {
        if let Some(process) = &mut self.places[at].current {
            let looked = process.look(&self.members, &self.options);
            self.has_been_ready |= process.ready_since.is_some();
            match looked {
                Ok(()) => self.places[at].note_recovery(),
                Err(ended) => self.note_death(at, &ended),
            }
        }
        if self.places[at].may_start() {
            if self.places[at].has_died() {
                self.shared.lock().state.restarts += 1;
            }
            match ReplicaProcess::start((self.command)(at as u32)) {
                Ok(process) => self.places[at].current = Some(process),
                Err(error) => {
                    let why = format!("cannot be started: {error}");
                    self.note_death(at, &Ended { why, is_refusal: true });
                }
            }
        }
    }

    fn note_death(&mut self, at: usize, ended: &Ended) {
        let place = &mut self.places[at];
        if let Some(process) = &place.current {
            process.depart(&self.members);
        }
        let delay = place.dies();
        let why = &ended.why;
        if ended.is_refusal && !self.has_been_ready {
            // Another start would end as this one did.
            self.shared.lock().state.failure.get_or_insert_with(|| format!("replica {at} {why}"));
            return;
        }
        warn!(replica = at, "replica {at} {why}; it is started again in {:.1} s", delay.as_secs_f64());
    }

    fn reap(&mut self) {
        let grace = self.options.grace;
        self.leavers.retain_mut(|leaver| leaver.is_here(grace));
    }

    fn begin_update(&mut self) {
        let wished = self.shared.lock().updates;
        if self.to_update.is_empty() && self.leavers.is_empty() && self.updates < wished {
            self.updates += 1;
            self.to_update = (0..self.places.len()).collect();
            info!("replaces the replicas one after the other");
        }
    }

    /// The place that is being updated; the next one follows when the old process of this one has left.
    fn go_on_with_update(&mut self) {
        let Some(at) = self.to_update.front().copied() else { return };
        let place = &mut self.places[at];
        let Some(next) = &mut place.next else {
            if self.leavers.is_empty() {
                match ReplicaProcess::start((self.command)(at as u32)) {
                    Ok(process) => place.next = Some(process),
                    Err(error) => self.give_update_up(at, &format!("cannot be started: {error}")),
                }
            }
            return;
        };
        match next.look(&self.members, &self.options) {
            Err(ended) => self.give_update_up(at, &ended.why),
            Ok(()) if next.ready_since.is_some() => self.change_over(at),
            Ok(()) => {}
        }
    }

    fn change_over(&mut self, at: usize) {
        let place = &mut self.places[at];
        let next = place.next.take();
        if let Some(old) = std::mem::replace(&mut place.current, next) {
            let departure = old.depart(&self.members);
            self.leavers.push(Leaver::new(old, departure, self.options.grace));
        }
        self.to_update.pop_front();
        if self.to_update.is_empty() {
            self.shared.lock().state.updates += 1;
            info!("all replicas have been replaced");
        }
    }

    fn give_update_up(&mut self, at: usize, why: &str) {
        if let Some(next) = self.places[at].next.take() {
            next.depart(&self.members);
        }
        self.to_update.clear();
        self.shared.lock().state.updates += 1;
        warn!(replica = at, "the new replica {at} {why}; the others stay as they are");
    }

    fn publish(&self) {
        let processes = self.places.iter().filter_map(|place| place.current.as_ref()).map(ReplicaProcess::id);
        self.shared.lock().state.processes = processes.collect();
    }

    /// Ends all processes; those that do not end by themselves are killed.
    fn end(&mut self) {
        let mut processes: Vec<ReplicaProcess> = self
            .places
            .iter_mut()
            .flat_map(|place| [place.current.take(), place.next.take()])
            .flatten()
            .collect();
        for process in &processes {
            process.depart(&self.members);
            process.terminate();
        }
        let deadline = Instant::now() + self.options.grace;
        while Instant::now() < deadline && !(processes.is_empty() && self.leavers.is_empty()) {
            processes.retain_mut(|process| !process.has_ended());
            self.reap();
            thread::sleep(LOOK);
        }
        self.leavers.clear();
        drop(processes);
        self.publish();
    }
}
