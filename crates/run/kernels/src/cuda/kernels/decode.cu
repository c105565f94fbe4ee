// Attention of sequences with few rows over keys and values in blocks: spans of tokens, fixed by position, go to different blocks of threads and are
// merged in their order, so that a row's result does not depend on the rows beside it. DIM and GROUP (query heads of a key head) are fixed.
// Behind `attention.cu` and `paged.cu`, whose layout it shares. A is the format.
#define SPAN 128   // threads, and tokens of a span where values are not turned
#define FEW 4
// Tokens of a span are S: SPAN, or 256 where values are turned.
template <int S> DEVICE i64 spans_before(const Paged& p, i64 context) { return first_seen(p, context) / S; }
template <int S> DEVICE u32 items_of(const Paged& p, const Steps& s, i64 sequence) {
  i64 rows = s.starts[sequence + 1] - s.starts[sequence], context = s.contexts[sequence];
  if (rows == 0 || rows > FEW) return 0;
  return (u32)(rows * ((context + rows + S - 1) / S - spans_before<S>(p, context)));
}
// Where the items of each sequence end, and how many there are in all. Sequences are counted by all threads, some neighbours each.
// The upper half of a count is what the items cost, where `works` wants to know.
template <class Of> DEVICE u64 count_items(const Paged& p, Of of, u32* ends, u32* works, u64* totals) {
  int t = threadIdx.x, lane = t % 32, sequences = (int)p.sequences, each = (sequences + SPAN - 1) / SPAN, first = t * each, last = min(first + each, sequences);
  u64 mine = 0;
  for (int i = first; i < last; i++) { mine += of(i); ends[i] = (u32)mine; if (works) works[i] = (u32)(mine >> 32); }
  u64 sum = mine;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) { u64 below = __shfl_up_sync(~0u, sum, o); if (lane >= o) sum += below; }
  if (lane == 31) totals[t / 32] = sum;
  __syncthreads();
  u64 before = sum - mine, all = 0;
  for (int w = 0; w < SPAN / 32; w++) { if (w < t / 32) before += totals[w]; all += totals[w]; }
  for (int i = first; i < last; i++) { ends[i] += (u32)before; if (works) works[i] += (u32)(before >> 32); }
  __syncthreads();
  return all;
}
// Where they begin, for who merges them.
DEVICE void tell_firsts(const Paged& p, const u32* ends, u32* firsts) {
  if (blockIdx.x == 0 && blockIdx.y == 0) for (int i = threadIdx.x; i < p.sequences; i += SPAN) firsts[i] = i ? ends[i - 1] : 0;
}
// What a step is about was written before its first kernel, so that it may be looked at while the kernel before this one ends.
// A block of SPAN threads takes a span of a row and a key head: threads are tokens at first, and dimensions of values then.
KERNEL __launch_bounds__(SPAN, DIM == 256 ? 2 : 4) decode(Paged p, Steps s, const A* q, i64 qs, const A* pool, float* partial, u32* firsts) { LET_NEXT;
  extern __shared__ u32 ends[];   // where the items of each sequence end
  __shared__ u64 totals[SPAN / 32];
  __shared__ __align__(16) float queries[GROUP][DIM], weights[GROUP][SPAN], sums[SPAN / 32][GROUP][DIM];
  __shared__ float mosts[SPAN / 32][GROUP], all[SPAN / 32][GROUP];
  int t = threadIdx.x, warp = t / 32, lane = t % 32; i64 kv = blockIdx.y, half = (i64)DIM * p.tokens;
  u32 items = (u32)count_items(p, [&](i64 i) { return (u64)items_of<SPAN>(p, s, i); }, ends, (u32*)0, totals);
  AWAIT;
  tell_firsts(p, ends, firsts);
  for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
    i64 low = 0, high = p.sequences - 1;
    while (low < high) { i64 middle = (low + high) / 2; if (ends[middle] > item) high = middle; else low = middle + 1; }
    i64 sequence = low, context = s.contexts[sequence], rows = s.starts[sequence + 1] - s.starts[sequence], first_span = spans_before<SPAN>(p, context);
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
// The same on tensor cores, for bf16 whose values are turned: each warp has sixteen tokens at a time, and the heads of the group are the first rows of a tile.
// Tokens and dimensions are taken in an order in which what a lane needs lies together: lane 4 r + l has the dimensions 8 l to 8 l + 7 of every 32 of token r's
// key, and the tokens 4 l to 4 l + 3 of a dimension's values.
#if DIM <= 128
DEVICE void mma_low(float (&d)[2], u32 a0, u32 a2, u32 b0, u32 b1) {
  asm volatile("{\n.reg .f32 x, y;\nmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, x, y}, {%2, %6, %3, %6}, {%4, %5}, {%0, %1, %7, %7};\n}" : "+f"(d[0]), "+f"(d[1]) : "r"(a0), "r"(a2), "r"(b0), "r"(b1), "r"(0), "f"(0.f));
}
// Numbers of the pool are W bytes wide: those of A, or e4m3 where C is fp8.
template <class T> struct Wide { static constexpr int bytes = 2; };
template <> struct Wide<fp8> { static constexpr int bytes = 1; };
constexpr int W = Wide<C>::bytes;
// A warp has room of its own for three steps, so that two are on their way while it works on one: keys, values, and the exponents of both where there are any.
constexpr int LINE = W * DIM + 16, SCALES = 16 * LINE + 16 * W * DIM, STEP_BYTES = SCALES + (W == 1 ? 32 : 0), STAGES = 3;
// Four e4m3 as bf16: their bits moved to its exponent and fraction, whose bias is larger by 120.
DEVICE uint2 four_bf16(u32 four) {
  u32 at[2] = {__byte_perm(four, 0, 0x1404), __byte_perm(four, 0, 0x3424)};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    at[i] = (at[i] & 0x80008000u) | (at[i] & 0x7f007f00u) >> 4;
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(at[i]) : "r"(0x7b807b80u), "r"(0x80008000u));
  }
  return make_uint2(at[0], at[1]);
}
// Values of a dimension lie in 32 bytes of a line, the rest of which the neighbouring warps want.
DEVICE void bring(u32 to, const void* from) { asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory"); }
// Spans are shared out by what they cost, in the order of their sequences: steps of 64 tokens, and one for what comes after them. The last span of a row may be short.
constexpr u32 WHOLE = 5;
DEVICE u32 work_of_row(const Paged& p, const Steps& s, i64 sequence, u32 spans) {
  u32 rows = s.starts[sequence + 1] - s.starts[sequence], tokens = s.contexts[sequence] + rows - ((u32)spans_before<256>(p, s.contexts[sequence]) + spans - 1) * 256;
  return (spans - 1) * WHOLE + (tokens + 63) / 64 + 1;
}
// Items that begin before some of the work.
DEVICE u32 items_before(const Paged& p, const Steps& s, const u32* ends, const u32* works, u32 work) {
  int low = 0, high = (int)p.sequences - 1;
  if (work >= works[high]) return ends[high];
  while (low < high) { int middle = (low + high) / 2; if (works[middle] > work) high = middle; else low = middle + 1; }
  u32 rows = s.starts[low + 1] - s.starts[low], before = low ? ends[low - 1] : 0, spans = (ends[low] - before) / rows, of_row = work_of_row(p, s, low, spans);
  u32 local = work - (low ? works[low - 1] : 0);
  return before + local / of_row * spans + min(spans, (local % of_row + WHOLE - 1) / WHOLE);
}
KERNEL __launch_bounds__(SPAN, 2) decode_tiles(Paged p, Steps s, const A* q, i64 qs, const u8* pool, float* partial, u32* firsts) { LET_NEXT;
  extern __shared__ u32 ends[];
  __shared__ u64 totals[SPAN / 32];
  __shared__ float sums[SPAN / 32][GROUP][DIM + 4], mosts[SPAN / 32][GROUP], all[SPAN / 32][GROUP];
  int t = threadIdx.x, warp = t / 32, lane = t % 32, r = lane / 4, l = lane % 4; i64 kv = blockIdx.y, half = (i64)DIM * p.tokens * W, of_head = W == 1 ? small_head(p) : 2 * half;
  u32* works = ends + p.sequences;
  u64 counted = count_items(p, [&](i64 i) { u32 of = items_of<256>(p, s, i), rows = s.starts[i + 1] - s.starts[i]; return of ? (u64)(rows * work_of_row(p, s, i, of / rows)) << 32 | of : 0; }, ends, works, totals);
  // Few are shared out by their number.
  u32 items = (u32)counted, mine = blockIdx.x, blocks = gridDim.x, first, work = (u32)(counted >> 32);
  if (items > 2 * blocks) { first = items_before(p, s, ends, works, (u32)((u64)work * mine / blocks)); items = items_before(p, s, ends, works, (u32)((u64)work * (mine + 1) / blocks)); }
  else { first = items * mine / blocks; items = items * (mine + 1) / blocks; }
  AWAIT;
  tell_firsts(p, ends, firsts);
  const float scale = p.scale * 1.44269504f;
  u8* room = (u8*)ends + ((p.sequences * 8 + 15) & ~15ll) + warp * STAGES * STEP_BYTES;
  u32 ring = (u32)__cvta_generic_to_shared(room);
  // What is copied runs ahead of what is computed, over the borders of items.
  struct Item { i64 row; u32 table; int position, span, least; } now, next;   // `table` is where the sequence's blocks begin
  auto find = [&](u32 item) {
    int low = 0, high = (int)p.sequences - 1;
    while (low < high) { int middle = (low + high) / 2; if (ends[middle] > item) high = middle; else low = middle + 1; }
    u32 context = s.contexts[low], start = s.starts[low], rows = s.starts[low + 1] - start, first_span = (u32)spans_before<256>(p, context);
    u32 spans = (context + rows + 255) / 256 - first_span, local = item - (low ? ends[low - 1] : 0), index = local / spans;
    int position = (int)(context + index);
    return Item{start + index, s.table_starts[low], position, (int)(first_span + local % spans) * 256, (int)first_seen(p, position)};
  };
  auto query = [&](const Item& of, uint4 (&to)[DIM / 32]) {
#pragma unroll
    for (int j = 0; j < DIM / 32; j++) to[j] = r < GROUP ? *(const uint4*)(q + of.row * qs + (kv * GROUP + r) * DIM + 32 * j + 8 * l) : make_uint4(0, 0, 0, 0);
  };
  u32 fetched = 0, used = 0;
  // A step's block is looked up a step before it is fetched.
  auto entry = [&](const Item& of, int step) { int token = of.span + 64 * step + 16 * warp; return token <= of.position ? s.tables[of.table + (u32)token / (u32)p.tokens] : 0u; };
  auto fetch = [&](const Item& of, int step, u32 number) {
    int token = of.span + 64 * step + 16 * warp;
    if (token <= of.position && token + 15 >= of.least) {
      const u8* block = pool + ((i64)number * p.kv_heads + kv) * of_head; int slot = token % (int)p.tokens; u32 to = ring + fetched % STAGES * STEP_BYTES;
      constexpr int PIECES = W * DIM / 16;   // of sixteen bytes, of a token's key
#pragma unroll
      for (int i = 0; i < PIECES / 2; i++) { int at = i * 32 + lane; bring(to + at / PIECES * LINE + at % PIECES * 16, block + (slot + at / PIECES) * DIM * W + at % PIECES * 16); }
#pragma unroll
      for (int i = 0; i < PIECES / 2; i++) { int at = i * 32 + lane; bring(to + 16 * LINE + at * 16, block + half + (at / W * (int)p.tokens + slot) * W + at % W * 16); }
      if (W == 1 && lane < 2) bring(to + SCALES + 16 * lane, block + 2 * half + lane * p.tokens + slot);
    }
    fetched++;
  };
  uint4 qf[DIM / 32], qn[DIM / 32]; u32 coming = 0;
  if (first < items) {
    next = find(first); query(next, qn);
    u32 first = entry(next, 0), second = entry(next, 1); coming = entry(next, 2);
    fetch(next, 0, first); asm volatile("cp.async.commit_group;" ::: "memory");
    fetch(next, 1, second); asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (u32 item = first; item < items; item++) {
    bool more = item + 1 < items;
    now = next;
#pragma unroll
    for (int j = 0; j < DIM / 32; j++) qf[j] = qn[j];
    if (more) next = find(item + 1);
    int position = now.position, span = now.span, least = now.least;
    float most = -INFINITE, sum = 0, out[DIM / 8][2];
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) out[n][0] = out[n][1] = 0;
#pragma unroll 1
    for (int step = 0; step < 4; step++) {
      int token = span + 64 * step + 16 * warp;
      if (step < 2) fetch(now, step + 2, coming); else if (more) fetch(next, step - 2, coming);
      if (step == 0) coming = entry(now, 3); else if (more) coming = entry(next, step - 1);
      asm volatile("cp.async.commit_group;" ::: "memory");
      if (step == 2 && more) query(next, qn);
      asm volatile("cp.async.wait_group 2;" ::: "memory");
      __syncwarp();
      const u8* here = room + used++ % STAGES * STEP_BYTES;
      if (token > position || token + 15 < least) continue;
      float score[2][2] = {};
#pragma unroll
      for (int tile = 0; tile < 2; tile++)
#pragma unroll
        for (int j = 0; j < DIM / 32; j++) {
          const u8* key = here + (4 * (r / 2) + 2 * tile + r % 2) * LINE + W * (32 * j + 8 * l);
          uint4 k;
          if constexpr (W == 1) { uint2 eight = *(const uint2*)key, low = four_bf16(eight.x), high = four_bf16(eight.y); k = make_uint4(low.x, low.y, high.x, high.y); }
          else k = *(const uint4*)key;
          mma_low(score[tile], qf[j].x, qf[j].y, k.x, k.y); mma_low(score[tile], qf[j].z, qf[j].w, k.z, k.w);
        }
      float larger = most;
      u32 exponents[2] = {};   // of the lane's four keys and values
      if constexpr (W == 1) { exponents[0] = *(const u32*)(here + SCALES + 4 * l); exponents[1] = *(const u32*)(here + SCALES + 16 + 4 * l); }
      auto scaled = [&](float x, int which, int index) { return W == 1 ? x * power_of(exponents[which] >> (8 * index) & 0xff) : x; };
#pragma unroll
      for (int tile = 0; tile < 2; tile++)
#pragma unroll
        for (int e = 0; e < 2; e++) { score[tile][e] = scaled(score[tile][e], 0, 2 * tile + e); int at = token + 4 * l + 2 * tile + e; if (at > position || at < least) score[tile][e] = -INFINITE; larger = fmaxf(larger, score[tile][e]); }
      larger = fmaxf(larger, __shfl_xor_sync(~0u, larger, 1)); larger = fmaxf(larger, __shfl_xor_sync(~0u, larger, 2));
      float base = larger == -INFINITE ? 0.f : larger * scale, alpha = exp2f(most * scale - base);
      most = larger; sum *= alpha;
      // What lies behind the last token may be anything, and counts nothing.
      int left = position + 1 - token - 4 * l; u32 keep[2] = {left < 1 ? 0u : left < 2 ? 0xffffu : ~0u, left < 3 ? 0u : left < 4 ? 0xffffu : ~0u};
      u32 weights[2];
#pragma unroll
      for (int tile = 0; tile < 2; tile++) {
        float a = exp2f(score[tile][0] * scale - base), b = exp2f(score[tile][1] * scale - base);
        sum += a + b;
        weights[tile] = pack(scaled(a, 1, 2 * tile), scaled(b, 1, 2 * tile + 1)) & keep[tile];
      }
#pragma unroll
      for (int n = 0; n < DIM / 8; n++) {
        const u8* value = here + 16 * LINE + W * ((8 * n + r) * 16 + 4 * l);
        uint2 v;
        if constexpr (W == 1) v = four_bf16(*(const u32*)value); else v = *(const uint2*)value;
        out[n][0] *= alpha; out[n][1] *= alpha; mma_low(out[n], weights[0], weights[1], v.x & keep[0], v.y & keep[1]);
      }
      __syncwarp();
    }
    sum += __shfl_xor_sync(~0u, sum, 1); sum += __shfl_xor_sync(~0u, sum, 2);
    __syncthreads();
    if (r < GROUP) {
      if (l == 0) { mosts[warp][r] = most; all[warp][r] = sum; }
#pragma unroll
      for (int n = 0; n < DIM / 8; n++) { sums[warp][r][8 * n + 2 * l] = out[n][0]; sums[warp][r][8 * n + 2 * l + 1] = out[n][1]; }
    }
    __syncthreads();
    float* to = partial + ((i64)item * p.kv_heads + kv) * GROUP * (DIM + 2);
    for (int i = t; i < GROUP * DIM; i += SPAN) {
      int g = i / DIM; float m = fmaxf(fmaxf(mosts[0][g], mosts[1][g]), fmaxf(mosts[2][g], mosts[3][g])), value = 0, total = 0;
#pragma unroll
      for (int w = 0; w < 4; w++) { float share = all[w][g] == 0.f ? 0.f : exp2f((mosts[w][g] - m) * scale); value += share * sums[w][g][i % DIM]; total += share * all[w][g]; }
      to[g * (DIM + 2) + 2 + i % DIM] = value;
      if (i % DIM == 0) { to[g * (DIM + 2)] = m * p.scale; to[g * (DIM + 2) + 1] = total; }
    }
  }
}
#endif
// A block has a sequence and a head, its threads the dimensions. Loads of all spans are under way together.
template <int S> DEVICE void merge(const Paged& p, const Steps& s, const float* partial, const u32* firsts, A* out, i64 os, int alone, u32* report) {
  i64 sequence = blockIdx.x, head = blockIdx.y; u32 start = s.starts[sequence], rows = s.starts[sequence + 1] - start, items = items_of<S>(p, s, sequence);
  // Where no other kernel follows, no sequence may have more rows than these take.
  if (alone && rows > FEW) complain(report, ROWS, rows, FEW);
  AWAIT;
  if (items == 0) return;
  u32 first = firsts[sequence], spans = items / rows;
  int d = min((int)threadIdx.x, DIM - 1);
  for (u32 index = 0; index < rows; index++) {
    const float* from = partial + ((i64)(first + index * spans) * p.kv_heads * GROUP + head) * (DIM + 2);
    i64 step = p.kv_heads * GROUP * (DIM + 2);
    float most = -INFINITE, sum = 0, value = 0;
#pragma unroll 4
    for (u32 span = 0; span < spans; span++) most = fmaxf(most, from[span * step]);
#pragma unroll 4
    for (u32 span = 0; span < spans; span++) {
      float l = from[span * step + 1], share = l == 0.f ? 0.f : expf(from[span * step] - most);
      sum += l * share; value += from[span * step + 2 + d] * share;
    }
    if (threadIdx.x < DIM) out[(start + index) * os + head * DIM + d] = narrow<A>(value / sum);
  }
}
KERNEL merge_spans(Paged p, Steps s, const float* partial, const u32* firsts, A* out, i64 os, int alone, u32* report) { LET_NEXT;
  if (p.turned) merge<256>(p, s, partial, firsts, out, os, alone, report); else merge<SPAN>(p, s, partial, firsts, out, os, alone, report);
}
