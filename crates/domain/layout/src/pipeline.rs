//! The order in which a pipeline stage takes its micro-batches forward and back.
//!
//! A stage of `stages` holds `chunks` chunks of blocks; chunk `c` of stage `s` is number `c * stages + s` on a micro-batch's way.
//! With one chunk each the order is one forward, one backward (1F1B): as few micro-batches are in flight as the stages behind need to
//! be busy. With several it is the interleaved order, whose bubble is shorter by the number of chunks: groups of `stages`
//! micro-batches go through a chunk before the next chunk has its turn.

use std::ops::Range;

/// One pass of a micro-batch through a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    pub direction: Direction,
    pub chunk: usize,
    pub micro_batch: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// One of the stages of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineStage {
    pub stage: usize,
    pub stages: usize,
    pub chunks: usize,
}

impl PipelineStage {
    /// The passes of a step. With several chunks `stages` must divide `micro_batches`.
    pub fn passes(self, micro_batches: usize) -> Vec<Pass> {
        let total = micro_batches * self.chunks;
        let forward = |number| self.pass(Direction::Forward, number);
        let backward = |number| self.pass(Direction::Backward, number);
        let ahead = self.ahead().min(total);
        let mut passes: Vec<Pass> = (0..ahead).map(forward).collect();
        for number in ahead..total {
            passes.extend([forward(number), backward(number - ahead)]);
        }
        passes.extend((total - ahead..total).map(backward));
        passes
    }

    /// Forward passes before the first backward pass, unless there are fewer.
    fn ahead(self) -> usize {
        let behind = self.stages - self.stage - 1;
        if self.chunks == 1 { behind } else { 2 * behind + (self.chunks - 1) * self.stages }
    }

    /// The `number`-th pass of a direction.
    fn pass(self, direction: Direction, number: usize) -> Pass {
        if self.chunks == 1 {
            return Pass { direction, chunk: 0, micro_batch: number };
        }
        let round = self.stages * self.chunks;
        let (group, within) = (number / round, number % round);
        let (turn, member) = (within / self.stages, within % self.stages);
        let chunk = match direction {
            Direction::Forward => turn,
            Direction::Backward => self.chunks - 1 - turn,
        };
        Pass { direction, chunk, micro_batch: group * self.stages + member }
    }

    /// The number of a chunk on a micro-batch's way.
    pub fn number(self, chunk: usize) -> usize {
        chunk * self.stages + self.stage
    }

    /// Whether a chunk has the embedding.
    pub fn is_first(self, chunk: usize) -> bool {
        self.number(chunk) == 0
    }

    /// Whether a chunk has the head.
    pub fn is_last(self, chunk: usize) -> bool {
        self.number(chunk) + 1 == self.stages * self.chunks
    }

    /// The blocks of a chunk of a model with `layers` layers: the layers spread evenly, earlier chunks having one more where they
    /// do not divide, the embedding with the first and the head with the last.
    pub fn blocks(self, chunk: usize, layers: usize) -> Range<usize> {
        let (number, count) = (self.number(chunk), self.stages * self.chunks);
        let before = |number: usize| layers / count * number + (layers % count).min(number);
        let start = if number == 0 { 0 } else { 1 + before(number) };
        let end = 1 + before(number + 1) + usize::from(number + 1 == count);
        start..end
    }
}

