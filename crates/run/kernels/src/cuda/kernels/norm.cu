// Norms of units: rows, or heads of rows. threadIdx.y is a unit of the block, threadIdx.x a thread of the unit.
struct Units { i64 rows, heads, dim; };
DEVICE i64 place(const Units& u, i64 unit, i64 stride) { return unit / u.heads * stride + unit % u.heads * u.dim; }
#define COLUMNS8 for (i64 c = threadIdx.x * 8; c < u.dim; c += blockDim.x * 8)

template <bool LAYER, bool WIDE> DEVICE void normalise(Units u, const A* x, i64 xs, const A* w, const A* bias, float epsilon, A* out, i64 os, float* statistics) {
  __shared__ float shared[32 * 8];
  i64 unit = (i64)blockIdx.x * blockDim.y + threadIdx.y;
  bool there = unit < u.rows * u.heads;
  if (!there) unit = u.rows * u.heads - 1;
  x += place(u, unit, xs); out += place(u, unit, os);
  float v[8], ww[8], bb[8], mean = 0, sum = 0;
  if (LAYER) {
    COLUMNS8 { get<WIDE>(x + c, u.dim - c, v);
#pragma unroll
      for (int j = 0; j < 8; j++) sum += v[j]; }
    mean = block_sum(sum, shared) / u.dim;
    sum = 0;
  }
  COLUMNS8 { get<WIDE>(x + c, u.dim - c, v);
#pragma unroll
    for (int j = 0; j < 8; j++) if (WIDE || c + j < u.dim) sum += (v[j] - mean) * (v[j] - mean); }
  float inverse = 1.f / sqrtf(block_sum(sum, shared) / u.dim + epsilon);
  if (!there) return;
  if (threadIdx.x == 0) { if (LAYER) { statistics[2 * unit] = mean; statistics[2 * unit + 1] = inverse; } else statistics[unit] = inverse; }
  COLUMNS8 {
    get<WIDE>(x + c, u.dim - c, v); get<WIDE>(w + c, u.dim - c, ww);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = (v[j] - mean) * inverse * ww[j];
    if (bias) { get<WIDE>(bias + c, u.dim - c, bb);
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] += bb[j]; }
    put<WIDE>(out + c, u.dim - c, v);
  }
}
// The same where a thread keeps its numbers, eight times N.
template <bool LAYER, int N> DEVICE void normalise_held(Units u, const A* x, i64 xs, const A* w, const A* bias, float epsilon, A* out, i64 os, float* statistics) {
  __shared__ float shared[32 * 8];
  i64 unit = (i64)blockIdx.x * blockDim.y + threadIdx.y;
  bool there = unit < u.rows * u.heads;
  if (!there) unit = u.rows * u.heads - 1;
  x += place(u, unit, xs); out += place(u, unit, os);
  float v[N][8], ww[8], mean = 0, sum = 0;
#pragma unroll
  for (int k = 0; k < N; k++) { int c = (threadIdx.x + k * blockDim.x) * 8; if (c < u.dim) get8(x + c, v[k]); else {
#pragma unroll
    for (int j = 0; j < 8; j++) v[k][j] = 0; } }
  if (LAYER) {
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
      for (int j = 0; j < 8; j++) sum += v[k][j];
    mean = block_sum(sum, shared) / u.dim;
    sum = 0;
  }
#pragma unroll
  for (int k = 0; k < N; k++) if ((threadIdx.x + k * blockDim.x) * 8 < u.dim)
#pragma unroll
    for (int j = 0; j < 8; j++) sum += (v[k][j] - mean) * (v[k][j] - mean);
  float inverse = 1.f / sqrtf(block_sum(sum, shared) / u.dim + epsilon);
  if (!there) return;
  if (threadIdx.x == 0) { if (LAYER) { statistics[2 * unit] = mean; statistics[2 * unit + 1] = inverse; } else statistics[unit] = inverse; }
#pragma unroll
  for (int k = 0; k < N; k++) {
    int c = (threadIdx.x + k * blockDim.x) * 8;
    if (c >= u.dim) continue;
    get8(w + c, ww);
#pragma unroll
    for (int j = 0; j < 8; j++) v[k][j] = (v[k][j] - mean) * inverse * ww[j];
    if (bias) { get8(bias + c, ww);
#pragma unroll
      for (int j = 0; j < 8; j++) v[k][j] += ww[j]; }
    put8(out + c, v[k]);
  }
}
KERNEL rms_norm(Units u, const A* x, i64 xs, const A* w, const A* bias, float epsilon, A* out, i64 os, float* statistics, int wide) { BEGIN;
  if (wide && u.dim <= blockDim.x * 32) normalise_held<false, 4>(u, x, xs, w, bias, epsilon, out, os, statistics); else if (wide) normalise<false, true>(u, x, xs, w, bias, epsilon, out, os, statistics); else normalise<false, false>(u, x, xs, w, bias, epsilon, out, os, statistics);
}
// Of at most sixteen numbers a thread, so that many blocks fit beside each other.
KERNEL __launch_bounds__(256, 5) rms_norm_short(Units u, const A* x, i64 xs, const A* w, const A* bias, float epsilon, A* out, i64 os, float* statistics, int wide) { BEGIN; normalise_held<false, 2>(u, x, xs, w, bias, epsilon, out, os, statistics); }
KERNEL layer_norm(Units u, const A* x, i64 xs, const A* w, const A* bias, float epsilon, A* out, i64 os, float* statistics, int wide) { BEGIN;
  if (wide && u.dim <= blockDim.x * 32) normalise_held<true, 4>(u, x, xs, w, bias, epsilon, out, os, statistics); else if (wide) normalise<true, true>(u, x, xs, w, bias, epsilon, out, os, statistics); else normalise<true, false>(u, x, xs, w, bias, epsilon, out, os, statistics);
}

