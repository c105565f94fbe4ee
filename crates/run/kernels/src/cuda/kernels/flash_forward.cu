// Attention forward on Hopper, heads of DIM: a block has 128 queries of a head, one warpgroup brings keys and values in two stages, two multiply.
// Behind `hopper.cu`. The exponentials stay in f32 registers until the product before has ended: packing them earlier makes the compiler serialise.
constexpr int TILE = 128 * DIM * 2, PANELS = DIM / 64, PANEL = 128 * 64 * 2;
DEVICE void scores(float (&s)[64], u32 q, u32 k) {
  pin(s); fence();
#pragma unroll
  for (int i = 0; i < DIM / 16; i++) { u64 a = tile(q + (i / 4) * PANEL + (i % 4) * 32, 16, 1024), b = tile(k + (i / 4) * PANEL + (i % 4) * 32, 16, 1024); if (i == 0) first128(s, a, b); else more128(s, a, b); }
  commit();
}
DEVICE void values(float (&o)[DIM / 2], u32 (&p)[32], u32 v) {
  pin(o); fence();
#pragma unroll
  for (int i = 0; i < 8; i++) from_registers(o, p + 4 * i, tile(v + 2048 * i, PANEL, 1024));
  commit();
}
struct Soft { float m[2], l[2]; };
// Scores become weights; gives the factors by which what was summed before must shrink.
template <bool MASK> DEVICE void soften(float (&s)[64], Soft& x, float scale, const int (&lo)[2], const int (&hi)[2], int column, float (&alpha)[2]) {
  float mx[2] = {x.m[0], x.m[1]};
#pragma unroll
  for (int j = 0; j < 16; j++)
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int e = 0; e < 2; e++) { float& v = s[4 * j + 2 * h + e]; int c = column + 8 * j + e; if (MASK && (c < lo[h] || c > hi[h])) v = -INFINITE; mx[h] = fmaxf(mx[h], v); }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    mx[h] = fmaxf(mx[h], __shfl_xor_sync(~0u, mx[h], 1)); mx[h] = fmaxf(mx[h], __shfl_xor_sync(~0u, mx[h], 2));
    float base = MASK && mx[h] == -INFINITE ? 0.f : mx[h];
    alpha[h] = exp2f((x.m[h] - base) * scale); x.m[h] = mx[h]; x.l[h] *= alpha[h]; mx[h] = base * scale;
  }
#pragma unroll
  for (int j = 0; j < 16; j++)
