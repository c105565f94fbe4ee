// Attention on any chip and for any shape, in f32: a warp has a query and a head, its lanes keys at first and dimensions of values then. A is the format.
struct Shape { i64 queries, keys, heads, kv_heads, dim, rows; float scale; };
#define WARPS 4
#define MOST 8   // times 32 dimensions

DEVICE float dot(const float* a, const A* b, i64 dim) {
  float sum = 0;
  if (dim % 8 == 0 && (((u64)b) & 15) == 0) {
    for (i64 d = 0; d < dim; d += 8) { float v[8]; get8(b + d, v);
#pragma unroll
      for (int i = 0; i < 8; i++) sum = fmaf(a[d + i], v[i], sum); }
  } else for (i64 d = 0; d < dim; d++) sum = fmaf(a[d], widen(b[d]), sum);
  return sum;
}
DEVICE void stage(float* to, const A* from, i64 dim) { for (i64 d = threadIdx.x % 32; d < dim; d += 32) to[d] = widen(from[d]); }
struct Running { float most, sum, out[MOST]; };
DEVICE void nothing(Running& r) { r.most = -INFINITE; r.sum = 0;
#pragma unroll
  for (int t = 0; t < MOST; t++) r.out[t] = 0; }
// Takes in up to 32 keys, one for each lane; `value(i)` is where the value of lane i's key begins.
template <class V> DEVICE void take_in(Running& r, float score, i64 dim, V value, i64 step = 1) {
  int lane = threadIdx.x % 32;
  float most = fmaxf(r.most, warp_max(score));
  if (most == -INFINITE) return;
  float alpha = expf(r.most - most), p = expf(score - most);
  r.most = most; r.sum = r.sum * alpha + warp_sum(p);
#pragma unroll
  for (int t = 0; t < MOST; t++) r.out[t] *= alpha;
  for (int i = 0; i < 32; i++) {
    float weight = __shfl_sync(~0u, p, i);
    if (weight == 0.f) continue;
    const A* v = value(i);
#pragma unroll
    for (int t = 0; t < MOST; t++) if (lane + 32 * t < dim) r.out[t] = fmaf(weight, widen(v[(lane + 32 * t) * step]), r.out[t]);
  }
}
DEVICE void give(const Running& r, A* out, i64 dim) {
  float inverse = r.sum == 0.f ? 0.f : 1.f / r.sum;
#pragma unroll
  for (int t = 0; t < MOST; t++) { int d = threadIdx.x % 32 + 32 * t; if (d < dim) out[d] = narrow<A>(r.out[t] * inverse); }
}
struct Seen { i64 first, end; };
DEVICE Seen seen_by(const Shape& s, i64 row, const u32* first_keys, const u32* positions) {
  i64 sequence = row / s.queries, position = (positions ? (i64)positions[sequence] : s.keys - s.queries) + row % s.queries;
  return Seen{(i64)first_keys[row], min(position + 1, s.keys)};
}
KERNEL attend(Shape s, const A* q, i64 qs, const A* k, i64 ks, const A* v, i64 vs, const u32* first_keys, const u32* positions, A* out, i64 os, float* log_sums) { BEGIN;
  __shared__ float staged[WARPS][32 * MOST];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  i64 row = (i64)blockIdx.x * WARPS + warp, head = blockIdx.y, kv = head / (s.heads / s.kv_heads);
  if (row >= s.rows) return;
  i64 start = row / s.queries * s.keys;
  stage(staged[warp], q + row * qs + head * s.dim, s.dim);
  __syncwarp();
  k += start * ks + kv * s.dim; v += start * vs + kv * s.dim;
  Seen seen = seen_by(s, row, first_keys, positions);
  Running r; nothing(r);
  for (i64 first = seen.first; first < seen.end; first += 32) {
    i64 key = first + lane;
    float score = key < seen.end ? s.scale * dot(staged[warp], k + key * ks, s.dim) : -INFINITE;
    take_in(r, score, s.dim, [&](int i) { return v + (first + i) * vs; });
  }
  give(r, out + row * os + head * s.dim, s.dim);
  if (lane == 0) log_sums[row * s.heads + head] = r.sum == 0.f ? -INFINITE : r.most + logf(r.sum);
}

