// Attention forward on Hopper, heads of DIM: a tile is 128 queries of a head; a block takes one after the other, the longest first. One warpgroup brings keys and
// values in two stages, and the next tile's while this one's results are written; two multiply.
// Where `starts` are given, sequences differ in length: their rows follow each other, and their keys begin at whole blocks of a gathered cache.
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
// Sequences of a step of serving; sight: 0 all, 1 a window, 2 a chunk. Those with at most `few` rows are left out.
struct Ragged { const u32 *starts, *contexts, *table_starts; int sequences, block, sight, reach, few; };
DEVICE int first_seen(const Ragged& g, int position) { return g.sight == 0 ? 0 : g.sight == 1 ? max(0, position + 1 - g.reach) : position / g.reach * g.reach; }
// Where a tile's queries and keys are, and which blocks of keys it sees.
struct Place { int head, kv, first, rows, first_row, first_key, origin, keys, high, begin, blocks; const u32* lows; };
template <bool RAGGED> DEVICE bool find(int number, const Shape& shape, const Ragged& ragged, const u32* first_keys, const u32* positions, int sequences, Place& p) {
  int queries = shape.queries, sequence;
  if (RAGGED) {
    int wanted = number / shape.heads, tiles = 0; p.head = number % shape.heads;
    for (sequence = 0; sequence < ragged.sequences; sequence++) {
      int rows = ragged.starts[sequence + 1] - ragged.starts[sequence], mine = rows <= ragged.few ? 0 : (rows + 127) / 128;
      // Of a sequence the last tile comes first: it sees most.
      if (wanted < tiles + mine) { p.first = (mine - 1 - (wanted - tiles)) * 128; queries = rows; break; }
      tiles += mine;
    }
    if (sequence == ragged.sequences) return false;
    p.origin = ragged.contexts[sequence]; p.keys = p.origin + queries;
    p.first_row = ragged.starts[sequence]; p.first_key = ragged.table_starts[sequence] * ragged.block;
  } else {
    int across = sequences * shape.heads, tiles = (queries + 127) / 128;
    if (number >= across * tiles) return false;
    p.first = (tiles - 1 - number / across) * 128; sequence = number % across / shape.heads; p.head = number % shape.heads;
    p.origin = base_of(shape, positions, sequence); p.keys = shape.keys; p.first_row = sequence * queries; p.first_key = sequence * shape.keys;
  }
  p.kv = p.head / (shape.heads / shape.kv_heads); p.rows = min(128, queries - p.first);
  p.lows = RAGGED ? nullptr : first_keys + (i64)p.first_row + p.first;
  int low = RAGGED ? first_seen(ragged, p.origin + p.first) : p.lows[0], end = min(p.origin + p.first + p.rows, p.keys);
  p.high = RAGGED ? first_seen(ragged, p.origin + p.first + p.rows - 1) : p.lows[p.rows - 1];
  p.begin = low / 128; p.blocks = (end + 127) / 128 - p.begin;
  if (p.blocks <= 0 || end <= low) p.blocks = 0;
  return true;
}
template <bool RAGGED> DEVICE void forward(const Map& mq, const Map& mk, const Map& mv, const Shape& shape, const Ragged& ragged, int sequences, const u32* first_keys, const u32* positions, bf16* out, i64 os, float* log_sums) {
  extern __shared__ u8 raw[];
  __shared__ __align__(8) u64 bars[10];
  u32 base = (at(raw) + 1023) & ~1023u, bar = at(bars);
  u32 q = base, k = base + TILE, v = base + 3 * TILE;
  u32 qfull = bar, kfull = bar + 8, vfull = bar + 24, kempty = bar + 40, vempty = bar + 56, qempty = bar + 72;
  int wg = threadIdx.x / 128;
  if (threadIdx.x == 0) { init(qfull, 1); init(qempty, 2); for (int i = 0; i < 2; i++) { init(kfull + 8 * i, 1); init(vfull + 8 * i, 1); init(kempty + 8 * i, 2); init(vempty + 8 * i, 2); } asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __syncthreads();
  Place p;
  if (wg == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) {
      int turn = 0, tiles = 0;
      for (int number = blockIdx.x; find<RAGGED>(number, shape, ragged, first_keys, positions, sequences, p); number += gridDim.x) {
        if (p.blocks == 0) continue;
        await(qempty, (tiles & 1) ^ 1); tiles++;
        expect(qfull, TILE); for (int i = 0; i < PANELS; i++) load(q + i * PANEL, &mq, p.head * DIM + 64 * i, p.first_row + p.first, qfull);
        for (int n = 0; n < p.blocks; n++, turn++) {
          int s = turn & 1, ph = (turn >> 1) & 1, row = p.first_key + (p.begin + p.blocks - 1 - n) * 128;
          await(kempty + 8 * s, ph ^ 1); expect(kfull + 8 * s, TILE); for (int i = 0; i < PANELS; i++) load(k + s * TILE + i * PANEL, &mk, p.kv * DIM + 64 * i, row, kfull + 8 * s);
          await(vempty + 8 * s, ph ^ 1); expect(vfull + 8 * s, TILE); for (int i = 0; i < PANELS; i++) load(v + s * TILE + i * PANEL, &mv, p.kv * DIM + 64 * i, row, vfull + 8 * s);
        }
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  int c = wg - 1, t = threadIdx.x % 128, w = t / 32, l = t % 32; u32 mine = q + c * 8192;
  int row = c * 64 + w * 16 + l / 4; bool leader = t == 0;
  const float scale = shape.scale;
  int turn = 0, tiles = 0;
  for (int number = blockIdx.x; find<RAGGED>(number, shape, ragged, first_keys, positions, sequences, p); number += gridDim.x) {
    int lo[2], hi[2];
#pragma unroll
    for (int h = 0; h < 2; h++) { int r = min(row + 8 * h, p.rows - 1); lo[h] = RAGGED ? first_seen(ragged, p.origin + p.first + r) : p.lows[r]; hi[h] = min(p.origin + p.first + r, p.keys - 1); }
    float o[DIM / 2], s[64], alpha[2]; u32 x16[32]; Soft x{{-INFINITE, -INFINITE}, {0, 0}};
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) o[i] = 0;
    auto softened = [&](int n) {
      int column = (p.begin + p.blocks - 1 - n) * 128;
      if (column + 127 > p.origin + p.first || column + 128 > p.keys || column < p.high) soften<true>(s, x, scale, lo, hi, column + (l % 4) * 2, alpha); else soften<false>(s, x, scale, lo, hi, 0, alpha);
    };
    if (p.blocks > 0) {
      int st = turn & 1, ph = (turn >> 1) & 1;
      await(qfull, tiles & 1); tiles++;
      await(kfull + 8 * st, ph); scores(s, mine, k + st * TILE); finish<0>(); pin(s); if (leader) { arrive(kempty + 8 * st); if (p.blocks == 1) arrive(qempty); }
      softened(0);
      packed(s, x16);
      for (int n = 1; n < p.blocks; n++) {
        int pst = st, pph = ph; turn++; st = turn & 1; ph = (turn >> 1) & 1;
        await(kfull + 8 * st, ph); scores(s, mine, k + st * TILE);
        await(vfull + 8 * pst, pph); values(o, x16, v + pst * TILE);
        finish<1>(); pin(s); if (leader) { arrive(kempty + 8 * st); if (n == p.blocks - 1) arrive(qempty); }
        softened(n);
        finish<0>(); pin(o); if (leader) arrive(vempty + 8 * pst);
        packed(s, x16);
#pragma unroll
        for (int j = 0; j < DIM / 8; j++) { o[4 * j] *= alpha[0]; o[4 * j + 1] *= alpha[0]; o[4 * j + 2] *= alpha[1]; o[4 * j + 3] *= alpha[1]; }
      }
      await(vfull + 8 * st, ph); values(o, x16, v + st * TILE); finish<0>(); pin(o); if (leader) arrive(vempty + 8 * st);
      turn++;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      x.l[h] += __shfl_xor_sync(~0u, x.l[h], 1); x.l[h] += __shfl_xor_sync(~0u, x.l[h], 2);
      if (row + 8 * h >= p.rows) continue;
      float inverse = x.l[h] == 0.f ? 0.f : 1.f / x.l[h]; i64 r = (i64)p.first_row + p.first + row + 8 * h;
      if (!RAGGED && l % 4 == 0) log_sums[r * shape.heads + p.head] = x.l[h] == 0.f ? -INFINITE : x.m[h] * scale * 0.69314718f + logf(x.l[h]);
#pragma unroll
      for (int j = 0; j < DIM / 8; j++) *(u32*)(out + r * os + p.head * DIM + 8 * j + (l % 4) * 2) = pack(o[4 * j + 2 * h] * inverse, o[4 * j + 2 * h + 1] * inverse);
    }
  }
}
KERNEL __launch_bounds__(384, 1) flash_forward(const __grid_constant__ Map mq, const __grid_constant__ Map mk, const __grid_constant__ Map mv, const __grid_constant__ Shape shape, int sequences, const u32* first_keys, const u32* positions, bf16* out, i64 os, float* log_sums) { BEGIN;
  forward<false>(mq, mk, mv, shape, Ragged{}, sequences, first_keys, positions, out, os, log_sums);
}
KERNEL __launch_bounds__(384, 1) flash_ragged(const __grid_constant__ Map mq, const __grid_constant__ Map mk, const __grid_constant__ Map mv, const __grid_constant__ Shape shape, const __grid_constant__ Ragged ragged, bf16* out, i64 os) { BEGIN;
  forward<true>(mq, mk, mv, shape, ragged, 0, nullptr, nullptr, out, os, nullptr);
}
