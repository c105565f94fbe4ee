//! Collectives over several hosts with several ranks each: shared memory inside a host, channels between hosts.
//!
//! Where all hosts have as many members, the member with the same place on every host form a *rail*, and each rail carries its
//! share of the elements. Otherwise the first member of each host speaks for it. Sums are in the order of members on a host,
//! then in the order of hosts.

use crate::arithmetic::{Combine, combine};
use crate::channels::Channels;
use crate::choice::AlgorithmTable;
use crate::engine::CollectiveTask;
use crate::shared::SharedGroup;
use crate::shared::flag::WaitPace;
use crate::span::{ByteSpan, copy};
use crate::{Call, Fault, Operation, Reduction};

/// Below this size one rail is enough.
const WORTH_RAILS: usize = 64 << 10;

pub(crate) struct Layered {
    /// The members of this host; none where this one is alone on it.
    pub(crate) local: Option<SharedGroup>,
    /// To the same place on the other hosts; none on members that do not speak for their host.
    pub(crate) rail: Option<Channels>,
    /// The members of each host.
    pub(crate) hosts: Vec<Vec<usize>>,
    pub(crate) my_host: usize,
    pub(crate) my_place: usize,
    pub(crate) table: AlgorithmTable,
    scratch: [Vec<u64>; 2],
}

impl Layered {
    pub(crate) fn new(
        local: Option<SharedGroup>,
        rail: Option<Channels>,
        hosts: Vec<Vec<usize>>,
        (my_host, my_place): (usize, usize),
        table: AlgorithmTable,
    ) -> Self {
        Self { local, rail, hosts, my_host, my_place, table, scratch: Default::default() }
    }

    pub(crate) fn set_pace(&mut self, pace: WaitPace) {
        self.local.iter_mut().for_each(|local| local.set_pace(pace));
        self.rail.iter_mut().for_each(|rail| rail.set_pace(pace));
    }

    /// Whether all hosts have as many members, so that there is a rail for every place.
    pub(crate) fn is_even(hosts: &[Vec<usize>]) -> bool {
        hosts.windows(2).all(|pair| pair[0].len() == pair[1].len())
    }

    /// Whether a call is better carried out this way than by channels between all members.
    pub(crate) fn takes(&self, call: &Call) -> bool {
        match call.operation {
            // Its partial sums may not fit.
            _ if call.is_narrow_average() => false,
            Operation::AllReduce | Operation::Broadcast | Operation::Reduce | Operation::Barrier => true,
            Operation::AllGather | Operation::ReduceScatter => Self::is_even(&self.hosts),
            _ => false,
        }
    }

