//! Operators allocate nothing once they have run: a step of training never waits for memory and never fails for lack of it.

use bedplate_kernels::{
    Accumulate, AdamW, AttentionShape, Balance, Bf16, Buffer, BufferValue, Device, Element, Gelu,
    HeadGradients, Heads, KvFormat, Matrix, MatrixMut, Packed, PackedExperts, PagedRows, PagedShape, Qkv,
    Rotary, Sight, Turn, VisibleKeys, WeightFormat,
};
use bedplate_testkit::counting::{self, CountingAllocator, assert_at_most};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ROWS: usize = 300;
const COLUMNS: usize = 64;
const EXPERTS: usize = 6;
const PER_TOKEN: usize = 2;
const CHOICES: usize = ROWS * PER_TOKEN;
const VOCABULARY: usize = 50;

/// Buffers for every operator, allocated before.
struct Buffers<E> {
    x: Buffer<E>,
    d: Buffer<E>,
    weight: Buffer<E>,
    out: Buffer<E>,
    pairs: Buffer<E>,
    d_pairs: Buffer<E>,
    statistics: Buffer<f32>,
    sums: Buffer<f32>,
    more_sums: Buffer<f32>,
    head_inverses: Buffer<f32>,
    tokens: Buffer<u32>,
    table: Buffer<E>,
    d_table: Buffer<f32>,
    workspace: Buffer<f32>,
    losses: Buffer<f32>,
    logits: Buffer<f32>,
    probabilities: Buffer<f32>,
    chosen: Buffer<u32>,
    counted: Buffer<u32>,
    shares: Buffer<f32>,
    order: Buffer<u32>,
    slots: Buffer<u32>,
    offsets: Buffer<u32>,
    weights: Buffer<f32>,
    d_weights: Buffer<f32>,
    slot_rows: Buffer<E>,
    d_slot_rows: Buffer<E>,
    expert_weights: Buffer<E>,
    d_expert_weights: Buffer<f32>,
    master: Buffer<f32>,
    gradient: Buffer<f32>,
    first: Buffer<f32>,
    second: Buffer<f32>,
    rounded: Buffer<Bf16>,
    rotary: Rotary,
    /// A matrix in each format, one after the other for each expert.
    packed: Vec<(Packed, PackedExperts)>,
    pool: Buffer<E>,
    /// One sequence that has all rows, and its blocks.
    starts: Buffer<u32>,
    contexts: Buffer<u32>,
    table_starts: Buffer<u32>,
    blocks: Buffer<u32>,
}

const PAGED: PagedShape = PagedShape {
    heads: 2,
    kv_heads: 2,
    head_dim: 32,
    scale: 0.2,
    cap: 0.0,
    block_tokens: 16,
    format: KvFormat::Stored,
};
const BLOCKS: usize = ROWS.div_ceil(PAGED.block_tokens);

impl<E: Element> Buffers<E> {
    fn new(device: &Device) -> Self {
        let len = ROWS * COLUMNS;
        Self {
            x: device.zeros(len),
            d: device.zeros(len),
            weight: device.zeros(COLUMNS),
            out: device.zeros(len),
            pairs: device.zeros(2 * len),
            d_pairs: device.zeros(2 * len),
            statistics: device.zeros(2 * ROWS),
            sums: device.zeros(COLUMNS),
            more_sums: device.zeros(COLUMNS),
            head_inverses: device.zeros(ROWS * 4),
            tokens: device.zeros(ROWS),
            table: device.zeros(VOCABULARY * COLUMNS),
            d_table: device.zeros(VOCABULARY * COLUMNS),
            workspace: device.zeros(100 * VOCABULARY),
            losses: device.zeros(ROWS),
            logits: device.zeros(ROWS * EXPERTS),
            probabilities: device.zeros(ROWS * EXPERTS),
            chosen: device.zeros(CHOICES),
            counted: device.zeros(ROWS),
            shares: device.zeros(EXPERTS),
            order: device.zeros(CHOICES),
            slots: device.zeros(CHOICES),
            offsets: device.zeros(EXPERTS + 1),
            weights: device.zeros(CHOICES),
            d_weights: device.zeros(CHOICES),
            slot_rows: device.zeros(CHOICES * COLUMNS),
            d_slot_rows: device.zeros(CHOICES * COLUMNS),
            expert_weights: device.zeros(EXPERTS * COLUMNS * COLUMNS),
            d_expert_weights: device.zeros(EXPERTS * COLUMNS * COLUMNS),
            master: device.zeros(100_000),
            gradient: device.zeros(100_000),
            first: device.zeros(100_000),
            second: device.zeros(100_000),
            rounded: device.zeros(100_000),
            rotary: Rotary::new(device, 16, &[1.0; 8], ROWS, 1.0),
            packed: WeightFormat::ALL.map(|format| pack::<E>(device, format)).into(),
            pool: device.zeros(BLOCKS * PAGED.block_len()),
            starts: elements(device, &[0, ROWS as u32]),
            contexts: device.zeros(1),
            table_starts: elements(device, &[0, BLOCKS as u32]),
            blocks: elements(device, &(0..BLOCKS as u32).collect::<Vec<_>>()),
        }
    }

