// Products of experts with many rows each, on warpgroups: 128 rows by twice 128 lines, 64 deep, four stages. Behind `hopper.cu` and `grouped.cu`.
// Threads copy rows from where their tokens are, so nothing is gathered before. Gated: 128 lines of the gate, and the same of what it gates.
DEVICE void copy16(u32 to, const void* from, bool is) { asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(is ? 16 : 0) : "memory"); }
template <bool GATED> DEVICE void many(const Grouped& g) {
  enum { STAGES = 4, ROWS = 128 * 128, LINES = 128 * 128, STAGE = ROWS + 2 * LINES };
  extern __shared__ u8 raw[];
  u32 base = (at(raw) + 1023) & ~1023u;
  int within = 0, expert = expert_of(g, 128, blockIdx.y, within);
  if (expert < 0) return;
  i64 from = g.offsets[expert] + (i64)within * 128, to = min((i64)g.offsets[expert + 1], from + 128), half = GATED ? g.n / 2 : g.n;
  i64 lines[2] = {(i64)blockIdx.x * (GATED ? 128 : 256), GATED ? half + (i64)blockIdx.x * 128 : (i64)blockIdx.x * 256 + 128}, end = GATED ? half : g.n;
  int wg = threadIdx.x / 128, piece = threadIdx.x % 8, first = threadIdx.x / 8, blocks = (int)(g.k / 64);
  const bf16* side = (const bf16*)side_of(g, expert);
  const bf16* rows[4]; bool is_row[4];
#pragma unroll
  for (int i = 0; i < 4; i++) { i64 slot = from + first + 32 * i; is_row[i] = slot < to; rows[i] = row_of(g, min(slot, to - 1)) + piece * 8; }
  const bf16* line[2]; i64 left[2];
#pragma unroll
  for (int h = 0; h < 2; h++) { line[h] = side + (lines[h] + first) * g.k + piece * 8; left[h] = (GATED && h ? g.n : end) - lines[h] - first; }
  // Rows 32 apart have the same place in the swizzle.
  u32 place = (u32)(first * 128 + ((piece ^ (first & 7)) * 16));
  auto bring = [&](int block) {
    if (block < blocks) {
      u32 stage = base + (block % STAGES) * STAGE + place;
#pragma unroll
      for (int i = 0; i < 4; i++) copy16(stage + i * 4096, rows[i] + (i64)block * 64, is_row[i]);
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 4; i++) { bool is = 32 * i < left[h]; copy16(stage + ROWS + h * LINES + i * 4096, is ? line[h] + (i64)(32 * i) * g.k + (i64)block * 64 : side, is); }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float sums[2][64] = {};
  bring(0); bring(1);
  pin(sums[0]); pin(sums[1]);
  for (int block = 0; block < blocks; block++) {
    // One more group may be under way.
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    u32 stage = base + (block % STAGES) * STAGE, a = stage + wg * 8192, b = stage + ROWS;
    fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u64 l = tile(a + 32 * i, 16, 1024), r0 = tile(b + 32 * i, 16, 1024), r1 = tile(b + LINES + 32 * i, 16, 1024);
      more128(sums[0], l, r0); more128(sums[1], l, r1);
    }
    commit();
    bring(block + 2);
    finish<1>();
  }
  finish<0>(); pin(sums[0]); pin(sums[1]);
  int t = threadIdx.x % 128, lane = t % 32, row = wg * 64 + t / 32 * 16 + lane / 4;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    i64 slot = from + row + 8 * h;
    if (slot >= to) continue;
    B* out = g.out + slot * g.os;
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        int column = 8 * j + lane % 4 * 2 + e, at = 4 * j + 2 * h + e;
        if (GATED) { if (lines[0] + column < half) out[lines[0] + column] = narrow<B>(gated(sums[0][at], sums[1][at])); }
        else { if (lines[0] + column < g.n) out[lines[0] + column] = narrow<B>(sums[0][at]); if (lines[1] + column < g.n) out[lines[1] + column] = narrow<B>(sums[1][at]); }
      }
  }
}
KERNEL __launch_bounds__(256, 1) many_rows(Grouped g) { BEGIN; many<false>(g); }
KERNEL __launch_bounds__(256, 1) many_gated(Grouped g) { BEGIN; many<true>(g); }
