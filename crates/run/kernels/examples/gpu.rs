//! What a GPU computes and how fast: every operator against the processor, then the rates of products, copies and attention, a layer of a 7B model
//! forward and backward, and a decoding step of an 8B model. `cargo run --release --example gpu -- [selftest] [rates] [layer] [training] [decode] [kv] [fp8] [long]`
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::time::Instant;

use bedplate_kernels::{
    Accumulate, AdamW, AttentionShape, Bf16, Buffer, BufferValue, Device, Element, Heads, KvFormat, Matrix,
    MatrixMut, Packed, PagedRows, PagedShape, Qkv, Rotary, Sight, Turn, VisibleKeys, WeightFormat, selftest,
};

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(error) => return println!("no GPU: {error}"),
    };
    println!("{}", device.instructions());
    if is_wanted("selftest") {
        let mut right = 0;
        let findings = selftest(&device, |finding| {
            right += usize::from(finding.is_right());
            if !finding.is_right() {
                println!("WRONG {finding:?}");
            }
        });
        let worst = |format| {
            let of_format =
                findings.iter().filter(move |finding| finding.format == format && finding.is_right());
            of_format.map(|finding| finding.distance).fold(0.0, f64::max)
        };
        println!(
            "{right} of {} right; largest distance f32 {:.1e}, bf16 {:.1e}",
            findings.len(),
            worst("f32"),
            worst("bf16")
        );
    }
    if is_wanted("rates") {
        rates(&device);
    }
    if is_wanted("layer") {
        layer(&device);
    }
    if is_wanted("training") {
        fp8_training(&device);
    }
    if is_wanted("decode") {
        decode(&device, is_wanted("long"), WeightFormat::Bf16, KvFormat::Stored);
    }
    if is_wanted("kv") {
        println!("with keys and values of fp8:");
        decode(&device, is_wanted("long"), WeightFormat::Bf16, KvFormat::Fp8);
    }
    if is_wanted("fp8") {
        println!("with weights of fp8:");
        decode(&device, is_wanted("long"), WeightFormat::Fp8, KvFormat::Stored);
        if is_wanted("kv") {
            println!("with weights, keys and values of fp8:");
            decode(&device, is_wanted("long"), WeightFormat::Fp8, KvFormat::Fp8);
        }
    }
}

/// Products of a linear layer in training, in bf16 and with sides that are rounded to fp8 each time: sizes of Llama 3.2 1B and 3.1 8B.
fn fp8_training(device: &Device) {
    let rows = 16_384;
    println!("{:>16} {:>28} {:>28}", "inputs, outputs", "output", "gradient of input");
    for (inputs, outputs) in
        [(2048, 3072), (2048, 2048), (2048, 16_384), (8192, 2048), (4096, 28_672), (14_336, 4096)]
    {
        let (x, weight) =
            (random::<Bf16>(device, rows * inputs, 1.0), random::<Bf16>(device, outputs * inputs, 0.02));
        let d_out = random::<Bf16>(device, rows * outputs, 1e-3);
        let (mut out, mut d_x) = (device.zeros::<Bf16>(rows * outputs), device.zeros::<Bf16>(rows * inputs));
        let (x, d_out) = (x.view().matrix(rows, inputs), d_out.view().matrix(rows, outputs));
        let both = [
            [
                time(device, 10, || {
                    device.linear(x, weight.view(), None, None, out.view_mut().matrix(rows, outputs));
                }),
                time(device, 10, || {
                    device.linear_fp8(x, weight.view(), None, None, out.view_mut().matrix(rows, outputs));
                }),
            ],
            [
                time(device, 10, || {
                    let d_x = d_x.view_mut().matrix(rows, inputs);
                    device.linear_backward_input(d_out, weight.view(), Accumulate::Replace, d_x);
                }),
                time(device, 10, || {
                    let d_x = d_x.view_mut().matrix(rows, inputs);
                    device.linear_fp8_backward_input(d_out, weight.view(), Accumulate::Replace, d_x);
                }),
            ],
        ];
        let each = both.map(|[bf16, fp8]| format!("{bf16:.3} ms, fp8 {fp8:.3}: {:.2}x", bf16 / fp8));
        println!("{:>16} {:>28} {:>28}", format!("{inputs}, {outputs}"), each[0], each[1]);
    }
}

