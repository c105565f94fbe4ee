//! Latent attention in a step of serving: what is kept of a token is its latent, with the part of its key that all heads share.
//!
//! Queries are brought to where the latents are instead of latents to where keys are, and values are made from what attention gives, not from every
//! token: decoding reads the latents alone. Prompts are computed the same way, which takes more arithmetic than expanded keys would, but a row
//! is the same whatever step it is computed in.

use bedplate_kernels::{Accumulate, Buffer, Element, Heads, NormWeight, PagedShape, Turn};

use super::adapters::AdapterTarget;
use super::packed::PackedLatent;
use super::pass::{LayerPass, first_rows};
use super::room::{LatentRoom, ServingRoom};
use crate::latent::{LATENT_EPSILON, one_head, part};
use crate::table::{LatentParts, LatentShape};

impl<E: Element> LayerPass<'_, E> {
    /// Latents and queries of the normed rows, turned by their positions.
    pub(super) fn project_latent(
        &self,
        parts: &LatentParts,
        weights: &PackedLatent<E>,
        room: &mut ServingRoom<E>,
    ) {
        let (shape, hidden, unnormed) = (parts.shape, self.hidden(), self.parts.widths.unnormed);
        self.norm_into(self.weights.before_attention.as_ref(), room);
        let input = self.matrix(&room.normed, hidden);
        self.linear(&self.weights.qkv, input, self.matrix_mut(&mut room.unnormed, unnormed));
        let (to, adapted) = (self.matrix_mut(&mut room.unnormed, unnormed), room.adapters.as_mut());
        self.adapters.add(self.device, self.layer, AdapterTarget::Qkv, input, to, adapted);
        self.project_queries(shape, weights, room);
        self.make_latents(shape, weights, room);
        let Some(rotary) = self.network.rotary(self.layer) else { return };
        let positions = room.given.positions();
        let latent = room.latent.as_mut().expect(HAS_LATENTS);
        let heads = Heads { first: 0, count: shape.heads, dim: shape.key() };
        let queries = first_rows(&mut room.qkv, self.rows, shape.queries());
        self.device.rotate_behind(&heads, shape.nope, positions, rotary, Turn::Forward, queries);
        let (head, kept) = (one_head(shape.kept()), first_rows(&mut latent.kept, self.rows, shape.kept()));
        self.device.rotate_behind(&head, shape.kv_rank, positions, rotary, Turn::Forward, kept);
    }

    fn project_queries(&self, shape: LatentShape, weights: &PackedLatent<E>, room: &mut ServingRoom<E>) {
        let [columns, ..] = shape.down();
        let from = self.matrix(&room.unnormed, self.parts.widths.unnormed).columns(columns);
        let Some((norm, up)) = &weights.queries else {
            let to = first_rows(&mut room.qkv, self.rows, shape.queries());
            return self.device.put_rows(from, Accumulate::Replace, to);
        };
        let (latent, rank) = (room.latent.as_mut().expect(HAS_LATENTS), from.shape().1);
        self.device.head_norm(
            &one_head(rank),
            from,
            NormWeight { kept: norm.view(), offset: 0.0 },
            LATENT_EPSILON,
            first_rows(&mut latent.queries, self.rows, rank),
            room.statistics.range_mut(0..self.rows),
        );
        let from = self.matrix(&latent.queries, rank);
        self.linear(up, from, first_rows(&mut room.qkv, self.rows, shape.queries()));
        let (to, adapted) = (first_rows(&mut room.qkv, self.rows, shape.queries()), room.adapters.as_mut());
        self.adapters.add(self.device, self.layer, AdapterTarget::QueriesUp, from, to, adapted);
    }

    /// What is kept of each row: its latent, and behind it the shared part of its key.
    fn make_latents(&self, shape: LatentShape, weights: &PackedLatent<E>, room: &mut ServingRoom<E>) {
        let [_, latents, shared] = shape.down();
        let from = self.matrix(&room.unnormed, self.parts.widths.unnormed);
        let to = &mut room.latent.as_mut().expect(HAS_LATENTS).kept;
        self.device.head_norm(
            &one_head(shape.kv_rank),
            from.columns(latents),
            NormWeight { kept: weights.norm.view(), offset: 0.0 },
            LATENT_EPSILON,
            first_rows(to, self.rows, shape.kept()).columns(0..shape.kv_rank),
            room.statistics.range_mut(0..self.rows),
        );
        let to = first_rows(to, self.rows, shape.kept()).columns(shape.kv_rank..shape.kept());
        self.device.put_rows(from.columns(shared), Accumulate::Replace, to);
    }

    /// Attention over latents, and values of what it gives.
    pub(super) fn attend_latent(
        &self,
        parts: &LatentParts,
        weights: &PackedLatent<E>,
        paged: &PagedShape,
        pool: &mut Buffer<E>,
        room: &mut ServingRoom<E>,
    ) {
        let LatentShape { heads, nope, rope, value, kv_rank, .. } = parts.shape;
        let (shape, width, rows) = (parts.shape, parts.shape.kept(), room.given.paged());
        let LatentRoom { kept, absorbed, found, .. } = room.latent.as_mut().expect(HAS_LATENTS);
        let kept = self.matrix(kept, width);
        self.device.store_kv(paged, kept, kept, rows, pool.view_mut());
        let queries = self.matrix(&room.qkv, shape.queries());
        for (head, up) in weights.keys.iter().enumerate() {
            let from = queries.columns(head * shape.key()..head * shape.key() + nope);
            let to = self.matrix_mut(absorbed, heads * width).columns(head * width..head * width + kv_rank);
            self.device.linear_packed(from, up, None, None, to);
        }
        let to = (self.matrix_mut(absorbed, heads * width), part(width, kv_rank));
        self.device.copy_heads((heads, rope), (queries, part(shape.key(), nope)), to);
        let (absorbed, out) = (self.matrix(absorbed, heads * width), self.matrix_mut(found, heads * width));
        self.device.paged_attention(paged, absorbed, rows, self.sight(), pool.view(), out);
        let found = self.matrix(found, heads * width);
        for (head, up) in weights.values.iter().enumerate() {
            let from = found.columns(head * width..head * width + kv_rank);
            let to = self.matrix_mut(&mut room.attended, heads * value);
            self.device.linear_packed(from, up, None, None, to.columns(head * value..(head + 1) * value));
        }
    }
}

const HAS_LATENTS: &str = "a network with latent attention has a room for latents";
