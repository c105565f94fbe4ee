// Packed weights: widening, and products with few rows. A is the input's format, B the output's, C the weight's.
// Whole numbers lie by outputs, 32 neighbours with one scale; of 4 bits, eight to a word, the first in the lowest bits. Where lines are made of whole 128 numbers, their
// words lie as `grouped.cu` takes them.
struct Weight { const u8* numbers; const f16* scales; i64 outputs, inputs, groups; };

template <class T> struct Piece;
// `PER` numbers from sixteen bytes.
template <> struct Piece<float> { enum { PER = 4, BYTES = 4 }; };
template <> struct Piece<bf16> { enum { PER = 8, BYTES = 2 }; };
template <> struct Piece<f16> { enum { PER = 8, BYTES = 2 }; };
template <> struct Piece<int8> { enum { PER = 16, BYTES = 1 }; };
template <> struct Piece<fp8> { enum { PER = 16, BYTES = 1 }; };
template <> struct Piece<int4q> { enum { PER = 32, BYTES = 0 }; };
DEVICE i64 row_bytes(const Weight& w, int8*) { return w.groups * 32; }
DEVICE i64 row_bytes(const Weight& w, fp8*) { return (w.inputs + 15) / 16 * 16; }
DEVICE i64 row_bytes(const Weight& w, int4q*) { return w.groups * 16; }
template <class T> DEVICE i64 row_bytes(const Weight& w, T*) { return w.inputs * sizeof(T); }
DEVICE void unfold(uint4 q, float, float (&v)[4], float*) { v[0] = __uint_as_float(q.x); v[1] = __uint_as_float(q.y); v[2] = __uint_as_float(q.z); v[3] = __uint_as_float(q.w); }
DEVICE void unfold(uint4 q, float, float (&v)[8], bf16*) { spread(q, v); }
DEVICE void unfold(uint4 q, float, float (&v)[8], f16*) {
  u32 w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = widen(f16{(u16)(w[i / 2] >> (16 * (i % 2)))});
}
DEVICE void unfold(uint4 q, float scale, float (&v)[16], int8*) {
  u32 w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 16; i++) v[i] = scale * (float)(signed char)(w[i / 4] >> (8 * (i % 4)));
}
DEVICE void unfold(uint4 q, float scale, float (&v)[16], fp8*) {
  u32 w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 8; i++) {
#if __CUDA_ARCH__ >= 890
    u32 two;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"((u16)(w[i / 2] >> (16 * (i % 2)))));
    v[2 * i] = scale * widen(f16{(u16)two}); v[2 * i + 1] = scale * widen(f16{(u16)(two >> 16)});
#else
    v[2 * i] = scale * from_e4m3(w[i / 2] >> (16 * (i % 2)) & 0xff); v[2 * i + 1] = scale * from_e4m3(w[i / 2] >> (16 * (i % 2) + 8) & 0xff);
#endif
  }
}
DEVICE void unfold(uint4 q, float scale, float (&v)[32], int4q*) {
  u32 w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 32; i++) v[i] = scale * (float)((int)(w[i / 8] >> (4 * (i % 8)) & 15) - 8);
}
template <class T> DEVICE float scale_of(const Weight& w, i64 output, i64 k, T*) { return 1.f; }
DEVICE float scale_of(const Weight& w, i64 output, i64 k, int8*) { return widen(w.scales[output * w.groups + k / 32]); }
DEVICE float scale_of(const Weight& w, i64 output, i64 k, fp8*) { return ((const float*)w.scales)[output]; }
DEVICE float scale_of(const Weight& w, i64 output, i64 k, int4q*) { return widen(w.scales[output * w.groups + k / 32]); }
template <class T> DEVICE float number(const Weight& w, i64 output, i64 k, T*) { return widen(((const T*)w.numbers)[output * w.inputs + k]); }
DEVICE float number(const Weight& w, i64 output, i64 k, int8* t) { return scale_of(w, output, k, t) * (float)((const signed char*)w.numbers)[output * w.groups * 32 + k]; }
DEVICE float number(const Weight& w, i64 output, i64 k, fp8* t) { return scale_of(w, output, k, t) * from_e4m3(w.numbers[output * row_bytes(w, t) + k]); }
DEVICE float number(const Weight& w, i64 output, i64 k, int4q* t) {
  i64 group = k / 32, word = k % 32 / 8, place = w.groups % 4 ? group * 4 + word : group / 4 * 16 + word * 4 + group % 4;
  return scale_of(w, output, k, t) * (float)((int)(((const u32*)w.numbers)[output * w.groups * 4 + place] >> (4 * (k % 8)) & 15) - 8);
}

