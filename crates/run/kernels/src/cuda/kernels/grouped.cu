// Products with few rows at the speed that memory gives the weights, and products of experts, of which each has some of the rows and only those with rows are read.
// A is the rows' format, bf16; B the output's, C the weights'.
struct Grouped {
  const u64* sides;                 // addresses of the experts' matrices; or where none are given, the first and the distance to the next in bytes
  const u8* side; i64 each, scales; // where a matrix's scales begin
  const bf16* x; i64 xs;
  const u32* order; i64 per_token;  // a slot's row of x is that of its choice's token; without an order it is the slot
  const u32* offsets; i64 experts;  // rows of experts; without them all rows are one matrix's
  B* out; i64 os;
  i64 m, n, k;                      // rows; lines and depth of a matrix
  const bf16* bias; const B* residual; i64 rs;
};
DEVICE const bf16* row_of(const Grouped& g, i64 slot) { return g.x + (g.order ? g.order[slot] / (u32)g.per_token : slot) * g.xs; }
DEVICE const u8* side_of(const Grouped& g, int expert) { return g.sides ? (const u8*)g.sides[expert] : g.side + expert * g.each; }
// Sixteen bytes that are read once. Lanes take short pieces of many lines: memory is asked for whole lines of the second-level cache, which is a third faster.
DEVICE uint4 once(const uint4* p) { uint4 v; asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p)); return v; }
// Sixteen bytes of a row, asked for where the program says and not where they are used.
DEVICE uint4 early(const bf16* p) { uint4 v; asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p)); return v; }
DEVICE float gated(float gate, float up) { return gate * sigmoid(gate) * up; }

// The expert that has the tile `wanted` of those that all experts' rows make, `tile` rows each, and the tile's number within it; -1 where there are fewer.
DEVICE int expert_of(const Grouped& g, int tile, int wanted, int& within) {
  int lane = threadIdx.x % 32, found = -1;
  for (int first = 0; first < g.experts; first += 32) {
    int e = first + lane, mine = e < g.experts ? (int)(g.offsets[e + 1] - g.offsets[e] + tile - 1) / tile : 0, sum = mine;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) { int below = __shfl_up_sync(~0u, sum, o); if (lane >= o) sum += below; }
    u32 has = __ballot_sync(~0u, wanted >= 0 && wanted < sum && wanted >= sum - mine);
    if (has && found < 0) { int at = __ffs(has) - 1; found = first + at; within = wanted - __shfl_sync(~0u, sum - mine, at); }
    wanted -= __shfl_sync(~0u, sum, 31);
  }
  return found;
}

