// Keys and values in blocks. A block has the key heads one after the other, of each the keys token by token, then the values: token by token as well, or,
// where they are `turned`, dimension by dimension, as the tensor cores read them. A is the format.
struct Paged { i64 heads, kv_heads, dim, tokens, blocks, sequences, rows; float scale; int sight; i64 reach, turned; };   // sight: 0 all, 1 a window, 2 a chunk
struct Steps { const u32 *starts, *contexts, *table_starts, *tables; };
DEVICE i64 first_seen(const Paged& p, i64 position) { return p.sight == 0 ? 0 : p.sight == 1 ? max((i64)0, position + 1 - p.reach) : position / p.reach * p.reach; }
// The sequence of a row.
DEVICE i64 sequence_of(const Paged& p, const Steps& s, i64 row) {
  // Where all decode, a row is a sequence.
  if (p.rows == p.sequences && s.starts[row] == row && s.starts[row + 1] == row + 1) return row;
  i64 low = 0, high = p.sequences - 1;
  while (low < high) { i64 middle = (low + high + 1) / 2; if (s.starts[middle] <= row) low = middle; else high = middle - 1; }
  return low;
}
DEVICE i64 block_at(const Paged& p, const Steps& s, i64 sequence, i64 position) { return s.tables[s.table_starts[sequence] + (u32)position / (u32)p.tokens]; }
DEVICE i64 block_len(const Paged& p) { return 2 * p.kv_heads * p.dim * p.tokens; }
// Where C is fp8, numbers of a block are e4m3 in the turned order, and behind those of each key head lie the exponents of its scales: a byte for the key of each token,
// then a byte for each value. These are the bytes of a head.
DEVICE i64 small_head(const Paged& p) { return 2 * (p.dim + 1) * p.tokens; }
// The largest exponent stands for what was not finite.
DEVICE float power_of(u32 exponent) { return __uint_as_float(exponent << 23 | (exponent == 255)); }

KERNEL store_kv(Paged p, Steps s, const A* keys, i64 ks, const A* values, i64 vs, A* pool, u32* report) { BEGIN;
  i64 row = blockIdx.x, sequence = sequence_of(p, s, row), position = s.contexts[sequence] + row - s.starts[sequence];
  if (position / p.tokens >= s.table_starts[sequence + 1] - s.table_starts[sequence]) { if (threadIdx.x == 0) complain(report, BLOCK, (u32)position, (u32)p.tokens); return; }
  i64 block = block_at(p, s, sequence, position), half = p.dim * p.tokens;
  if (block >= p.blocks) { if (threadIdx.x == 0) complain(report, BLOCK, (u32)block, (u32)p.blocks); return; }
  A* to = pool + block * block_len(p);
  u32 dim = (u32)p.dim, width = (u32)p.kv_heads * dim, slot = (u32)(position % p.tokens), tokens = (u32)p.tokens;
  for (u32 c = threadIdx.x; c < width; c += blockDim.x) {
    u32 head = c / dim * 2 * (u32)half, d = c % dim;
    to[head + slot * dim + d] = keys[row * ks + c];
    to[head + (u32)half + (p.turned ? d * tokens + slot : slot * dim + d)] = values[row * vs + c];
  }
}

// Queries and keys of a row are turned by its position, queries where they lie, keys and values on their way to the pool. A block has a row.
KERNEL turn_and_store(Paged p, Steps s, A* qkv, i64 stride, const float* cosines, const float* sines, u32 longest, A* pool, u32* report) { LET_NEXT;
  i64 row = blockIdx.x, sequence = sequence_of(p, s, row), position = s.contexts[sequence] + row - s.starts[sequence];
  u32 tokens = (u32)p.tokens, place = (u32)position / tokens, slot = (u32)position % tokens, dim = (u32)p.dim, pairs = dim / 2, pieces = pairs / 8;
  if (place >= s.table_starts[sequence + 1] - s.table_starts[sequence]) { if (threadIdx.x == 0) complain(report, BLOCK, (u32)position, tokens); return; }
  i64 block = s.tables[s.table_starts[sequence] + place], half = p.dim * p.tokens;
  if (block >= p.blocks) { if (threadIdx.x == 0) complain(report, BLOCK, (u32)block, (u32)p.blocks); return; }
  if (position >= longest) { if (threadIdx.x == 0) complain(report, POSITION, (u32)position, longest); return; }
  AWAIT;
  A *from = qkv + row * stride, *to = pool + block * block_len(p);
  u32 heads = (u32)p.heads, kv_heads = (u32)p.kv_heads;
  for (u32 i = threadIdx.x; i < (heads + kv_heads) * pieces; i += blockDim.x) {
    u32 head = i / pieces, pair = i % pieces * 8;
    float a[8], b[8], c[8], v[8];
    A* first = from + head * dim + pair;
    get8(first, a); get8(first + pairs, b); get8(cosines + (u64)position * pairs + pair, c); get8(sines + (u64)position * pairs + pair, v);
#pragma unroll
    for (int j = 0; j < 8; j++) { float old = a[j]; a[j] = old * c[j] - b[j] * v[j]; b[j] = b[j] * c[j] + old * v[j]; }
    if (head >= heads) first = to + (head - heads) * 2 * half + slot * dim + pair;
    put8(first, a); put8(first + pairs, b);
  }
  const A* values = from + (heads + kv_heads) * dim;
  for (u32 c = threadIdx.x; c < kv_heads * dim; c += blockDim.x) {
    u32 d = c % dim;
    to[c / dim * 2 * (u32)half + (u32)half + (p.turned ? d * tokens + slot : slot * dim + d)] = values[c];
  }
}