#pragma unroll
    for (int h = 0; h < 2; h++) { float a = exp2f(fmaf(s[4 * j + 2 * h], scale, -mx[h])), b = exp2f(fmaf(s[4 * j + 2 * h + 1], scale, -mx[h])); x.l[h] += a + b; s[4 * j + 2 * h] = a; s[4 * j + 2 * h + 1] = b; }
}
DEVICE void packed(float (&s)[64], u32 (&p)[32]) {
#pragma unroll
  for (int j = 0; j < 16; j++)
#pragma unroll
    for (int h = 0; h < 2; h++) p[(j / 2) * 4 + (j % 2) * 2 + h] = pack(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]);
}
KERNEL __launch_bounds__(384, 1) flash_forward(const __grid_constant__ Map mq, const __grid_constant__ Map mk, const __grid_constant__ Map mv, Shape shape, const u32* first_keys, const u32* positions, bf16* out, i64 os, float* log_sums) {
  extern __shared__ u8 raw[];
  __shared__ __align__(8) u64 bars[9];
  u32 base = (at(raw) + 1023) & ~1023u, bar = at(bars);
  u32 q = base, k = base + TILE, v = base + 3 * TILE;
  u32 qfull = bar, kfull = bar + 8, vfull = bar + 24, kempty = bar + 40, vempty = bar + 56;
  int wg = threadIdx.x / 128, first = (gridDim.y - 1 - blockIdx.y) * 128, sequence = blockIdx.x / shape.heads, head = blockIdx.x % shape.heads, kv = head / (shape.heads / shape.kv_heads);
  int rows = min(128, shape.queries - first), origin = base_of(shape, positions, sequence);
  const u32* lows = first_keys + (i64)sequence * shape.queries + first;
  int low = lows[0], high = lows[rows - 1], end = min(origin + first + rows, shape.keys);
  int begin = low / 128, blocks = (end + 127) / 128 - begin;
  if (blocks <= 0 || end <= low) blocks = 0;
  if (threadIdx.x == 0) { init(qfull, 1); for (int i = 0; i < 2; i++) { init(kfull + 8 * i, 1); init(vfull + 8 * i, 1); init(kempty + 8 * i, 2); init(vempty + 8 * i, 2); } asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __syncthreads();
  if (wg == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0 && blocks > 0) {
      expect(qfull, TILE); for (int p = 0; p < PANELS; p++) load(q + p * PANEL, &mq, head * DIM + 64 * p, sequence * shape.queries + first, qfull);
      for (int i = 0; i < blocks; i++) {
        int s = i & 1, ph = (i >> 1) & 1, row = sequence * shape.keys + (begin + blocks - 1 - i) * 128;
        await(kempty + 8 * s, ph ^ 1); expect(kfull + 8 * s, TILE); for (int p = 0; p < PANELS; p++) load(k + s * TILE + p * PANEL, &mk, kv * DIM + 64 * p, row, kfull + 8 * s);
        await(vempty + 8 * s, ph ^ 1); expect(vfull + 8 * s, TILE); for (int p = 0; p < PANELS; p++) load(v + s * TILE + p * PANEL, &mv, kv * DIM + 64 * p, row, vfull + 8 * s);
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  int c = wg - 1, t = threadIdx.x % 128, w = t / 32, l = t % 32; u32 mine = q + c * 8192;
  int row = c * 64 + w * 16 + l / 4; bool leader = t == 0;
  int lo[2], hi[2];
#pragma unroll
  for (int h = 0; h < 2; h++) { int r = min(row + 8 * h, rows - 1); lo[h] = lows[r]; hi[h] = min(origin + first + r, shape.keys - 1); }
  float o[DIM / 2], s[64], alpha[2]; u32 p[32]; Soft x{{-INFINITE, -INFINITE}, {0, 0}};
  const float scale = shape.scale;
#pragma unroll
  for (int i = 0; i < DIM / 2; i++) o[i] = 0;
  auto softened = [&](int i) {
    int column = (begin + blocks - 1 - i) * 128;
    if (column + 127 > origin + first || column + 128 > shape.keys || column < high) soften<true>(s, x, scale, lo, hi, column + (l % 4) * 2, alpha); else soften<false>(s, x, scale, lo, hi, 0, alpha);
  };
  if (blocks > 0) {
    await(qfull, 0);
    await(kfull, 0); scores(s, mine, k); finish<0>(); pin(s); if (leader) arrive(kempty);
    softened(0);
    packed(s, p);
    for (int i = 1; i < blocks; i++) {
      int st = i & 1, ph = (i >> 1) & 1, pst = (i - 1) & 1, pph = ((i - 1) >> 1) & 1;
      await(kfull + 8 * st, ph); scores(s, mine, k + st * TILE);
      await(vfull + 8 * pst, pph); values(o, p, v + pst * TILE);
      finish<1>(); pin(s); if (leader) arrive(kempty + 8 * st);
      softened(i);
      finish<0>(); pin(o); if (leader) arrive(vempty + 8 * pst);
      packed(s, p);
#pragma unroll
      for (int j = 0; j < DIM / 8; j++) { o[4 * j] *= alpha[0]; o[4 * j + 1] *= alpha[0]; o[4 * j + 2] *= alpha[1]; o[4 * j + 3] *= alpha[1]; }
    }
    int st = (blocks - 1) & 1, ph = ((blocks - 1) >> 1) & 1; await(vfull + 8 * st, ph); values(o, p, v + st * TILE); finish<0>(); pin(o);
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    x.l[h] += __shfl_xor_sync(~0u, x.l[h], 1); x.l[h] += __shfl_xor_sync(~0u, x.l[h], 2);
    if (row + 8 * h >= rows) continue;
    float inverse = x.l[h] == 0.f ? 0.f : 1.f / x.l[h]; i64 r = (i64)sequence * shape.queries + first + row + 8 * h;
    if (l % 4 == 0) log_sums[r * shape.heads + head] = x.l[h] == 0.f ? -INFINITE : x.m[h] * scale * 0.69314718f + logf(x.l[h]);
#pragma unroll
    for (int j = 0; j < DIM / 8; j++) *(u32*)(out + r * os + head * DIM + 8 * j + (l % 4) * 2) = pack(o[4 * j + 2 * h] * inverse, o[4 * j + 2 * h + 1] * inverse);
  }
}