/// Milliseconds of one time, of several after some that do not count.
fn time(device: &Device, times: u32, mut work: impl FnMut()) -> f64 {
    (0..3).for_each(|_| work());
    device.synchronize();
    let began = Instant::now();
    (0..times).for_each(|_| work());
    device.synchronize();
    began.elapsed().as_secs_f64() * 1000.0 / f64::from(times)
}

/// Random numbers between plus and minus `size`, as many as wanted by copying.
fn random<E: Element>(device: &Device, len: usize, size: f32) -> Buffer<E> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let some: Vec<E> = (0..len.min(1 << 20))
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            E::narrow(size * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0))
        })
        .collect();
    let (mut buffer, source) = (device.zeros::<E>(len), given(device, &some));
    for start in (0..len).step_by(some.len().max(1)) {
        let count = some.len().min(len - start);
        device.copy(source.range(0..count), buffer.range_mut(start..start + count));
    }
    buffer
}

fn given<E: BufferValue>(device: &Device, elements: &[E]) -> Buffer<E> {
    let mut buffer = device.zeros(elements.len());
    device.write(buffer.view_mut(), elements);
    buffer
}

fn rates(device: &Device) {
    for size in [4096, 8192] {
        let (x, w, mut out) = (
            random::<Bf16>(device, size * size, 1.0),
            random::<Bf16>(device, size * size, 0.02),
            device.zeros::<Bf16>(size * size),
        );
        let ms = time(device, 20, || {
            device.linear(
                x.view().matrix(size, size),
                w.view(),
                None,
                None,
                out.view_mut().matrix(size, size),
            );
        });
        println!("gemm bf16 {size}: {:.1} TFLOP/s", 2.0 * (size as f64).powi(3) / ms / 1e9);
        let w = device.pack(w.view(), size, WeightFormat::Fp8);
        let ms = time(device, 20, || {
            let out = out.view_mut().matrix(size, size);
            device.linear_packed(x.view().matrix(size, size), &w, None, None, out);
        });
        let rate = 2.0 * (size as f64).powi(3) / ms / 1e9;
        println!("gemm fp8 {size}, rows of bf16 rounded each time: {rate:.1} TFLOP/s, {ms:.3} ms");
    }
    let (from, mut to) = (random::<f32>(device, 1 << 30, 1.0), device.zeros::<f32>(1 << 30));
    let ms = time(device, 10, || device.copy(from.view(), to.view_mut()));
    println!("copy: {:.2} TB/s", 2.0 * 4.0 * f64::from(1 << 30) / ms / 1e9);
    drop((from, to));
    let len = 1 << 28;
    let [mut weights, gradient, mut first] = [(); 3].map(|()| random::<f32>(device, len, 1.0));
    let (mut second, mut copy) = (device.zeros::<f32>(len), device.zeros::<Bf16>(len));
    let step = AdamW {
        learning_rate: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        step: 3,
        gradient_scale: 1.0,
    };
    let ms = time(device, 10, || {
        device.adamw(
            &step,
            weights.view_mut(),
            gradient.view(),
            first.view_mut(),
            second.view_mut(),
            Some(copy.view_mut()),
        );
    });
    println!("adamw: {:.2} TB/s", 30.0 * len as f64 / ms / 1e9);
    drop((weights, gradient, first, second, copy));
    for (batch, heads, kv_heads, tokens, dim) in
        [(8, 32, 8, 2048, 128), (2, 32, 8, 8192, 128), (8, 32, 32, 2048, 64), (8, 32, 8, 2048, 64)]
    {
        let mut attention = Attention::new(device, batch, heads, kv_heads, tokens, dim);
        let flops = 2.0 * (batch * heads * tokens * tokens * dim) as f64;
        let forward = time(device, 20, || attention.forward(device));
        let backward = time(device, 20, || attention.backward(device));
        println!(
            "attention {batch} x {tokens}, heads {heads}/{kv_heads} of {dim}: forward {forward:.3} ms {:.0} TFLOP/s, backward {backward:.3} ms {:.0}, both {:.0}",
            flops / forward / 1e9,
            2.5 * flops / backward / 1e9,
            3.5 * flops / (forward + backward) / 1e9
        );
    }
}

