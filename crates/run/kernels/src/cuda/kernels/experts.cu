// Rows of tables, and tokens on their way to experts and back. A is read, B written.
template <bool WIDE> DEVICE void copy_row(const A* from, B* to, i64 columns, int add) {
  for (i64 c = threadIdx.x * 8; c < columns; c += blockDim.x * 8) {
    float v[8], old[8];
    get<WIDE>(from + c, columns - c, v);
    if (add) { get<WIDE>(to + c, columns - c, old);
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] += old[j]; }
    put<WIDE>(to + c, columns - c, v);
  }
}
KERNEL embedding(const u32* tokens, const A* table, i64 ts, i64 entries, int add, B* out, i64 os, i64 columns, int wide, u32* report) { BEGIN;
  u32 token = tokens[blockIdx.x];
  if (token >= entries) { if (threadIdx.x == 0) complain(report, TOKEN, token, (u32)entries); return; }
  if (wide) copy_row<true>(table + token * ts, out + blockIdx.x * os, columns, add); else copy_row<false>(table + token * ts, out + blockIdx.x * os, columns, add);
}
// The block of a token's first row goes through all rows of that token, in order.
KERNEL embedding_backward(const u32* tokens, i64 count, const A* d, i64 ds, float* table, i64 ts, i64 entries, i64 columns, u32* report) { BEGIN;
  __shared__ u32 found[256];
  u32 token = tokens[blockIdx.x];
  if (token >= entries) { if (threadIdx.x == 0) complain(report, TOKEN, token, (u32)entries); return; }
  int earlier = 0;
  for (i64 i = threadIdx.x; i < blockIdx.x; i += blockDim.x) earlier |= tokens[i] == token;
  if (__syncthreads_or(earlier)) return;
  float* to = table + token * ts;
  for (i64 start = blockIdx.x; start < count; start += 256) {
    bool same = start + threadIdx.x < count && tokens[start + threadIdx.x] == token;
    if (!__syncthreads_or(same)) continue;
    found[threadIdx.x] = same;
    __syncthreads();
    for (int i = 0; i < 256; i++) if (found[i]) for (i64 c = threadIdx.x; c < columns; c += 256) to[c] += widen(d[(start + i) * ds + c]);
    __syncthreads();
  }
}
KERNEL gather_rows(const A* x, i64 xs, i64 rows, const u32* order, i64 per_token, B* out, i64 os, i64 columns, int wide, u32* report) { BEGIN;
  u32 token = order[blockIdx.x] / (u32)per_token;
  if (token >= rows) { if (threadIdx.x == 0) complain(report, ROWS, token, (u32)rows); return; }
  if (wide) copy_row<true>(x + token * xs, out + blockIdx.x * os, columns, 0); else copy_row<false>(x + token * xs, out + blockIdx.x * os, columns, 0);
}
// A thread has eight columns of a token, and asks for the rows of eight of its slots at once.
template <bool WIDE> DEVICE void sum_of_slots(const A* y, i64 ys, i64 rows, const u32* slots, const float* weights, i64 per_token, int add, B* out, i64 os, i64 columns, u32* report) {
  i64 c = ((i64)blockIdx.y * blockDim.x + threadIdx.x) * 8, left = columns - c;
  if (left <= 0) return;
  float sum[8] = {};
  for (i64 first = 0; first < per_token; first += 8) {
    float v[8][8], weight[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      i64 choice = blockIdx.x * per_token + min(first + i, per_token - 1); u32 slot = slots[choice];
      if (slot >= rows) { complain(report, SLOT, slot, (u32)rows); return; }
      weight[i] = weights ? weights[choice] : 1.f;
      get<WIDE>(y + slot * ys + c, left, v[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) if (first + i < per_token)
#pragma unroll
      for (int j = 0; j < 8; j++) sum[j] += weight[i] * v[i][j];
  }
  B* to = out + blockIdx.x * os + c;
  if (add) {
    float before[8];
    get<WIDE>(to, left, before);
#pragma unroll
    for (int j = 0; j < 8; j++) sum[j] = before[j] + sum[j];
  }
  put<WIDE>(to, left, sum);
}
KERNEL sum_slots(const A* y, i64 ys, i64 rows, const u32* slots, const float* weights, i64 per_token, int add, B* out, i64 os, i64 columns, int wide, u32* report) { BEGIN;
  if (wide) sum_of_slots<true>(y, ys, rows, slots, weights, per_token, add, out, os, columns, report); else sum_of_slots<false>(y, ys, rows, slots, weights, per_token, add, out, os, columns, report);
}
KERNEL combine_backward(const A* d, i64 ds, const A* y, i64 ys, const u32* slots, const float* weights, i64 per_token, i64 columns, A* dy, i64 dys, float* d_weights, i64 rows, u32* report) { BEGIN;
  __shared__ float shared[32];
  u32 slot = slots[blockIdx.x]; float weight = weights[blockIdx.x], sum = 0;
  if (slot >= rows) { if (threadIdx.x == 0) complain(report, SLOT, slot, (u32)rows); return; }
  d += blockIdx.x / per_token * ds; y += slot * ys; dy += slot * dys;
  for (i64 c = threadIdx.x; c < columns; c += blockDim.x) { float v = widen(d[c]); sum += v * widen(y[c]); dy[c] = narrow<A>(weight * v); }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) d_weights[blockIdx.x] = sum;
}
KERNEL gate_rows(const A* x, i64 xs, const float* logits, int add, B* out, i64 os, i64 columns) { BEGIN;
  float gate = sigmoid(logits[blockIdx.x]);
  for (i64 c = threadIdx.x; c < columns; c += blockDim.x) { float v = gate * widen(x[blockIdx.x * xs + c]); B* to = out + blockIdx.x * os + c; *to = narrow<B>(add ? widen(*to) + v : v); }
}
KERNEL gate_rows_backward(const A* d, i64 ds, const A* x, i64 xs, const float* logits, A* dx, i64 dxs, float* d_logits, i64 columns) { BEGIN;
  __shared__ float shared[32];
  float gate = sigmoid(logits[blockIdx.x]), sum = 0;
  for (i64 c = threadIdx.x; c < columns; c += blockDim.x) { float v = widen(d[blockIdx.x * ds + c]); sum += v * widen(x[blockIdx.x * xs + c]); dx[blockIdx.x * dxs + c] = narrow<A>(gate * v); }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) d_logits[blockIdx.x] = gate * (1.f - gate) * sum;
}

