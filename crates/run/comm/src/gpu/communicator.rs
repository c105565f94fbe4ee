//! A communicator of NCCL: made, used and given up without ever waiting inside the library.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_kernels::{CudaError, Transfers};

use super::library::{CUDA_FAILED, Config, DONE, Nccl, UNDER_WAY, UniqueId, format, reduction};
use super::{trouble, wait};
use crate::engine::CallRequest;
use crate::span::ByteSpan;
use crate::waiting::Waiting;
use crate::{Call, Fault, Operation};

pub(super) struct Communicator {
    nccl: &'static Nccl,
    /// 0 once it has been given up.
    handle: usize,
    me: usize,
    members: usize,
    transfers: Arc<Transfers>,
}

const NAP: Duration = Duration::from_millis(1);
/// How long the library has to let go of a communicator; its own end may wait for a peer that is gone.
const FAREWELL: Duration = Duration::from_secs(5);

impl Communicator {
    /// Meets the other members.
    pub(super) fn join(
        (nccl, id): (&'static Nccl, UniqueId),
        (me, members): (usize, usize),
        transfers: &Arc<Transfers>,
        waiting: &Waiting<'_>,
    ) -> Result<Self, Fault> {
        // Communicators belong to the GPU that is current.
        transfers.stream();
        let mut made = Self { nccl, handle: 0, me, members, transfers: Arc::clone(transfers) };
        let config = &mut Config::not_blocking();
        let answer = nccl.functions.init(&mut made.handle, members as i32, id, me as i32, config);
        made.settle(answer, waiting)?;
        Ok(made)
    }

    /// The members that name the same colour meet anew, with what this communicator knows of them. A member without a colour takes part and gets none.
    pub(super) fn split(
        &self,
        colour: Option<u32>,
        (me, members): (usize, usize),
        transfers: &Arc<Transfers>,
        waiting: &Waiting<'_>,
    ) -> Result<Option<Self>, Fault> {
        /// NCCL's colour for members that are in no part.
        const NO_COLOUR: i32 = -1;
        transfers.stream();
        let mut part = Self { nccl: self.nccl, handle: 0, me, members, transfers: Arc::clone(transfers) };
        let colour_of = colour.map_or(NO_COLOUR, |colour| colour as i32);
        let config = &mut Config::not_blocking();
        // NCCL's thread writes the handle when the split is over, also where nobody waits for it any more.
        let mut made = Box::new(0);
        let answer = self.nccl.functions.split(self.handle, colour_of, me as i32, &mut made, config);
        if let Err(fault) = self.settle(answer, waiting) {
            Box::leak(made);
            return Err(fault);
        }
        part.handle = *made;
        if colour.is_none() {
            return Ok(None);
        }
        part.settle(DONE, waiting)?;
        Ok(Some(part))
    }

    /// Carries a call out and waits until this member may use its buffers again.
    pub(super) fn run(&mut self, request: &CallRequest, waiting: &Waiting<'_>) -> Result<(), Fault> {
        let outcome = self.start(request, waiting).and_then(|()| self.finish(waiting));
        if outcome.is_err() {
            self.give_up();
        }
        outcome
    }

    fn start(&self, request: &CallRequest, waiting: &Waiting<'_>) -> Result<(), Fault> {
        let answer = match request {
            CallRequest::Collective { call, source, target } => self.collective(call, *source, *target),
            CallRequest::Unequal { call, source, sent, target, received } => {
                let size = call.format.size();
                let parts = |span: ByteSpan, counts: &[usize]| -> Vec<(usize, ByteSpan)> {
                    let ends = counts.iter().scan(0, |end, count| {
                        *end += count * size;
                        Some(*end)
                    });
                    let spans =
                        ends.zip(counts).map(|(end, count)| span.part(end - count * size, count * size));
                    spans.enumerate().collect()
                };
                self.exchange(call, &parts(*source, sent), &parts(*target, received))
            }
            CallRequest::Between { call, to, from } => {
                let list = |span: &Option<(usize, ByteSpan)>| span.iter().copied().collect::<Vec<_>>();
                self.exchange(call, &list(to), &list(from))
            }
        };
        self.settle(answer, waiting)
    }

    fn collective(&self, call: &Call, source: ByteSpan, target: ByteSpan) -> i32 {
        let (functions, stream) = (&self.nccl.functions, self.transfers.stream());
        let (from, to, count) =
            (source.address.addr() as u64, target.address.addr() as u64, call.len as usize);
        let (format, by, root) = (format(call.format), reduction(call.by), call.root as i32);
        let part = |span: ByteSpan, member: usize| {
            (member, span.part(member * call.part_bytes(), call.part_bytes()))
        };
        let parts = |span: ByteSpan| (0..self.members).map(|member| part(span, member)).collect::<Vec<_>>();
        let is_root = self.me == call.root as usize;
        match call.operation {
            Operation::AllReduce => functions.all_reduce(from, to, count, format, by, self.handle, stream),
            Operation::AllGather => functions.all_gather(from, to, count, format, self.handle, stream),
            Operation::ReduceScatter => {
                functions.reduce_scatter(from, to, count, format, by, self.handle, stream)
            }
            Operation::Broadcast => functions.broadcast(from, to, count, format, root, self.handle, stream),
            Operation::Reduce => functions.reduce(from, to, count, format, by, root, self.handle, stream),
            Operation::AllToAll => self.exchange(call, &parts(source), &parts(target)),
            Operation::Gather => {
                let from_all = if is_root { parts(target) } else { Vec::new() };
                self.exchange(call, &[(call.root as usize, source)], &from_all)
            }
            Operation::Scatter => {
                let to_all = if is_root { parts(source) } else { Vec::new() };
                self.exchange(call, &to_all, &[(call.root as usize, target)])
            }
            Operation::AllToAllV
            | Operation::Barrier
            | Operation::Send
            | Operation::Receive
            | Operation::Exchange => unreachable!("{call} is no equal collective of a GPU's elements"),
        }
    }

    /// Sends and receives at once; a member may be its own peer.
    fn exchange(&self, call: &Call, to: &[(usize, ByteSpan)], from: &[(usize, ByteSpan)]) -> i32 {
        let (functions, stream) = (&self.nccl.functions, self.transfers.stream());
        let (size, format) = (call.format.size(), format(call.format));
        let mut answers = vec![functions.group_start()];
        answers.extend(to.iter().filter(|(_, span)| span.bytes > 0).map(|(peer, span)| {
            let (address, count) = (span.address.addr() as u64, span.bytes / size);
            functions.send(address, count, format, *peer as i32, self.handle, stream)
        }));
        answers.extend(from.iter().filter(|(_, span)| span.bytes > 0).map(|(peer, span)| {
            let (address, count) = (span.address.addr() as u64, span.bytes / size);
            functions.receive(address, count, format, *peer as i32, self.handle, stream)
        }));
        answers.push(functions.group_end());
        let is_failure = |answer: &i32| *answer != DONE && *answer != UNDER_WAY;
        let failed = answers.iter().copied().find(is_failure);
        failed.unwrap_or(UNDER_WAY)
    }

    /// Waits until NCCL has taken what it was asked for.
    fn settle(&self, answer: i32, waiting: &Waiting<'_>) -> Result<(), Fault> {
        if answer != DONE && answer != UNDER_WAY {
            return Err(trouble(&self.explain(answer), &self.transfers, waiting));
        }
        wait(&self.transfers, waiting, || self.state())
    }

    /// Waits until the GPU has done it. A peer that fails meanwhile makes NCCL's state an error.
    fn finish(&self, waiting: &Waiting<'_>) -> Result<(), Fault> {
        let refused = |error: CudaError| trouble(&error.to_string(), &self.transfers, waiting);
        let done = self.transfers.transfers().map_err(refused)?;
        wait(&self.transfers, waiting, || {
            self.state()?;
            done.has_passed().map_err(|error| error.to_string())
        })
    }

    /// Whether NCCL has done what it was asked for; an error is its own or another rank's.
    fn state(&self) -> Result<bool, String> {
        let mut state = DONE;
        let answer = self.nccl.functions.state(self.handle, &mut state);
        match (answer, state) {
            (DONE, DONE) => Ok(true),
            (DONE, UNDER_WAY) => Ok(false),
            (DONE, failed) | (failed, _) => Err(self.explain(failed)),
        }
    }

    /// What an answer means. A call of CUDA that failed inside NCCL is the GPU's error.
    fn explain(&self, answer: i32) -> String {
        let why = self.nccl.explain(answer);
        match answer {
            CUDA_FAILED => self.transfers.fail("exchange elements with other GPUs", why).to_string(),
            _ => why,
        }
    }

    /// Lets go of it once everything has gone where it was sent.
    pub(super) fn end(mut self) {
        let (handle, nccl) = (std::mem::take(&mut self.handle), self.nccl);
        let transfers = Arc::clone(&self.transfers);
        in_time("comm-end", move || {
            transfers.stream();
            let mut state = nccl.functions.finalize(handle);
            let began = Instant::now();
            while state == UNDER_WAY && began.elapsed() < FAREWELL {
                thread::sleep(NAP);
                nccl.functions.state(handle, &mut state);
            }
            match state {
                DONE => nccl.functions.destroy(handle),
                _ => nccl.functions.abort(handle),
            };
        });
    }

    /// Ends what is under way. Kernels that wait for a peer end too, so the stream can be used again.
    fn give_up(&mut self) {
        let (handle, nccl) = (std::mem::take(&mut self.handle), self.nccl);
        if handle == 0 {
            return;
        }
        let transfers = Arc::clone(&self.transfers);
        in_time("comm-abort", move || {
            transfers.stream();
            nccl.functions.abort(handle);
        });
        let ended = self.transfers.transfers();
        let began = Instant::now();
        while began.elapsed() < FAREWELL
            && ended.as_ref().is_ok_and(|ended| matches!(ended.has_passed(), Ok(false)))
        {
            thread::sleep(NAP);
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Lets the library end something, but does not wait for ever: it may wait for a peer that is gone.
fn in_time(name: &str, work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let worker = thread::Builder::new().name(name.to_owned()).spawn(move || {
        work();
        let _ = done.send(());
    });
    if worker.is_ok() {
        let _ = is_done.recv_timeout(FAREWELL * 2);
    }
}
