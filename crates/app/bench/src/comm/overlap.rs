//! `bedplate bench comm --overlap`: what an asynchronous all-reduce costs a rank that computes meanwhile.
//!
//! Over a network the call should hide behind the computation; in shared memory it needs the same cores, so the whole should take
//! as long as both parts keep the cores busy.

use std::fmt::Write;
use std::time::{Duration, Instant};

use bedplate_comm::{CommError, Group, Reduction, Registered, World};
use bedplate_kernels::{Buffer, Device, DeviceChoice};
use bedplate_local::{Machine, machine};
use bedplate_terminal::{CliError, Console};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

use super::link::{Link, LinkError};
use super::peers::{Ours, Transport};
use super::question::size_text;
use super::rank_set::{RankSet, RankSetError};
use super::targets::{Bound, Target};

/// Rows, outputs and inputs of the product that keeps a rank busy.
const SIDE: usize = 384;
/// How much longer than the call the computation lasts, so that all of it can hide.
const LONGER: f64 = 1.25;

/// What one rank found, or all of them together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Part {
    /// Seconds on the clock.
    wall: f64,
    /// Seconds of all cores.
    cpu: f64,
}

impl Part {
    const LONG: Part = Part { wall: f64::INFINITY, cpu: 0.0 };

    /// What disturbed the others disturbed the shortest one least.
    fn or_shorter(self, other: Self) -> Self {
        if other.wall < self.wall { other } else { self }
    }
}

/// The call alone, the computation alone, and both at once.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Overlap {
    call: Part,
    computation: Part,
    both: Part,
}

impl Overlap {
    /// The share of the call's time that the computation hides.
    fn hidden(&self) -> f64 {
        (self.call.wall + self.computation.wall - self.both.wall) / self.call.wall
    }

    /// The whole to what both parts alone would keep the cores busy with.
    fn to_busy(self, cores: u32) -> f64 {
        self.both.wall / ((self.call.cpu + self.computation.cpu) / f64::from(cores))
    }
}

/// On a rank: measures rounds of each part in turns, and answers with the shortest of each.
pub(super) fn measure(world: &World, group: &Group, bytes: u64, rounds: u32) -> Result<String, CommError> {
    let device = Device::cpu(1);
    let mut numbers = world.shared::<f32>(&device, bytes as usize / 4)?;
    device.fill(numbers.view_mut(), 0.0);
    let mut load = Load::new(&device);
    group.all_reduce(&device, numbers.view_mut(), Reduction::Sum)?;
    let mut call = alone(group, &device, &mut numbers)?;
    load.last_for(group, LONGER * call.wall)?;
    let (mut computation, mut both) = (Part::LONG, Part::LONG);
    for _ in 0..rounds.max(1) {
        call = call.or_shorter(alone(group, &device, &mut numbers)?);
        group.barrier()?;
        let began = Moment::now();
        load.compute();
        computation = computation.or_shorter(began.part());
        let part;
        (numbers, part) = at_once(group, &device, numbers, &mut load)?;
        both = both.or_shorter(part);
    }
    let mut answer = "ok".to_owned();
    for Part { wall, cpu } in [call, computation, both] {
        let _ = write!(answer, " {wall} {cpu}");
    }
    Ok(answer)
}

fn alone(group: &Group, device: &Device, numbers: &mut Registered<f32>) -> Result<Part, CommError> {
    group.barrier()?;
    let began = Moment::now();
    group.all_reduce(device, numbers.view_mut(), Reduction::Sum)?;
    Ok(began.part())
}

fn at_once(
    group: &Group,
    device: &Device,
    numbers: Registered<f32>,
    load: &mut Load<'_>,
) -> Result<(Registered<f32>, Part), CommError> {
    group.barrier()?;
    let began = Moment::now();
    let pending = group.start_all_reduce(device, numbers, Reduction::Sum)?;
    load.compute();
    let (numbers, outcome) = pending.wait();
    outcome?;
    Ok((numbers, began.part()))
}

/// Products, one after the other.
struct Load<'a> {
    device: &'a Device,
    x: Buffer<f32>,
    weight: Buffer<f32>,
    out: Buffer<f32>,
    products: u64,
}

impl<'a> Load<'a> {
    fn new(device: &'a Device) -> Self {
        let [mut x, mut weight, out] = [(); 3].map(|()| device.zeros::<f32>(SIDE * SIDE));
        device.fill(x.view_mut(), 0.5);
        device.fill(weight.view_mut(), 0.25);
        Self { device, x, weight, out, products: 20 }
    }

    fn compute(&mut self) {
        for _ in 0..self.products {
            let (x, out) = (self.x.view().matrix(SIDE, SIDE), self.out.view_mut().matrix(SIDE, SIDE));
            self.device.linear(x, self.weight.view(), None, None, out);
        }
    }

    /// As many products as last that long while all ranks compute; the same number on all.
    fn last_for(&mut self, group: &Group, seconds: f64) -> Result<(), CommError> {
        self.compute();
        group.barrier()?;
        let began = Instant::now();
        self.compute();
        let each = began.elapsed().as_secs_f64() / self.products as f64;
        let mut count = self.device.zeros::<u64>(1);
        self.device.write(count.view_mut(), &[(seconds / each).ceil().clamp(1.0, 1e7) as u64]);
        group.all_reduce(self.device, count.view_mut(), Reduction::Max)?;
        let mut agreed = [0];
        self.device.read(count.view(), &mut agreed);
        self.products = agreed[0];
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    cpu: f64,
}

impl Moment {
    fn now() -> Self {
        Self { at: Instant::now(), cpu: cpu_seconds() }
    }