// delta = the sum of out * d_out of each row and head.
KERNEL deltas(Shape s, const A* out, i64 os, const A* d, i64 ds, float* delta) { BEGIN;
  int lane = threadIdx.x % 32; i64 row = (i64)blockIdx.x * WARPS + threadIdx.x / 32, head = blockIdx.y;
  if (row >= s.rows) return;
  float sum = 0;
  for (i64 i = lane; i < s.dim; i += 32) sum += widen(out[row * os + head * s.dim + i]) * widen(d[row * ds + head * s.dim + i]);
  sum = warp_sum(sum);
  if (lane == 0) delta[row * s.heads + head] = sum;
}
DEVICE float weight_of(float score, float log_sum) { return log_sum == -INFINITE ? 0.f : expf(score - log_sum); }
KERNEL attend_backward_queries(Shape s, const A* q, i64 qs, const A* k, i64 ks, const A* v, i64 vs, const u32* first_keys, const u32* positions, const float* log_sums, const float* delta, const A* d, i64 ds, A* dq, i64 dqs) { BEGIN;
  __shared__ float staged[WARPS][2][32 * MOST];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  i64 row = (i64)blockIdx.x * WARPS + warp, head = blockIdx.y, kv = head / (s.heads / s.kv_heads);
  if (row >= s.rows) return;
  i64 start = row / s.queries * s.keys;
  stage(staged[warp][0], q + row * qs + head * s.dim, s.dim); stage(staged[warp][1], d + row * ds + head * s.dim, s.dim);
  __syncwarp();
  k += start * ks + kv * s.dim; v += start * vs + kv * s.dim;
  Seen seen = seen_by(s, row, first_keys, positions);
  float log_sum = log_sums[row * s.heads + head], mean = delta[row * s.heads + head], sums[MOST] = {};
  for (i64 first = seen.first; first < seen.end; first += 32) {
    i64 key = first + lane; float g = 0;
    if (key < seen.end) g = weight_of(s.scale * dot(staged[warp][0], k + key * ks, s.dim), log_sum) * (dot(staged[warp][1], v + key * vs, s.dim) - mean) * s.scale;
    for (int i = 0; i < 32 && first + i < seen.end; i++) {
      float w = __shfl_sync(~0u, g, i); const A* kk = k + (first + i) * ks;
#pragma unroll
      for (int t = 0; t < MOST; t++) if (lane + 32 * t < s.dim) sums[t] = fmaf(w, widen(kk[lane + 32 * t]), sums[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < MOST; t++) if (lane + 32 * t < s.dim) dq[row * dqs + head * s.dim + lane + 32 * t] = narrow<A>(sums[t]);
}
// A warp has a key of a key head and goes through the queries that see it, of all heads that share it.
KERNEL attend_backward_keys(Shape s, const A* q, i64 qs, const A* k, i64 ks, const A* v, i64 vs, const u32* first_keys, const u32* positions, const float* log_sums, const float* delta, const A* d, i64 ds, A* dk, i64 dks, A* dv, i64 dvs) { BEGIN;
  __shared__ float staged[WARPS][2][32 * MOST];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  i64 row = (i64)blockIdx.x * WARPS + warp, kv = blockIdx.y, group = s.heads / s.kv_heads;
  if (row >= s.rows / s.queries * s.keys) return;
  i64 sequence = row / s.keys, key = row % s.keys, base = positions ? (i64)positions[sequence] : s.keys - s.queries;
  stage(staged[warp][0], k + row * ks + kv * s.dim, s.dim); stage(staged[warp][1], v + row * vs + kv * s.dim, s.dim);
  __syncwarp();
  i64 from = max((i64)0, key - base), rows = sequence * s.queries;
  float keys[MOST] = {}, values[MOST] = {};
  for (i64 first = from; first < s.queries; first += 32) {
    if (first_keys[rows + first] > key) break;
    i64 query = first + lane;
    bool sees = query < s.queries && first_keys[rows + query] <= key;
    for (i64 head = kv * group; head < (kv + 1) * group; head++) {
      float p = 0, g = 0;
      if (sees) {
        i64 at = rows + query;
        p = weight_of(s.scale * dot(staged[warp][0], q + at * qs + head * s.dim, s.dim), log_sums[at * s.heads + head]);
        g = p * (dot(staged[warp][1], d + at * ds + head * s.dim, s.dim) - delta[at * s.heads + head]) * s.scale;
      }
      for (int i = 0; i < 32 && first + i < s.queries; i++) {
        float pp = __shfl_sync(~0u, p, i), gg = __shfl_sync(~0u, g, i);
        const A *qq = q + (rows + first + i) * qs + head * s.dim, *dd = d + (rows + first + i) * ds + head * s.dim;
#pragma unroll
        for (int t = 0; t < MOST; t++) if (lane + 32 * t < s.dim) { keys[t] = fmaf(gg, widen(qq[lane + 32 * t]), keys[t]); values[t] = fmaf(pp, widen(dd[lane + 32 * t]), values[t]); }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < MOST; t++) if (lane + 32 * t < s.dim) { i64 at = kv * s.dim + lane + 32 * t; dk[row * dks + at] = narrow<A>(keys[t]); dv[row * dvs + at] = narrow<A>(values[t]); }
}

// Attention over some keys, put together with that over others. B is the whole's format.
KERNEL merge(const A* part, i64 ps, const float* part_log_sums, B* whole, i64 ws, float* log_sums, i64 heads, i64 dim) { BEGIN;
  i64 row = blockIdx.x, head = blockIdx.y;
  float old = log_sums[row * heads + head], more = part_log_sums[row * heads + head], most = fmaxf(old, more);
  __syncthreads();
  if (most == -INFINITE) return;
  float a = expf(old - most), b = expf(more - most), sum = a + b;
  if (threadIdx.x == 0) log_sums[row * heads + head] = most + logf(sum);
  for (i64 d = threadIdx.x; d < dim; d += blockDim.x) { B* to = whole + row * ws + head * dim + d; *to = narrow<B>(a / sum * widen(*to) + b / sum * widen(part[row * ps + head * dim + d])); }
}
