// Functions of single numbers or pairs of them, by rows. A is the format.
// Pieces of eight numbers, of which there are fewer than 2^32: long divisions would take longer than the memory.
#define PIECES(rows, columns) u32 pieces = (u32)(((columns) + 7) / 8), all = (u32)(rows) * pieces; for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < all; at += gridDim.x * blockDim.x)

template <bool WIDE> DEVICE void swiglu_all(const A* x, i64 xs, A* out, i64 os, i64 rows, i64 columns) {
  PIECES(rows, columns) {
    i64 row = at / pieces, c = at % pieces * 8, n = columns - c;
    float g[8], u[8];
    get<WIDE>(x + row * xs + c, n, g); get<WIDE>(x + row * xs + columns + c, n, u);
#pragma unroll
    for (int j = 0; j < 8; j++) g[j] = g[j] * sigmoid(g[j]) * u[j];
    put<WIDE>(out + row * os + c, n, g);
  }
}
KERNEL swiglu(const A* x, i64 xs, A* out, i64 os, i64 rows, i64 columns, int wide) { BEGIN; if (wide) swiglu_all<true>(x, xs, out, os, rows, columns); else swiglu_all<false>(x, xs, out, os, rows, columns); }

template <bool WIDE> DEVICE void swiglu_back(const A* x, i64 xs, const A* d, i64 ds, A* dx, i64 dxs, i64 rows, i64 columns) {
  PIECES(rows, columns) {
    i64 row = at / pieces, c = at % pieces * 8, n = columns - c;
    float g[8], u[8], v[8];
    get<WIDE>(x + row * xs + c, n, g); get<WIDE>(x + row * xs + columns + c, n, u); get<WIDE>(d + row * ds + c, n, v);
#pragma unroll
    for (int j = 0; j < 8; j++) { float s = sigmoid(g[j]), up = u[j]; u[j] = v[j] * g[j] * s; g[j] = v[j] * up * (s + g[j] * (s * (1.f - s))); }
    put<WIDE>(dx + row * dxs + c, n, g); put<WIDE>(dx + row * dxs + columns + c, n, u);
  }
}
KERNEL swiglu_backward(const A* x, i64 xs, const A* d, i64 ds, A* dx, i64 dxs, i64 rows, i64 columns, int wide) { BEGIN; if (wide) swiglu_back<true>(x, xs, d, ds, dx, dxs, rows, columns); else swiglu_back<false>(x, xs, d, ds, dx, dxs, rows, columns); }

// The share of the normal distribution below x, and its slope.
DEVICE void share_of(int exact, float x, float& share, float& slope) {
  if (exact) { share = 0.5f * erfcf(-x * 0.70710678f); slope = 0.39894228f * expf(-0.5f * x * x); return; }
  x = fminf(fmaxf(x, -20.f), 20.f);
  share = sigmoid(1.5957692f * (x + 0.044715f * x * x * x));
  slope = share * (1.f - share) * 1.5957692f * (1.f + 3.f * 0.044715f * x * x);
}
KERNEL gelu(int exact, const A* x, i64 xs, A* out, i64 os, i64 rows, i64 columns) { BEGIN;
  PIECES(rows, columns) {
    i64 row = at / pieces, c = at % pieces * 8, n = columns - c;
    float v[8], share, slope;
    get<false>(x + row * xs + c, n, v);
#pragma unroll
    for (int j = 0; j < 8; j++) { share_of(exact, v[j], share, slope); v[j] *= share; }
    put<false>(out + row * os + c, n, v);
  }
}
KERNEL gelu_backward(int exact, const A* x, i64 xs, const A* d, i64 ds, A* dx, i64 dxs, i64 rows, i64 columns) { BEGIN;
  PIECES(rows, columns) {
    i64 row = at / pieces, c = at % pieces * 8, n = columns - c;
    float v[8], a[8], share, slope;
    get<false>(x + row * xs + c, n, v); get<false>(d + row * ds + c, n, a);
#pragma unroll
    for (int j = 0; j < 8; j++) { share_of(exact, v[j], share, slope); v[j] = a[j] * (share + v[j] * slope); }
    put<false>(dx + row * dxs + c, n, v);
  }
}