/// Queries, keys and values as columns of one matrix.
struct Attention {
    shape: AttentionShape,
    rows: usize,
    qkv: Buffer<Bf16>,
    d_qkv: Buffer<Bf16>,
    out: Buffer<Bf16>,
    d_out: Buffer<Bf16>,
    log_sums: Buffer<f32>,
    first_keys: Buffer<u32>,
}

impl Attention {
    fn new(
        device: &Device,
        batch: usize,
        heads: usize,
        kv_heads: usize,
        tokens: usize,
        head_dim: usize,
    ) -> Self {
        let scale = 1.0 / (head_dim as f32).sqrt();
        let shape =
            AttentionShape { queries: tokens, keys: tokens, heads, kv_heads, head_dim, scale, cap: 0.0 };
        let rows = batch * tokens;
        Self {
            shape,
            rows,
            qkv: random(device, rows * shape.columns(), 1.0),
            d_qkv: device.zeros(rows * shape.columns()),
            out: device.zeros(rows * shape.attended()),
            d_out: random(device, rows * shape.attended(), 1.0),
            log_sums: device.zeros(rows * heads),
            first_keys: device.zeros(rows),
        }
    }

    fn forward(&mut self, device: &Device) {
        let (shape, rows) = (self.shape, self.rows);
        let qkv = Qkv::columns(&shape, self.qkv.view().matrix(rows, shape.columns()));
        let seen = VisibleKeys { first_keys: self.first_keys.view(), positions: None };
        let out = self.out.view_mut().matrix(rows, shape.attended());
        device.attention(&shape, qkv, seen, out, self.log_sums.view_mut());
    }

    fn backward(&mut self, device: &Device) {
        let (shape, rows) = (self.shape, self.rows);
        let qkv = Qkv::columns(&shape, self.qkv.view().matrix(rows, shape.columns()));
        let seen = VisibleKeys { first_keys: self.first_keys.view(), positions: None };
        let [out, d_out] = [&self.out, &self.d_out].map(|of| of.view().matrix(rows, shape.attended()));
        let d_qkv = Qkv::columns_mut(&shape, self.d_qkv.view_mut().matrix(rows, shape.columns()));
        device.attention_backward(&shape, qkv, seen, out, self.log_sums.view(), d_out, d_qkv);
    }
}

