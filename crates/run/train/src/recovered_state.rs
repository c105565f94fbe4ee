//! Recovered state, of a run between two worlds: what each rank still holds, and how the next ranks get what they want of it.
//!
//! A [`SectionPiece`] is a range of one section of one block, of its master weights or of a moment, at some step. After ranks were lost or
//! came, all tell what they hold and what they want; everybody computes the same plan: the newest step at which all that is wanted is
//! held by somebody, and who gives what to whom. Nothing is read from a checkpoint.
//!
//! A rank may have been lost while some had done a step and others still waited to hear the norm of its gradient. Those have
//! [the gradients](Ready) of all that they hold, and do the step when they hear the norm now: that some rank knows it says that all
//! ranks had their gradients.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bedplate_kernels::{AdamW, Buffer, Device, View, ViewMut};
use serde_json::{Value, json};

use crate::TrainError;
use crate::optimizer::{self, Steps, Stretch};
use crate::ranks::RunRanks;

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
pub(crate) struct SectionPiece {
    pub(crate) key: Key,
    pub(crate) range: Range<usize>,
}

impl SectionPiece {
    /// The same numbers of another part.
    pub(crate) fn of_part(&self, part: usize) -> Self {
        Self { key: Key { part: part as u32, ..self.key.clone() }, range: self.range.clone() }
    }
}

/// Numbers that a rank holds.
pub(crate) struct Holding {
    pub(crate) piece: SectionPiece,
    /// Steps that had been done.
    pub(crate) step: u64,
    /// At least as many as the piece has.
    pub(crate) numbers: Buffer<f32>,
}

impl Holding {
    /// Whether there are no more numbers than the piece has.
    pub(crate) fn is_exact(&self) -> bool {
        self.numbers.len() == self.piece.range.len()
    }

    pub(crate) fn view(&self) -> View<'_, f32> {
        self.numbers.range(0..self.piece.range.len())
    }
}

/// The state that a rank takes from one world to the next.
#[derive(Default)]
pub(crate) struct RecoveredState {
    pub(crate) holdings: Vec<Holding>,
    /// Samples learned from after a step.
    pub(crate) samples_at: BTreeMap<u64, u64>,
    /// The norm of the gradient that led to a step.
    pub(crate) norms: BTreeMap<u64, f64>,
    pub(crate) ready: Option<Ready>,
}

/// Gradients for a step that this rank has not done, of all that it holds of the step before.
pub(crate) struct Ready {
    /// The step that they lead to.
    pub(crate) step: u64,
    pub(crate) gradients: Vec<Gradient>,
}

/// The gradient of some weights.
pub(crate) struct Gradient {
    pub(crate) of: Learned,
    pub(crate) numbers: Buffer<f32>,
}

/// Where numbers go that a rank wants.
pub(crate) trait ElementTarget {
    fn room(&mut self, piece: &SectionPiece) -> ViewMut<'_, f32>;
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
    held: Vec<(SectionPiece, u64)>,
    wanted: Vec<SectionPiece>,
    samples_at: BTreeMap<u64, u64>,
}

/// A part of a piece that goes from one rank to another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Transfer {
    from: usize,
    to: usize,
    range: Range<usize>,
}

impl RecoveredState {
    /// Adds what was held before, as far as it is not the same.
    pub(crate) fn add(&mut self, older: RecoveredState) {
        for holding in older.holdings {
            let is_same = |own: &Holding| own.piece == holding.piece && own.step == holding.step;
            if !self.holdings.iter().any(is_same) {
                self.holdings.push(holding);
            }
        }
        for (step, samples) in older.samples_at {
            self.samples_at.entry(step).or_insert(samples);
        }
        for (step, norm) in older.norms {
            self.norms.entry(step).or_insert(norm);
        }
    }

