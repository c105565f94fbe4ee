//! Latent attention (DeepSeek): queries, and keys with values, come from small vectors, and a part of the keys is shared by all heads.
//!
//! Training expands everything and attends as usual. Heads have one size there, that of the larger of keys and values; what fills the smaller up
//! is zero.

use bedplate_kernels::{Accumulate, Buffer, Element, HeadPart, Heads, Matrix, MatrixMut, NormWeight};

use crate::layer::{BlockGradient, LayerRun, reborrow};
use crate::table::{LatentParts, LatentShape};
use crate::workspace::{Expanded, InnerGradients, Kept};

/// What the norms of latents add to the mean of squares, whatever those of the layer add.
pub(crate) const LATENT_EPSILON: f32 = 1e-6;

/// A part of each of heads that lie so far apart.
pub(crate) fn part(apart: usize, first: usize) -> HeadPart {
    HeadPart { apart, first }
}

/// All columns as one head.
pub(crate) fn one_head(dim: usize) -> Heads {
    Heads { first: 0, count: 1, dim }
}

impl<E: Element> LayerRun<'_, E> {
    /// Whether heads of `dim` numbers have the size that attention gives them.
    fn fills_heads(&self, dim: usize) -> bool {
        dim == self.parts.widths.head_dim
    }

    /// Queries, keys and values side by side, with the latents that they are made from.
    pub(crate) fn project_latent(
        &self,
        parts: &LatentParts,
        input: Matrix<'_, E>,
        kept: &mut Kept<E>,
        room: &mut Expanded<E>,
    ) {
        let (widths, shape) = (&self.parts.widths, parts.shape);
        self.linear(&self.parts.qkv, input, self.matrix_mut(&mut kept.unnormed, widths.unnormed));
        self.norm_latents(parts, kept);
        if !(self.fills_heads(shape.key()) && self.fills_heads(shape.value)) {
            self.device.fill(kept.qkv.range_mut(0..self.rows * widths.qkv), 0.0);
        }
        self.expand_queries(parts, kept, room);
        self.expand_keys_and_values(parts, kept, room);
    }

    /// Where the latents of queries and of keys with values lie among themselves.
    fn latent_columns(&self, shape: LatentShape) -> [std::ops::Range<usize>; 2] {
        let first = shape.query_rank.unwrap_or(0);
        [0..first, first..first + shape.kv_rank]
    }

    fn norm_latents(&self, parts: &LatentParts, kept: &mut Kept<E>) {
        let (shape, widths) = (parts.shape, &self.parts.widths);
        let ([queries, keys, _], to) = (shape.down(), self.latent_columns(shape));
        let Kept { unnormed, latent, query_inverses, key_inverses, .. } = kept;
        let norms = [
            (parts.query_norm.as_ref(), queries, query_inverses),
            (Some(&parts.kv_norm), keys, key_inverses),
        ];
        for ((norm, from, inverses), to) in norms.into_iter().zip(to) {
            let Some(norm) = norm else { continue };
            self.device.head_norm(
                &one_head(to.len()),
                self.matrix(unnormed, widths.unnormed).columns(from),
                NormWeight { kept: self.weights.range(norm.clone()), offset: 0.0 },
                LATENT_EPSILON,
                self.matrix_mut(latent, widths.latent).columns(to),
                inverses.range_mut(0..self.rows),
            );
        }
    }

    fn expand_queries(&self, parts: &LatentParts, kept: &mut Kept<E>, room: &mut Expanded<E>) {
        let (shape, widths) = (parts.shape, &self.parts.widths);
        let [latent, _] = self.latent_columns(shape);
        let heads = (shape.heads, shape.key());
        let to = |qkv| -> MatrixMut<'_, E> { self.matrix_mut(qkv, widths.qkv).columns(0..widths.attended) };
        let place = part(widths.head_dim, 0);
        match &parts.query_up {
            None => {
                let [from, ..] = shape.down();
                let from = self.matrix(&kept.unnormed, widths.unnormed).columns(from);
                self.device.copy_heads(heads, (from, part(shape.key(), 0)), (to(&mut kept.qkv), place));
            }
            Some(up) => {
                let latent = self.matrix(&kept.latent, widths.latent).columns(latent);
                if self.fills_heads(shape.key()) {
                    return self.linear(up, latent, to(&mut kept.qkv));
                }
                self.linear(up, latent, self.matrix_mut(&mut room.heads, shape.queries()));
                let from = self.matrix(&room.heads, shape.queries());
                self.device.copy_heads(heads, (from, part(shape.key(), 0)), (to(&mut kept.qkv), place));
            }
        }
    }

    fn expand_keys_and_values(&self, parts: &LatentParts, kept: &mut Kept<E>, room: &mut Expanded<E>) {
        let (shape, widths) = (parts.shape, &self.parts.widths);
        let LatentShape { heads, nope, rope, value, .. } = shape;
        let [_, latent] = self.latent_columns(shape);
        let latent = self.matrix(&kept.latent, widths.latent).columns(latent);
        self.linear(&parts.kv_up, latent, self.matrix_mut(&mut room.keys_values, widths.expanded));
        let expanded = self.matrix(&room.keys_values, widths.expanded);
        let [.., shared] = shape.down();
        let shared = self.matrix(&kept.unnormed, widths.unnormed).columns(shared);
        let (apart, dim) = (nope + value, widths.head_dim);
        let behind_queries = self.matrix_mut(&mut kept.qkv, widths.qkv).columns(widths.attended..widths.qkv);
        let (mut keys, values) = behind_queries.split_columns(widths.attended);
        self.device.copy_heads((heads, nope), (expanded, part(apart, 0)), (keys.reborrow(), part(dim, 0)));
        self.device.copy_heads((heads, rope), (shared, part(0, 0)), (keys, part(dim, nope)));
        self.device.copy_heads((heads, value), (expanded, part(apart, nope)), (values, part(dim, 0)));
    }

    /// What the output's product reads: attention's output without what fills heads up.
    pub(crate) fn output_input<'b>(
        &self,
        attended: &'b Buffer<E>,
        room: &'b mut Option<&mut Expanded<E>>,
    ) -> Matrix<'b, E> {
        let widths = &self.parts.widths;
        let attended = self.matrix(attended, widths.attended);
        let (Some(parts), Some(room)) = (&self.parts.latent, room) else { return attended };
        let LatentShape { heads, value, .. } = parts.shape;
        if self.fills_heads(value) {
            return attended;
        }
        let (from, to) = (part(widths.head_dim, 0), part(value, 0));
        let narrow = self.matrix_mut(&mut room.heads, heads * value);
        self.device.copy_heads((heads, value), (attended, from), (narrow, to));
        self.matrix(&room.heads, heads * value)
    }

    /// The gradient of attention's output, from that of the layer's first half.
    pub(crate) fn d_attended(
        &self,
        d_output: Matrix<'_, E>,
        attended: &mut Buffer<E>,
        room: &mut Option<&mut Expanded<E>>,
    ) {
        let (widths, output) = (&self.parts.widths, &self.parts.output);
        let (mode, latent) = (Accumulate::Replace, self.parts.latent.as_ref());
        match (latent, room) {
            (Some(LatentParts { shape, .. }), Some(room)) if !self.fills_heads(shape.value) => {
                let LatentShape { heads, value, .. } = *shape;
                self.input_gradient(output, d_output, mode, self.matrix_mut(&mut room.heads, heads * value));
                self.device.fill(attended.range_mut(0..self.rows * widths.attended), 0.0);
                let from = (self.matrix(&room.heads, heads * value), part(value, 0));
                let to = (self.matrix_mut(attended, widths.attended), part(widths.head_dim, 0));
                self.device.copy_heads((heads, value), from, to);
            }
            _ => self.input_gradient(output, d_output, mode, self.matrix_mut(attended, widths.attended)),
        }
    }

    /// From the gradient of queries, keys and values to that of the normed input.
    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    pub(crate) fn project_latent_backward<T: Element>(
        &self,
        parts: &LatentParts,
        input: Matrix<'_, E>,
        kept: &Kept<E>,
        inner: &mut InnerGradients<E>,
        room: &mut Expanded<E>,
        d_normed: &mut Buffer<T>,
        mut gradient: BlockGradient<'_>,
    ) {
        self.keys_and_values_backward(parts, kept, inner, room, reborrow(&mut gradient));
        self.queries_backward(parts, kept, inner, room, reborrow(&mut gradient));
        self.latent_norms_backward(parts, kept, inner, reborrow(&mut gradient));
        let d_down = self.matrix(&inner.unnormed, self.parts.widths.unnormed);
        self.linear_gradient(&self.parts.qkv, d_down, input, gradient);
        let d_normed = self.matrix_mut(d_normed, self.hidden());
        self.input_gradient(&self.parts.qkv, d_down, Accumulate::Replace, d_normed);
    }

    fn keys_and_values_backward(
        &self,
        parts: &LatentParts,
        kept: &Kept<E>,
        inner: &mut InnerGradients<E>,
        room: &mut Expanded<E>,
        gradient: BlockGradient<'_>,
    ) {
        let (shape, widths) = (parts.shape, &self.parts.widths);
        let LatentShape { heads, nope, rope, value, .. } = shape;
        let (apart, dim) = (nope + value, widths.head_dim);
        let keys = widths.attended..2 * widths.attended;
        let d_qkv = self.matrix(&inner.qkv, widths.qkv);
        let (d_keys, d_values) = (d_qkv.columns(keys.clone()), d_qkv.columns(keys.end..widths.qkv));
        let mut d_expanded = self.matrix_mut(&mut room.keys_values, widths.expanded);
        self.device.copy_heads(
            (heads, nope),
            (d_keys, part(dim, 0)),
            (d_expanded.reborrow(), part(apart, 0)),
        );
        self.device.copy_heads((heads, value), (d_values, part(dim, 0)), (d_expanded, part(apart, nope)));
        let [_, to, shared] = shape.down();
        let d_shared = self.matrix_mut(&mut inner.unnormed, widths.unnormed).columns(shared);
        self.device.sum_heads((heads, rope), (d_keys, part(dim, nope)), d_shared);
        let d_expanded = self.matrix(&room.keys_values, widths.expanded);
        let [_, latent] = self.latent_columns(shape);
        let latent = self.matrix(&kept.latent, widths.latent).columns(latent);
        self.linear_gradient(&parts.kv_up, d_expanded, latent, gradient);
        let d_latent = self.matrix_mut(&mut inner.unnormed, widths.unnormed).columns(to);
        self.input_gradient(&parts.kv_up, d_expanded, Accumulate::Replace, d_latent);
    }

    fn queries_backward(
        &self,
        parts: &LatentParts,
        kept: &Kept<E>,
        inner: &mut InnerGradients<E>,
        room: &mut Expanded<E>,
        gradient: BlockGradient<'_>,
    ) {
        let (shape, widths) = (parts.shape, &self.parts.widths);
        let (heads, [to, ..]) = ((shape.heads, shape.key()), shape.down());
        let d_queries = self.matrix(&inner.qkv, widths.qkv).columns(0..widths.attended);
        let from = (d_queries, part(widths.head_dim, 0));
        let Some(up) = &parts.query_up else {
            let to = self.matrix_mut(&mut inner.unnormed, widths.unnormed).columns(to);
            return self.device.copy_heads(heads, from, (to, part(shape.key(), 0)));
        };
        let d_queries = if self.fills_heads(shape.key()) {
            d_queries
        } else {
            let narrow = self.matrix_mut(&mut room.heads, shape.queries());
            self.device.copy_heads(heads, from, (narrow, part(shape.key(), 0)));
            self.matrix(&room.heads, shape.queries())
        };
        let [latent, _] = self.latent_columns(shape);
        let latent = self.matrix(&kept.latent, widths.latent).columns(latent);
        self.linear_gradient(up, d_queries, latent, gradient);
        let d_latent = self.matrix_mut(&mut inner.unnormed, widths.unnormed).columns(to);
        self.input_gradient(up, d_queries, Accumulate::Replace, d_latent);
    }

    /// Turns the gradients of latents behind their norms into those before them, in place.
    fn latent_norms_backward(
        &self,
        parts: &LatentParts,
        kept: &Kept<E>,
        inner: &mut InnerGradients<E>,
        mut gradient: BlockGradient<'_>,
    ) {
        let ([queries, keys, _], width) = (parts.shape.down(), self.parts.widths.unnormed);
        let norms = [
            (parts.query_norm.as_ref(), queries, &kept.query_inverses),
            (Some(&parts.kv_norm), keys, &kept.key_inverses),
        ];
        for (norm, columns, inverses) in norms {
            let Some(norm) = norm else { continue };
            self.device.head_norm_backward(
                &one_head(columns.len()),
                self.matrix_mut(&mut inner.unnormed, width).columns(columns.clone()),
                self.matrix(&kept.unnormed, width).columns(columns),
                NormWeight { kept: self.weights.range(norm.clone()), offset: 0.0 },
                inverses.range(0..self.rows),
                reborrow(&mut gradient).map(|gradient| gradient.range(norm.clone())),
            );
        }
    }
}