    fn run_all(&mut self, device: &Device) {
        self.run_streams(device);
        self.run_norms(device);
        self.run_activations(device);
        self.run_loss(device);
        self.run_experts(device);
        self.run_products(device);
        self.run_packed(device);
        self.run_paged(device);
        self.run_optimizer(device);
    }

    /// After `run_experts`, which made the offsets.
    fn run_packed(&mut self, device: &Device) {
        for (weight, experts) in &self.packed {
            let (x, out) = (all(&self.x, ROWS), all_mut(&mut self.out, ROWS));
            device.linear_packed(x, weight, None, Some(all(&self.d, ROWS)), out);
            let x = all(&self.x, ROWS).rows(0..1);
            device.linear_packed(x, weight, None, None, all_mut(&mut self.out, ROWS).rows(0..1));
            let (x, out) = (all(&self.slot_rows, CHOICES), all_mut(&mut self.d_slot_rows, CHOICES));
            device.expert_linear_packed(x, self.offsets.view(), experts, out);
            device.unpack_rows(self.tokens.view(), weight, all_mut(&mut self.out, ROWS));
        }
    }

    fn run_paged(&mut self, device: &Device) {
        let rows = PagedRows {
            starts: self.starts.view(),
            contexts: self.contexts.view(),
            table_starts: self.table_starts.view(),
            tables: self.blocks.view(),
        };
        device.store_kv(&PAGED, all(&self.x, ROWS), all(&self.d, ROWS), rows, self.pool.view_mut());
        let (queries, out) = (all(&self.x, ROWS), all_mut(&mut self.out, ROWS));
        device.paged_attention(&PAGED, queries, rows, Sight::All, self.pool.view(), out);
        device.copy_blocks(PAGED.block_len(), &[(0, 1)], self.pool.view_mut());
    }

    fn run_streams(&mut self, device: &Device) {
        device.fill(self.x.view_mut(), 0.5);
        device.copy(self.x.view(), self.d.view_mut());
        device.add(self.x.view(), self.d.view_mut());
        device.convert(self.gradient.view(), self.rounded.view_mut());
        assert!(device.sum_of_squares(self.d.view()) > 0.0);
        assert_eq!(device.first_non_finite(self.d.view()), None);
        let (tokens, table) = (self.tokens.view(), all(&self.table, VOCABULARY));
        device.embedding(tokens, table, Accumulate::Add, all_mut(&mut self.out, ROWS));
        device.embedding_backward(tokens, all(&self.d, ROWS), all_mut(&mut self.d_table, VOCABULARY));
    }