    /// Gives what the ranks from `kept` on hold to those before them, which go on alone. All ranks call it.
    pub(crate) fn hand_over(
        &mut self,
        device: &Device,
        ranks: &RunRanks,
        kept: usize,
        steps: &Steps,
    ) -> Result<(), TrainError> {
        let Some(group) = ranks.everyone() else { return Ok(()) };
        self.catch_up(device, ranks, steps)?;
        let me = ranks.rank() as usize;
        let held = self.holdings.iter().map(|holding| (holding.piece.clone(), holding.step));
        let held = if me < kept { Vec::new() } else { held.collect() };
        let own = Told { held, samples_at: self.samples_at.clone(), ..Told::default() };
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
                    let given = Holding { piece, step, numbers: taken };
                    self.add(RecoveredState { holdings: vec![given], ..RecoveredState::default() });
                }
            }
            self.add(RecoveredState { samples_at: told.samples_at, ..RecoveredState::default() });
        }
        Ok(ranks.part(device)?)
    }

    /// Gives every rank what it wants. What this rank itself holds as it is wanted stays where it is if `keeps` says so, and is
    /// given. All ranks call it.
    pub(crate) fn share_out(
        &mut self,
        device: &Device,
        ranks: &RunRanks,
        wanted: Vec<SectionPiece>,
        steps: &Steps,
        keeps: &dyn Fn(&Holding) -> bool,
        target: &mut dyn ElementTarget,
    ) -> Result<(Agreed, Vec<SectionPiece>), TrainError> {
        self.catch_up(device, ranks, steps)?;
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
                let own = SectionPiece { key: key.clone(), range: transfer.range.clone() };
                let is_own = transfer.from == me && transfer.to == me;
                let stays = is_own && self.find(&own, agreed.step).is_some_and(keeps);
                kept.extend(stays.then_some(own));
                !stays
            });
            self.exchange(device, ranks, key, agreed.step, &transfers, target)?;
        }
        // What comes after it is done again.
        self.holdings.retain(|holding| holding.step <= agreed.step);
        self.norms.retain(|step, _| *step <= agreed.step);
        Ok((agreed, kept))
    }

    /// Does the step that this rank is ready for, where another has done it and tells the norm. All ranks call it.
    fn catch_up(&mut self, device: &Device, ranks: &RunRanks, steps: &Steps) -> Result<(), TrainError> {
        let pairs =
            |of: &BTreeMap<u64, u64>| of.iter().map(|(step, number)| [*step, *number]).collect::<Vec<_>>();
        // As bits: everybody continues with the same number.
        let norms = self.norms.iter().map(|(step, norm)| (*step, norm.to_bits())).collect();
        let told = json!([pairs(&norms), pairs(&self.samples_at)]).to_string();
        for told in ranks.gather_bytes(device, told.as_bytes())? {
            let Ok([norms, samples_at]) = serde_json::from_slice::<[Vec<(u64, u64)>; 2]>(&told) else {
                continue;
            };
            self.norms.extend(norms.into_iter().map(|(step, bits)| (step, f64::from_bits(bits))));
            self.samples_at.extend(samples_at);
        }
        if let Some(ready) = self.ready.take()
            && let Some(norm) = self.norms.get(&ready.step)
        {
            let step = steps.after(ready.step - 1, *norm);
            self.learn(device, ready, &step);
        }
        Ok(())
    }

    /// Does a step with gradients that were ready for it.
    fn learn(&mut self, device: &Device, ready: Ready, adamw: &AdamW) {
        for Gradient { of, numbers } in ready.gradients {
            let pieces = [0, 1, 2].map(|part| of.weights.of_part(part));
            let held = pieces.each_ref().map(|piece| self.take(piece, ready.step - 1));
            let [Some(mut master), Some(mut first), Some(mut second)] = held else {
                continue;
            };
            let state = [&mut master, &mut first, &mut second].map(Buffer::view_mut);
            optimizer::learn(device, adamw, &of.stretches, numbers.view(), state, None);
            for (piece, numbers) in pieces.into_iter().zip([master, first, second]) {
                self.holdings.push(Holding { piece, step: ready.step, numbers });
            }
        }
    }

    pub(crate) fn find(&self, piece: &SectionPiece, step: u64) -> Option<&Holding> {
        self.holdings.iter().find(|holding| holding.piece == *piece && holding.step == step)
    }

    /// The numbers of a piece, which are not held here any more.
    pub(crate) fn take(&mut self, piece: &SectionPiece, step: u64) -> Option<Buffer<f32>> {
        let is_it = |holding: &Holding| holding.piece == *piece && holding.step == step;
        let at = self.holdings.iter().position(is_it)?;
        Some(self.holdings.swap_remove(at).numbers)
    }

    /// Moves the numbers of one key. Ranges that follow each other go from where they are to where they belong; others are collected
    /// first.
    fn exchange(
        &self,
        device: &Device,
        ranks: &RunRanks,
        key: &Key,
        step: u64,
        transfers: &[Transfer],
        target: &mut dyn ElementTarget,
    ) -> Result<(), TrainError> {
        let (me, count) = (ranks.rank() as usize, ranks.count());
        let piece = |range: &Range<usize>| SectionPiece { key: key.clone(), range: range.clone() };
        for own in transfers.iter().filter(|transfer| transfer.from == me && transfer.to == me) {
            device.copy(self.held(key, step, &own.range), target.room(&piece(&own.range)));
        }
        let between = || transfers.iter().filter(|transfer| transfer.from != transfer.to);
        let Some(group) = ranks.everyone().filter(|_| between().next().is_some()) else { return Ok(()) };
        let along = |from: usize, to: usize| {
            let between = between().filter(move |transfer| transfer.from == from && transfer.to == to);
            between.map(|transfer| transfer.range.clone())
        };
        let numbers = |from, to| along(from, to).map(|range| range.len()).sum::<usize>();
        let sent: Vec<usize> = (0..count).map(|rank| numbers(me, rank)).collect();
        let received: Vec<usize> = (0..count).map(|rank| numbers(rank, me)).collect();
        let given: Vec<Range<usize>> = (0..count).flat_map(|rank| along(me, rank)).collect();
        let taken: Vec<Range<usize>> = (0..count).flat_map(|rank| along(rank, me)).collect();
        let mut collected;
        let from = match joined(&given).filter(|range| self.holder(key, step, range).is_some()) {
            Some(range) => self.held(key, step, &range),
            None => {
                collected = device.zeros::<f32>(sent.iter().sum());
                let mut start = 0;
                for range in &given {
                    let to = collected.range_mut(start..start + range.len());
                    device.copy(self.held(key, step, range), to);
                    start += range.len();
                }
                collected.view()
            }
        };
        if let Some(range) = joined(&taken) {
            let to = target.room(&piece(&range));
            return Ok(group.all_to_all_v(device, from, &sent, to, &received)?);
        }
        let mut to = device.zeros::<f32>(received.iter().sum());
        group.all_to_all_v(device, from, &sent, to.view_mut(), &received)?;
        let mut start = 0;
        for range in &taken {
            device.copy(to.range(start..start + range.len()), target.room(&piece(range)));
            start += range.len();
        }
        Ok(())
    }

    /// What this rank holds a range in.
    fn holder(&self, key: &Key, step: u64, range: &Range<usize>) -> Option<&Holding> {
        self.holdings.iter().find(|holding| {
            let of = &holding.piece;
            holding.step == step
                && of.key == *key
                && of.range.start <= range.start
                && range.end <= of.range.end
        })
    }

    /// Numbers that this rank holds.
    fn held(&self, key: &Key, step: u64, range: &Range<usize>) -> View<'_, f32> {
        let holding = self.holder(key, step, range).expect("a rank gives what it said that it holds");
        let first = range.start - holding.piece.range.start;
        holding.view().range(first..first + range.len())
    }
}