// The same for blocks of e4m3, with queries and rotation where there are any: a warp has a head of the row, a lane N numbers of it, 32 apart.
template <int N> DEVICE void store_small(const Paged& p, i64 row, i64 position, u8* block, A* queries, i64 qs, const A* keys, i64 ks, const A* values, i64 vs, const float* cosines, const float* sines) {
  u32 tokens = (u32)p.tokens, slot = (u32)position % tokens, dim = 32 * N, pairs = dim / 2, turned = queries ? (u32)p.heads : 0, kv_heads = (u32)p.kv_heads, half = dim * tokens;
  int lane = threadIdx.x % 32;
  for (u32 unit = threadIdx.x / 32; unit < turned + 2 * kv_heads; unit += blockDim.x / 32) {
    u32 head = unit < turned ? unit : (unit - turned) % kv_heads; bool is_query = unit < turned, is_value = unit >= turned + kv_heads;
    const A* from = is_query ? queries + row * qs + head * dim : is_value ? values + row * vs + head * dim : keys + row * ks + head * dim;
    float v[N], most = 0; bool whole = true;
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = widen(from[lane + 32 * i]);
    if (cosines && !is_value) {
#pragma unroll
      for (int i = 0; i < N / 2; i++) {
        float c = cosines[(u64)position * pairs + lane + 32 * i], s = sines[(u64)position * pairs + lane + 32 * i], old = v[i];
        v[i] = old * c - v[i + N / 2] * s; v[i + N / 2] = v[i + N / 2] * c + old * s;
      }
    }
    if (is_query) {
#pragma unroll
      for (int i = 0; i < N; i++) queries[row * qs + head * dim + lane + 32 * i] = narrow<A>(v[i]);
      continue;
    }
#pragma unroll
    for (int i = 0; i < N; i++) { v[i] = widen(narrow<A>(v[i])); most = fmaxf(most, fabsf(v[i])); whole = whole && fabsf(v[i]) < INFINITE; }
    // What is not finite leaves an infinite scale.
    float scale = __all_sync(~0u, whole) ? e4m3_scale(warp_max(most)) : INFINITE, inverse = 1.f / scale;
    u8* to = block + head * small_head(p);
#pragma unroll
    for (int i = 0; i < N; i++) { u32 d = lane + 32 * i; to[is_value ? half + d * tokens + slot : slot * dim + d] = to_e4m3(v[i] * inverse); }
    if (lane == 0) to[2 * half + (is_value ? tokens : 0) + slot] = (u8)(__float_as_uint(scale) >> 23);
  }
}
KERNEL store_fp8(Paged p, Steps s, A* queries, i64 qs, const A* keys, i64 ks, const A* values, i64 vs, const float* cosines, const float* sines, u32 longest, u8* pool, u32* report) { BEGIN;
  i64 row = blockIdx.x, sequence = sequence_of(p, s, row), position = s.contexts[sequence] + row - s.starts[sequence];
  if (position / p.tokens >= s.table_starts[sequence + 1] - s.table_starts[sequence]) { if (threadIdx.x == 0) complain(report, BLOCK, (u32)position, (u32)p.tokens); return; }
  i64 block = block_at(p, s, sequence, position);
  if (block >= p.blocks) { if (threadIdx.x == 0) complain(report, BLOCK, (u32)block, (u32)p.blocks); return; }
  if (cosines && position >= longest) { if (threadIdx.x == 0) complain(report, POSITION, (u32)position, longest); return; }
  u8* to = pool + block * p.kv_heads * small_head(p);
  if (p.dim == 128) store_small<4>(p, row, position, to, queries, qs, keys, ks, values, vs, cosines, sines);
  else store_small<2>(p, row, position, to, queries, qs, keys, ks, values, vs, cosines, sines);
}

