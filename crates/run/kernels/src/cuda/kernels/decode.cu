// Attention of sequences with few rows over keys and values in blocks: spans of tokens, fixed by position, go to different blocks of threads and are
// merged in their order, so that a row's result does not depend on the rows beside it. DIM and GROUP (query heads of a key head) are fixed.
// Behind `attention.cu` and `paged.cu`, whose layout it shares. A is the format.
#define SPAN 128
#define FEW 4
DEVICE i64 spans_before(const Paged& p, i64 context) { return first_seen(p, context) / SPAN; }
DEVICE i64 items_of(const Paged& p, const Steps& s, i64 sequence) {
  i64 rows = s.starts[sequence + 1] - s.starts[sequence], context = s.contexts[sequence];
  if (rows == 0 || rows > FEW) return 0;
  return rows * ((context + rows + SPAN - 1) / SPAN - spans_before(p, context));
}
// A block of SPAN threads takes a span of a row and a key head: threads are tokens at first, and dimensions of values then.
KERNEL __launch_bounds__(SPAN, 4) decode(Paged p, Steps s, const A* q, i64 qs, const A* pool, float* partial) {
  extern __shared__ u32 ends[];   // where the items of each sequence end
  __shared__ u32 totals[SPAN];
  __shared__ __align__(16) float queries[GROUP][DIM], weights[GROUP][SPAN], sums[SPAN / 32][GROUP][DIM];
  __shared__ float mosts[SPAN / 32][GROUP], all[SPAN / 32][GROUP];
  int t = threadIdx.x, warp = t / 32, lane = t % 32; i64 kv = blockIdx.y, half = (i64)DIM * p.tokens;
  // Sequences are counted by all threads, some neighbours each.
  i64 each = (p.sequences + SPAN - 1) / SPAN, mine = 0;
  for (i64 i = t * each; i < min((t + 1) * each, p.sequences); i++) { mine += items_of(p, s, i); ends[i] = (u32)mine; }
  totals[t] = (u32)mine;
  __syncthreads();
  u32 before = 0;
  for (int i = 0; i < t; i++) before += totals[i];
  for (i64 i = t * each; i < min((t + 1) * each, p.sequences); i++) ends[i] += before;
  __syncthreads();
  u32 items = p.sequences ? ends[p.sequences - 1] : 0;
  for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
    i64 low = 0, high = p.sequences - 1;
    while (low < high) { i64 middle = (low + high) / 2; if (ends[middle] > item) high = middle; else low = middle + 1; }
    i64 sequence = low, context = s.contexts[sequence], rows = s.starts[sequence + 1] - s.starts[sequence], first_span = spans_before(p, context);
    i64 spans = (context + rows + SPAN - 1) / SPAN - first_span, local = item - (sequence ? ends[sequence - 1] : 0);
    i64 index = local / spans, row = s.starts[sequence] + index, position = context + index, token = (first_span + local % spans) * SPAN + t;
    bool seen = token <= position && token >= first_seen(p, position);
    const A* block = pool + block_at(p, s, sequence, min(token, position)) * block_len(p) + kv * 2 * half + min(token, position) % p.tokens * DIM;
    __syncthreads();
    for (int i = t; i < GROUP * DIM; i += SPAN) queries[i / DIM][i % DIM] = widen(q[row * qs + kv * GROUP * DIM + i]);
    __syncthreads();
    float scores[GROUP] = {};
#pragma unroll 4
    for (int d = 0; d < DIM; d += 8) {
      float k[8];
      get8(block + d, k);
#pragma unroll
      for (int g = 0; g < GROUP; g++) {
        float4 a = *(const float4*)&queries[g][d], b = *(const float4*)&queries[g][d + 4];
        scores[g] += a.x * k[0] + a.y * k[1] + a.z * k[2] + a.w * k[3] + b.x * k[4] + b.y * k[5] + b.z * k[6] + b.w * k[7];
      }
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
      scores[g] = seen ? scores[g] * p.scale : -INFINITE;
      float most = warp_max(scores[g]);
      if (lane == 0) mosts[warp][g] = most;
    }
    __syncthreads();
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
      float most = fmaxf(fmaxf(mosts[0][g], mosts[1][g]), fmaxf(mosts[2][g], mosts[3][g]));
      float w = seen ? expf(scores[g] - most) : 0.f, sum = warp_sum(w);
      weights[g][t] = w;
      if (lane == 0) all[warp][g] = sum;
    }
    // Each warp has the values of its own 32 tokens; lanes have pairs of dimensions.
    float out[GROUP][DIM / 32] = {};
    u64 value = (u64)(block + half);
    __syncwarp();