/// A layer of a 7B model: 4096 wide, 32 heads, 11008 in the middle, 8 sequences of 2048 tokens.
fn layer(device: &Device) {
    let (rows, hidden, inner) = (8 * 2048, 4096, 11008);
    let mut attention = Attention::new(device, 8, 32, 32, 2048, 128);
    let columns = attention.shape.columns();
    let weight = |outputs: usize, inputs: usize| random::<Bf16>(device, outputs * inputs, 0.02);
    let [w_qkv, w_out, w_up, w_down] =
        [weight(columns, hidden), weight(hidden, hidden), weight(2 * inner, hidden), weight(hidden, inner)];
    let gradient = |of: &Buffer<Bf16>| device.zeros::<f32>(of.len());
    let [mut g_qkv, mut g_out, mut g_up, mut g_down] = [&w_qkv, &w_out, &w_up, &w_down].map(gradient);
    let norm = random::<Bf16>(device, hidden, 1.0);
    let [mut g_norm1, mut g_norm2] = [(); 2].map(|()| device.zeros::<f32>(hidden));
    let x = random::<Bf16>(device, rows * hidden, 1.0);
    let wide = |columns: usize| device.zeros::<Bf16>(rows * columns);
    let [mut normed1, mut middle, mut normed2, mut y, mut d_normed, mut d_middle, mut d_x] =
        [(); 7].map(|()| wide(hidden));
    let [mut gate_up, mut d_gate_up] = [(); 2].map(|()| wide(2 * inner));
    let [mut activated, mut d_activated] = [(); 2].map(|()| wide(inner));
    let [mut inverses1, mut inverses2] = [(); 2].map(|()| device.zeros::<f32>(rows));
    let d_y = random::<Bf16>(device, rows * hidden, 1.0);
    let frequencies: Vec<f64> = (0..64).map(|pair| 10_000f64.powf(-f64::from(pair) / 64.0)).collect();
    let rotary = Rotary::new(device, 128, &frequencies, 2048, 1.0);
    let positions: Vec<u32> = (0..rows as u32).map(|row| row % 2048).collect();
    let positions = given(device, &positions);
    let heads = Heads { first: 0, count: 64, dim: 128 };
    let mut forward =
        |attention: &mut Attention, gate_up: &mut Buffer<Bf16>, activated: &mut Buffer<Bf16>| {
            device.rms_norm(
                x.view().matrix(rows, hidden),
                norm.view(),
                1e-5,
                normed1.view_mut().matrix(rows, hidden),
                inverses1.view_mut(),
            );
            device.linear(
                normed1.view().matrix(rows, hidden),
                w_qkv.view(),
                None,
                None,
                attention.qkv.view_mut().matrix(rows, columns),
            );
            device.rotate(
                &heads,
                positions.view(),
                &rotary,
                Turn::Forward,
                attention.qkv.view_mut().matrix(rows, columns),
            );
            attention.forward(device);
            let residual = Some(x.view().matrix(rows, hidden));
            device.linear(
                attention.out.view().matrix(rows, hidden),
                w_out.view(),
                None,
                residual,
                middle.view_mut().matrix(rows, hidden),
            );
            device.rms_norm(
                middle.view().matrix(rows, hidden),
                norm.view(),
                1e-5,
                normed2.view_mut().matrix(rows, hidden),
                inverses2.view_mut(),
            );
            device.linear(
                normed2.view().matrix(rows, hidden),
                w_up.view(),
                None,
                None,
                gate_up.view_mut().matrix(rows, 2 * inner),
            );
            device.swiglu(gate_up.view().matrix(rows, 2 * inner), activated.view_mut().matrix(rows, inner));
            let residual = Some(middle.view().matrix(rows, hidden));
            device.linear(
                activated.view().matrix(rows, inner),
                w_down.view(),
                None,
                residual,
                y.view_mut().matrix(rows, hidden),
            );
        };
    let ms = time(device, 5, || forward(&mut attention, &mut gate_up, &mut activated));
    println!("7B layer forward: {ms:.2} ms");
    let mut both = || {
        forward(&mut attention, &mut gate_up, &mut activated);
        let d_out = d_y.view().matrix(rows, hidden);
        linear_backward(
            device,
            d_out,
            activated.view().matrix(rows, inner),
            (&w_down, &mut g_down),
            d_activated.view_mut().matrix(rows, inner),
        );
        device.swiglu_backward(
            gate_up.view().matrix(rows, 2 * inner),
            d_activated.view().matrix(rows, inner),
            d_gate_up.view_mut().matrix(rows, 2 * inner),
        );
        linear_backward(
            device,
            d_gate_up.view().matrix(rows, 2 * inner),
            x.view().matrix(rows, hidden),
            (&w_up, &mut g_up),
            d_normed.view_mut().matrix(rows, hidden),
        );
        device.copy(d_y.view(), d_middle.view_mut());
        device.rms_norm_backward(
            d_normed.view().matrix(rows, hidden),
            x.view().matrix(rows, hidden),
            norm.view(),
            g_norm_inverses(&attention),
            Accumulate::Add,
            d_middle.view_mut().matrix(rows, hidden),
            Some(g_norm2.view_mut()),
        );
        linear_backward(
            device,
            d_middle.view().matrix(rows, hidden),
            attention.out.view().matrix(rows, hidden),
            (&w_out, &mut g_out),
            attention.d_out.view_mut().matrix(rows, hidden),
        );
        attention.backward(device);
        device.rotate(
            &heads,
            positions.view(),
            &rotary,
            Turn::Backward,
            attention.d_qkv.view_mut().matrix(rows, columns),
        );
        linear_backward(
            device,
            attention.d_qkv.view().matrix(rows, columns),
            x.view().matrix(rows, hidden),
            (&w_qkv, &mut g_qkv),
            d_normed.view_mut().matrix(rows, hidden),
        );
        device.copy(d_middle.view(), d_x.view_mut());
        device.rms_norm_backward(
            d_normed.view().matrix(rows, hidden),
            x.view().matrix(rows, hidden),
            norm.view(),
            g_norm_inverses(&attention),
            Accumulate::Add,
            d_x.view_mut().matrix(rows, hidden),
            Some(g_norm1.view_mut()),
        );
    };
    let ms = time(device, 5, &mut both);
    println!("7B layer forward and backward: {ms:.2} ms");
    device.take_measured();
    both();
    println!("{:?}", device.take_measured());
}