    pub(crate) fn run(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, .. } = *task;
        // Averages are sums until the last step.
        let by = if call.by == Reduction::Average { Reduction::Sum } else { call.by };
        let summed = Call { by, ..*call };
        match call.operation {
            Operation::AllReduce => self.all_reduce(&task.step(&summed, source, target))?,
            Operation::ReduceScatter => self.reduce_scatter(&task.step(&summed, source, target))?,
            Operation::Reduce => self.reduce(&task.step(&summed, source, target))?,
            Operation::AllGather => self.all_gather(task)?,
            Operation::Broadcast => self.broadcast(task)?,
            Operation::Barrier => {
                self.on_host(&task.step(call, ByteSpan::NOTHING, ByteSpan::NOTHING))?;
                self.on_rail(&task.step(call, ByteSpan::NOTHING, ByteSpan::NOTHING))?;
                self.on_host(&task.step(call, ByteSpan::NOTHING, ByteSpan::NOTHING))?;
            }
            operation => unreachable!("{operation} is not layered"),
        }
        if call.by == Reduction::Average && call.operation.reduces() {
            self.divide(call, target);
        }
        Ok(())
    }

    fn all_reduce(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, .. } = *task;
        let places = self.hosts[self.my_host].len();
        let (len, size) = (call.len as usize, call.format.size());
        if !Self::is_even(&self.hosts) || places == 1 || call.part_bytes() < WORTH_RAILS {
            return self.all_reduce_by_first(task);
        }
        let each = len / places;
        let shared = each * places;
        let part = |span: ByteSpan, first: usize, count: usize| span.part(first * size, count * size);
        let mine = part(target, self.my_place * each, each);
        let of_part = |operation| Call { operation, len: each as u64, ..*call };
        self.on_host(&task.step(&of_part(Operation::ReduceScatter), part(source, 0, shared), mine))?;
        self.on_rail(&task.step(&of_part(Operation::AllReduce), mine, mine))?;
        self.on_host(&task.step(&of_part(Operation::AllGather), mine, part(target, 0, shared)))?;
        if shared == len {
            return Ok(());
        }
        let rest = Call { len: (len - shared) as u64, ..*call };
        let (source, target) = (part(source, shared, len - shared), part(target, shared, len - shared));
        self.all_reduce_by_first(&task.step(&rest, source, target))
    }

    /// The first member of each host sums for it.
    fn all_reduce_by_first(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, .. } = *task;
        let to_first = Call { operation: Operation::Reduce, root: 0, ..*call };
        self.on_host(&task.step(&to_first, source, target))?;
        if self.my_place == 0 {
            self.on_rail(&task.step(call, target, target))?;
        }
        let from_first = Call { operation: Operation::Broadcast, root: 0, ..*call };
        self.on_host(&task.step(&from_first, target, target))
    }

    fn broadcast(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, .. } = *task;
        let (host, place) = self.find(call.root as usize);
        let is_root = (host, place) == (self.my_host, self.my_place);
        let elements = if is_root { source } else { target };
        let on_host = Call { root: place as u32, ..*call };
        if Self::is_even(&self.hosts) {
            let on_rail = Call { root: host as u32, ..*call };
            if self.my_place == place {
                self.on_rail(&task.step(&on_rail, elements, target))?;
            }
            return self.on_host(&task.step(&on_host, elements, target));
        }
        if self.my_host == host {
            self.on_host(&task.step(&on_host, elements, target))?;
        }
        if self.my_place == 0 {
            self.on_rail(&task.step(&Call { root: host as u32, ..*call }, elements, target))?;
        }
        if self.my_host == host {
            Ok(())
        } else {
            self.on_host(&task.step(&Call { root: 0, ..*call }, target, target))
        }
    }

    fn reduce(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, .. } = *task;
        let (host, place) = self.find(call.root as usize);
        let is_even = Self::is_even(&self.hosts);
        let speaker = if is_even { place } else { 0 };
        let sum = self.room(0, call.part_bytes());
        self.on_host(&task.step(&Call { root: speaker as u32, ..*call }, source, sum))?;
        let is_root = (host, place) == (self.my_host, self.my_place);
        let result = if is_root { target } else { self.room(1, call.part_bytes()) };
        if self.my_place == speaker {
            self.on_rail(&task.step(&Call { root: host as u32, ..*call }, sum, result))?;
        }
        if is_even || self.my_host != host || place == 0 {
            return Ok(());
        }
        // From the member that speaks for the host to the one that wants it.
        let from_first = Call { operation: Operation::Broadcast, root: 0, ..*call };
        self.on_host(&task.step(&from_first, result, result))
    }

    /// Each rail gathers its members' parts, then the host gathers the rails'.
    fn all_gather(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, .. } = *task;
        let (hosts, places, bytes) = (self.hosts.len(), self.hosts[0].len(), call.part_bytes());
        let of_rail = self.room(0, hosts * bytes);
        let of_all = self.room(1, hosts * places * bytes);
        self.on_rail(&task.step(call, source, of_rail))?;
        let wider = Call { len: call.len * hosts as u64, ..*call };
        self.on_host(&task.step(&wider, of_rail, of_all))?;
        self.each_part(|member, at| put(of_all.part(at * bytes, bytes), target.part(member * bytes, bytes)));
        Ok(())
    }

    /// The host sums what belongs to each rail, then the rails do.
    fn reduce_scatter(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, .. } = *task;
        let (hosts, places, bytes) = (self.hosts.len(), self.hosts[0].len(), call.part_bytes());
        let of_rail = self.room(0, hosts * bytes);
        let of_all = self.room(1, hosts * places * bytes);
        self.each_part(|member, at| put(source.part(member * bytes, bytes), of_all.part(at * bytes, bytes)));
        let wider = Call { len: call.len * hosts as u64, ..*call };
        self.on_host(&task.step(&wider, of_all, of_rail))?;
        self.on_rail(&task.step(call, of_rail, target))
    }

    /// Each member's place in an order by place on the host, then by host.
    fn each_part(&self, put: impl Fn(usize, usize)) {
        for (host, members) in self.hosts.iter().enumerate() {
            for (place, member) in members.iter().enumerate() {
                put(*member, place * self.hosts.len() + host);
            }
        }
    }

    fn find(&self, member: usize) -> (usize, usize) {
        let place = |members: &Vec<usize>| members.iter().position(|each| *each == member);
        let found = self.hosts.iter().enumerate().find_map(|(host, members)| Some((host, place(members)?)));
        found.expect("every member is on a host")
    }

    fn on_host(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { source, target, .. } = *task;
        match &mut self.local {
            Some(local) => local.run(task),
            None => {
                alone(source, target);
                Ok(())
            }
        }
    }

    fn on_rail(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let call = task.call;
        let Some(rail) = &mut self.rail else { return Ok(()) };
        let bytes = call.part_bytes() as u64;
        let algorithm = self.table.choose(call.operation, bytes, rail.members() as u32);
        rail.run(task, algorithm)
    }

    fn room(&mut self, which: usize, bytes: usize) -> ByteSpan {
        let words = bytes.div_ceil(size_of::<u64>());
        if self.scratch[which].len() < words {
            self.scratch[which].resize(words, 0);
        }
        ByteSpan { address: self.scratch[which].as_mut_ptr().cast(), bytes, is_on_gpu: false }
    }

    #[expect(unsafe_code, reason = "works on addresses")]
    fn divide(&self, call: &Call, target: ByteSpan) {
        let members = self.hosts.iter().map(Vec::len).sum::<usize>();
        let how = Combine { format: call.format, by: call.by, divide_by: members as u32 };
        let elements = target.bytes / call.format.size();
        // SAFETY: the target is alive while the call lasts and belongs to this member; a member that gets nothing has none.
        unsafe { combine(how, &[target.address.cast_const()], &[target.address], elements) };
    }
}

fn put(source: ByteSpan, target: ByteSpan) {
    assert_eq!(source.bytes, target.bytes, "spans of one size");
    #[expect(unsafe_code, reason = "works on addresses")]
    // SAFETY: both are alive while the call lasts, belong to this member, and are the same or apart.
    unsafe {
        copy(source.address, target.address, target.bytes);
    }
}

/// What any collective of one member is: its source is its target.
pub(crate) fn alone(source: ByteSpan, target: ByteSpan) {
    if source.bytes > 0 && target.bytes == source.bytes {
        put(source, target);
    }
}