// A thread turns one pair of a head, or eight neighbouring ones where they lie so.
template <int N> DEVICE void turn(A* x, i64 xs, u32 rows, u32 heads, u32 dim, const u32* positions, const float* cosines, const float* sines, u32 pairs, u32 longest, int back, u32* report) {
  u32 each = pairs / N, total = rows * heads * each;
  for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < total; at += gridDim.x * blockDim.x) {
    u32 pair = at % each * N, head = at / each % heads, row = at / each / heads, position = positions[row];
    if (position >= longest) { complain(report, POSITION, position, longest); continue; }
    A* first = x + row * xs + head * dim + pair; A* second = first + pairs;
    const float *cc = cosines + (u64)position * pairs + pair, *ss = sines + (u64)position * pairs + pair;
    float a[8], b[8], c[8], s[8];
    if constexpr (N == 8) { get8(first, a); get8(second, b); get8(cc, c); get8(ss, s); } else { a[0] = widen(*first); b[0] = widen(*second); c[0] = *cc; s[0] = *ss; }
#pragma unroll
    for (int i = 0; i < N; i++) { float sine = back ? -s[i] : s[i], old = a[i]; a[i] = old * c[i] - b[i] * sine; b[i] = b[i] * c[i] + old * sine; }
    if constexpr (N == 8) { put8(first, a); put8(second, b); } else { *first = narrow<A>(a[0]); *second = narrow<A>(b[0]); }
  }
}
KERNEL rotate(A* x, i64 xs, u32 rows, u32 heads, u32 dim, const u32* positions, const float* cosines, const float* sines, u32 pairs, u32 longest, int back, int wide, u32* report) { BEGIN;
  if (wide) turn<8>(x, xs, rows, heads, dim, positions, cosines, sines, pairs, longest, back, report); else turn<1>(x, xs, rows, heads, dim, positions, cosines, sines, pairs, longest, back, report);
}

struct AdamW { float gradient, decay, first, kept_second, second, rate, inverse_root, epsilon; };
KERNEL adamw(AdamW f, float* weights, const float* gradient, float* first, float* second, bf16* copy, i64 n) { BEGIN;
  i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 4;
  for (; at < n; at += (i64)gridDim.x * blockDim.x * 4)
    for (int j = 0; j < 4; j++) if (at + j < n) {
      i64 i = at + j;
      float g = gradient[i] * f.gradient, m = first[i], v = second[i];
      m += (g - m) * f.first; v = v * f.kept_second + g * g * f.second;
      float w = weights[i] * f.decay - f.rate * (m / (sqrtf(v) * f.inverse_root + f.epsilon));
      first[i] = m; second[i] = v; weights[i] = w;
      if (copy) copy[i] = narrow<bf16>(w);
    }
}
DEVICE void move(const AdamW& f, float& w, float g, float& m, float& v) {
  g *= f.gradient; m += (g - m) * f.first; v = v * f.kept_second + g * g * f.second;
  w = w * f.decay - f.rate * (m / (sqrtf(v) * f.inverse_root + f.epsilon));
}
// The same for addresses that are multiples of sixteen bytes and whole fours.
KERNEL adamw_wide(AdamW f, float4* weights, const float4* gradient, float4* first, float4* second, uint2* copy, i64 fours) { BEGIN;
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= fours) return;
  float4 w = weights[i], g = __ldcs(gradient + i), m = __ldcs(first + i), v = __ldcs(second + i);
  move(f, w.x, g.x, m.x, v.x); move(f, w.y, g.y, m.y, v.y); move(f, w.z, g.z, m.z, v.z); move(f, w.w, g.w, m.w, v.w);
  weights[i] = w; __stcs(first + i, m); __stcs(second + i, v);
  if (copy) copy[i] = make_uint2(pack(w.x, w.y), pack(w.z, w.w));
}

