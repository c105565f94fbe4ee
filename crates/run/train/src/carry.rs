//! The state of a run between two worlds: what each rank still holds, and how the next ranks get what they want of it.
//!
//! A [`Piece`] is a range of one section of one block, of its master weights or of a moment, at some step. After ranks were lost or
//! came, all tell what they hold and what they want; everybody computes the same plan: the newest step at which all that is wanted is
//! held by somebody, and who gives what to whom. Nothing is read from a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bedplate_kernels::{Buffer, Device, View};
use serde_json::{Value, json};

use crate::TrainError;
use crate::ranks::Ranks;

/// Which numbers of a run: those of a section that all ranks of the same place in the model hold or split.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) stage: u32,
    pub(crate) tensor: u32,
    /// Of the experts of this expert rank.
    pub(crate) expert: Option<u32>,
    /// None stands for all adapters of the rank.
    pub(crate) block: Option<u32>,
    /// Master weights, first and second moment.
    pub(crate) part: u32,
}

/// A range of a section, counted from its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) key: Key,
    pub(crate) range: Range<usize>,
}

/// Numbers that a rank holds.
pub(crate) struct Holding {
    pub(crate) piece: Piece,
    /// Steps that had been done.
    pub(crate) step: u64,
    /// Where the piece begins in these numbers, which may be of several.
    pub(crate) start: usize,
    pub(crate) numbers: Arc<Buffer<f32>>,
}

impl Holding {
    pub(crate) fn view(&self) -> View<'_, f32> {
        self.numbers.range(self.start..self.start + self.piece.range.len())
    }
}

/// What a rank takes from one world to the next.
#[derive(Default)]
pub(crate) struct Carried {
    pub(crate) holdings: Vec<Holding>,
    /// Samples learned from after a step.
    pub(crate) samples_at: BTreeMap<u64, u64>,
}

/// Steps and samples that the ranks agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) step: u64,
    pub(crate) samples: u64,
}

/// What one rank says of itself.
#[derive(Debug, Default)]
struct Told {
    held: Vec<(Piece, u64)>,
    wanted: Vec<Piece>,
    samples_at: BTreeMap<u64, u64>,
}

/// A part of a piece that goes from one rank to another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Transfer {
    from: usize,
    to: usize,
    range: Range<usize>,
}

impl Carried {
    /// Adds what was held before, as far as it is not the same.
    pub(crate) fn add(&mut self, older: Carried) {
        for holding in older.holdings {
            let is_same = |own: &Holding| own.piece == holding.piece && own.step == holding.step;
            if !self.holdings.iter().any(is_same) {
                self.holdings.push(holding);
            }
        }
        for (step, samples) in older.samples_at {
            self.samples_at.entry(step).or_insert(samples);
        }
    }

    /// Gives what the ranks from `kept` on hold to those before them, which go on alone. All ranks call it.
    pub(crate) fn hand_over(
        &mut self,
        device: &Device,
        ranks: &Ranks,
        kept: usize,
    ) -> Result<(), TrainError> {
        let Some(group) = ranks.everyone() else { return Ok(()) };
        let me = ranks.rank() as usize;
        let held = self.holdings.iter().map(|holding| (holding.piece.clone(), holding.step));
        let held = if me < kept { Vec::new() } else { held.collect() };
        let own = Told { held, wanted: Vec::new(), samples_at: self.samples_at.clone() };
        for (from, told) in own.share(device, ranks)?.into_iter().enumerate().skip(kept) {
            let to = from % kept;
            for (number, (piece, step)) in told.held.into_iter().enumerate() {
                let len = piece.range.len();
                let counts = |is_mine: bool, other: usize| {
                    (0..ranks.count()).map(|rank| if is_mine && rank == other { len } else { 0 }).collect()
                };
                let (sent, received): (Vec<usize>, Vec<usize>) =
                    (counts(me == from, to), counts(me == to, from));
                let nothing = device.zeros::<f32>(0);
                let given = if me == from { self.holdings[number].view() } else { nothing.view() };
                let mut taken = device.zeros::<f32>(if me == to { len } else { 0 });
                group.all_to_all_v(device, given, &sent, taken.view_mut(), &received)?;
                if me == to {
                    let given = Holding { piece, step, start: 0, numbers: Arc::new(taken) };
                    self.add(Carried { holdings: vec![given], samples_at: BTreeMap::new() });
                }
            }
            self.add(Carried { holdings: Vec::new(), samples_at: told.samples_at });
        }
        Ok(ranks.part(device)?)
    }