/// Micro-batches of a chunk that have gone forward and not yet back, at most.
pub fn in_flight(passes: &[Pass], chunk: usize) -> usize {
    let (mut now, mut most) = (0usize, 1);
    for pass in passes.iter().filter(|pass| pass.chunk == chunk) {
        match pass.direction {
            Direction::Forward => now += 1,
            Direction::Backward => now -= 1,
        }
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(stage: usize, stages: usize, chunks: usize) -> PipelineStage {
        PipelineStage { stage, stages, chunks }
    }

    fn told(passes: &[Pass]) -> String {
        let one = |pass: &Pass| {
            let direction = if pass.direction == Direction::Forward { 'F' } else { 'B' };
            format!("{direction}{}.{}", pass.chunk, pass.micro_batch)
        };
        passes.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_forward_one_backward() {
        assert_eq!(told(&stage(1, 2, 1).passes(3)), "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2");
        assert_eq!(told(&stage(0, 2, 1).passes(3)), "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2");
        assert_eq!(told(&stage(0, 4, 1).passes(2)), "F0.0 F0.1 B0.0 B0.1");
        assert_eq!(told(&stage(0, 1, 1).passes(2)), "F0.0 B0.0 F0.1 B0.1");
    }

    #[test]
    fn chunks_take_turns_in_groups() {
        let passes = told(&stage(1, 2, 2).passes(2));
        assert_eq!(passes, "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 B0.0 B0.1");
    }

    /// Runs all stages side by side with messages that wait in order; ends when nobody can go on.
    fn run(stages: usize, chunks: usize, micro_batches: usize) -> usize {
        let all: Vec<Vec<Pass>> =
            (0..stages).map(|at| stage(at, stages, chunks).passes(micro_batches)).collect();
        let mut done: Vec<usize> = vec![0; stages];
        let mut finished: Vec<(Direction, usize, usize)> = Vec::new();
        loop {
            let mut has_moved = false;
            for at in 0..stages {
                let here = stage(at, stages, chunks);
                while let Some(pass) = all[at].get(done[at]) {
                    let number = here.number(pass.chunk);
                    let needs = match pass.direction {
                        Direction::Forward if number == 0 => None,
                        Direction::Forward => Some((Direction::Forward, number - 1, pass.micro_batch)),
                        Direction::Backward if here.is_last(pass.chunk) => {
                            Some((Direction::Forward, number, pass.micro_batch))
                        }
                        Direction::Backward => Some((Direction::Backward, number + 1, pass.micro_batch)),
                    };
                    if needs.is_some_and(|needs| !finished.contains(&needs)) {
                        break;
                    }
                    finished.push((pass.direction, number, pass.micro_batch));
                    done[at] += 1;
                    has_moved = true;
                }
            }
            if !has_moved {
                return finished.len();
            }
        }
    }

    #[test]
    fn every_pass_gets_its_turn_and_nobody_waits_for_ever() {
        for (stages, chunks, micro_batches) in [
            (1, 1, 3),
            (2, 1, 1),
            (2, 1, 5),
            (4, 1, 4),
            (4, 1, 9),
            (2, 2, 2),
            (2, 2, 6),
            (4, 2, 8),
            (3, 3, 6),
        ] {
            let passes = 2 * stages * chunks * micro_batches;
            assert_eq!(run(stages, chunks, micro_batches), passes, "{stages} {chunks} {micro_batches}");
        }
    }

    /// What a stage sends in one order the next one expects in the same.
    #[test]
    fn neighbours_agree_on_the_order_of_messages() {
        for (stages, chunks, micro_batches) in [(2, 1, 4), (4, 1, 6), (2, 2, 4), (4, 2, 8), (3, 3, 6)] {
            for at in 0..stages {
                let next = (at + 1) % stages;
                let (here, there) = (stage(at, stages, chunks), stage(next, stages, chunks));
                let of = |stage: PipelineStage, direction| {
                    let passes = stage.passes(micro_batches);
                    passes.into_iter().filter(move |pass| pass.direction == direction).collect::<Vec<_>>()
                };
                let number = |stage: PipelineStage, pass: &Pass| (stage.number(pass.chunk), pass.micro_batch);
                let sent: Vec<_> = of(here, Direction::Forward)
                    .iter()
                    .filter(|pass| !here.is_last(pass.chunk))
                    .map(|pass| (number(here, pass).0 + 1, pass.micro_batch))
                    .collect();
                let taken: Vec<_> = of(there, Direction::Forward)
                    .iter()
                    .filter(|pass| !there.is_first(pass.chunk))
                    .map(|pass| number(there, pass))
                    .collect();
                assert_eq!(sent, taken, "forward from {at} of {stages} with {chunks} chunks");
                let back: Vec<_> = of(there, Direction::Backward)
                    .iter()
                    .filter(|pass| !there.is_first(pass.chunk))
                    .map(|pass| (number(there, pass).0 - 1, pass.micro_batch))
                    .collect();
                let taken: Vec<_> = of(here, Direction::Backward)
                    .iter()
                    .filter(|pass| !here.is_last(pass.chunk))
                    .map(|pass| number(here, pass))
                    .collect();
                assert_eq!(back, taken, "back to {at} of {stages} with {chunks} chunks");
            }
        }
    }

    #[test]
    fn blocks_are_shared_out_in_order_and_without_gaps() {
        for (layers, stages, chunks) in [(4, 2, 1), (5, 2, 1), (7, 4, 1), (8, 2, 2), (3, 3, 1), (12, 2, 3)] {
            let mut next = 0;
            for number in 0..stages * chunks {
                let blocks = stage(number % stages, stages, chunks).blocks(number / stages, layers);
                assert_eq!(blocks.start, next);
                assert!(!blocks.is_empty());
                next = blocks.end;
            }
            assert_eq!(next, layers + 2);
        }
    }

    #[test]
    fn fewer_micro_batches_are_in_flight_towards_the_end() {
        let most = |at| in_flight(&stage(at, 4, 1).passes(8), 0);
        assert_eq!([most(0), most(1), most(2), most(3)], [4, 3, 2, 1]);
    }
}