// The loss of each row of logits, and its gradient in their place: in T, which begins where the row begins. A block has a row; threads have four
// neighbours at a time where that is `WIDE`. Numbers of two bytes are written where all have read: only the first ones of all lie where others still read.
template <int V> DEVICE void some(const float* p, float (&v)[V]) {
  if constexpr (V == 4) { float4 x = *(const float4*)p; v[0] = x.x; v[1] = x.y; v[2] = x.z; v[3] = x.w; } else v[0] = *p;
}
template <int V> DEVICE void give(float* p, const float (&v)[V]) { if constexpr (V == 4) *(float4*)p = make_float4(v[0], v[1], v[2], v[3]); else *p = v[0]; }
template <int V> DEVICE void give(bf16* p, const float (&v)[V]) { if constexpr (V == 4) *(uint2*)p = make_uint2(pack(v[0], v[1]), pack(v[2], v[3])); else *p = narrow<bf16>(v[0]); }
template <int V, class T> DEVICE void loss_of_row(float* logits, i64 ls, i64 vocabulary, const u32* targets, int wanted, float scale, float* losses, u32* report) {
  __shared__ float shared[32];
  float* row = logits + blockIdx.x * ls; T* to = (T*)row;
  u32 target = targets[blockIdx.x]; i64 first = threadIdx.x * V, step = blockDim.x * V;
  if (target == ~0u) { float zeros[V] = {}; for (i64 i = first; i < vocabulary; i += step) give<V>(to + i, zeros); if (threadIdx.x == 0) losses[blockIdx.x] = 0; return; }
  if (target >= vocabulary) { if (threadIdx.x == 0) complain(report, TARGET, target, (u32)vocabulary); return; }
  // One pass: the largest so far, and the sum relative to it.
  float most = -INFINITE, sum = 0;
  for (i64 i = first; i < vocabulary; i += step) {
    float v[V];
    some<V>(row + i, v);
#pragma unroll
    for (int j = 0; j < V; j++) { if (v[j] > most) { sum = sum * expf(most - v[j]) + 1.f; most = v[j]; } else sum += expf(v[j] - most); }
  }
  float all = block_max(most, shared);
  sum = block_sum(most == -INFINITE ? 0.f : sum * expf(most - all), shared);
  float aimed = row[target] - all;
  __syncthreads();
  if (wanted) {
    float factor = scale / sum;
    i64 rounds = (vocabulary + step - 1) / step;
    for (i64 k = 0; k < rounds; k++) {
      float v[V]; i64 i = first + k * step;
      if (i < vocabulary) some<V>(row + i, v);
      if (sizeof(T) < 4 && k == 0) __syncthreads();
      if (i >= vocabulary) break;
#pragma unroll
      for (int j = 0; j < V; j++) { float p = expf(v[j] - all) * factor; v[j] = i + j == target ? p - scale : p; }
      give<V>(to + i, v);
    }
  }
  if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) - aimed;
}
KERNEL __launch_bounds__(1024) cross_entropy(float* logits, i64 ls, i64 vocabulary, const u32* targets, int wanted, float scale, float* losses, u32* report, int wide) { BEGIN;
  if (wide) loss_of_row<4, float>(logits, ls, vocabulary, targets, wanted, scale, losses, report); else loss_of_row<1, float>(logits, ls, vocabulary, targets, wanted, scale, losses, report);
}
KERNEL __launch_bounds__(1024) cross_entropy_narrow(float* logits, i64 ls, i64 vocabulary, const u32* targets, int wanted, float scale, float* losses, u32* report, int wide) { BEGIN;
  if (wide) loss_of_row<4, bf16>(logits, ls, vocabulary, targets, wanted, scale, losses, report); else loss_of_row<1, bf16>(logits, ls, vocabulary, targets, wanted, scale, losses, report);
}
