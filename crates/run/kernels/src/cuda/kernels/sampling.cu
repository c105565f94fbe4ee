// Tokens sampled by chance: a block of threads for each. Weights are whole numbers, so that sums do not depend on their order.
enum { SAMPLERS = 512, BINS = 16, WARPS = SAMPLERS / 32 };
struct SampleParams { u32 row, top_k; float top_p, reach, inverse, temperature; u64 chance; };

// Larger numbers have larger orders.
DEVICE u32 order_of(float x) { u32 bits = __float_as_uint(x); return bits ^ ((int)bits < 0 ? ~0u : 0x80000000u); }
DEVICE float of_order(u32 order) { return __uint_as_float(order ^ ((int)order < 0 ? 0x80000000u : ~0u)); }

// Logits that are near enough to the largest one.
struct Near {
  const float* logits; i64 columns; float most, least, inverse;
  DEVICE u64 weight(float x) const { return (u64)(exp2f((x - most) * inverse) * 17592186044416.f); }
};
// Of those, the ones above an edge and the first few at it.
struct Kept { u32 edge; u64 ties; };

// The largest order at which all from there on have `goal` together (tokens, or their weights), and what those above it have. 0 where all have less.
template <bool COUNT> DEVICE u32 find_edge(const Near& near, u64 goal, u64* parts, u64* sums, u64& above) {
  u32 edge = 0;
  above = 0;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int shift = 28; shift >= 0; shift -= 4) {
#pragma unroll
    for (int bin = 0; bin < BINS; bin++) parts[bin * SAMPLERS + threadIdx.x] = 0;
#pragma unroll 4
    for (i64 i = threadIdx.x; i < near.columns; i += SAMPLERS) {
      float x = near.logits[i];
      u32 order = order_of(x);
      bool inside = x >= near.least && (shift == 28 || order >> (shift + 4) == edge >> (shift + 4));
      if (inside) parts[(order >> shift & 15) * SAMPLERS + threadIdx.x] += COUNT ? 1 : near.weight(x);
    }
    __syncthreads();
    u64 sum = 0;
    for (int i = lane; i < SAMPLERS; i += 32) sum += parts[warp * SAMPLERS + i];
    sum = warp_sum(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    int bin = BINS - 1;
    while (bin > 0 && above + sums[bin] < goal) above += sums[bin--];
    edge |= (u32)bin << shift;
    __syncthreads();
  }
  return edge;
}

DEVICE u64 sum_above(const Near& near, u32 edge, u64* shared) {
  u64 sum = 0;
  for (i64 i = threadIdx.x; i < near.columns; i += SAMPLERS) {
    float x = near.logits[i];
    if (x >= near.least && order_of(x) > edge) sum += near.weight(x);
  }
  return block_sum(sum, shared);
}

DEVICE Kept cut(const Near& near, const SampleParams& params, u64* parts, u64* sums) {
  Kept kept = {0, 0};
  u64 above;
  if (params.top_k > 0) {
    u32 edge = find_edge<true>(near, params.top_k, parts, sums, above);
    if (edge > 0) kept = {edge, params.top_k - above};
  }
  if (params.top_p < 1.f) {
    u64 whole = sum_above(near, kept.edge, sums);
    if (kept.edge > 0) whole += kept.ties * near.weight(of_order(kept.edge));
    u64 enough = (u64)((double)params.top_p * (double)whole), goal = enough > 0 ? enough : 1;
    __syncthreads();
    u32 edge = find_edge<false>(near, goal, parts, sums, above);
    if (edge > 0) {
      u64 each = near.weight(of_order(edge)), ties = (goal - above + each - 1) / each;
      kept = {edge, edge == kept.edge && kept.ties < ties ? kept.ties : ties};
    }
  }
  return kept;
}