    fn run_norms(&mut self, device: &Device) {
        let heads = Heads { first: 0, count: 4, dim: 16 };
        let (x, d, weight) = (all(&self.x, ROWS), all(&self.d, ROWS), self.weight.view());
        let inverses = self.statistics.range_mut(0..ROWS);
        device.rms_norm(x, weight, 1e-5, all_mut(&mut self.out, ROWS), inverses);
        let (inverses, out) = (self.statistics.range(0..ROWS), all_mut(&mut self.out, ROWS));
        device.rms_norm_backward(d, x, weight, inverses, Accumulate::Add, out, Some(self.sums.view_mut()));
        let (out, statistics) = (all_mut(&mut self.out, ROWS), self.statistics.view_mut());
        device.layer_norm(x, weight, Some(weight), 1e-5, out, statistics);
        let (out, statistics) = (all_mut(&mut self.out, ROWS), self.statistics.view());
        let (sums, more) = (self.sums.view_mut(), Some(self.more_sums.view_mut()));
        device.layer_norm_backward(d, x, weight, statistics, Accumulate::Replace, out, Some(sums), more);
        let (weight, out) = (self.weight.range(0..16), all_mut(&mut self.out, ROWS));
        device.head_norm(&heads, x, weight, 1e-5, out, self.head_inverses.view_mut());
        let (out, sums) = (all_mut(&mut self.out, ROWS), self.sums.range_mut(0..16));
        device.head_norm_backward(&heads, out, x, weight, self.head_inverses.view(), Some(sums));
        let out = all_mut(&mut self.out, ROWS);
        device.rotate(&heads, self.tokens.view(), &self.rotary, Turn::Forward, out);
    }

    fn run_activations(&mut self, device: &Device) {
        device.swiglu(all(&self.pairs, ROWS), all_mut(&mut self.out, ROWS));
        device.swiglu_backward(all(&self.pairs, ROWS), all(&self.d, ROWS), all_mut(&mut self.d_pairs, ROWS));
        device.gelu(Gelu::Exact, all(&self.x, ROWS), all_mut(&mut self.out, ROWS));
        let (x, d) = (all(&self.x, ROWS), all(&self.d, ROWS));
        device.gelu_backward(Gelu::Tanh, x, d, all_mut(&mut self.out, ROWS));
    }

    fn run_loss(&mut self, device: &Device) {
        let d_x = all_mut(&mut self.out, ROWS);
        let gradients = HeadGradients { d_x, d_weight: Some(self.d_table.view_mut()) };
        let (weight, targets) = (self.table.view(), self.tokens.view());
        let (losses, workspace) = (self.losses.view_mut(), self.workspace.view_mut());
        device.linear_cross_entropy(
            all(&self.x, ROWS),
            weight,
            targets,
            1.0,
            losses,
            Some(gradients),
            workspace,
        );
    }

    fn run_experts(&mut self, device: &Device) {
        let (probabilities, weights) = (all_mut(&mut self.probabilities, ROWS), self.weights.view_mut());
        device.route(
            all(&self.logits, ROWS),
            PER_TOKEN,
            true,
            probabilities,
            self.chosen.view_mut(),
            weights,
        );
        let (order, slots) = (self.order.view_mut(), self.slots.view_mut());
        device.dispatch(self.chosen.view(), EXPERTS, order, slots, self.offsets.view_mut());
        let (x, slots, weights) = (all(&self.x, ROWS), self.slots.view(), self.weights.view());
        device.gather_rows(x, self.order.view(), PER_TOKEN, all_mut(&mut self.slot_rows, CHOICES));
        let out = all_mut(&mut self.out, ROWS);
        device.combine(all(&self.slot_rows, CHOICES), slots, weights, PER_TOKEN, Accumulate::Add, out);
        let (d, y) = (all(&self.d, ROWS), all(&self.slot_rows, CHOICES));
        let (d_y, d_weights) = (all_mut(&mut self.d_slot_rows, CHOICES), self.d_weights.view_mut());
        device.combine_backward(d, y, slots, weights, PER_TOKEN, d_y, d_weights);
        let out = all_mut(&mut self.out, ROWS);
        device.gather_rows_backward(all(&self.d_slot_rows, CHOICES), slots, PER_TOKEN, Accumulate::Add, out);
        let (probabilities, d_logits) = (all(&self.probabilities, ROWS), all_mut(&mut self.logits, ROWS));
        let (chosen, d_weights) = (self.chosen.view(), self.d_weights.view());
        let (counted, shares) = (self.counted.view(), self.shares.view_mut());
        device.expert_shares(chosen, PER_TOKEN, counted, ROWS, shares);
        let shares = self.shares.view().matrix(1, EXPERTS);
        let balance = Some(Balance { coefficient: 0.01, shares, layers: 1, counted, tokens: ROWS });
        device.route_backward(probabilities, chosen, weights, PER_TOKEN, true, d_weights, balance, d_logits);
        device.gate_rows(x, self.losses.view(), Accumulate::Replace, all_mut(&mut self.out, ROWS));
        let (gates, to_logits) = (self.losses.view(), self.d_weights.range_mut(0..ROWS));
        device.gate_rows_backward(d, x, gates, all_mut(&mut self.out, ROWS), to_logits);
    }