// Any shape: a warp has a row and a head. Sequences with few rows are left out where `skip` says that another kernel has them.
KERNEL attend_blocks(Paged p, Steps s, const A* q, i64 qs, const A* pool, A* out, i64 os, i64 skip) { BEGIN;
  __shared__ float staged[WARPS][32 * MOST];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  i64 row = p.rows - 1 - ((i64)blockIdx.x * WARPS + warp), head = blockIdx.y, kv = head / (p.heads / p.kv_heads);
  if (row < 0) return;
  i64 sequence = sequence_of(p, s, row);
  if (s.starts[sequence + 1] - s.starts[sequence] <= skip) return;
  i64 position = s.contexts[sequence] + row - s.starts[sequence], half = p.dim * p.tokens;
  stage(staged[warp], q + row * qs + head * p.dim, p.dim);
  __syncwarp();
  pool += kv * 2 * half;
  Running r; nothing(r);
  for (i64 first = first_seen(p, position); first <= position; first += 32) {
    i64 key = min(first + lane, position);
    const A* block = pool + block_at(p, s, sequence, key) * block_len(p);
    const A* mine = block + key % p.tokens * p.dim;
    float score = first + lane <= position ? p.scale * dot(staged[warp], mine, p.dim) : -INFINITE;
    const u64 value = (u64)(block + half + key % p.tokens * (p.turned ? 1 : p.dim));
    take_in(r, score, p.dim, [&](int i) { return (const A*)__shfl_sync(~0u, value, i); }, p.turned ? p.tokens : 1);
  }
  give(r, out + row * os + head * p.dim, p.dim);
}

// All blocks of the sequences' tables, tokens as rows: what attention over matrices takes. Values come behind the keys.
// Sequences with at most `few` rows are left out.
KERNEL gather_blocks(Paged p, Steps s, const A* pool, A* keys, A* values, i64 few) { BEGIN;
  i64 entry = blockIdx.x, half = p.dim * p.tokens, width = p.kv_heads * p.dim, low = 0, high = p.sequences - 1;
  if (entry >= s.table_starts[p.sequences]) return;
  while (low < high) { i64 middle = (low + high + 1) / 2; if (s.table_starts[middle] <= entry) low = middle; else high = middle - 1; }
  if (s.starts[low + 1] - s.starts[low] <= few) return;
  const A* block = pool + (i64)s.tables[entry] * block_len(p);
  for (i64 i = threadIdx.x; i < p.tokens * width; i += blockDim.x) {
    i64 token = i / width, c = i % width, head = c / p.dim, d = c % p.dim, at = (entry * p.tokens + token) * width + c;
    const A* from = block + head * 2 * half;
    keys[at] = from[token * p.dim + d];
    values[at] = from[half + (p.turned ? d * p.tokens + token : token * p.dim + d)];
  }
}
KERNEL gather_fp8(Paged p, Steps s, const u8* pool, A* keys, A* values, i64 few) { BEGIN;
  i64 entry = blockIdx.x, half = p.dim * p.tokens, width = p.kv_heads * p.dim, low = 0, high = p.sequences - 1;
  if (entry >= s.table_starts[p.sequences]) return;
  while (low < high) { i64 middle = (low + high + 1) / 2; if (s.table_starts[middle] <= entry) low = middle; else high = middle - 1; }
  if (s.starts[low + 1] - s.starts[low] <= few) return;
  const u8* block = pool + (i64)s.tables[entry] * p.kv_heads * small_head(p);
  for (i64 i = threadIdx.x; i < p.tokens * width; i += blockDim.x) {
    i64 token = i / width, c = i % width, head = c / p.dim, d = c % p.dim, at = (entry * p.tokens + token) * width + c;
    const u8 *from = block + head * small_head(p), *exponents = from + 2 * half;
    keys[at] = narrow<A>(from_e4m3(from[token * p.dim + d]) * power_of(exponents[token]));
    values[at] = narrow<A>(from_e4m3(from[half + d * p.tokens + token]) * power_of(exponents[p.tokens + token]));
  }
}