    /// Gives every rank what it wants, `place` being called with each piece and its numbers. What this rank itself holds as it is wanted
    /// stays where it is if `keeps` says so, and is given. All ranks call it.
    pub(crate) fn share_out(
        &self,
        device: &Device,
        ranks: &Ranks,
        wanted: Vec<Piece>,
        keeps: &dyn Fn(&Holding) -> bool,
        place: &mut dyn FnMut(&Piece, View<'_, f32>),
    ) -> Result<(Agreed, Vec<Piece>), TrainError> {
        let held = self.holdings.iter().map(|holding| (holding.piece.clone(), holding.step)).collect();
        let own = Told { held, wanted, samples_at: self.samples_at.clone() };
        let all = own.share(device, ranks)?;
        let agreed = agree(&all)?;
        let keys: BTreeSet<&Key> = all.iter().flat_map(|told| &told.wanted).map(|piece| &piece.key).collect();
        let me = ranks.rank() as usize;
        let mut kept = Vec::new();
        for key in keys {
            let mut transfers = transfers(&all, key, agreed.step).ok_or_else(|| lost(key))?;
            transfers.retain(|transfer| {
                let own = Piece { key: key.clone(), range: transfer.range.clone() };
                let is_own = transfer.from == me && transfer.to == me;
                let stays = is_own && self.find(&own, agreed.step).is_some_and(keeps);
                kept.extend(stays.then_some(own));
                !stays
            });
            self.exchange(device, ranks, key, agreed.step, &transfers, place)?;
        }
        Ok((agreed, kept))
    }

    fn find(&self, piece: &Piece, step: u64) -> Option<&Holding> {
        self.holdings.iter().find(|holding| holding.piece == *piece && holding.step == step)
    }

    /// The numbers of a piece, which are not held here any more. None where others use them too.
    pub(crate) fn take(&mut self, piece: &Piece, step: u64) -> Option<Buffer<f32>> {
        let is_it = |holding: &Holding| holding.piece == *piece && holding.step == step;
        let at = self
            .holdings
            .iter()
            .position(|holding| is_it(holding) && Arc::strong_count(&holding.numbers) == 1)?;
        Arc::into_inner(self.holdings.swap_remove(at).numbers)
    }

    /// Moves the numbers of one key.
    fn exchange(
        &self,
        device: &Device,
        ranks: &Ranks,
        key: &Key,
        step: u64,
        transfers: &[Transfer],
        place: &mut dyn FnMut(&Piece, View<'_, f32>),
    ) -> Result<(), TrainError> {
        let me = ranks.rank() as usize;
        for own in transfers.iter().filter(|transfer| transfer.from == me && transfer.to == me) {
            place(&Piece { key: key.clone(), range: own.range.clone() }, self.held(key, step, &own.range));
        }
        let Some(group) = ranks.everyone() else { return Ok(()) };
        let between = || transfers.iter().filter(|transfer| transfer.from != transfer.to);
        if between().next().is_none() {
            return Ok(());
        }
        let along = |from: usize, to: usize| {
            between().filter(move |transfer| transfer.from == from && transfer.to == to)
        };
        let numbers = |from, to| along(from, to).map(|transfer| transfer.range.len()).sum::<usize>();
        let sent: Vec<usize> = (0..ranks.count()).map(|rank| numbers(me, rank)).collect();
        let received: Vec<usize> = (0..ranks.count()).map(|rank| numbers(rank, me)).collect();
        let mut from = device.zeros::<f32>(sent.iter().sum());
        let mut to = device.zeros::<f32>(received.iter().sum());
        let mut start = 0;
        for transfer in (0..ranks.count()).flat_map(|rank| along(me, rank)) {
            let end = start + transfer.range.len();
            device.copy(self.held(key, step, &transfer.range), from.range_mut(start..end));
            start = end;
        }
        group.all_to_all_v(device, from.view(), &sent, to.view_mut(), &received)?;
        start = 0;
        for transfer in (0..ranks.count()).flat_map(|rank| along(rank, me)) {
            let end = start + transfer.range.len();
            place(&Piece { key: key.clone(), range: transfer.range.clone() }, to.range(start..end));
            start = end;
        }
        Ok(())
    }

    /// Numbers that this rank holds.
    fn held(&self, key: &Key, step: u64, range: &Range<usize>) -> View<'_, f32> {
        let holds = |holding: &&Holding| {
            let of = &holding.piece;
            holding.step == step
                && of.key == *key
                && of.range.start <= range.start
                && range.end <= of.range.end
        };
        let holding = self.holdings.iter().find(holds).expect("a rank gives what it said that it holds");
        let first = range.start - holding.piece.range.start;
        holding.view().range(first..first + range.len())
    }
}

fn lost(key: &Key) -> TrainError {
    let what = match key.block {
        Some(block) => format!("block {block}"),
        None => "the adapters".into(),
    };
    TrainError::StateLost { why: format!("no rank that is left has {what} of stage {}", key.stage) }
}

/// The newest step at which somebody holds everything that is wanted.
fn agree(all: &[Told]) -> Result<Agreed, TrainError> {
    let steps: BTreeSet<u64> = all.iter().flat_map(|told| &told.held).map(|(_, step)| *step).collect();
    let keys: BTreeSet<&Key> = all.iter().flat_map(|told| &told.wanted).map(|piece| &piece.key).collect();
    let is_whole = |step: &&u64| keys.iter().all(|key| transfers(all, key, **step).is_some());
    let samples = |step: u64| all.iter().find_map(|told| told.samples_at.get(&step).copied());
    let newest = steps.iter().rev().find(is_whole).copied();
    newest.and_then(|step| Some(Agreed { step, samples: samples(step)? })).ok_or_else(|| {
        let missing = keys.iter().find(|key| steps.iter().all(|step| transfers(all, key, *step).is_none()));
        missing.map_or_else(
            || TrainError::StateLost { why: "what ranks hold is of different steps".into() },
            |key| lost(key),
        )
    })
}

/// Who gives what of a key to whom; `None` where somebody's wish cannot be met. Ranks keep what they have, and otherwise get it from
/// the first that has it.
fn transfers(all: &[Told], key: &Key, step: u64) -> Option<Vec<Transfer>> {
    let mut found = Vec::new();
    for (to, told) in all.iter().enumerate() {
        for wanted in told.wanted.iter().filter(|wanted| wanted.key == *key) {
            let mut next = wanted.range.start;
            while next < wanted.range.end {
                let holders = [to].into_iter().chain((0..all.len()).filter(|rank| *rank != to));
                let covers = |rank: usize| {
                    let held = all[rank].held.iter();
                    let fits = held.filter(|(piece, at)| *at == step && piece.key == *key);
                    let end = fits
                        .filter(|(piece, _)| piece.range.contains(&next))
                        .map(|(piece, _)| piece.range.end);
                    end.max().map(|end| (rank, end))
                };
                let (from, end) = holders.into_iter().find_map(covers)?;
                let range = next..end.min(wanted.range.end);
                next = range.end;
                found.push(Transfer { from, to, range });
            }
        }
    }
    Some(found)
}

/// Pieces as bytes that another rank [reads](from_bytes).
pub(crate) fn to_bytes(pieces: &[Piece]) -> Vec<u8> {
    Value::from(pieces.iter().map(Piece::to_json).collect::<Vec<_>>()).to_string().into_bytes()
}

pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Vec<Piece>> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    value.as_array()?.iter().map(Piece::parse).collect()
}

