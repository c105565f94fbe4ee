// Products of bf16 weights with one or two rows, as fast as memory gives the weight: one or two outputs a warp, eight loads of a lane in flight.
// A and C are bf16, B is the output's format.
// What is done with the rows before: nothing, a norm, or the first half's SiLU times the second half.
enum { PLAIN, NORMED, GATED };
// A warp takes R outputs at a time, and then others as far apart as there are warps: loads go on over their borders, U steps of 256 numbers ahead.
template <int M, int R, int BEFORE> DEVICE void vectors(const bf16* w, i64 n, i64 k, const bf16* x, i64 xs, const bf16* norm, float epsilon, const bf16* bias, const B* residual, i64 rs, B* y, i64 ys) {
  enum { U = 8 / R };
  extern __shared__ uint4 staged[];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, steps = (int)k / 256, wide = (int)k / 8;
  i64 groups = (n + R - 1) / R, first = (i64)blockIdx.x * 8 + warp, apart = (i64)gridDim.x * 8, mine = first < groups ? (groups - 1 - first) / apart + 1 : 0, total = mine * steps;
  // What is loaded: of which group, which step. The last group may lack outputs, which are read from its first one.
  const uint4* p = (const uint4*)w + first * R * wide + lane; i64 next = first; int ahead = 0; i64 other = next * R + 1 < n ? wide : 0;
  uint4 a[U][R];
  auto load = [&](uint4 (&to)[R]) {
#pragma unroll
    for (int r = 0; r < R; r++) to[r] = __ldcs(p + r * other);
    p += 32;
    if (++ahead == steps) { ahead = 0; next += apart; p = (const uint4*)w + next * R * wide + lane; other = next * R + 1 < n ? wide : 0; }
  };
#pragma unroll
  for (int u = 0; u < U; u++) if (u < total) load(a[u]);
  // The weight is there already: it is fetched while the kernel before this one makes x.
  AWAIT;
  for (int m = 0; m < M; m++) {
    const bf16* row = x + m * xs; uint4* to = staged + m * wide; float inverse = 0;
    if (BEFORE == NORMED) {
      __shared__ float shared[32];
      float sum = 0, v[8];
      for (int i = threadIdx.x; i < wide; i += 256) { get8(row + i * 8, v);
#pragma unroll
        for (int j = 0; j < 8; j++) sum += v[j] * v[j]; }
      inverse = 1.f / sqrtf(block_sum(sum, shared) / k + epsilon);
    }
    for (int i = threadIdx.x; i < wide; i += 256) {
      if (BEFORE == PLAIN) { to[i] = *(const uint4*)(row + i * 8); continue; }
      float v[8], o[8];
      get8(row + i * 8, v); get8(BEFORE == NORMED ? norm + i * 8 : row + k + i * 8, o);
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] = BEFORE == NORMED ? v[j] * inverse * o[j] : v[j] * sigmoid(v[j]) * o[j];
      to[i] = make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
    }
  }
  __syncthreads();
  float acc[R][M];
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int m = 0; m < M; m++) acc[r][m] = 0;
  int step = 0; i64 output = first * R;
  for (i64 t = 0; t < total; t += U) {
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (t + u >= total) break;
      uint4 c[R];
#pragma unroll
      for (int r = 0; r < R; r++) c[r] = a[u][r];
      if (t + u + U < total) load(a[u]);
#pragma unroll
      for (int m = 0; m < M; m++) {
        float f[8], g[8];
        spread(staged[m * wide + 32 * step + lane], g);
#pragma unroll
        for (int r = 0; r < R; r++) {
          spread(c[r], f);
#pragma unroll
          for (int i = 0; i < 8; i++) acc[r][m] = fmaf(f[i], g[i], acc[r][m]);
        }
      }
      if (++step < steps) continue;
      step = 0;
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int m = 0; m < M; m++) {
          float v = warp_sum(acc[r][m]);
          acc[r][m] = 0;
          if (lane == 0 && output + r < n) {
            if (bias) v += widen(bias[output + r]);
            if (residual) v += widen(residual[m * rs + output + r]);
            y[m * ys + output + r] = narrow<B>(v);
          }
        }
      output += apart * R;
    }
  }
}
#define VECTORS(name, M, R, BEFORE) KERNEL __launch_bounds__(256, 2) name(const bf16* w, i64 n, i64 k, const bf16* x, i64 xs, const bf16* norm, float epsilon, const bf16* bias, const B* residual, i64 rs, B* y, i64 ys) { LET_NEXT; vectors<M, R, BEFORE>(w, n, k, x, xs, norm, epsilon, bias, residual, rs, y, ys); }
VECTORS(one_row, 1, 2, PLAIN) VECTORS(two_rows, 2, 2, PLAIN) VECTORS(one_row_by_one, 1, 1, PLAIN) VECTORS(two_rows_by_one, 2, 1, PLAIN)
VECTORS(one_row_normed, 1, 2, NORMED) VECTORS(two_rows_normed, 2, 2, NORMED) VECTORS(one_row_normed_by_one, 1, 1, NORMED) VECTORS(two_rows_normed_by_one, 2, 1, NORMED)
VECTORS(one_row_gated, 1, 2, GATED) VECTORS(two_rows_gated, 2, 2, GATED) VECTORS(one_row_gated_by_one, 1, 1, GATED) VECTORS(two_rows_gated_by_one, 2, 1, GATED)
