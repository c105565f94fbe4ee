// Operators that pass over memory once. A is what is read, B what is written.
#define EACH8(n) for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8; i < (n); i += (i64)gridDim.x * blockDim.x * 8)

template <bool WIDE> DEVICE void fill_all(B* to, i64 n, float value) {
  float v[8];
#pragma unroll
  for (int j = 0; j < 8; j++) v[j] = value;
  EACH8(n) { if (WIDE && i + 8 <= n) put<true>(to + i, 8, v); else put<false>(to + i, n - i, v); }
}
KERNEL fill(B* to, i64 n, float value, int wide) { BEGIN; if (wide) fill_all<true>(to, n, value); else fill_all<false>(to, n, value); }

// The numbers of a normal distribution by their places, as the processor makes them: bits by SplitMix64, Box and Muller in f64.
DEVICE u64 random_bits(u64 key, u64 place) {
  u64 x = key + (place + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull; x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
DEVICE double uniform(u64 key, u64 place) { return ((double)(random_bits(key, place) >> 11) + 0.5) / 9007199254740992.0; }
KERNEL normal(B* to, i64 n, u64 key, i64 first, double deviation) { BEGIN;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    u64 place = 2 * (u64)(first + i);
    to[i] = narrow<B>((float)(deviation * (sqrt(-2.0 * log(uniform(key, place))) * cospi(2.0 * uniform(key, place + 1)))));
  }
}

template <bool WIDE> DEVICE void scale_all(const A* x, float factor, float keep, B* to, i64 n) {
  EACH8(n) {
    float v[8], old[8];
    bool whole = WIDE && i + 8 <= n;
    if (whole) get<true>(x + i, 8, v); else get<false>(x + i, n - i, v);
    if (keep != 0.f) {
      if (whole) get<true>(to + i, 8, old); else get<false>(to + i, n - i, old);
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] = old[j] + v[j];
    } else {
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] *= factor;
    }
    if (whole) put<true>(to + i, 8, v); else put<false>(to + i, n - i, v);
  }
}
// to = factor * x, or to += x where `keep` is not 0.
KERNEL scale(const A* x, float factor, float keep, B* to, i64 n, int wide) { BEGIN;
  if (wide) scale_all<true>(x, factor, keep, to, n); else scale_all<false>(x, factor, keep, to, n);
}

// Rows of eight columns at a time; `add` keeps what is there.
template <bool WIDE> DEVICE void put_all_rows(const A* x, i64 xs, B* to, i64 ts, i64 rows, i64 columns, int add) {
  u32 pieces = (u32)((columns + 7) / 8), all = (u32)rows * pieces;
  for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < all; at += gridDim.x * blockDim.x) {
    i64 row = at / pieces, column = at % pieces * 8;
    float v[8], old[8];
    get<WIDE>(x + row * xs + column, columns - column, v);
    if (add) {
      get<WIDE>(to + row * ts + column, columns - column, old);
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] += old[j];
    }
    put<WIDE>(to + row * ts + column, columns - column, v);
  }
}
KERNEL put_rows(const A* x, i64 xs, B* to, i64 ts, i64 rows, i64 columns, int add, int wide) { BEGIN;
  if (wide) put_all_rows<true>(x, xs, to, ts, rows, columns, add); else put_all_rows<false>(x, xs, to, ts, rows, columns, add);
}

// out = (sums in A) + bias + residual, both of B; residual and bias may be absent.
KERNEL finish_rows(const A* sums, i64 ss, const C* bias, const B* residual, i64 rs, B* out, i64 os, i64 rows, i64 columns) { BEGIN;
  u32 pieces = (u32)((columns + 7) / 8), all = (u32)rows * pieces;
  for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < all; at += gridDim.x * blockDim.x) {
    i64 row = at / pieces, column = at % pieces * 8, count = columns - column;
    float v[8], more[8];
    get<false>(sums + row * ss + column, count, v);
    if (bias) { get<false>(bias + column, count, more);
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] += more[j]; }
    if (residual) { get<false>(residual + row * rs + column, count, more);
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] += more[j]; }
    put<false>(out + row * os + column, count, v);
  }
}