impl Piece {
    fn to_json(&self) -> Value {
        let Key { stage, tensor, expert, block, part } = &self.key;
        json!([stage, tensor, expert, block, part, self.range.start, self.range.end])
    }

    fn parse(value: &Value) -> Option<Self> {
        let number = |index: usize| value[index].as_u64();
        let small = |index: usize| number(index).map(|number| number as u32);
        let (expert, block) = (small(2), small(3));
        let key = Key { stage: small(0)?, tensor: small(1)?, expert, block, part: small(4)? };
        Some(Piece { key, range: number(5)? as usize..number(6)? as usize })
    }
}

impl Told {
    /// What every rank tells.
    fn share(&self, device: &Device, ranks: &Ranks) -> Result<Vec<Told>, TrainError> {
        let all = ranks.gather_bytes(device, self.to_json().to_string().as_bytes())?;
        let all = all.iter().map(|bytes| Told::parse(bytes)).collect::<Option<Vec<Told>>>();
        all.ok_or_else(|| TrainError::StateLost { why: "a rank told what no rank tells".into() })
    }

    fn to_json(&self) -> Value {
        json!({
            "held": self.held.iter().map(|(held, step)| json!([held.to_json(), step])).collect::<Vec<_>>(),
            "wanted": self.wanted.iter().map(Piece::to_json).collect::<Vec<_>>(),
            "samples_at": self.samples_at.iter().collect::<Vec<_>>(),
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let number = |value: &Value| value.as_u64();
        let list = |key: &str| value[key].as_array().cloned();
        Some(Self {
            held: list("held")?
                .iter()
                .map(|held| Some((Piece::parse(&held[0])?, number(&held[1])?)))
                .collect::<Option<_>>()?,
            wanted: list("wanted")?.iter().map(Piece::parse).collect::<Option<_>>()?,
            samples_at: list("samples_at")?
                .iter()
                .map(|pair| Some((number(&pair[0])?, number(&pair[1])?)))
                .collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u32) -> Key {
        Key { stage: 0, tensor: 0, expert: None, block: Some(block), part: 0 }
    }

    fn piece(block: u32, range: Range<usize>) -> Piece {
        Piece { key: key(block), range }
    }

    fn told(held: &[(Range<usize>, u64)], wanted: Range<usize>) -> Told {
        Told {
            held: held.iter().map(|(range, step)| (piece(1, range.clone()), *step)).collect(),
            wanted: vec![piece(1, wanted)],
            samples_at: held.iter().map(|(_, step)| (*step, 10 * step)).collect(),
        }
    }

    #[test]
    fn what_a_rank_tells_is_read_back() {
        let own = told(&[(0..8, 3), (8..16, 2)], 4..12);
        let read = Told::parse(own.to_json().to_string().as_bytes()).unwrap();
        assert_eq!((read.held, read.wanted, read.samples_at), (own.held, own.wanted, own.samples_at));
    }

    /// Three of four ranks are left; the neighbour of the lost one has a copy of its part, of this step and the one before.
    #[test]
    fn survivors_share_out_the_part_of_a_lost_rank() {
        let all = [
            told(&[(0..4, 5), (12..16, 4), (12..16, 5)], 0..6),
            told(&[(4..8, 5), (0..4, 4)], 6..11),
            told(&[(8..12, 5), (4..8, 4)], 11..16),
        ];
        assert_eq!(agree(&all).unwrap(), Agreed { step: 5, samples: 50 });
        let found = transfers(&all, &key(1), 5).unwrap();
        let expected =
            [(0, 0, 0..4), (1, 0, 4..6), (1, 1, 6..8), (2, 1, 8..11), (2, 2, 11..12), (0, 2, 12..16)];
        let expected: Vec<_> =
            expected.into_iter().map(|(from, to, range)| Transfer { from, to, range }).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn ranks_go_back_to_the_newest_step_that_is_whole() {
        let all = [told(&[(0..4, 6), (4..8, 5)], 0..4), told(&[(4..8, 5), (0..4, 5)], 4..8)];
        assert_eq!(agree(&all).unwrap().step, 5);
    }

    #[test]
    fn what_nobody_has_is_named() {
        let all = [told(&[(0..4, 5)], 0..8)];
        assert!(agree(&all).unwrap_err().to_string().contains("block 1"));
    }
}