    fn part(self) -> Part {
        Part { wall: self.at.elapsed().as_secs_f64(), cpu: cpu_seconds() - self.cpu }
    }
}

/// Of all threads of this process.
fn cpu_seconds() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6)
        .sum()
}

/// All ranks together: the slowest on the clock, the sum of the processors.
fn combined(answers: &[String]) -> Option<Overlap> {
    let mut all = Overlap::default();
    for answer in answers {
        let mut figures = answer.strip_prefix("ok ")?.split(' ').map(|word| word.parse::<f64>().ok());
        for part in [&mut all.call, &mut all.computation, &mut all.both] {
            part.wall = part.wall.max(figures.next()??);
            part.cpu += figures.next()??;
        }
    }
    Some(all)
}

fn ask(rank_set: &mut RankSet, bytes: u64, rounds: u32) -> Result<Overlap, RankSetError> {
    let answers = rank_set.ask(&format!("overlap {bytes} {rounds}"))?;
    combined(&answers).ok_or_else(|| RankSetError::Failed {
        rank_set: "bedplate".to_owned(),
        what: format!("answered `{}`", answers.join("; ")),
        log: String::new(),
    })
}

/// What the command is asked for.
pub(super) struct Question<'a> {
    pub(super) link_rate: &'a str,
    pub(super) link_bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) rounds: u32,
}

pub(super) fn run(question: &Question<'_>, console: &mut Console) -> Result<(), CliError> {
    let load = machine::load();
    let over_link = over_link(question, console)?;
    let cores = Machine::this().cores.min(8);
    console.say(&format!("{cores} ranks in shared memory"));
    let ours =
        Ours { transport: Transport::Auto, algorithm: None, is_private: false, device: DeviceChoice::Cpu };
    let in_memory = ask(&mut ours.start(cores)?, question.memory_bytes, question.rounds)?;
    let mut targets = Vec::new();
    if let Some(found) = &over_link {
        let what = "all_reduce over the limited link, hidden behind a GEMM";
        let at = format!("{}, {}", size_text(question.link_bytes), question.link_rate);
        targets.push(Target::of_share(what, Bound::AtLeast(70.0), found.hidden(), at));
    }
    let what = "all_reduce in shared memory under a GEMM, the whole to the busy cores";
    let at = format!("{}, {cores} ranks", size_text(question.memory_bytes));
    targets.push(Target::of_ratio(what, Bound::AtMost(1.1), in_memory.to_busy(cores), at));
    if console.is_json() {
        return console.json(&json!({
            "over_link": over_link.map(|found| report(&found)),
            "in_memory": report(&in_memory),
            "load": load,
            "targets": targets.iter().map(Target::json).collect::<Vec<_>>(),
        }));
    }
    if let Some(found) = &over_link {
        show("over the limited link, 2 ranks", found, console)?;
    }
    show(&format!("in shared memory, {cores} ranks"), &in_memory, console)?;
    console.line(&super::load_text(load))?;
    super::show_targets(&targets, console)
}

/// None, said out loud, where no such link can be made.
fn over_link(question: &Question<'_>, console: &Console) -> Result<Option<Overlap>, CliError> {
    let link = match Link::make(question.link_rate) {
        Ok(link) => link,
        Err(why @ (LinkError::NotRoot | LinkError::Missing { .. })) => {
            console.say(&format!("skipped: overlap over a limited link: {why}"));
            return Ok(None);
        }
        Err(why) => return Err(why.into()),
    };
    console.say(&format!("2 ranks over a link of {}", question.link_rate));
    let mut rank_set = link.start_ranks()?;
    let found = ask(&mut rank_set, question.link_bytes, question.rounds.min(5))?;
    drop(rank_set);
    Ok(Some(found))
}

fn show(what: &str, found: &Overlap, console: &mut Console) -> Result<(), CliError> {
    let Overlap { call, computation, both } = found;
    console.line(&format!("{what}:"))?;
    for (name, part) in [("all-reduce alone", call), ("GEMM alone", computation), ("both at once", both)] {
        let [wall, cpu] = [part.wall, part.cpu].map(|seconds| Duration::from_secs_f64(seconds.max(0.0)));
        console.line(&format!("  {name:<17} {wall:>9.1?}  CPU time of all ranks {cpu:>9.1?}"))?;
    }
    console.line("")
}

fn report(found: &Overlap) -> Value {
    let part = |part: &Part| json!({ "seconds": part.wall, "cpu_seconds": part.cpu });
    json!({
        "all_reduce": part(&found.call),
        "gemm": part(&found.computation),
        "both": part(&found.both),
        "hidden_share": found.hidden(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_and_what_is_busy_follow_from_the_parts() {
        let answers = ["ok 1.0 0.4 1.2 1.2 1.5 1.6".to_owned(), "ok 0.8 0.4 1.2 1.2 1.4 1.6".to_owned()];
        let found = combined(&answers).unwrap();
        assert!((found.hidden() - 0.7).abs() < 1e-9);
        assert!((found.to_busy(2) - 1.5 / 1.6).abs() < 1e-9);
        assert_eq!(combined(&["no memory".to_owned()]), None);
        assert_eq!(combined(&["ok 1 2 3".to_owned()]), None);
    }
}