/// Both gradients of a linear layer, given its input, its weight and where the weight's gradient is summed.
fn linear_backward(
    device: &Device,
    d_out: Matrix<'_, Bf16>,
    x: Matrix<'_, Bf16>,
    (weight, d_weight): (&Buffer<Bf16>, &mut Buffer<f32>),
    d_x: MatrixMut<'_, Bf16>,
) {
    device.linear_backward_input(d_out, weight.view(), Accumulate::Replace, d_x);
    device.linear_backward_weight(d_out, x, d_weight.view_mut(), None);
}

/// Any numbers, one a row: what they are does not change the time.
fn g_norm_inverses(attention: &Attention) -> bedplate_kernels::View<'_, f32> {
    attention.log_sums.range(0..attention.rows)
}

struct Block {
    qkv: Packed,
    out: Packed,
    up: Packed,
    down: Packed,
    pool: Buffer<Bf16>,
}

/// A step of a model with the shape of Llama 3.1 8B.
fn decode(device: &Device, is_long: bool, format: WeightFormat, kv: KvFormat) {
    let (hidden, inner, vocabulary, layers) = (4096, 14336, 128_256, 32);
    let source = random::<Bf16>(device, vocabulary * hidden, 0.02);
    let pack = |outputs: usize, inputs: usize| {
        let format = if outputs == vocabulary { WeightFormat::Bf16 } else { format };
        device.pack(source.range(0..outputs * inputs), outputs, format)
    };
    let shape = PagedShape {
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        scale: 0.088,
        cap: 0.0,
        block_tokens: 64,
        format: kv,
    };
    let head = pack(vocabulary, hidden);
    let most_blocks = 128 * 2112 / 64;
    let mut blocks: Vec<Block> = (0..layers)
        .map(|_| Block {
            qkv: pack(6144, hidden),
            out: pack(hidden, hidden),
            up: pack(2 * inner, hidden),
            down: pack(hidden, inner),
            pool: random(device, most_blocks * shape.block_len(), 1.0),
        })
        .collect();
    let weight_bytes: usize = head.bytes()
        + blocks.iter().map(|b| b.qkv.bytes() + b.out.bytes() + b.up.bytes() + b.down.bytes()).sum::<usize>();
    let norm = random::<Bf16>(device, hidden, 1.0);
    let frequencies: Vec<f64> = (0..64).map(|pair| 500_000f64.powf(-f64::from(pair) / 64.0)).collect();
    let rotary = Rotary::new(device, 128, &frequencies, 16_384, 1.0);
    let mut cases: Vec<(usize, usize, usize)> =
        vec![(1, 1, 1024), (2, 1, 1024), (8, 1, 1024), (32, 1, 1024), (64, 1, 2048), (128, 1, 2048)];
    if is_long {
        cases.push((1, 8192, 0));
    }
    // `CASE=4` takes only that one, for a profiler.
    if let Some(case) = std::env::var("CASE").ok().and_then(|case| case.parse().ok()) {
        cases = vec![cases.swap_remove(case)];
    }
    for (sequences, each, context) in cases {
        let rows = sequences * each;
        let per = (context + each).div_ceil(64);
        let list = |of: &dyn Fn(usize) -> usize, count: usize| -> Vec<u32> {
            (0..count).map(|index| of(index) as u32).collect()
        };
        let starts = given(device, &list(&|s| s * each, sequences + 1));
        let contexts = given(device, &list(&|_| context, sequences));
        let table_starts = given(device, &list(&|s| s * per, sequences + 1));
        let tables = given(device, &list(&|block| block, sequences * per));
        let positions = given(device, &list(&|row| context + row % each, rows));
        let paged = PagedRows {
            starts: starts.view(),
            contexts: contexts.view(),
            table_starts: table_starts.view(),
            tables: tables.view(),
        };
        let wide = |columns: usize| random::<Bf16>(device, rows * columns, 1.0);
        let (mut x, mut y, mut normed, mut qkv) = (wide(hidden), wide(hidden), wide(hidden), wide(6144));
        let (mut attended, mut up, mut activated) = (wide(hidden), wide(2 * inner), wide(inner));
        let (mut inverses, mut logits) =
            (device.zeros::<f32>(rows), device.zeros::<f32>(sequences * vocabulary));
        let mut step = |device: &Device| {
            for block in &mut blocks {
                device.rms_norm_linear(
                    x.view().matrix(rows, hidden),
                    norm.view(),
                    1e-5,
                    &block.qkv,
                    None,
                    (normed.view_mut().matrix(rows, hidden), inverses.view_mut()),
                    qkv.view_mut().matrix(rows, 6144),
                );
                device.turn_and_store(
                    &shape,
                    positions.view(),
                    &rotary,
                    qkv.view_mut().matrix(rows, 6144),
                    paged,
                    block.pool.view_mut(),
                );
                device.paged_attention(
                    &shape,
                    qkv.view().matrix(rows, 6144).columns(0..4096),
                    paged,
                    Sight::All,
                    block.pool.view(),
                    attended.view_mut().matrix(rows, hidden),
                );
                device.linear_packed(
                    attended.view().matrix(rows, hidden),
                    &block.out,
                    None,
                    Some(x.view().matrix(rows, hidden)),
                    y.view_mut().matrix(rows, hidden),
                );
                device.rms_norm_linear(
                    y.view().matrix(rows, hidden),
                    norm.view(),
                    1e-5,
                    &block.up,
                    None,
                    (normed.view_mut().matrix(rows, hidden), inverses.view_mut()),
                    up.view_mut().matrix(rows, 2 * inner),
                );
                device.swiglu_linear(
                    up.view().matrix(rows, 2 * inner),
                    &block.down,
                    None,
                    Some(y.view().matrix(rows, hidden)),
                    activated.view_mut().matrix(rows, inner),
                    x.view_mut().matrix(rows, hidden),
                );
            }
            device.linear_packed(
                x.range((rows - sequences) * hidden..rows * hidden).matrix(sequences, hidden),
                &head,
                None,
                None,
                logits.view_mut().matrix(sequences, vocabulary),
            );
        };
        let plain = time(device, 5, || step(device));
        let cache = 2 * layers * 8 * 128 * 2 * sequences * (context + each);
        let bytes = (weight_bytes + if each == 1 { cache } else { 0 }) as f64;
        let line = format!("8B, {sequences} x {each} behind {context}: {plain:.3} ms started one by one");
        match device.capture(&mut step) {
            Some(graph) => {
                let ms = time(device, 10, || assert!(device.launch_graph(&graph), "nothing else ran"));
                println!(
                    "{line}, {ms:.3} ms as a CUDA graph, {:.0} tokens/s, {:.2} TB/s",
                    rows as f64 / ms * 1000.0,
                    bytes / ms / 1e9
                );
            }
            None => println!("{line}"),
        }
    }
}