// A block has an expert: it counts the choices of lower ones, then gives its own their slots in order. The block behind the last expert writes the end.
KERNEL dispatch(const u32* experts, i64 choices, u32 count, u32* order, u32* slots, u32* offsets, u32* report) { BEGIN;
  __shared__ float shared[32];
  __shared__ u32 warps[8], next;
  u32 mine = blockIdx.x;
  float below = 0;
  for (i64 i = threadIdx.x; i < choices; i += 256) { u32 e = experts[i]; if (e >= count) complain(report, EXPERT, e, count); below += e < mine; }
  // Whole numbers below 2^24 are exact in f32; choices of a step are fewer.
  u32 start = (u32)block_sum(below, shared);
  if (threadIdx.x == 0) { offsets[mine] = start; next = start; }
  __syncthreads();
  if (mine == count) return;
  for (i64 first = 0; first < choices; first += 256) {
    i64 i = first + threadIdx.x;
    bool is = i < choices && experts[i] == mine;
    u32 votes = __ballot_sync(~0u, is), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) warps[warp] = __popc(votes);
    __syncthreads();
    u32 slot = next + __popc(votes & ((1u << lane) - 1)), total = 0;
    for (u32 w = 0; w < 8; w++) { if (w < warp) slot += warps[w]; total += warps[w]; }
    if (is && slot < choices) { slots[i] = slot; order[slot] = (u32)i; }
    __syncthreads();
    if (threadIdx.x == 0) next += total;
    __syncthreads();
  }
}
KERNEL expert_shares(const u32* experts, i64 per_token, i64 tokens, const u32* counted, float all, float* shares) { BEGIN;
  __shared__ float shared[32];
  float sum = 0;
  for (i64 i = threadIdx.x; i < tokens * per_token; i += blockDim.x) sum += counted[i / per_token] > 0 && experts[i] == blockIdx.x;
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) shares[blockIdx.x] = sum / all;
}
// Order of floats as whole numbers, so that equal ones and NaN have their places too.
DEVICE int key_of(float x) { int bits = __float_as_int(x); return bits ^ ((unsigned)(bits >> 31) >> 1); }
// A warp has a row; `chosen` experts are marked in shared memory.
KERNEL route(const float* logits, i64 ls, i64 rows, int experts, int per_token, int normalise, float* probabilities, i64 ps, u32* chosen, float* weights) { BEGIN;
  extern __shared__ u8 taken[];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i64 row = (i64)blockIdx.x * (blockDim.x / 32) + warp;
  if (row >= rows) return;
  u8* mine = taken + warp * experts;
  logits += row * ls; probabilities += row * ps; chosen += row * per_token; weights += row * per_token;
  float most = -INFINITE, sum = 0;
  for (int e = lane; e < experts; e += 32) { most = fmaxf(most, logits[e]); mine[e] = 0; }
  most = warp_max(most);
  for (int e = lane; e < experts; e += 32) { float p = expf(logits[e] - most); probabilities[e] = p; sum += p; }
  float inverse = 1.f / warp_sum(sum);
  for (int e = lane; e < experts; e += 32) probabilities[e] *= inverse;
  __syncwarp();
  float total = 0;
  for (int i = 0; i < per_token; i++) {
    i64 best = (i64)1 << 63;
    for (int e = lane; e < experts; e += 32) if (!mine[e]) { i64 here = ((i64)key_of(logits[e]) << 32) | (u32)(~e); if (here > best) best = here; }
    for (int o = 16; o; o /= 2) { i64 other = __shfl_xor_sync(~0u, best, o); if (other > best) best = other; }
    int e = (int)~(u32)best;
    if (lane == 0) { mine[e] = 1; chosen[i] = e; }
    total += probabilities[e];
    __syncwarp();
  }
  for (int i = lane; i < per_token; i += 32) { float p = probabilities[chosen[i]]; weights[i] = normalise ? p / total : p; }
}
// The same for up to 512 experts, of which a lane has sixteen in registers.
KERNEL route_few(const float* logits, i64 ls, i64 rows, int experts, int per_token, int normalise, float* probabilities, i64 ps, u32* chosen, float* weights) { BEGIN;
  enum { HELD = 16 };
  int lane = threadIdx.x % 32, count = (experts - lane + 31) / 32;
  i64 row = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  logits += row * ls; probabilities += row * ps; chosen += row * per_token; weights += row * per_token;
  float own[HELD], most = -INFINITE, sum = 0, total = 0;
#pragma unroll
  for (int i = 0; i < HELD; i++) { own[i] = i < count ? logits[lane + 32 * i] : -INFINITE; most = fmaxf(most, own[i]); }
  most = warp_max(most);
#pragma unroll
  for (int i = 0; i < HELD; i++) if (i < count) sum += expf(own[i] - most);
  float inverse = 1.f / warp_sum(sum);
#pragma unroll
  for (int i = 0; i < HELD; i++) if (i < count) probabilities[lane + 32 * i] = expf(own[i] - most) * inverse;
  u32 open = ~0u;
  for (int turn = 0; turn < per_token; turn++) {
    i64 best = (i64)1 << 63; float value = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) if (i < count && (open >> i & 1)) { i64 here = ((i64)key_of(own[i]) << 32) | (u32)(~(lane + 32 * i)); if (here > best) { best = here; value = own[i]; } }
    i64 mine = best;
    for (int o = 16; o; o /= 2) { i64 other = __shfl_xor_sync(~0u, best, o); if (other > best) best = other; }
    int e = (int)~(u32)best;
    if (mine == best) open &= ~(1u << (e / 32));
    float p = expf(__shfl_sync(~0u, value, e % 32) - most) * inverse;
    total += p;
    if (lane == 0) { chosen[turn] = e; weights[turn] = p; }
  }
  __syncwarp();
  if (normalise) for (int i = lane; i < per_token; i += 32) weights[i] /= total;
}
KERNEL pressures(const float* shares, i64 ss, i64 layers, int experts, float scale, float* out) { BEGIN;
  int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= experts) return;
  float sum = 0;
  for (i64 l = 0; l < layers; l++) sum += scale * shares[l * ss + e];
  out[e] = sum;
}
KERNEL route_backward(const float* probabilities, i64 ps, i64 rows, int experts, const u32* chosen, const float* weights, const float* d_weights, int per_token, int normalise, const float* pressure, const u32* counted, float* d, i64 ds) { BEGIN;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i64 row = (i64)blockIdx.x * (blockDim.x / 32) + warp;
  if (row >= rows) return;
  probabilities += row * ps; d += row * ds; chosen += row * per_token; weights += row * per_token; d_weights += row * per_token;
  bool counts = counted && counted[row] > 0;
  for (int e = lane; e < experts; e += 32) d[e] = counts ? pressure[e] : 0.f;
  __syncwarp();
  float common = 0, total = 0;
  for (int i = 0; i < per_token; i++) { common += weights[i] * d_weights[i]; total += probabilities[chosen[i]]; }
  if (!normalise) { common = 0; total = 1; }
  if (lane == 0) for (int i = 0; i < per_token; i++) d[chosen[i]] += (d_weights[i] - common) / total;
  __syncwarp();
  float mean = 0;
  for (int e = lane; e < experts; e += 32) mean += probabilities[e] * d[e];
  mean = warp_sum(mean);
  for (int e = lane; e < experts; e += 32) d[e] = probabilities[e] * (d[e] - mean);
}
