//! Which device each rank computes on, agreed by all of them.
//!
//! A rank shows which GPUs it sees, by their places on its host's bus, and which one it computes on already. All make the same table of it: ranks that compute
//! on something stay there, and every other one gets the first GPU that it sees and nobody on its host has.

use std::collections::BTreeSet;

use bedplate_kernels::{CudaError, Device, DeviceChoice};

use crate::{CommError, Fault, World};

/// What a rank shows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Offer {
    /// What it computes on already.
    kept: Option<Kept>,
    /// The GPUs that it sees, in its own order.
    gpus: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Processor,
    /// By its place on the bus.
    Gpu(u64),
}

/// GPUs that a rank shows at most.
const MOST: usize = 16;
const WORDS: usize = 2 + MOST;

impl World {
    /// What a choice means for this rank, where all ranks make it together: `auto` is a GPU of its own for every rank or the processor for all. `kept` is what
    /// this rank computes on already.
    pub fn choose_device(
        &self,
        choice: DeviceChoice,
        kept: Option<DeviceChoice>,
    ) -> Result<DeviceChoice, CommError> {
        if matches!(choice, DeviceChoice::Cpu | DeviceChoice::Cuda(_)) {
            return Ok(choice);
        }
        let failed = |error: CudaError| {
            CommError::from(self.core.fail(Fault::Gpu { rank: self.rank(), why: error.to_string() }))
        };
        let gpus: Vec<u64> =
            Device::gpus().map_err(failed)?.iter().take(MOST).map(|place| word(place)).collect();
        let kept = kept.and_then(|kept| match kept {
            DeviceChoice::Cpu => Some(Kept::Processor),
            DeviceChoice::Cuda(ordinal) => gpus.get(ordinal).copied().map(Kept::Gpu),
            DeviceChoice::Auto | DeviceChoice::Gpu => None,
        });
        let own = Offer { kept, gpus };
        let device = Device::cpu(1);
        let group = self.everyone()?;
        let (mut mine, mut all) = (device.zeros::<u64>(WORDS), device.zeros::<u64>(WORDS * group.members()));
        device.write(mine.view_mut(), &own.words());
        group.all_gather(&device, mine.view(), all.view_mut())?;
        let mut words = vec![0; all.len()];
        device.read(all.view(), &mut words);
        let seen: Vec<Offer> = words.chunks_exact(WORDS).map(Offer::read).collect();
        let hosts: Vec<&str> = self.core.members.iter().map(|member| member.host.as_str()).collect();
        let chosen = decide(choice, &seen, &hosts);
        Ok(chosen[self.rank() as usize])
    }
}

impl Offer {
    fn words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[0] = match self.kept {
            None => 0,
            Some(Kept::Processor) => 1,
            Some(Kept::Gpu(place)) => place,
        };
        words[1] = self.gpus.len() as u64;
        words[2..].iter_mut().zip(&self.gpus).for_each(|(word, place)| *word = *place);
        words
    }

    fn read(words: &[u64]) -> Self {
        let kept = match words[0] {
            0 => None,
            1 => Some(Kept::Processor),
            place => Some(Kept::Gpu(place)),
        };
        Self { kept, gpus: words[2..].iter().take(words[1] as usize).copied().collect() }
    }
}

/// A place on the bus as a number above those that mean something else.
fn word(place: &str) -> u64 {
    let mixed = place.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mixed | 1 << 63
}

/// What every rank computes on.
fn decide(choice: DeviceChoice, seen: &[Offer], hosts: &[&str]) -> Vec<DeviceChoice> {
    let mut taken: BTreeSet<(&str, u64)> = BTreeSet::new();
    for (offer, host) in seen.iter().zip(hosts) {
        if let Some(Kept::Gpu(place)) = offer.kept {
            taken.insert((host, place));
        }
    }
    let assigned: Vec<Option<usize>> = (seen.iter().zip(hosts))
        .map(|(offer, host)| match offer.kept {
            Some(Kept::Gpu(place)) => offer.gpus.iter().position(|other| *other == place),
            Some(Kept::Processor) => None,
            None => {
                let free = |place: &u64| !taken.contains(&(*host, *place));
                let found = offer.gpus.iter().position(free)?;
                taken.insert((host, offer.gpus[found]));
                Some(found)
            }
        })
        .collect();
    let keeps = |what: fn(Kept) -> bool| seen.iter().any(|offer| offer.kept.is_some_and(what));
    let is_on_gpus = keeps(|kept| matches!(kept, Kept::Gpu(_)));
    let is_on_processors = keeps(|kept| kept == Kept::Processor);
    let has_all = assigned.iter().all(Option::is_some);
    let uses_gpus = choice == DeviceChoice::Gpu || is_on_gpus || (has_all && !is_on_processors);
    let of = |rank: usize| match assigned[rank] {
        _ if !uses_gpus => DeviceChoice::Cpu,
        Some(ordinal) => DeviceChoice::Cuda(ordinal),
        // There is none for it, which opening it says.
        None => DeviceChoice::Cuda(seen[rank].gpus.len()),
    };
    (0..seen.len()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use DeviceChoice::{Auto, Cpu, Cuda, Gpu};

    fn offer(kept: Option<Kept>, gpus: &[u64]) -> Offer {
        let offer = Offer { kept, gpus: gpus.iter().map(|place| place | 1 << 63).collect() };
        assert_eq!(Offer::read(&offer.words()), offer);
        offer
    }

    fn on(place: u64) -> Option<Kept> {
        Some(Kept::Gpu(place | 1 << 63))
    }

    #[test]
    fn every_rank_gets_a_gpu_of_its_own_or_none_does() {
        let new = |gpus: &[u64]| offer(None, gpus);
        let check = |choice, seen: &[Offer], hosts: &[&str], expected: &[DeviceChoice]| {
            assert_eq!(decide(choice, seen, hosts), expected);
        };
        check(Auto, &[new(&[7, 8]), new(&[7, 8])], &["a", "a"], &[Cuda(0), Cuda(1)]);
        check(Auto, &[new(&[7]), new(&[7])], &["a", "b"], &[Cuda(0), Cuda(0)]);
        // One GPU for two ranks of a host, or a host without one.
        check(Auto, &[new(&[7]), new(&[7])], &["a", "a"], &[Cpu, Cpu]);
        check(Auto, &[new(&[7]), new(&[])], &["a", "b"], &[Cpu, Cpu]);
        check(Gpu, &[new(&[7]), new(&[7])], &["a", "a"], &[Cuda(0), Cuda(1)]);
        // A launcher shows every rank its own.
        check(Auto, &[new(&[7]), new(&[8])], &["a", "a"], &[Cuda(0), Cuda(0)]);
    }

    #[test]
    fn newcomers_take_what_survivors_left() {
        let all = [5, 6, 7, 8];
        let seen = [offer(on(6), &all), offer(on(7), &all), offer(on(8), &all), offer(None, &all)];
        assert_eq!(decide(Auto, &seen, &["a"; 4]), [Cuda(1), Cuda(2), Cuda(3), Cuda(0)]);
        let seen = [offer(Some(Kept::Processor), &all), offer(None, &all)];
        assert_eq!(decide(Auto, &seen, &["a"; 2]), [Cpu, Cpu]);
    }
}
