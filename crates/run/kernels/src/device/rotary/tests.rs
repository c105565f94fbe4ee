//! Rotation against its definition; back is the transpose of forth.

use proptest::prelude::*;

use super::*;
use crate::testing::{Spaced, TestRandom, assert_close, dot, lend, on_any_processor, tolerance};
use crate::{Bf16, Heads};

const FACTOR: f32 = 1.5;

struct Case {
    heads: Heads,
    columns: usize,
    frequencies: Vec<f64>,
    positions: Vec<u32>,
}

impl Case {
    fn rotary(&self, device: &Device) -> Rotary {
        Rotary::new(device, 2 * self.frequencies.len(), &self.frequencies, 100, FACTOR)
    }

    fn run<E: Element>(&self, device: &Device, turn: Turn, x: &Spaced<E>) -> Vec<f32> {
        let mut x = x.clone();
        device.rotate(
            &self.heads,
            lend(device, &self.positions).view(),
            &self.rotary(device),
            turn,
            x.on_mut(device).matrix_mut(),
        );
        x.elements()
    }

    fn definition(&self, x: &[f64]) -> Vec<f64> {
        let mut out = x.to_vec();
        let pairs = self.frequencies.len();
        for (row, position) in self.positions.iter().enumerate() {
            for head in self.heads.first..self.heads.first + self.heads.count {
                for (pair, frequency) in self.frequencies.iter().enumerate() {
                    let first = row * self.columns + head * self.heads.dim + pair;
                    let (sine, cosine) = (f64::from(*position) * frequency).sin_cos();
                    let (a, b) = (x[first], x[first + pairs]);
                    out[first] = f64::from(FACTOR) * (a * cosine - b * sine);
                    out[first + pairs] = f64::from(FACTOR) * (b * cosine + a * sine);
                }
            }
        }
        out
    }

    fn check<E: Element>(&self, random: &mut TestRandom) {
        let x = Spaced::<E>::random(self.positions.len(), self.columns, 3, random);
        let d = Spaced::<E>::random(self.positions.len(), self.columns, 3, random);
        let out = on_any_processor(|device| self.run(device, Turn::Forward, &x));
        assert_close(&out, &self.definition(&x.wide()), tolerance::<E>());
        let d_x = on_any_processor(|device| self.run(device, Turn::Backward, &d));
        let d_x: Vec<f64> = d_x.into_iter().map(f64::from).collect();
        // The transpose of a linear map A: <d, A x> = <A^T d, x>.
        let (there, back) = (dot(&d.wide(), &self.definition(&x.wide())), dot(&d_x, &x.wide()));
        let size = (x.rows * x.columns) as f64;
        assert!((there - back).abs() <= tolerance::<E>() * size, "{there} there, {back} back");
    }
}

proptest! {
    #[test]
    fn heads_turn_as_defined_and_back(
        first in 0usize..3, count in 1usize..4, pairs in 1usize..20, still in 0usize..3, rows in 1usize..6, seed in 0u64..1000
    ) {
        let random = &mut TestRandom::new(seed);
        let dim = 2 * pairs + still;
        let case = Case {
            heads: Heads { first, count, dim },
            columns: (first + count + 1) * dim,
            frequencies: (0..pairs).map(|pair| 0.3f64.powi(pair as i32)).collect(),
            positions: random.tokens(rows, 100),
        };
        case.check::<f32>(random);
        case.check::<Bf16>(random);
    }
}

#[test]
fn many_rows_give_the_same_on_any_processor() {
    let random = &mut TestRandom::new(1);
    let case = Case {
        heads: Heads { first: 1, count: 4, dim: 64 },
        columns: 6 * 64,
        frequencies: (0..32).map(|pair| 0.7f64.powi(pair)).collect(),
        positions: random.tokens(300, 100),
    };
    case.check::<f32>(random);
}

#[test]
#[should_panic(expected = "range")]
fn a_position_beyond_the_table_is_refused() {
    let case = Case {
        heads: Heads { first: 0, count: 1, dim: 4 },
        columns: 4,
        frequencies: vec![1.0, 0.5],
        positions: vec![100],
    };
    case.run(&Device::cpu(1), Turn::Forward, &Spaced::<f32>::zeros(1, 4, 0));
}
