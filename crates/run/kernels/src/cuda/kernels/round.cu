// Rounding of weights to whole numbers with a scale for every 32 neighbours, as the processor does it. A is the weight's format.
DEVICE float farthest(const float (&v)[32]) {
  float far = 0;
  for (int i = 0; i < 32; i++) if (fabsf(v[i]) > fabsf(far)) far = v[i];
  return far;
}
DEVICE float whole(float v, float inverse, float most) {
  float least = most == 7.f ? -8.f : -most;
  return rintf(fminf(fmaxf(v * inverse, least), most));
}
DEVICE float inverse_of(float scale) { return scale == 0.f ? 0.f : 1.f / scale; }
DEVICE float rounded(float scale) { return widen(narrow<f16>(scale)); }
DEVICE float error_of(const float (&v)[32], float scale) {
  float inverse = inverse_of(scale), error = 0;
  for (int i = 0; i < 32; i++) { float d = v[i] - whole(v[i], inverse, 7.f) * scale; error += d * d; }
  return error;
}
DEVICE void get_group(const A* w, i64 ws, i64 inputs, i64 groups, i64 at, float (&v)[32]) {
  const A* row = w + at / groups * ws; i64 k = at % groups * 32;
#pragma unroll
  for (int i = 0; i < 32; i++) v[i] = k + i < inputs ? widen(row[k + i]) : 0.f;
}
KERNEL to_8_bits(const A* w, i64 ws, i64 outputs, i64 inputs, i64 groups, u8* numbers, f16* scales) { BEGIN;
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= outputs * groups) return;
  float v[32];
  get_group(w, ws, inputs, groups, at, v);
  f16 scale = narrow<f16>(fabsf(farthest(v)) / 127.f);
  float inverse = inverse_of(widen(scale));
  scales[at] = scale;
#pragma unroll
  for (int i = 0; i < 32; i++) numbers[at * 32 + i] = (u8)(signed char)(int)whole(v[i], inverse, 127.f);
}
KERNEL to_4_bits(const A* w, i64 ws, i64 outputs, i64 inputs, i64 groups, u8* numbers, f16* scales) { BEGIN;
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= outputs * groups) return;
  const float places[9] = {-8.5f, -8.f, -7.5f, -7.f, -6.5f, -6.f, 6.f, 6.8f, 7.4f};
  float v[32];
  get_group(w, ws, inputs, groups, at, v);
  float far = farthest(v), best = 0, least = INFINITE;
#pragma unroll 1
  for (int p = 0; p < 9; p++) {
    float scale = far / places[p], inverse = inverse_of(scale), product = 0, square = 0;
    for (int i = 0; i < 32; i++) { float n = whole(v[i], inverse, 7.f); product += v[i] * n; square += n * n; }
    float second = square == 0.f ? 0.f : product / square;
    float a = rounded(scale), ea = error_of(v, a), b = rounded(second), eb = error_of(v, b);
    if (ea < least) { least = ea; best = a; }
    if (eb < least) { least = eb; best = b; }
  }
  scales[at] = narrow<f16>(best);
  float inverse = inverse_of(best);