// A warp's pass over 32 tokens: the weight of a lane's token where it is kept. `ties` are those at the edge before.
DEVICE u64 kept_weight(const Near& near, const Kept& kept, i64 i, i64 end, u64& ties) {
  float x = i < end ? near.logits[i] : -INFINITE;
  bool is_near = i < end && x >= near.least;
  u32 order = order_of(x);
  u32 equal = __ballot_sync(~0u, is_near && order == kept.edge);
  u64 rank = ties + __popc(equal & ((1u << threadIdx.x % 32) - 1));
  ties += __popc(equal);
  return is_near && (order > kept.edge || (order == kept.edge && rank < kept.ties)) ? near.weight(x) : 0;
}

// A range of tokens, what of the chance is left at its beginning, and how many tokens at the edge are before it.
struct Range { i64 begin, end; u64 left, ties; };

// The part of a range, one for each warp, in which the chance is used up. The first time, the chance is a share of the whole.
DEVICE Range narrow_down(const Near& near, const Kept& kept, Range range, bool is_first, u64 chance, u64* sums) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  i64 length = (range.end - range.begin + 32 * WARPS - 1) / (32 * WARPS) * 32;
  i64 begin = min(range.begin + warp * length, range.end), end = min(begin + length, range.end);
  u64 equal = 0;
  for (i64 i = begin + lane; i < end; i += 32) { float x = near.logits[i]; equal += x >= near.least && order_of(x) == kept.edge; }
  equal = warp_sum(equal);
  if (lane == 0) sums[WARPS + warp] = equal;
  __syncthreads();
  u64 ties = range.ties, mass = 0;
  for (int w = 0; w < warp; w++) ties += sums[WARPS + w];
#pragma unroll 4
  for (i64 i = begin; i < end; i += 32) mass += kept_weight(near, kept, i + lane, end, ties);
  mass = warp_sum(mass);
  if (lane == 0) sums[warp] = mass;
  __syncthreads();
  u64 whole = 0;
  for (int w = 0; w < WARPS; w++) whole += sums[w];
  u64 left = is_first ? __umul64hi(whole, chance) : range.left;
  int part = 0;
  ties = range.ties;
  while (part < WARPS - 1 && left >= sums[part]) { left -= sums[part]; ties += sums[WARPS + part]; part++; }
  __syncthreads();
  i64 from = min(range.begin + part * length, range.end);
  return {from, min(from + length, range.end), left, ties};
}

KERNEL __launch_bounds__(SAMPLERS) sample_tokens(const float* logits, i64 stride, i64 rows, i64 columns, const SampleParams* samples, u32* to, u32* report) { BEGIN;
  extern __shared__ u64 parts[];
  __shared__ u64 sums[64];
  SampleParams params = samples[blockIdx.x];
  if (params.row >= rows) { if (threadIdx.x == 0) complain(report, ROWS, params.row, (u32)rows); return; }
  Near near = {logits + params.row * stride, columns, -INFINITE, 0, params.inverse};
  float most = -INFINITE;
#pragma unroll 4
  for (i64 i = threadIdx.x; i < columns; i += SAMPLERS) most = fmaxf(most, near.logits[i]);
  near.most = most = block_max(most, (float*)sums);
  near.least = most - params.reach;
  __syncthreads();
  if (most == -INFINITE) { if (threadIdx.x == 0) to[params.row] = ~0u; return; }
  Kept kept = cut(near, params, parts, sums);
  Range range = {0, columns, 0, 0};
  range = narrow_down(near, kept, range, true, params.chance, sums);
  range = narrow_down(near, kept, range, false, 0, sums);
  if (threadIdx.x >= 32) return;
  u32 token = ~0u;
  for (i64 i = range.begin; i < range.end; i += 32) {
    u64 weight = kept_weight(near, kept, i + threadIdx.x, range.end, range.ties), sum = weight;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) { u64 before = __shfl_up_sync(~0u, sum, o); if (threadIdx.x >= o) sum += before; }
    u32 passed = __ballot_sync(~0u, sum > range.left);
    if (passed) { token = (u32)i + __ffs(passed) - 1; break; }
    range.left -= __shfl_sync(~0u, sum, 31);
  }
  if (threadIdx.x == 0) to[params.row] = token;
}
