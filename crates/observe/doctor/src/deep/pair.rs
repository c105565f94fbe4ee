//! Two ranks of this machine that add up numbers together.

use std::thread;
use std::time::{Duration, Instant};

use bedplate_comm::{LocalRendezvous, Reduction, World, WorldOptions};
use bedplate_host::panics::message;
use bedplate_kernels::Device;

use super::Outcome;
use crate::CheckVerdict;

const NUMBERS: usize = 1 << 20;

pub(super) fn check(lasts: Duration) -> Outcome {
    let outcome = sum_together(lasts.min(Duration::from_secs(2)));
    let (verdict, rate, remark) = match outcome {
        Ok(Sums { wrong: 0, rounds, seconds }) => {
            let rate = 4.0 * NUMBERS as f64 * rounds as f64 / seconds;
            (CheckVerdict::Pass, Some(format!("{:.2} GB/s", rate / 1e9)), format!("{rounds} sums agreed"))
        }
        Ok(Sums { wrong, rounds, .. }) => {
            (CheckVerdict::Fail, None, format!("{wrong} numbers of {rounds} sums were wrong"))
        }
        Err(why) => (CheckVerdict::Fail, None, why),
    };
    Outcome { name: "pair of ranks".to_owned(), verdict: Some(verdict), rate, remark }
}

struct Sums {
    wrong: usize,
    rounds: u64,
    seconds: f64,
}

fn sum_together(lasts: Duration) -> Result<Sums, String> {
    let rounds = 1 + (lasts.as_millis() as u64 / 50).min(40);
    let meeting = LocalRendezvous::here().map_err(|error| error.to_string())?;
    thread::scope(|scope| {
        let other = scope.spawn(|| one_rank(1, &meeting, rounds));
        let own = one_rank(0, &meeting, rounds);
        let other = other.join().map_err(|panic| format!("a bug in a rank: {}", message(panic.as_ref())))?;
        let (own, other) = (own?, other?);
        Ok(Sums { wrong: own.wrong + other.wrong, ..own })
    })
}

fn one_rank(rank: u32, meeting: &LocalRendezvous, rounds: u64) -> Result<Sums, String> {
    let device = Device::cpu(1);
    let world = World::join(&meeting.rendezvous(rank, 2), &WorldOptions::default())
        .map_err(|error| error.to_string())?;
    let group = world.everyone().map_err(|error| error.to_string())?;
    let mut numbers = world.shared::<f32>(&device, NUMBERS).map_err(|error| error.to_string())?;
    let own: Vec<f32> = (0..NUMBERS).map(|index| (index % 1000) as f32 + rank as f32).collect();
    let (mut wrong, mut back) = (0, vec![0.0_f32; NUMBERS]);
    let mut seconds = 0.0;
    for _ in 0..rounds {
        device.write(numbers.view_mut(), &own);
        let began = Instant::now();
        group.all_reduce(&device, numbers.view_mut(), Reduction::Sum).map_err(|error| error.to_string())?;
        seconds += began.elapsed().as_secs_f64();
        device.read(numbers.view(), &mut back);
        wrong += back.iter().enumerate().filter(|(at, sum)| **sum != 2.0 * (at % 1000) as f32 + 1.0).count();
    }
    Ok(Sums { wrong, rounds, seconds })
}
