// Keys and values in blocks. A block has the key heads one after the other, of each the keys token by token, then the values. A is the format.
struct Paged { i64 heads, kv_heads, dim, tokens, blocks, sequences, rows; float scale; int sight; i64 reach; };   // sight: 0 all, 1 a window, 2 a chunk
struct Steps { const u32 *starts, *contexts, *table_starts, *tables; };
DEVICE i64 first_seen(const Paged& p, i64 position) { return p.sight == 0 ? 0 : p.sight == 1 ? max((i64)0, position + 1 - p.reach) : position / p.reach * p.reach; }
// The sequence of a row.
DEVICE i64 sequence_of(const Paged& p, const Steps& s, i64 row) {
  i64 low = 0, high = p.sequences - 1;
  while (low < high) { i64 middle = (low + high + 1) / 2; if (s.starts[middle] <= row) low = middle; else high = middle - 1; }
  return low;
}
DEVICE i64 block_at(const Paged& p, const Steps& s, i64 sequence, i64 position) { return s.tables[s.table_starts[sequence] + position / p.tokens]; }
DEVICE i64 block_len(const Paged& p) { return 2 * p.kv_heads * p.dim * p.tokens; }

KERNEL store_kv(Paged p, Steps s, const A* keys, i64 ks, const A* values, i64 vs, A* pool, u32* report) {
  i64 row = blockIdx.x, sequence = sequence_of(p, s, row), position = s.contexts[sequence] + row - s.starts[sequence];
  if (position / p.tokens >= s.table_starts[sequence + 1] - s.table_starts[sequence]) { if (threadIdx.x == 0) complain(report, BLOCK, (u32)position, (u32)p.tokens); return; }
  i64 block = block_at(p, s, sequence, position), half = p.dim * p.tokens;
  if (block >= p.blocks) { if (threadIdx.x == 0) complain(report, BLOCK, (u32)block, (u32)p.blocks); return; }
  A* to = pool + block * block_len(p) + position % p.tokens * p.dim;
  for (i64 c = threadIdx.x; c < p.kv_heads * p.dim; c += blockDim.x) {
    i64 at = c / p.dim * 2 * half + c % p.dim;
    to[at] = keys[row * ks + c]; to[at + half] = values[row * vs + c];
  }
}

// Any shape: a warp has a row and a head. Sequences with few rows are left out where `skip` says that another kernel has them.
KERNEL attend_blocks(Paged p, Steps s, const A* q, i64 qs, const A* pool, A* out, i64 os, i64 skip) {
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
    const A* mine = pool + block_at(p, s, sequence, key) * block_len(p) + key % p.tokens * p.dim;
    float score = first + lane <= position ? p.scale * dot(staged[warp], mine, p.dim) : -INFINITE;
    const u64 value = (u64)(mine + half);
    take_in(r, score, p.dim, [&](int i) { return (const A*)__shfl_sync(~0u, value, i); });
  }
  give(r, out + row * os + head * p.dim, p.dim);
}
