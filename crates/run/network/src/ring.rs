//! Attention over the tokens of several ranks, each of which has two chunks of every sequence.
//!
//! Keys and values go round the ranks of the context group; a rank adds what its queries see of those that are there to what they
//! saw so far. On the way back the gradients of keys and values go round with them, and arrive at home after the last rank.
//!
//! A rank of a lower number has an earlier chunk from the front and a later one from the back than a rank of a higher number has. So
//! the queries of a rank see all of their own keys up to themselves, of a lower rank those of the first chunk, and of a higher rank
//! both chunks with the second half of the queries and nothing with the first. Windows and documents hide more, to the point
//! of all.

use std::cmp::Ordering;
use std::mem;
use std::ops::Range;

use bedplate_kernels::{Accumulate, AttentionShape, Buffer, Element, Matrix, MatrixMut, Qkv, VisibleKeys};

use crate::layer::LayerRun;
use crate::workspace::{InnerGradients, Kept, Ring, RingGradients};

/// One sequence's queries over the keys of one rank: rows of this rank and rows of that one.
struct Sight<'a> {
    shape: AttentionShape,
    queries: Range<usize>,
    keys: Range<usize>,
    seen: VisibleKeys<'a>,
}

impl<E: Element> LayerRun<'_, E> {
    /// Attention of the queries over the keys of all ranks.
    pub(crate) fn attend_in_ring(&self, kept: &mut Kept<E>, ring: &mut Ring<E>) {
        let (widths, heads) = (&self.parts.widths, self.parts.widths.heads);
        self.enter(kept, ring);
        self.device.fill(kept.log_sums.range_mut(0..self.rows * heads), f32::NEG_INFINITY);
        for source in self.sources() {
            let qkv = self.matrix(&kept.qkv, widths.qkv);
            for Sight { shape, queries, keys, seen } in self.sights(source) {
                let of_heads = queries.start * heads..queries.end * heads;
                let log_sums = &mut ring.log_sums;
                self.device.attention(
                    &shape,
                    self.in_sight(qkv, &ring.here, &queries, &keys),
                    seen,
                    self.matrix_mut(&mut ring.attended, widths.attended).rows(queries.clone()),
                    log_sums.range_mut(of_heads.clone()),
                );
                self.device.merge(
                    self.matrix(&ring.attended, widths.attended).rows(queries.clone()),
                    log_sums.range(of_heads.clone()),
                    self.matrix_mut(&mut ring.sums, widths.attended).rows(queries),
                    kept.log_sums.range_mut(of_heads),
                );
            }
            if !self.is_last(source) {
                self.pass_on(&mut ring.here, &mut ring.incoming, widths.keys_values());
            }
        }
        let numbers = 0..self.rows * widths.attended;
        self.device.convert(ring.sums.range(numbers.clone()), kept.attended.range_mut(numbers));
    }

    /// From the gradient of attention's output to those of queries, keys and values.
    pub(crate) fn ring_backward(
        &self,
        kept: &Kept<E>,
        inner: &mut InnerGradients<E>,
        ring: &mut Ring<E>,
        gradients: &mut RingGradients<E>,
    ) {
        let (widths, columns) = (&self.parts.widths, self.parts.widths.keys_values());
        self.enter(kept, ring);
        self.device.fill(gradients.here.range_mut(0..self.rows * columns), 0.0);
        for source in self.sources() {
            for sight in self.sights(source) {
                self.sight_backward(kept, inner, &sight, ring, gradients);
            }
            if !self.is_last(source) {
                self.pass_on(&mut ring.here, &mut ring.incoming, columns);
            }
            self.pass_on(&mut gradients.here, &mut gradients.incoming, columns);
        }
        let (d_queries, d_keys_values) =
            self.matrix_mut(&mut inner.qkv, widths.qkv).split_columns(widths.attended);
        self.device.put_rows(self.matrix(&ring.sums, widths.attended), Accumulate::Replace, d_queries);
        self.device.put_rows(self.matrix(&gradients.here, columns), Accumulate::Replace, d_keys_values);
    }

    /// Adds to the gradients of queries and of the keys and values that are here.
    fn sight_backward(
        &self,
        kept: &Kept<E>,
        inner: &InnerGradients<E>,
        Sight { shape, queries, keys, seen }: &Sight<'_>,
        ring: &mut Ring<E>,
        gradients: &mut RingGradients<E>,
    ) {
        let (widths, columns) = (&self.parts.widths, self.parts.widths.keys_values());
        let heads = queries.start * widths.heads..queries.end * widths.heads;
        let own = self.matrix_mut(&mut gradients.own, columns).rows(keys.clone());
        let (d_keys, d_values) = own.split_columns(columns / 2);
        self.device.attention_backward(
            shape,
            self.in_sight(self.matrix(&kept.qkv, widths.qkv), &ring.here, queries, keys),
            *seen,
            self.matrix(&kept.attended, widths.attended).rows(queries.clone()),
            kept.log_sums.range(heads),
            self.matrix(&inner.attended, widths.attended).rows(queries.clone()),
            Qkv {
                queries: self.matrix_mut(&mut ring.attended, widths.attended).rows(queries.clone()),
                keys: d_keys,
                values: d_values,
            },
        );
        let d_queries = self.matrix(&ring.attended, widths.attended).rows(queries.clone());
        let sums = self.matrix_mut(&mut ring.sums, widths.attended).rows(queries.clone());
        self.device.put_rows(d_queries, Accumulate::Add, sums);
        let own = self.matrix(&gradients.own, columns).rows(keys.clone());
        let sums = self.matrix_mut(&mut gradients.here, columns).rows(keys.clone());
        self.device.put_rows(own, Accumulate::Add, sums);
    }

    /// Own keys and values are the first; sums begin at zero.
    fn enter(&self, kept: &Kept<E>, ring: &mut Ring<E>) {
        let widths = &self.parts.widths;
        let keys_values = self.matrix(&kept.qkv, widths.qkv).columns(widths.attended..widths.qkv);
        let here: MatrixMut<'_, E> = self.matrix_mut(&mut ring.here, widths.keys_values());
        self.device.put_rows(keys_values, Accumulate::Replace, here);
        self.device.fill(ring.sums.range_mut(0..self.rows * widths.attended), 0.0);
    }

    /// The ranks whose keys come here, in this order: this one, the one before it, and so on.
    fn sources(&self) -> impl Iterator<Item = usize> {
        let context = self.network.part().context;
        (0..context.degree).map(move |step| (context.rank + context.degree - step) % context.degree)
    }

    fn is_last(&self, source: usize) -> bool {
        let context = self.network.part().context;
        source == (context.rank + 1) % context.degree
    }

    /// Gives what is here to the next rank and takes what the one before has.
    fn pass_on<F: Element>(&self, here: &mut Buffer<F>, incoming: &mut Buffer<F>, columns: usize) {
        let numbers = 0..self.rows * columns;
        if let Some(peers) = self.network.peers() {
            let to = incoming.range_mut(numbers.clone()).bytes();
            peers.pass_on(self.device, here.range(numbers).bytes(), to);
        }
        mem::swap(here, incoming);
    }

    /// What the queries of each sequence see of a rank's keys, as far as chunks decide it.
    fn sights(&self, source: usize) -> impl Iterator<Item = Sight<'_>> {
        let (all, half) = (self.sequence, self.sequence / 2);
        let is_behind = Some(self.behind);
        let (queries, keys, positions) = match source.cmp(&self.network.part().context.rank) {
            Ordering::Less => (0..all, 0..half, is_behind),
            Ordering::Equal => (0..all, 0..all, None),
            Ordering::Greater => (half..all, 0..all, is_behind),
        };
        let shape = AttentionShape { queries: queries.len(), keys: keys.len(), ..self.attention_shape() };
        (0..self.rows / self.sequence).map(move |sequence| {
            let rows = |of: &Range<usize>| sequence * all + of.start..sequence * all + of.end;
            let (queries, keys) = (rows(&queries), rows(&keys));
            let first = source * self.rows;
            let first_keys = self.first_keys.range(first + queries.start..first + queries.end);
            Sight { shape, queries, keys, seen: VisibleKeys { first_keys, positions } }
        })
    }

    /// Some queries of this rank, and keys and values of the rank whose are here.
    fn in_sight<'b>(
        &self,
        qkv: Matrix<'b, E>,
        here: &'b Buffer<E>,
        queries: &Range<usize>,
        keys: &Range<usize>,
    ) -> Qkv<Matrix<'b, E>> {
        let columns = self.parts.widths.keys_values();
        let here = self.matrix(here, columns).rows(keys.clone());
        Qkv {
            queries: qkv.columns(0..self.parts.widths.attended).rows(queries.clone()),
            keys: here.columns(0..columns / 2),
            values: here.columns(columns / 2..columns),
        }
    }
}
