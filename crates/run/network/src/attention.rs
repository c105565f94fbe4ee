//! Attention of a layer: queries, keys and values from the normed input, and the way back to it.

use std::ops::Range;

use bedplate_kernels::{
    Accumulate, AttentionShape, Buffer, Element, Heads, Matrix, NormWeight, Qkv, Turn, VisibleKeys,
};

use crate::layer::{BlockGradient, LayerRun, reborrow};
use crate::table::LinearParts;
use crate::workspace::{Expanded, InnerGradients, Kept, Partial, Ring, RingGradients};

/// Where the gradients of a layer's inside are, and of what latent attention expands.
type GradientRooms<'a, 'b, E> = (&'a mut InnerGradients<E>, &'a mut Option<&'b mut Expanded<E>>);

impl<E: Element> LayerRun<'_, E> {
    pub(crate) fn attention_shape(&self) -> AttentionShape {
        let widths = &self.parts.widths;
        AttentionShape {
            queries: self.sequence,
            keys: self.sequence,
            heads: widths.heads,
            kv_heads: widths.kv_heads,
            head_dim: widths.head_dim,
            scale: self.network.architecture().numerics.attention_scale.of(widths.head_dim, self.layer),
            cap: self.network.architecture().numerics.attention_cap,
        }
    }

    /// The heads of the queries and those of the keys, as they lie in a row.
    fn query_and_key_heads(&self) -> [Heads; 2] {
        let (heads, count, dim) =
            (self.parts.widths.heads, self.parts.widths.kv_heads, self.parts.widths.head_dim);
        [Heads { first: 0, count: heads, dim }, Heads { first: heads, count, dim }]
    }

    /// Queries, keys and values; with norms over heads, queries and keys go through them.
    pub(crate) fn project(
        &self,
        input: Matrix<'_, E>,
        kept: &mut Kept<E>,
        expanded: &mut Option<&mut Expanded<E>>,
    ) {
        if let (Some(latent), Some(room)) = (&self.parts.latent, expanded) {
            return self.project_latent(latent, input, kept, room);
        }
        let (columns, unnormed) = (self.parts.widths.qkv, self.parts.widths.unnormed);
        let Some(norms) = &self.parts.head_norms else {
            return self.linear(&self.parts.qkv, input, self.matrix_mut(&mut kept.qkv, columns));
        };
        let [queries_keys, values] = self.parts.qkv.split(unnormed, self.hidden());
        self.linear(&queries_keys, input, self.matrix_mut(&mut kept.unnormed, unnormed));
        let qkv = self.matrix_mut(&mut kept.qkv, columns);
        self.linear(&values, input, qkv.columns(unnormed..columns));
        let inverses = [&mut kept.query_inverses, &mut kept.key_inverses];
        let each = [&norms.queries, &norms.keys].into_iter().zip(inverses);
        for (heads, (norm, inverses)) in norms.heads.iter().zip(each) {
            self.device.head_norm(
                heads,
                self.matrix(&kept.unnormed, unnormed),
                self.norm_weight(norm),
                self.network.architecture().numerics.norm_epsilon,
                self.matrix_mut(&mut kept.qkv, columns),
                inverses.range_mut(0..self.rows * heads.count),
            );
        }
    }

    fn norm_weight(&self, range: &Range<usize>) -> NormWeight<'_, E> {
        let offset = self.network.architecture().numerics.norm_offset;
        NormWeight { kept: self.weights.range(range.clone()), offset }
    }

    fn rotate(&self, turn: Turn, qkv: &mut Buffer<E>) {
        let Some(rotary) = self.network.rotary(self.layer) else { return };
        let [queries, keys] = self.query_and_key_heads();
        let heads = Heads { count: queries.count + keys.count, ..queries };
        let skipped = self.parts.latent.as_ref().map_or(0, |latent| latent.shape.nope);
        let qkv = self.matrix_mut(qkv, self.parts.widths.qkv);
        self.device.rotate_behind(&heads, skipped, self.positions, rotary, turn, qkv);
    }

    pub(crate) fn attend(&self, kept: &mut Kept<E>, ring: &mut Option<&mut Ring<E>>) {
        let widths = &self.parts.widths;
        self.rotate(Turn::Forward, &mut kept.qkv);
        match ring {
            Some(ring) => self.attend_in_ring(kept, ring),
            None => {
                let shape = self.attention_shape();
                self.device.attention(
                    &shape,
                    Qkv::columns(&shape, self.matrix(&kept.qkv, widths.qkv)),
                    VisibleKeys { first_keys: self.first_keys, positions: None },
                    self.matrix_mut(&mut kept.attended, widths.attended),
                    kept.log_sums.range_mut(0..self.rows * widths.heads),
                );
            }
        }
        if let Some(sinks) = &self.parts.sinks {
            self.device.sink(
                self.weights.range(sinks.clone()),
                self.matrix_mut(&mut kept.attended, widths.attended),
                kept.log_sums.range_mut(0..self.rows * widths.heads),
            );
        }
    }

    /// From the gradient of the layer's first half to that of queries, keys and values.
    pub(crate) fn attended_backward(
        &self,
        kept: &Kept<E>,
        d_output: Matrix<'_, E>,
        (inner, expanded): GradientRooms<'_, '_, E>,
        ring: Option<(&mut Ring<E>, &mut RingGradients<E>)>,
        mut gradient: BlockGradient<'_>,
    ) {
        let (widths, output) = (&self.parts.widths, &self.parts.output);
        let attended = self.output_input(&kept.attended, expanded);
        self.linear_gradient(output, d_output, attended, reborrow(&mut gradient));
        self.d_attended(d_output, &mut inner.attended, expanded);
        if let (Some(sinks), Some(gradient)) = (&self.parts.sinks, gradient) {
            self.device.sink_backward(
                self.weights.range(sinks.clone()),
                self.matrix(&kept.attended, widths.attended),
                self.matrix(&inner.attended, widths.attended),
                kept.log_sums.range(0..self.rows * widths.heads),
                gradient.range(sinks.clone()),
            );
        }
        match ring {
            None => self.attention_backward(kept, inner),
            Some((ring, gradients)) => self.ring_backward(kept, inner, ring, gradients),
        }
        self.rotate(Turn::Backward, &mut inner.qkv);
    }

    fn attention_backward(&self, kept: &Kept<E>, inner: &mut InnerGradients<E>) {
        let (widths, shape) = (&self.parts.widths, self.attention_shape());
        self.device.attention_backward(
            &shape,
            Qkv::columns(&shape, self.matrix(&kept.qkv, widths.qkv)),
            VisibleKeys { first_keys: self.first_keys, positions: None },
            self.matrix(&kept.attended, widths.attended),
            kept.log_sums.range(0..self.rows * widths.heads),
            self.matrix(&inner.attended, widths.attended),
            Qkv::columns_mut(&shape, self.matrix_mut(&mut inner.qkv, widths.qkv)),
        );
    }

    /// The way back through the norms over heads. Where heads are cut over ranks, each rank has a share of their gradient.
    pub(crate) fn head_norms_backward(
        &self,
        kept: &Kept<E>,
        d_qkv: &mut Buffer<E>,
        partial: &mut Option<&mut Partial<E>>,
        mut gradient: BlockGradient<'_>,
    ) {
        let Some(norms) = &self.parts.head_norms else { return };
        let norms = [norms.queries.clone(), norms.keys.clone()];
        let Some(Partial { head_norms: shares, .. }) = partial else {
            return self.each_head_norm_backward(kept, d_qkv, &norms, gradient);
        };
        let dim = self.parts.widths.head_dim;
        let places = [0..dim, dim..2 * dim];
        self.device.fill(shares.view_mut(), 0.0);
        self.each_head_norm_backward(kept, d_qkv, &places, gradient.is_some().then(|| shares.view_mut()));
        if gradient.is_some() {
            self.network.sum_over_ranks(self.device, shares.view_mut());
        }
        for (place, norm) in places.into_iter().zip(norms) {
            if let Some(gradient) = reborrow(&mut gradient) {
                self.device.add(shares.range(place), gradient.range(norm));
            }
        }
    }

    /// Adds the gradients of the two norms' weights to two places of `sums`.
    fn each_head_norm_backward(
        &self,
        kept: &Kept<E>,
        d_qkv: &mut Buffer<E>,
        places: &[Range<usize>; 2],
        mut sums: BlockGradient<'_>,
    ) {
        let Some(norms) = &self.parts.head_norms else { return };
        let inverses = [&kept.query_inverses, &kept.key_inverses];
        for (index, norm) in [&norms.queries, &norms.keys].into_iter().enumerate() {
            let heads = &norms.heads[index];
            self.device.head_norm_backward(
                heads,
                self.matrix_mut(d_qkv, self.parts.widths.qkv),
                self.matrix(&kept.unnormed, self.parts.widths.unnormed),
                self.norm_weight(norm),
                inverses[index].range(0..self.rows * heads.count),
                reborrow(&mut sums).map(|sums| sums.range(places[index].clone())),
            );
        }
    }

    /// From the gradient of queries, keys and values to that of the normed input.
    pub(crate) fn project_backward<T: Element>(
        &self,
        input: Matrix<'_, E>,
        kept: &Kept<E>,
        (inner, expanded): GradientRooms<'_, '_, E>,
        d_normed: &mut Buffer<T>,
        gradient: BlockGradient<'_>,
    ) {
        if let (Some(latent), Some(room)) = (&self.parts.latent, expanded) {
            return self.project_latent_backward(latent, input, kept, inner, room, d_normed, gradient);
        }
        let d_qkv = self.matrix(&inner.qkv, self.parts.widths.qkv);
        self.linear_gradient(&self.parts.qkv, d_qkv, input, gradient);
        let d_normed = self.matrix_mut(d_normed, self.hidden());
        self.input_gradient(&self.parts.qkv, d_qkv, Accumulate::Replace, d_normed);
    }
}

impl LinearParts {
    /// The layers of the first `outputs` outputs and of the rest.
    pub(crate) fn split(&self, outputs: usize, inputs: usize) -> [LinearParts; 2] {
        let middle = self.weight.start + outputs * inputs;
        let bias = self.bias.clone();
        let between = bias.clone().map(|bias| bias.start + outputs);
        [
            LinearParts {
                weight: self.weight.start..middle,
                bias: bias.clone().zip(between).map(|(bias, between)| bias.start..between),
            },
            LinearParts {
                weight: middle..self.weight.end,
                bias: bias.zip(between).map(|(bias, between)| between..bias.end),
            },
        ]
    }
}