/// The range that some ranges make, where each begins at the end of the one before.
fn joined(ranges: &[Range<usize>]) -> Option<Range<usize>> {
    let follow = ranges.windows(2).all(|pair| pair[0].end == pair[1].start);
    Some(ranges.first()?.start..ranges.last()?.end).filter(|_| follow)
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

/// Weights that a rank learns, as another rank learns them in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Learned {
    pub(crate) weights: SectionPiece,
    pub(crate) stretches: Vec<Stretch>,
}

impl Learned {
    /// As bytes that another rank [reads](Self::from_bytes).
    pub(crate) fn to_bytes(all: &[Self]) -> Vec<u8> {
        let stretch = |Stretch { range, is_decayed }: &Stretch| json!([range.start, range.end, is_decayed]);
        let each = |learned: &Self| {
            json!([learned.weights.to_json(), learned.stretches.iter().map(stretch).collect::<Vec<_>>()])
        };
        Value::from(all.iter().map(each).collect::<Vec<_>>()).to_string().into_bytes()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Vec<Self>> {
        let stretch = |value: &Value| {
            let range = value[0].as_u64()? as usize..value[1].as_u64()? as usize;
            Some(Stretch { range, is_decayed: value[2].as_bool()? })
        };
        let each = |value: &Value| {
            let stretches = value[1].as_array()?.iter().map(stretch).collect::<Option<_>>()?;
            Some(Self { weights: SectionPiece::parse(&value[0])?, stretches })
        };
        let value: Value = serde_json::from_slice(bytes).ok()?;
        value.as_array()?.iter().map(each).collect()
    }

    /// The pieces of all: master weights, then first moments, then second ones.
    pub(crate) fn pieces(all: &[Self]) -> Vec<SectionPiece> {
        (0..3).flat_map(|part| all.iter().map(move |learned| learned.weights.of_part(part))).collect()
    }
}

impl SectionPiece {
    fn to_json(&self) -> Value {
        let Key { stage, tensor, expert, block, part } = &self.key;
        json!([stage, tensor, expert, block, part, self.range.start, self.range.end])
    }

