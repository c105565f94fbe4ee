// What every kernel has: number formats without any header, sums over warps and blocks, and how a kernel reports bad input.
// The host compiles each source behind this one, with the formats A, B and C set for it.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
struct bf16 { u16 bits; };
struct f16 { u16 bits; };
// Tags of packed weights.
struct int8 {};
struct int4q {};
struct fp8 {};

#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__
// On chips that can, a kernel is started while the one before it ends, and waits here before it looks at memory. Its own successor may come at once.
#if __CUDA_ARCH__ >= 900
#define LET_NEXT asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define AWAIT asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define LET_NEXT
#define AWAIT
#endif
#define BEGIN LET_NEXT; AWAIT
#define INFINITE __int_as_float(0x7f800000)

DEVICE float widen(float x) { return x; }
DEVICE float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE float widen(f16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits)); return r; }
template <class T> DEVICE T narrow(float x);
template <> DEVICE float narrow<float>(float x) { return x; }
template <> DEVICE bf16 narrow<bf16>(float x) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); return r; }
template <> DEVICE f16 narrow<f16>(float x) { f16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); return r; }
// e4m3: a sign, four bits of exponent and three more. Numbers beyond 448 become that; NaN stays one.
DEVICE u8 to_e4m3(float x) {
  float size = fabsf(x);
  u32 bits = __float_as_uint(size), code;
  if (size != size) code = 0x7f;
  else if (size < 0.015625f) code = (u32)rintf(size * 512.f);
  else code = min(((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - 960u, 0x7eu);
  return (u8)(code | (__float_as_uint(x) >> 24 & 0x80u));
}
DEVICE float from_e4m3(u32 code) { return __uint_as_float((code & 0x7f) << 20 | (code & 0x80) << 24) * 1.329227995784916e36f; }
// The smallest power of two with which numbers up to `most` are at most 448; 1 for zeros. A line with an infinite number becomes NaN.
DEVICE float e4m3_scale(float most) {
  if (most == INFINITE) return most;
  u32 bits = __float_as_uint(most);
  int exponent = (int)(bits >> 23) - 127 - 8 + ((bits & 0x7fffff) > 0x600000);
  return most == 0.f ? 1.f : __uint_as_float((u32)(min(max(exponent, -100), 100) + 127) << 23);
}
DEVICE u32 pack(float low, float high) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }

// Eight neighbours at an address that is a multiple of sixteen bytes.
DEVICE void get8(const float* p, float (&v)[8]) {
  float4 a = ((const float4*)p)[0], b = ((const float4*)p)[1];
  v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}
DEVICE void spread(uint4 a, float (&v)[8]) {
  u32 w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
  for (int i = 0; i < 4; i++) { v[2 * i] = __uint_as_float(w[i] << 16); v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u); }
}
DEVICE void get8(const bf16* p, float (&v)[8]) { spread(*(const uint4*)p, v); }
DEVICE void get8(const f16* p, float (&v)[8]) {
  uint4 a = *(const uint4*)p;
  u32 w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
  for (int i = 0; i < 4; i++) { v[2 * i] = widen(f16{(u16)w[i]}); v[2 * i + 1] = widen(f16{(u16)(w[i] >> 16)}); }
}
DEVICE void put8(float* p, const float (&v)[8]) {
  ((float4*)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
  ((float4*)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
DEVICE void put8(bf16* p, const float (&v)[8]) { *(uint4*)p = make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])); }
DEVICE void put8(f16* p, const float (&v)[8]) {
  u32 w[4];
#pragma unroll
  for (int i = 0; i < 4; i++) w[i] = (u32)narrow<f16>(v[2 * i]).bits | ((u32)narrow<f16>(v[2 * i + 1]).bits << 16);
  *(uint4*)p = make_uint4(w[0], w[1], w[2], w[3]);
}
// Up to eight neighbours at any address; what is beyond `count` is zero.
template <bool WIDE, class T> DEVICE void get(const T* p, i64 count, float (&v)[8]) {
  if constexpr (WIDE) get8(p, v);
  else {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = i < count ? widen(p[i]) : 0.f;
  }
}
template <bool WIDE, class T> DEVICE void put(T* p, i64 count, const float (&v)[8]) {
  if constexpr (WIDE) put8(p, v);
  else {
#pragma unroll
    for (int i = 0; i < 8; i++) if (i < count) p[i] = narrow<T>(v[i]);
  }
}

template <class T> DEVICE T warp_sum(T x) {
#pragma unroll
  for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}
DEVICE float warp_max(float x) {
#pragma unroll
  for (int o = 16; o; o /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
  return x;
}
// The sum over threads of a block with the same threadIdx.y, of which there are blockDim.x, a multiple of 32; `shared` has 32 places for each y.
template <class T> DEVICE T block_sum(T x, T* shared) {
  x = warp_sum(x);
  int warps = blockDim.x / 32;
  if (warps == 1) return x;
  shared += threadIdx.y * 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = 0;
  for (int w = 0; w < warps; w++) sum += shared[w];
  return sum;
}
DEVICE float block_max(float x, float* shared) {
  x = warp_max(x);
  int warps = blockDim.x / 32;
  if (warps == 1) return x;
  shared += threadIdx.y * 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float most = shared[0];
  for (int w = 1; w < warps; w++) most = fmaxf(most, shared[w]);
  return most;
}
DEVICE float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }

// Bad input: the first report stays until the host looks. `report` is three numbers: what is wrong, the number, the limit.
DEVICE void complain(u32* report, u32 what, u32 number, u32 limit) {
  if (atomicCAS(report, 0u, what) == 0u) { report[1] = number; report[2] = limit; __threadfence_system(); }
}
enum { TOKEN = 1, TARGET = 2, POSITION = 3, EXPERT = 4, SLOT = 5, BLOCK = 6, ROWS = 7 };
