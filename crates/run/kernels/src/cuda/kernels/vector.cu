// Products of bf16 weights with one or two rows, as fast as memory gives the weight: two outputs a warp, four loads in flight.
// A and C are bf16, B is the output's format.
template <int M> DEVICE void vectors(const bf16* w, i64 n, i64 k, const bf16* x, i64 xs, const bf16* bias, const B* residual, i64 rs, B* y, i64 ys) {
  enum { R = 2, U = 4 };
  extern __shared__ uint4 staged[];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32; i64 row = ((i64)blockIdx.x * 8 + warp) * R;
  bool there = row < n;
  const uint4* p = (const uint4*)(w + (there ? row : 0) * k) + lane;
  i64 steps = k / 256, stride = row + 1 < n ? k / 8 : 0;
  float acc[R][M]; uint4 a[U][R];
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int m = 0; m < M; m++) acc[r][m] = 0;
#pragma unroll
  for (int u = 0; u < U; u++)
#pragma unroll
    for (int r = 0; r < R; r++) a[u][r] = u < steps ? __ldcs(p + r * stride + 32 * u) : make_uint4(0, 0, 0, 0);
  // The weight is there already: it is fetched while the kernel before this one makes x.
  AWAIT;
  for (int m = 0; m < M; m++) for (int i = threadIdx.x; i < (int)k / 8; i += 256) staged[m * (k / 8) + i] = *(const uint4*)(x + m * xs + i * 8);
  __syncthreads();
  if (!there) return;
  for (i64 s = 0; s < steps; s += U) {
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (s + u >= steps) break;
      uint4 c[R];
#pragma unroll
      for (int r = 0; r < R; r++) { c[r] = a[u][r]; if (s + U + u < steps) a[u][r] = __ldcs(p + r * stride + 32 * (s + U + u)); }
#pragma unroll
      for (int m = 0; m < M; m++) {
        float f[8], g[8];
        spread(staged[m * (k / 8) + 32 * (s + u) + lane], g);
#pragma unroll
        for (int r = 0; r < R; r++) {
          spread(c[r], f);
#pragma unroll
          for (int i = 0; i < 8; i++) acc[r][m] = fmaf(f[i], g[i], acc[r][m]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int m = 0; m < M; m++) {
      float v = warp_sum(acc[r][m]);
      if (lane == 0 && row + r < n) {
        if (bias) v += widen(bias[row + r]);
        if (residual) v += widen(residual[m * rs + row + r]);
        y[m * ys + row + r] = narrow<B>(v);
      }
    }
}
KERNEL __launch_bounds__(256) one_row(const bf16* w, i64 n, i64 k, const bf16* x, i64 xs, const bf16* bias, const B* residual, i64 rs, B* y, i64 ys) { LET_NEXT; vectors<1>(w, n, k, x, xs, bias, residual, rs, y, ys); }
KERNEL __launch_bounds__(256) two_rows(const bf16* w, i64 n, i64 k, const bf16* x, i64 xs, const bf16* bias, const B* residual, i64 rs, B* y, i64 ys) { LET_NEXT; vectors<2>(w, n, k, x, xs, bias, residual, rs, y, ys); }