    fn parse(value: &Value) -> Option<Self> {
        let number = |index: usize| value[index].as_u64();
        let small = |index: usize| number(index).map(|number| number as u32);
        let (expert, block) = (small(2), small(3));
        let key = Key { stage: small(0)?, tensor: small(1)?, expert, block, part: small(4)? };
        Some(SectionPiece { key, range: number(5)? as usize..number(6)? as usize })
    }
}

impl Told {
    /// What every rank tells.
    fn share(&self, device: &Device, ranks: &RunRanks) -> Result<Vec<Told>, TrainError> {
        let all = ranks.gather_bytes(device, self.to_json().to_string().as_bytes())?;
        let all = all.iter().map(|bytes| Told::parse(bytes)).collect::<Option<Vec<Told>>>();
        all.ok_or_else(|| TrainError::StateLost { why: "a rank told what no rank tells".into() })
    }

    fn to_json(&self) -> Value {
        json!({
            "held": self.held.iter().map(|(held, step)| json!([held.to_json(), step])).collect::<Vec<_>>(),
            "wanted": self.wanted.iter().map(SectionPiece::to_json).collect::<Vec<_>>(),
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
                .map(|held| Some((SectionPiece::parse(&held[0])?, number(&held[1])?)))
                .collect::<Option<_>>()?,
            wanted: list("wanted")?.iter().map(SectionPiece::parse).collect::<Option<_>>()?,
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

    fn piece(block: u32, range: Range<usize>) -> SectionPiece {
        SectionPiece { key: key(block), range }
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

    #[test]
    fn ranges_that_follow_each_other_are_one() {
        assert_eq!(joined(&[3..5, 5..9]), Some(3..9));
        assert_eq!(joined(&[3..5, 6..9]), None);
        assert_eq!(joined(&[]), None);
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
