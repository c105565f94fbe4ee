// Products that the library does not make: rows cut by experts, mixed formats, odd strides. out[m][n] (+)= sum over k of left(m, k) * right(n, k).
// A is the left side's format, B the right side's, C the output's.
struct Product {
  const A* a; i64 am, ak;
  const B* b; i64 bn, bk, each;   // `each`: from one expert's right side to the next
  C* c; i64 cs;
  i64 m, n, k;
  const u32* offsets;             // rows of experts, or none
  i64 experts;
  const u64* sides;               // addresses of the experts' right sides instead of `each`
  int add, is_deep;               // is_deep: experts cut k, and blockIdx.z has the expert
};
// What a block makes of it: where its rows begin and end, and its right side. Says whether there is anything.
DEVICE bool place_block(Product& p, i64 tile, i64& first, i64& end) {
  if (!p.offsets) { first = blockIdx.y * tile; end = p.m; return first < end; }
  if (p.is_deep) {
    i64 from = p.offsets[blockIdx.z], to = p.offsets[blockIdx.z + 1];
    p.a += from * p.ak; p.b += from * p.bk; p.c += blockIdx.z * p.each; p.k = to - from;
    first = blockIdx.y * tile; end = p.m;
    return p.k > 0;
  }
  i64 tiles = 0;
  for (i64 e = 0; e < p.experts; e++) {
    i64 from = p.offsets[e], to = p.offsets[e + 1], mine = (to - from + tile - 1) / tile;
    if (blockIdx.y < tiles + mine) {
      first = from + (blockIdx.y - tiles) * tile; end = to;
      p.b = p.sides ? (const B*)p.sides[e] : p.b + e * p.each;
      return true;
    }
    tiles += mine;
  }
  return false;
}

// Multiply-adds on f32: 64 x 64, sixteen deep, 256 threads with 4 x 4 sums each.
KERNEL __launch_bounds__(256) multiply(Product p) { BEGIN;
  __shared__ float left[16][68], right[16][68];
  i64 first, end;
  if (!place_block(p, 64, first, end)) return;
  i64 column = (i64)blockIdx.x * 64;
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float sums[4][4] = {};
  for (i64 k = 0; k < p.k; k += 16) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int at = threadIdx.x + 256 * i;
      int lk = p.ak == 1 ? at % 16 : at / 64, lm = p.ak == 1 ? at / 16 : at % 64;
      left[lk][lm] = first + lm < end && k + lk < p.k ? widen(p.a[(first + lm) * p.am + (k + lk) * p.ak]) : 0.f;
      int rk = p.bk == 1 ? at % 16 : at / 64, rn = p.bk == 1 ? at / 16 : at % 64;
      right[rk][rn] = column + rn < p.n && k + rk < p.k ? widen(p.b[(column + rn) * p.bn + (k + rk) * p.bk]) : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < 16; kk++) {
      float l[4], r[4];
#pragma unroll
      for (int i = 0; i < 4; i++) { l[i] = left[kk][4 * ty + i]; r[i] = right[kk][4 * tx + i]; }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sums[i][j] = fmaf(l[i], r[j], sums[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      i64 row = first + 4 * ty + i, c = column + 4 * tx + j;
      if (row < end && c < p.n) { C* to = p.c + row * p.cs + c; *to = narrow<C>(p.add ? widen(*to) + sums[i][j] : sums[i][j]); }
    }
}

// Tensor cores: 128 x 128, 32 deep, eight warps of 64 x 32. Sides in f32 are rounded to bf16 on their way.
template <class T> DEVICE uint4 eight(const T* p, i64 step, i64 count, bool wide) {
  if (wide && sizeof(T) == 2 && count >= 8) return *(const uint4*)p;
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = i < count ? widen(p[i * step]) : 0.f;
  return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
}
// Two pieces of eight of a 128 x 32 side for each thread: along k where that is dense, along the lines otherwise.
template <class T> DEVICE void fetch(const T* side, i64 line_step, i64 k_step, i64 lines, i64 k, i64 depth, uint4 (&to)[2]) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int at = threadIdx.x + 256 * i;
    if (k_step == 1 || line_step != 1) {
      i64 line = at / 4, kk = k + at % 4 * 8;
      const T* p = side + line * line_step + kk * k_step;
      bool wide = k_step == 1 && (((u64)p) & 15) == 0;
      to[i] = line < lines && kk < depth ? eight(p, k_step, depth - kk, wide) : make_uint4(0, 0, 0, 0);
    } else {
      i64 kk = k + at / 16, line = at % 16 * 8;
      const T* p = side + line + kk * k_step;
      to[i] = kk < depth && line < lines ? eight(p, 1, lines - line, (((u64)p) & 15) == 0) : make_uint4(0, 0, 0, 0);
    }
  }
}
template <class T> DEVICE void place(u16 (&to)[128][40], i64 line_step, i64 k_step, const uint4 (&from)[2]) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int at = threadIdx.x + 256 * i;
    if (k_step == 1 || line_step != 1) *(uint4*)&to[at / 4][at % 4 * 8] = from[i];
    else {
      u32 w[4] = {from[i].x, from[i].y, from[i].z, from[i].w};
#pragma unroll
      for (int j = 0; j < 8; j++) to[at % 16 * 8 + j][at / 16] = (u16)(w[j / 2] >> (16 * (j % 2)));
    }
  }
}
KERNEL __launch_bounds__(256) multiply_tiles(Product p) { BEGIN;
  __shared__ __align__(16) u16 left[128][40], right[128][40];
  i64 first, end;
  if (!place_block(p, 128, first, end)) return;
  i64 column = (i64)blockIdx.x * 128;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp / 4 * 64, wn = warp % 4 * 32;
  const A* a = p.a + first * p.am; const B* b = p.b + column * p.bn;
  float sums[4][4][4] = {};
  uint4 la[2], ra[2];
  fetch(a, p.am, p.ak, end - first, 0, p.k, la); fetch(b, p.bn, p.bk, p.n - column, 0, p.k, ra);
  for (i64 k = 0; k < p.k; k += 32) {
    place<A>(left, p.am, p.ak, la); place<B>(right, p.bn, p.bk, ra);
    __syncthreads();
    if (k + 32 < p.k) { fetch(a, p.am, p.ak, end - first, k + 32, p.k, la); fetch(b, p.bn, p.bk, p.n - column, k + 32, p.k, ra); }
#pragma unroll
    for (int kk = 0; kk < 32; kk += 16) {
      u32 l[4][4], r[2][4];
#pragma unroll
      for (int i = 0; i < 4; i++) tile_of_four(l[i], &left[wm + 16 * i + lane % 16][kk + lane / 16 * 8]);
#pragma unroll
      for (int j = 0; j < 2; j++) tile_of_four(r[j], &right[wn + 16 * j + lane % 8 + lane / 16 * 8][kk + lane / 8 % 2 * 8]);
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) mma(sums[i][j], l[i], r[j / 2][j % 2 * 2], r[j / 2][j % 2 * 2 + 1]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        i64 row = first + wm + 16 * i + lane / 4 + e / 2 * 8, c = column + wn + 8 * j + lane % 4 * 2 + e % 2;
        if (row < end && c < p.n) { C* to = p.c + row * p.cs + c; *to = narrow<C>(p.add ? widen(*to) + sums[i][j][e] : sums[i][j][e]); }
      }
}
