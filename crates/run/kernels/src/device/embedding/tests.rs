//! Embeddings against their definition.

use proptest::prelude::*;

use crate::testing::{Spaced, TestRandom, assert_close, lend, on_any_processor, tolerance};
use crate::{Accumulate, Bf16, Device, Element};

fn check<E: Element>(tokens: &[u32], entries: usize, columns: usize, random: &mut TestRandom) {
    let table = Spaced::<E>::random(entries, columns, 2, random);
    let before = Spaced::<E>::random(tokens.len(), columns, 1, random);
    let d = Spaced::<E>::random(tokens.len(), columns, 1, random);
    let d_table = Spaced::<f32>::random(entries, columns, 3, random);

    let looked_up: Vec<f64> = tokens
        .iter()
        .flat_map(|token| table.wide()[*token as usize * columns..][..columns].to_vec())
        .collect();
    for mode in [Accumulate::Replace, Accumulate::Add] {
        let out = on_any_processor(|device| {
            let mut out = before.clone();
            device.embedding(
                lend(device, tokens).view(),
                table.on(device).matrix(),
                mode,
                out.on_mut(device).matrix_mut(),
            );
            out.elements()
        });
        let under = if mode == Accumulate::Add { before.wide() } else { vec![0.0; looked_up.len()] };
        let expected: Vec<f64> = under.iter().zip(&looked_up).map(|(a, b)| a + b).collect();
        assert_close(&out, &expected, tolerance::<E>());
    }

    let mut expected = d_table.wide();
    for (row, token) in tokens.iter().enumerate() {
        for column in 0..columns {
            expected[*token as usize * columns + column] += d.wide()[row * columns + column];
        }
    }
    let found = on_any_processor(|device| {
        let mut d_table = d_table.clone();
        device.embedding_backward(
            lend(device, tokens).view(),
            d.on(device).matrix(),
            d_table.on_mut(device).matrix_mut(),
        );
        d_table.elements()
    });
    assert_close(&found, &expected, tolerance::<f32>() * tokens.len() as f64);
}

proptest! {
    #[test]
    fn rows_are_looked_up_and_gradients_go_back_to_them(
        rows in 1usize..50, entries in 1usize..40, columns in 1usize..20, seed in 0u64..1000
    ) {
        let random = &mut TestRandom::new(seed);
        let tokens = random.tokens(rows, entries);
        check::<f32>(&tokens, entries, columns, random);
        check::<Bf16>(&tokens, entries, columns, random);
    }
}

#[test]
#[should_panic(expected = "token 3 is not among the 3 of the vocabulary")]
fn a_token_beyond_the_table_is_refused() {
    let (table, mut out) = (Spaced::<f32>::zeros(3, 4, 0), Spaced::<f32>::zeros(2, 4, 0));
    let device = &Device::cpu(1);
    let (tokens, table) = (lend(device, &[0, 3]), table.on(device));
    device.embedding(tokens.view(), table.matrix(), Accumulate::Replace, out.on_mut(device).matrix_mut());
}