// Rows of the matrix: of each token, or all where there are none.
KERNEL widen_rows(Weight w, const u32* tokens, B* out, i64 os, u32* report) { BEGIN;
  u32 output = tokens ? tokens[blockIdx.x] : blockIdx.x;
  if (output >= w.outputs) { if (threadIdx.x == 0) complain(report, TOKEN, output, (u32)w.outputs); return; }
  for (i64 k = threadIdx.x; k < w.inputs; k += blockDim.x) out[blockIdx.x * os + k] = narrow<B>(number(w, output, k, (C*)0));
}

// A warp makes some outputs for `rows` rows of x, at most eight; lanes take sixteen bytes of the weight each.
template <int M, int R> DEVICE void few(Weight w, const A* x, i64 xs, i64 rows, const A* bias, const B* residual, i64 rs, B* out, i64 os, int wide) {
  enum { PER = Piece<C>::PER };
  i64 output = ((i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * R;
  int lane = threadIdx.x % 32;
  if (output >= w.outputs) return;
  float sums[R][M];
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int m = 0; m < M; m++) sums[r][m] = 0;
  i64 bytes = row_bytes(w, (C*)0);
  if (wide) {
    for (i64 k = lane * PER; k < w.inputs; k += 32 * PER) {
      uint4 q[R];
#pragma unroll
      for (int r = 0; r < R; r++) q[r] = __ldcs((const uint4*)(w.numbers + min(output + r, w.outputs - 1) * bytes) + k / PER);
      float v[R][PER];
#pragma unroll
      for (int r = 0; r < R; r++) unfold(q[r], scale_of(w, min(output + r, w.outputs - 1), k, (C*)0), v[r], (C*)0);
#pragma unroll
      for (int m = 0; m < M; m++) if (m < rows) {
        const A* xx = x + m * xs + k;
        // Rows at addresses that wide loads take, of which each piece is whole. Of other sizes the numbers would not fit into registers.
        float values[PER == 16 ? 16 : 1];
        if constexpr (PER == 16) {
          if (wide > 1) {
            get8(xx, *(float (*)[8])values); get8(xx + 8, *(float (*)[8])(values + 8));
          } else {
#pragma unroll
            for (int i = 0; i < PER; i++) values[i] = k + i < w.inputs ? widen(xx[i]) : 0.f;
          }
        }
#pragma unroll
        for (int i = 0; i < PER; i++) {
          float value;
          if constexpr (PER == 16) value = values[i]; else value = k + i < w.inputs ? widen(xx[i]) : 0.f;
#pragma unroll
          for (int r = 0; r < R; r++) sums[r][m] = fmaf(v[r][i], value, sums[r][m]);
        }
      }
    }
  } else {
    for (i64 k = lane; k < w.inputs; k += 32)
#pragma unroll
      for (int m = 0; m < M; m++) if (m < rows)
#pragma unroll
        for (int r = 0; r < R; r++) if (output + r < w.outputs) sums[r][m] += number(w, output + r, k, (C*)0) * widen(x[m * xs + k]);
  }
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int m = 0; m < M; m++) {
      float sum = warp_sum(sums[r][m]);
      if (lane == 0 && m < rows && output + r < w.outputs) {
        if (bias) sum += widen(bias[output + r]);
        if (residual) sum += widen(residual[m * rs + output + r]);
        out[m * os + output + r] = narrow<B>(sum);
      }
    }
}
KERNEL __launch_bounds__(256) few_rows(Weight w, const A* x, i64 xs, i64 rows, const A* bias, const B* residual, i64 rs, B* out, i64 os, int wide) { BEGIN;
  if (rows == 1) few<1, 2>(w, x, xs, rows, bias, residual, rs, out, os, wide);
  else if (rows == 2) few<2, 2>(w, x, xs, rows, bias, residual, rs, out, os, wide);
  else if (rows <= 4) few<4, 2>(w, x, xs, rows, bias, residual, rs, out, os, wide);
  else few<8, Piece<C>::PER == 32 ? 1 : 2>(w, x, xs, rows, bias, residual, rs, out, os, wide);
}