// sums[c] += the sum over rows: a block has some columns; each of its warps some rows, added in a fixed order at the end.
KERNEL sum_rows(const A* x, i64 xs, float* sums, i64 rows, i64 columns) { BEGIN;
  __shared__ float parts[32][33];
  i64 column = (i64)blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  if (column < columns) for (i64 row = threadIdx.y; row < rows; row += 32) sum += widen(x[row * xs + column]);
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    float total = 0;
    for (int i = 0; i < 32; i++) total += parts[i][threadIdx.x];
    sums[column] += total;
  }
}

#define CHUNK 32768
KERNEL squares(const A* x, i64 n, double* partial) { BEGIN;
  __shared__ double shared[32];
  i64 start = (i64)blockIdx.x * CHUNK, end = min(start + CHUNK, n);
  double sum = 0;
  for (i64 i = start + threadIdx.x; i < end; i += blockDim.x) { double v = widen(x[i]); sum += v * v; }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
KERNEL plain_sum(const A* x, i64 n, double* partial) { BEGIN;
  __shared__ double shared[32];
  i64 start = (i64)blockIdx.x * CHUNK, end = min(start + CHUNK, n);
  double sum = 0;
  for (i64 i = start + threadIdx.x; i < end; i += blockDim.x) sum += widen(x[i]);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
KERNEL sum_partial(const double* partial, i64 n, double* out) { BEGIN;
  __shared__ double shared[32];
  double sum = 0;
  for (i64 i = threadIdx.x; i < n; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *out = sum;
}
KERNEL non_finite(const A* x, i64 n, u64* first) { BEGIN;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x)
    if ((__float_as_uint(widen(x[i])) & 0x7f800000u) == 0x7f800000u) atomicMin(first, (u64)i);
}
#define EACH(n) for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (i64)gridDim.x * blockDim.x)
// Words that follow from a key and their places; `mask` inverts them.
KERNEL fill_pattern(u64* to, i64 n, u64 key, u64 mask) { BEGIN; EACH(n) to[i] = random_bits(key, i) ^ mask; }
// How many are others, and the place of the first.
KERNEL wrong_words(const u64* of, i64 n, u64 key, u64 mask, u64* found) { BEGIN;
  u64 count = 0, first = ~0ull;
  EACH(n) if (of[i] != (random_bits(key, i) ^ mask)) { if (!count++) first = i; }
  if (count) { atomicAdd(found, count); atomicMin(found + 1, first); }
}
// The sum does not depend on the order.
KERNEL digest(const u32* of, i64 n, u64* sum) { BEGIN;
  u64 mine = 0;
  EACH(n) mine += random_bits(of[i], i);
#pragma unroll
  for (int o = 16; o; o /= 2) mine += __shfl_xor_sync(~0u, mine, o);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);
}
// The place of the largest of each row, the first of several: a block has a row.
KERNEL argmax(const float* x, i64 xs, i64 columns, u32* to) { BEGIN;
  __shared__ float mosts[32]; __shared__ u32 places[32];
  const float* row = x + blockIdx.x * xs;
  float most = -INFINITE; u32 place = ~0u;
  for (i64 i = threadIdx.x; i < columns; i += blockDim.x) { float v = row[i]; if (v > most) { most = v; place = (u32)i; } }
  auto take = [&](float other, u32 at) { if (other > most || (other == most && at < place)) { most = other; place = at; } };
#pragma unroll
  for (int o = 16; o; o /= 2) { float other = __shfl_xor_sync(~0u, most, o); u32 at = __shfl_xor_sync(~0u, place, o); take(other, at); }
  if (threadIdx.x % 32 == 0) { mosts[threadIdx.x / 32] = most; places[threadIdx.x / 32] = place; }
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < blockDim.x / 32; w++) take(mosts[w], places[w]);
  to[blockIdx.x] = place;
}
// Copies of blocks, one pair after the other within a thread's share of the block.
KERNEL copy_block(uint4* pool, i64 block, u32 from, u32 to) { BEGIN;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < block; i += (i64)gridDim.x * blockDim.x) pool[to * block + i] = pool[from * block + i];
}