DEVICE u32 bf16_fma(u32 a, u32 b, u32 c) { u32 r; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); return r; }
// How four lanes share 64 bytes of a line: each has sixteen of them, PARTS times eight numbers, and each eight meet eight of a row. The order within a product's depth is free: a lane's
// numbers are neighbours in memory and not in the product. `BEGIN_OF` and `APART` say which eights of the row; `unpack` gives a lane's eight as pairs of bf16, `arrange` orders the row's like them.
template <class T> struct Lanes;
template <> struct Lanes<bf16> {
  enum { PARTS = 1, NUMBERS = 32, GROUPS = 0, BY_LINE = 0, APART = 0, AHEAD = 4 };
  DEVICE static int begin(int part) { return 8 * part; }
  DEVICE static void share(uint4&, int) {}
  DEVICE static void unpack(uint4 q, int, u32 (&v)[4]) { v[0] = q.x; v[1] = q.y; v[2] = q.z; v[3] = q.w; }
  DEVICE static void arrange(uint4 q, u32 (&v)[4]) { unpack(q, 0, v); }
};
// The sign and seven bits of e4m3 are those of a bf16 that is too small by 2^120.
template <> struct Lanes<fp8> {
  enum { PARTS = 2, NUMBERS = 64, GROUPS = 0, BY_LINE = 1, APART = 8, AHEAD = 8 };
  DEVICE static int begin(int part) { return 16 * part; }
  DEVICE static void share(uint4&, int) {}
  DEVICE static void unpack(uint4 q, int i, u32 (&v)[4]) {
    u32 w[2] = {i ? q.z : q.x, i ? q.w : q.y};
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 even = ((w[h] << 4) & 0x07f007f0u) | ((w[h] << 8) & 0x80008000u), odd = ((w[h] >> 4) & 0x07f007f0u) | (w[h] & 0x80008000u);
      v[2 * h] = bf16_fma(even, 0x7b807b80u, 0x80008000u); v[2 * h + 1] = bf16_fma(odd, 0x7b807b80u, 0x80008000u);
    }
  }
  DEVICE static void arrange(uint4 q, u32 (&v)[4]) { v[0] = __byte_perm(q.x, q.y, 0x5410); v[1] = __byte_perm(q.x, q.y, 0x7632); v[2] = __byte_perm(q.z, q.w, 0x5410); v[3] = __byte_perm(q.z, q.w, 0x7632); }
};
// Of whole numbers 32 neighbours have a scale: a lane has eight of every group, and a group's sum is scaled at once. Lanes two apart exchange halves.
template <> struct Lanes<int8> {
  enum { PARTS = 2, NUMBERS = 64, GROUPS = 2, BY_LINE = 0, APART = 32, AHEAD = 8 };
  DEVICE static int begin(int part) { return part % 2 * 16 + part / 2 * 8; }
  DEVICE static void share(uint4& q, int part) {
    bool upper = part >= 2;
    u32 x = __shfl_xor_sync(~0u, upper ? q.x : q.z, 2), y = __shfl_xor_sync(~0u, upper ? q.y : q.w, 2);
    q = upper ? make_uint4(x, y, q.z, q.w) : make_uint4(q.x, q.y, x, y);
  }
  DEVICE static void unpack(uint4 q, int i, u32 (&v)[4]) {
    u32 w[2] = {(i ? q.z : q.x) ^ 0x80808080u, (i ? q.w : q.y) ^ 0x80808080u};
#pragma unroll
    for (int p = 0; p < 4; p++) {
      u32 word = w[p / 2];
      float low = __uint_as_float(__byte_perm(word, 0x4b000000u, p % 2 ? 0x7442 : 0x7440)) - 8388736.f, high = __uint_as_float(__byte_perm(word, 0x4b000000u, p % 2 ? 0x7443 : 0x7441)) - 8388736.f;
      v[p] = pack(low, high);
    }
  }
  DEVICE static void arrange(uint4 q, u32 (&v)[4]) { v[0] = q.x; v[1] = q.y; v[2] = q.z; v[3] = q.w; }
};
// Packing deals the words of 128 numbers out to lanes already.
template <> struct Lanes<int4q> {
  enum { PARTS = 4, NUMBERS = 128, GROUPS = 4, BY_LINE = 0, APART = 32, AHEAD = 8 };
  DEVICE static int begin(int part) { return 8 * part; }
  DEVICE static void share(uint4&, int) {}
  // 16 and the number as a bf16, less 24.
  DEVICE static void unpack(uint4 q, int i, u32 (&v)[4]) {
    u32 w = i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w;
    u32 four[4] = {w << 3, w >> 1, w >> 5, w >> 9};
#pragma unroll
    for (int p = 0; p < 4; p++) v[p] = bf16_fma((four[p] & 0x00780078u) | 0x41804180u, 0x3f803f80u, 0xc1c0c1c0u);
  }
  DEVICE static void arrange(uint4 q, u32 (&v)[4]) { v[0] = __byte_perm(q.x, q.z, 0x5410); v[1] = __byte_perm(q.x, q.z, 0x7632); v[2] = __byte_perm(q.y, q.w, 0x5410); v[3] = __byte_perm(q.y, q.w, 0x7632); }
};
// Scales of the groups of 64 bytes.
DEVICE void scales_of(const f16*, float (&)[1]) {}
DEVICE void scales_of(const f16* p, float (&s)[2]) { u32 two = *(const u32*)p; s[0] = widen(f16{(u16)two}); s[1] = widen(f16{(u16)(two >> 16)}); }
DEVICE void scales_of(const f16* p, float (&s)[4]) { uint2 four = *(const uint2*)p; s[0] = widen(f16{(u16)four.x}); s[1] = widen(f16{(u16)(four.x >> 16)}); s[2] = widen(f16{(u16)four.y}); s[3] = widen(f16{(u16)(four.y >> 16)}); }

// The products of some pieces of two lines with rows.
template <int COUNT, int N> DEVICE void multiply_pieces(const uint4* (&w)[2], const f16* (&groups)[2], const bf16* (&x)[N], int part, float (&sums)[N][4]) {
  using L = Lanes<C>;
  enum { PARTS = L::PARTS, GROUPS = L::GROUPS ? L::GROUPS : 1 };
  uint4 a[COUNT][2], b[COUNT * PARTS][N]; float s[COUNT][2][GROUPS];
#pragma unroll
  for (int u = 0; u < COUNT; u++)
#pragma unroll
    for (int h = 0; h < 2; h++) a[u][h] = once(w[h] + u * 4);
#pragma unroll
  for (int u = 0; u < COUNT; u++)
#pragma unroll
    for (int i = 0; i < PARTS; i++)
#pragma unroll
      for (int j = 0; j < N; j++) b[u * PARTS + i][j] = early(x[j] + u * L::NUMBERS + i * L::APART);
  if (L::GROUPS)
#pragma unroll
    for (int u = 0; u < COUNT; u++)
#pragma unroll
      for (int h = 0; h < 2; h++) scales_of(groups[h] + u * L::GROUPS, s[u][h]);
#pragma unroll
  for (int u = 0; u < COUNT; u++) {
    L::share(a[u][0], part); L::share(a[u][1], part);
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
      u32 l[4], m[4]; L::unpack(a[u][0], i, l); L::unpack(a[u][1], i, m);
      u32 one[4] = {l[0], m[0], l[1], m[1]}, two[4] = {l[2], m[2], l[3], m[3]};
#pragma unroll
      for (int j = 0; j < N; j++) {
        u32 v[4]; L::arrange(b[u * PARTS + i][j], v);
        if (L::GROUPS) {
          float group[4] = {};
          mma(group, one, v[0], v[1]); mma(group, two, v[2], v[3]);
#pragma unroll
          for (int e = 0; e < 4; e++) sums[j][e] = fmaf(s[u][e / 2][i % GROUPS], group[e], sums[j][e]);
        } else { mma(sums[j], one, v[0], v[1]); mma(sums[j], two, v[2], v[3]); }
      }
    }
  }
}