// Each block goes through some units and keeps its sums of the weight's gradient in shared memory, a row of `dim` for each y; where LAYER, those of the bias behind.
template <bool LAYER, bool WIDE> DEVICE void backward(Units u, const A* d, i64 ds, const A* x, i64 xs, const A* w, const float* statistics, int add, A* dx, i64 dxs, float* partial) {
  __shared__ float shared[32 * 8];
  extern __shared__ float sums[];
  float *mine = sums + threadIdx.y * u.dim * (LAYER ? 2 : 1), *biases = mine + u.dim;
  // The eight columns of a thread lie apart, so that neighbours of a warp have neighbouring banks.
  int apart = WIDE ? (int)u.dim / 8 : 1;
#define PLACE(c, j) (WIDE ? (int)(c) / 8 + (j) * apart : (int)(c) + (j))
  COLUMNS8
    for (int j = 0; j < 8; j++) if (c + j < u.dim) { mine[PLACE(c, j)] = 0; if (LAYER) biases[PLACE(c, j)] = 0; }
  i64 count = u.rows * u.heads;
  for (i64 first = (i64)blockIdx.x * blockDim.y; first < count; first += (i64)gridDim.x * blockDim.y) {
    i64 unit = first + threadIdx.y;
    bool there = unit < count;
    if (!there) unit = count - 1;
    const A *dd = d + place(u, unit, ds), *xx = x + place(u, unit, xs);
    A* to = dx + place(u, unit, dxs);
    float mean = LAYER ? statistics[2 * unit] : 0.f, inverse = LAYER ? statistics[2 * unit + 1] : statistics[unit], even = 0, outward = 0;
    float a[8], v[8], ww[8], old[8];
    COLUMNS8 {
      get<WIDE>(dd + c, u.dim - c, a); get<WIDE>(xx + c, u.dim - c, v); get<WIDE>(w + c, u.dim - c, ww);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        float g = a[j] * ww[j]; even += g; outward += g * (v[j] - mean);
        if (there && (WIDE || c + j < u.dim)) { mine[PLACE(c, j)] += a[j] * ((v[j] - mean) * inverse); if (LAYER) biases[PLACE(c, j)] += a[j]; }
      }
    }
    if (LAYER) even = block_sum(even, shared) / u.dim; else even = 0;
    outward = block_sum(outward, shared) * inverse * inverse * inverse / u.dim;
    if (there) COLUMNS8 {
      get<WIDE>(dd + c, u.dim - c, a); get<WIDE>(xx + c, u.dim - c, v); get<WIDE>(w + c, u.dim - c, ww);
#pragma unroll
      for (int j = 0; j < 8; j++) a[j] = (a[j] * ww[j] - even) * inverse - (v[j] - mean) * outward;
      if (add) { get<WIDE>(to + c, u.dim - c, old);
#pragma unroll
        for (int j = 0; j < 8; j++) a[j] += old[j]; }
      put<WIDE>(to + c, u.dim - c, a);
    }
  }
  __syncthreads();
  // The block's sums: those of each y in turn.
  i64 wide = u.dim * (LAYER ? 2 : 1);
  for (i64 c = threadIdx.y * blockDim.x + threadIdx.x; c < wide; c += blockDim.x * blockDim.y) {
    float total = 0;
    i64 at = c % u.dim, here = c - at + PLACE(at / 8 * 8, at % 8);
    for (int y = 0; y < blockDim.y; y++) total += sums[y * wide + here];
    partial[blockIdx.x * wide + c] = total;
  }
}
KERNEL rms_norm_backward(Units u, const A* d, i64 ds, const A* x, i64 xs, const A* w, const float* statistics, int add, A* dx, i64 dxs, float* partial, int wide) { BEGIN;
  if (wide) backward<false, true>(u, d, ds, x, xs, w, statistics, add, dx, dxs, partial); else backward<false, false>(u, d, ds, x, xs, w, statistics, add, dx, dxs, partial);
}
KERNEL layer_norm_backward(Units u, const A* d, i64 ds, const A* x, i64 xs, const A* w, const float* statistics, int add, A* dx, i64 dxs, float* partial, int wide) { BEGIN;
  if (wide) backward<true, true>(u, d, ds, x, xs, w, statistics, add, dx, dxs, partial); else backward<true, false>(u, d, ds, x, xs, w, statistics, add, dx, dxs, partial);
}
// to[c] += the sum over rows of `partial` from column `first` on.
KERNEL add_partial(const float* partial, i64 rows, i64 stride, i64 first, i64 columns, float* to) { BEGIN;
  __shared__ float parts[8][33];
  i64 c = (i64)blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  if (c < columns) for (i64 row = threadIdx.y; row < rows; row += 8) sum += partial[row * stride + first + c];
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && c < columns) { float total = 0; for (int i = 0; i < 8; i++) total += parts[i][threadIdx.x]; to[c] += total; }
}