#pragma unroll
  for (int word = 0; word < 4; word++) {
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) bits |= (u32)((int)whole(v[8 * word + i], inverse, 7.f) + 8) << (4 * i);
    // Of 128 numbers, each of four lanes has the same word of every group.
    i64 group = at % groups, place = groups % 4 ? group * 4 + word : group / 4 * 16 + word * 4 + group % 4;
    ((u32*)numbers)[at / groups * groups * 4 + place] = bits;
  }
}
// Rows as e4m3, each with a power of two as scale: a block has a row, whose bytes are followed by zeros up to the next one.
KERNEL to_fp8(const A* x, i64 xs, i64 columns, u8* numbers, i64 stride, float* scales) { BEGIN;
  __shared__ float shared[32];
  const A* row = x + blockIdx.x * xs; u8* to = numbers + blockIdx.x * stride;
  float most = 0;
  for (i64 i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, fabsf(widen(row[i])));
  float scale = e4m3_scale(block_max(most, shared)), inverse = 1.f / scale;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  for (i64 i = threadIdx.x; i < stride; i += blockDim.x) to[i] = i < columns ? to_e4m3(widen(row[i]) * inverse) : 0;
}
DEVICE uint2 eight_e4m3(const float (&v)[8], float inverse) {
  u32 words[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
#if __CUDA_ARCH__ >= 890
    u16 two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(v[j + 1] * inverse), "f"(v[j] * inverse));
#else
    u32 two = to_e4m3(v[j] * inverse) | (u32)to_e4m3(v[j + 1] * inverse) << 8;
#endif
    words[j / 4] |= (u32)two << (8 * (j % 4));
  }
  return make_uint2(words[0], words[1]);
}
// The same for rows of which eight neighbours lie at addresses that wide loads take.
KERNEL to_fp8_wide(const A* x, i64 xs, i64 columns, u8* numbers, i64 stride, float* scales) { BEGIN;
  __shared__ float shared[32];
  const A* row = x + blockIdx.x * xs; u8* to = numbers + blockIdx.x * stride;
  float most = 0, v[8];
  for (i64 i = 8 * threadIdx.x; i < columns; i += 8 * blockDim.x) {
    get8(row + i, v);
#pragma unroll
    for (int j = 0; j < 8; j++) most = fmaxf(most, fabsf(v[j]));
  }
  float scale = e4m3_scale(block_max(most, shared)), inverse = 1.f / scale;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  for (i64 i = 8 * threadIdx.x; i < columns; i += 8 * blockDim.x) {
    get8(row + i, v);
    uint2 words = eight_e4m3(v, inverse);
    *(uint2*)(to + i) = words;
  }
}
// Columns rounded as rows are, and turned: the largest size of each column first. Numbers that are not negative order as their bits do.
KERNEL no_columns(u32* most, i64 columns) { BEGIN;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < columns; i += (i64)gridDim.x * blockDim.x) most[i] = 0;
}
KERNEL most_of_columns(const A* x, i64 xs, i64 rows, i64 columns, u32* most) { BEGIN;
  i64 column = (i64)blockIdx.x * 256 + threadIdx.x % 32 * 8;
  __shared__ float shared[8][256];
  float far[8] = {}, v[8];
  i64 end = min((i64)(blockIdx.y + 1) * 256, rows);
  if (column < columns)
#pragma unroll 4
    for (i64 row = (i64)blockIdx.y * 256 + threadIdx.x / 32; row < end; row += 8) {
      get8(x + row * xs + column, v);
#pragma unroll
      for (int j = 0; j < 8; j++) far[j] = fmaxf(far[j], fabsf(v[j]));
    }
#pragma unroll
  for (int j = 0; j < 8; j++) shared[threadIdx.x / 32][threadIdx.x % 32 * 8 + j] = far[j];
  __syncthreads();
  float all = 0;
#pragma unroll
  for (int w = 0; w < 8; w++) all = fmaxf(all, shared[w][threadIdx.x]);
  i64 mine = (i64)blockIdx.x * 256 + threadIdx.x;
  if (mine < columns && all > 0) atomicMax(most + mine, __float_as_uint(all));
}
KERNEL to_fp8_turned(const A* x, i64 xs, i64 rows, i64 columns, const u32* most, u8* numbers, float* scales) { BEGIN;
  __shared__ __align__(4) u8 tile[64][68];   // lines of seventeen words, so that few of a warp's columns share a bank
  i64 column = (i64)blockIdx.x * 64, row = (i64)blockIdx.y * 64;
  int across = threadIdx.x % 8 * 8, down = threadIdx.x / 8;
  if (column + across < columns) {
    float inverse[8], v[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float scale = e4m3_scale(__uint_as_float(most[column + across + j]));
      inverse[j] = 1.f / scale;
      if (row == 0 && down == 0) scales[column + across + j] = scale;
    }
    for (int r = down; r < 64 && row + r < rows; r += 32) {
      get8(x + (row + r) * xs + column + across, v);
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] *= inverse[j];
      uint2 words = eight_e4m3(v, 1.f);
#pragma unroll
      for (int j = 0; j < 8; j++) tile[across + j][r] = (u8)((j < 4 ? words.x : words.y) >> (8 * (j % 4)));
    }
  }
  __syncthreads();
  int line = threadIdx.x / 4, part = threadIdx.x % 4 * 16;
  const u32* from = (const u32*)&tile[line][part];
  if (column + line < columns && row + part < rows) *(uint4*)(numbers + (column + line) * rows + row + part) = make_uint4(from[0], from[1], from[2], from[3]);
}