// Sixteen lines of a matrix by N times eight rows on tensor cores. The matrix is the left side, so that few rows fill the right one. The warps of a block share the depth.
// Gated: eight lines of the gate, and the same of what it gates. Where there are fewer lines or rows, the last ones stand in for them.
template <int N, bool GATED> DEVICE void few(const Grouped& g) {
  using L = Lanes<C>;
  // Pieces on their way at a time: as many as fit into registers.
  enum { AHEAD = N * L::PARTS < L::AHEAD ? L::AHEAD / (N * L::PARTS) : 1 };
  __shared__ float parts[8][N][4][32];
  int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = lane / 4, part = lane % 4, nth = 0;
  int expert = g.offsets ? expert_of(g, 1 << 30, blockIdx.y, nth) : 0;
  if (expert < 0) return;
  i64 from = g.offsets ? g.offsets[expert] : 0, to = g.offsets ? g.offsets[expert + 1] : g.m, half = g.n / 2, first = (i64)blockIdx.x * (GATED ? 8 : 16) + line, second = first + (GATED ? half : 8);
  i64 lines[2] = {min(first, g.n - 1), min(second, g.n - 1)};
  int pieces = (int)(g.k / L::NUMBERS);
  const u8* side = side_of(g, expert);
  for (i64 rows = from; rows < to; rows += 8 * N) {
    const uint4* w[2]; const f16* groups[2]; const bf16* x[N];
#pragma unroll
    for (int h = 0; h < 2; h++) { w[h] = (const uint4*)side + (lines[h] * pieces + warp * AHEAD) * 4 + part; groups[h] = (const f16*)(side + g.scales) + (lines[h] * pieces + warp * AHEAD) * L::GROUPS; }
#pragma unroll
    for (int j = 0; j < N; j++) x[j] = row_of(g, min(rows + 8 * j + line, to - 1)) + warp * AHEAD * L::NUMBERS + L::begin(part);
    float sums[N][4] = {};
    auto step = [&](int by) {
#pragma unroll
      for (int h = 0; h < 2; h++) { w[h] += by * 4; groups[h] += by * L::GROUPS; }
#pragma unroll
      for (int j = 0; j < N; j++) x[j] += by * L::NUMBERS;
    };
    int p = warp * AHEAD;
    for (; p + AHEAD <= pieces; p += warps * AHEAD) { multiply_pieces<AHEAD>(w, groups, x, part, sums); step(warps * AHEAD); }
    for (; p < pieces; p++) { multiply_pieces<1>(w, groups, x, part, sums); step(1); }
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) parts[warp][j][i][lane] = sums[j][i];
    __syncthreads();
    for (int j = warp; j < N; j += warps) {
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        v[i] = parts[0][j][i][lane];
#pragma unroll
        for (int o = 1; o < warps; o++) v[i] += parts[o][j][i][lane];
        if (L::BY_LINE) v[i] *= ((const float*)(side + g.scales))[lines[i / 2]];
      }
#pragma unroll
      for (int e = 0; e < 2; e++) {
        i64 slot = rows + 8 * j + 2 * part + e;
        if (slot >= to) continue;
        auto put = [&](i64 at, float value) {
          if (g.bias) value += widen(g.bias[at]);
          if (g.residual) value += widen(g.residual[slot * g.rs + at]);
          g.out[slot * g.os + at] = narrow<B>(value);
        };
        if (GATED) { if (first < half) put(first, gated(v[e], v[2 + e])); }
        else { if (first < g.n) put(first, v[e]); if (second < g.n) put(second, v[2 + e]); }
      }
    }
    __syncthreads();
  }
}
#define FEW(name, N, GATED) KERNEL __launch_bounds__(256, 1) name(Grouped g) { BEGIN; few<N, GATED>(g); }
FEW(few_1, 1, false) FEW(few_2, 2, false) FEW(few_4, 4, false) FEW(few_1_gated, 1, true) FEW(few_2_gated, 2, true) FEW(few_4_gated, 4, true)