    /// After `run_experts`, which made the offsets.
    fn run_products(&mut self, device: &Device) {
        let (x, offsets) = (all(&self.slot_rows, CHOICES), self.offsets.view());
        let out = all_mut(&mut self.d_slot_rows, CHOICES);
        device.expert_linear(x, offsets, self.expert_weights.view(), out);
        let d_x = all_mut(&mut self.slot_rows, CHOICES);
        let d = all(&self.d_slot_rows, CHOICES);
        device.expert_linear_backward_input(d, offsets, self.expert_weights.view(), d_x);
        let x = all(&self.slot_rows, CHOICES);
        device.expert_linear_backward_weight(d, x, offsets, self.d_expert_weights.view_mut());
        let shape = AttentionShape {
            queries: ROWS,
            keys: ROWS,
            heads: 2,
            kv_heads: 1,
            head_dim: 32,
            scale: 0.2,
            cap: 0.0,
        };
        let (qkv, log_sums) = (Qkv::columns(&shape, all(&self.pairs, ROWS)), self.statistics.view_mut());
        let seen = VisibleKeys { first_keys: self.tokens.view(), positions: None };
        device.attention(&shape, qkv, seen, all_mut(&mut self.out, ROWS), log_sums);
        let (out, d) = (all(&self.out, ROWS), all(&self.d, ROWS));
        let d_qkv = Qkv::columns_mut(&shape, all_mut(&mut self.d_pairs, ROWS));
        device.attention_backward(&shape, qkv, seen, out, self.statistics.view(), d, d_qkv);
    }

    fn run_optimizer(&mut self, device: &Device) {
        let step = AdamW {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            step: 1,
            gradient_scale: 1.0,
        };
        let (first, second) = (self.first.view_mut(), self.second.view_mut());
        let copy = Some(self.rounded.view_mut());
        device.adamw(&step, self.master.view_mut(), self.gradient.view(), first, second, copy);
    }
}

fn pack<E: Element>(device: &Device, format: WeightFormat) -> (Packed, PackedExperts) {
    let weight = device.zeros::<E>(COLUMNS * COLUMNS);
    let packed = || device.pack(weight.view(), COLUMNS, format);
    (packed(), device.pack_experts((0..EXPERTS).map(|_| packed()).collect()))
}

fn elements(device: &Device, elements: &[u32]) -> Buffer<u32> {
    let mut buffer = device.zeros(elements.len());
    device.write(buffer.view_mut(), elements);
    buffer
}

fn all<T: BufferValue>(buffer: &Buffer<T>, rows: usize) -> Matrix<'_, T> {
    buffer.view().matrix(rows, buffer.len() / rows)
}

fn all_mut<T: BufferValue>(buffer: &mut Buffer<T>, rows: usize) -> MatrixMut<'_, T> {
    let columns = buffer.len() / rows;
    buffer.view_mut().matrix(rows, columns)
}

#[test]
fn operators_allocate_nothing_once_they_have_run() {
    let device = Device::cpu(3);
    let (mut wide, mut narrow) = (Buffers::<f32>::new(&device), Buffers::<Bf16>::new(&device));
    wide.run_all(&device);
    narrow.run_all(&device);
    let ((), allocated) = counting::of_process(|| {
        for _ in 0..3 {
            wide.run_all(&device);
            narrow.run_all(&device);
        }
    });
    assert_at_most("allocations of operators after their first run", allocated.count, 0);
}