#pragma unroll 8
    for (int i = 0; i < 32; i++) {
      const A* v = (const A*)__shfl_sync(~0u, value, i);
      float x[DIM / 32];
#pragma unroll
      for (int d = 0; d < DIM / 64; d++) {
        if (sizeof(A) == 2) { u32 two = *(const u32*)(v + 64 * d + 2 * lane); x[2 * d] = __uint_as_float(two << 16); x[2 * d + 1] = __uint_as_float(two & 0xffff0000u); }
        else { float2 two = *(const float2*)(v + 64 * d + 2 * lane); x[2 * d] = two.x; x[2 * d + 1] = two.y; }
      }
#pragma unroll
      for (int g = 0; g < GROUP; g++) {
        float w = weights[g][32 * warp + i];
#pragma unroll
        for (int d = 0; d < DIM / 32; d++) out[g][d] = fmaf(w, x[d], out[g][d]);
      }
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++)
#pragma unroll
      for (int d = 0; d < DIM / 32; d++) sums[warp][g][64 * (d / 2) + 2 * lane + d % 2] = out[g][d];
    __syncthreads();
    float* to = partial + ((i64)item * p.kv_heads + kv) * GROUP * (DIM + 2);
    for (int i = t; i < GROUP * DIM; i += SPAN) to[i / DIM * (DIM + 2) + 2 + i % DIM] = sums[0][i / DIM][i % DIM] + sums[1][i / DIM][i % DIM] + sums[2][i / DIM][i % DIM] + sums[3][i / DIM][i % DIM];
    if (t < GROUP) {
      to[t * (DIM + 2)] = fmaxf(fmaxf(mosts[0][t], mosts[1][t]), fmaxf(mosts[2][t], mosts[3][t]));
      to[t * (DIM + 2) + 1] = all[0][t] + all[1][t] + all[2][t] + all[3][t];
    }
  }
}
// A block has a sequence and a head, its threads the dimensions.
KERNEL merge_spans(Paged p, Steps s, const float* partial, A* out, i64 os, int alone, u32* report) {
  __shared__ float shared[32];
  i64 sequence = blockIdx.x, head = blockIdx.y, items = items_of(p, s, sequence);
  // Where no other kernel follows, no sequence may have more rows than these take.
  if (alone && s.starts[sequence + 1] - s.starts[sequence] > FEW) complain(report, ROWS, s.starts[sequence + 1] - s.starts[sequence], FEW);
  if (items == 0) return;
  float before = 0;
  for (i64 i = threadIdx.x; i < sequence; i += blockDim.x) before += (float)items_of(p, s, i);
  i64 first = (i64)block_sum(before, shared), rows = s.starts[sequence + 1] - s.starts[sequence], spans = items / rows;
  int d = threadIdx.x;
  for (i64 index = 0; index < rows; index++) {
    const float* from = partial + ((first + index * spans) * p.kv_heads * GROUP + head) * (DIM + 2);
    i64 step = p.kv_heads * GROUP * (DIM + 2);
    float most = -INFINITE, sum = 0, value = 0;
    for (i64 span = 0; span < spans; span++) {
      float m = from[span * step], l = from[span * step + 1], v = d < DIM ? from[span * step + 2 + d] : 0.f;
      if (l == 0.f) continue;
      float larger = fmaxf(most, m), a = expf(most - larger), b = expf(m - larger);
      sum = sum * a + l * b; value = value * a + v * b; most = larger;
    }
    if (d < DIM) out[(s.starts[sequence] + index) * os + head * DIM + d] = narrow<A>(value / sum);
  }
}
