// Attention backward on Hopper, heads of DIM: a block of 128 keys stays, blocks of 64 queries of all heads of its group pass by. The gradients of keys and
// values are summed in registers, in one order; those of queries in memory by f32 additions, whose order is not fixed. Behind `hopper.cu`.
constexpr int KT = 128 * DIM * 2, KP = 128 * 64 * 2, QT = 64 * DIM * 2, QP = 64 * 64 * 2, DS = 128 * 64 * 2, PANELS = DIM / 64;
DEVICE void both(int id) { asm volatile("bar.sync %0, 256;" :: "r"(id) : "memory"); }
KERNEL __launch_bounds__(384, 1) flash_backward(const __grid_constant__ Map mq, const __grid_constant__ Map mk, const __grid_constant__ Map mv, const __grid_constant__ Map mo, Shape shape, int padded,
    const u32* first_keys, const u32* positions, const float* log_sums, const float* delta, float* dq, bf16* dk, i64 dks, bf16* dv, i64 dvs) { BEGIN;
  extern __shared__ u8 raw[];
  __shared__ __align__(8) u64 bars[5];
  u32 base = (at(raw) + 1023) & ~1023u, bar = at(bars);
  u32 k = base, v = base + KT, q = base + 2 * KT, od = q + 2 * QT, ds = od + 2 * QT;
  u32 kvfull = bar, full = bar + 8, empty = bar + 24;
  int wg = threadIdx.x / 128, key0 = blockIdx.y * 128, sequence = blockIdx.x / shape.kv_heads, kv = blockIdx.x % shape.kv_heads, group = shape.heads / shape.kv_heads;
  int origin = base_of(shape, positions, sequence);
  const u32* lows = first_keys + (i64)sequence * shape.queries;
  // First keys never fall, so the queries that see any of these keys are neighbours.
  int first = max(0, key0 - origin) / 64, low = 0, high = shape.queries;
  u32 last_key = min(key0 + 127, shape.keys - 1);
  while (low < high) { int middle = (low + high) / 2; if (lows[middle] <= last_key) low = middle + 1; else high = middle; }
  int per = max(0, (low + 63) / 64 - first), total = per * group;
  if (threadIdx.x == 0) { init(kvfull, 1); for (int i = 0; i < 2; i++) { init(full + 8 * i, 1); init(empty + 8 * i, 2); } asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __syncthreads();
  if (wg == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) {
      expect(kvfull, 2 * KT); int row = sequence * shape.keys + key0;
      for (int p = 0; p < PANELS; p++) { load(k + p * KP, &mk, kv * DIM + 64 * p, row, kvfull); load(v + p * KP, &mv, kv * DIM + 64 * p, row, kvfull); }
      for (int i = 0; i < total; i++) {
        int s = i & 1, ph = (i >> 1) & 1, r = sequence * shape.queries + (first + i % per) * 64, head = kv * group + i / per;
        await(empty + 8 * s, ph ^ 1); expect(full + 8 * s, 2 * QT);
        for (int p = 0; p < PANELS; p++) { load(q + s * QT + p * QP, &mq, head * DIM + 64 * p, r, full + 8 * s); load(od + s * QT + p * QP, &mo, head * DIM + 64 * p, r, full + 8 * s); }
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  int c = wg - 1, t = threadIdx.x % 128, w = t / 32, l = t % 32, local = c * 64 + w * 16 + l / 4; bool leader = t == 0;
  float gk[DIM / 2], gv[DIM / 2], st[32], dp[32]; u32 pa[16], da[16];
  const float scale2 = shape.scale * 1.44269504f;
#pragma unroll
  for (int i = 0; i < DIM / 2; i++) gk[i] = gv[i] = 0;
  await(kvfull, 0);
  for (int i = 0; i < total; i++) {
    int s = i & 1, ph = (i >> 1) & 1, m = first + i % per, head = kv * group + i / per; i64 r = ((i64)sequence * shape.heads + head) * padded + m * 64;
    u32 qs = q + s * QT, os = od + s * QT;
    await(full + 8 * s, ph);
    pin(st); pin(dp); fence();
#pragma unroll
    for (int j = 0; j < DIM / 16; j++) { u64 a = tile(k + (j / 4) * KP + c * 8192 + (j % 4) * 32, 16, 1024), b = tile(qs + (j / 4) * QP + (j % 4) * 32, 16, 1024); if (j == 0) first64(st, a, b); else more64(st, a, b); }
    commit();
#pragma unroll
    for (int j = 0; j < DIM / 16; j++) { u64 a = tile(v + (j / 4) * KP + c * 8192 + (j % 4) * 32, 16, 1024), b = tile(os + (j / 4) * QP + (j % 4) * 32, 16, 1024); if (j == 0) first64(dp, a, b); else more64(dp, a, b); }
    commit();
    finish<1>(); pin(st);
    bool masked = origin + m * 64 < key0 + 127 || key0 + 128 > shape.keys || lows[min(m * 64 + 63, shape.queries - 1)] > key0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float2 e = __ldg((const float2*)(log_sums + r + 8 * j + (l % 4) * 2));
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float a = exp2f(fmaf(st[4 * j + 2 * h], scale2, -e.x * 1.44269504f)), b = exp2f(fmaf(st[4 * j + 2 * h + 1], scale2, -e.y * 1.44269504f));
        if (masked) {
          int key = key0 + local + 8 * h, query = m * 64 + 8 * j + (l % 4) * 2;
          if (key > min(origin + query, shape.keys - 1) || key < (int)lows[min(query, shape.queries - 1)]) a = 0;
          if (key > min(origin + query + 1, shape.keys - 1) || key < (int)lows[min(query + 1, shape.queries - 1)]) b = 0;
        }
        st[4 * j + 2 * h] = a; st[4 * j + 2 * h + 1] = b;
      }
    }
    finish<0>(); pin(dp);
    u32 dss = ds + s * DS;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float2 e = __ldg((const float2*)(delta + r + 8 * j + (l % 4) * 2));
#pragma unroll
      for (int h = 0; h < 2; h++) {
        u32 x = pack(st[4 * j + 2 * h] * (dp[4 * j + 2 * h] - e.x), st[4 * j + 2 * h + 1] * (dp[4 * j + 2 * h + 1] - e.y));
        da[2 * j + h] = x; pa[2 * j + h] = pack(st[4 * j + 2 * h], st[4 * j + 2 * h + 1]);
        int row = local + 8 * h; asm volatile("st.shared.b32 [%0], %1;" :: "r"(dss + row * 128 + ((j ^ (row & 7)) << 4) + (l % 4) * 4), "r"(x) : "memory");
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    // Both halves are there. The other buffer is free: who comes here has read it.
    both(1);
    pin(gk); pin(gv); pin(dp); fence();
    // With heads of 128 each warpgroup has half of the columns; with 64, half of the keys.
#if DIM == 128
#pragma unroll
    for (int j = 0; j < 8; j++) { u64 a = tile(dss + 2048 * j, 16, 1024), b = tile(k + c * KP + 2048 * j, 16, 1024); if (j == 0) first64_turned(dp, a, b); else more64_turned(dp, a, b); }
#else
#pragma unroll
    for (int j = 0; j < 4; j++) { u64 a = tile(dss + 2048 * (4 * c + j), 16, 1024), b = tile(k + 2048 * (4 * c + j), 16, 1024); if (j == 0) first64_turned(dp, a, b); else more64_turned(dp, a, b); }
#endif
    commit();
#pragma unroll
    for (int j = 0; j < 4; j++) from_registers(gv, pa + 4 * j, tile(os + 2048 * j, QP, 1024));
#pragma unroll
    for (int j = 0; j < 4; j++) from_registers(gk, da + 4 * j, tile(qs + 2048 * j, QP, 1024));
    commit();
    finish<1>(); pin(dp);
    { int query = m * 64 + w * 16 + l / 4;
      float* to = dq + (((i64)sequence * shape.queries + query) * shape.heads + head) * DIM + (DIM == 128 ? c * 64 : 0) + (l % 4) * 2;
#pragma unroll
      for (int h = 0; h < 2; h++) if (query + 8 * h < shape.queries)
#pragma unroll
        for (int j = 0; j < 8; j++) asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" :: "l"(to + (i64)h * 8 * shape.heads * DIM + 8 * j), "f"(dp[4 * j + 2 * h]), "f"(dp[4 * j + 2 * h + 1]) : "memory"); }
    finish<0>(); pin(gk); pin(gv);
    if (leader) arrive(empty + 8 * s);
  }
#pragma unroll
  for (int h = 0; h < 2; h++) { int key = key0 + local + 8 * h; if (key >= shape.keys) continue;
    i64 r = (i64)sequence * shape.keys + key;
#pragma unroll
    for (int j = 0; j < DIM / 8; j++) { int at = kv * DIM + 8 * j + (l % 4) * 2; *(u32*)(dk + r * dks + at) = pack(gk[4 * j + 2 * h] * shape.scale, gk[4 * j + 2 * h + 1] * shape.scale); *(u32*)(dv + r * dvs + at) = pack(gv[4 * j + 2 * h], gv[4 * j + 2 * h + 1]); } }
}
// A warp has a query of a head; sums and deltas go to where a head's queries are neighbours, those that are lacking see nothing.
KERNEL prepare(Shape shape, int padded, const bf16* out, i64 os, const bf16* d, i64 ds, const float* log_sums, float* turned, float* delta) { BEGIN;
  int lane = threadIdx.x % 32, head = blockIdx.y, sequence = blockIdx.z, query = blockIdx.x * 8 + threadIdx.x / 32;
  if (query >= padded) return;
  i64 r = (i64)sequence * shape.queries + query, to = ((i64)sequence * shape.heads + head) * padded + query;
  float sum = 0, log_sum = INFINITE;
  if (query < shape.queries) {
    for (int i = lane * 2; i < DIM; i += 64) {
      u32 a = *(const u32*)(out + r * os + head * DIM + i), b = *(const u32*)(d + r * ds + head * DIM + i);
      sum += __uint_as_float(a << 16) * __uint_as_float(b << 16) + __uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u);
    }
    log_sum = log_sums[r * shape.heads + head];
    if (log_sum == -INFINITE) log_sum = INFINITE;
  }
  sum = warp_sum(sum);
  if (lane == 0) { turned[to] = log_sum; delta[to] = sum; }
}
KERNEL give_queries(const float* x, i64 columns, bf16* to, i64 ts, i64 rows, float scale) { BEGIN;
  i64 pieces = columns / 4, i = (i64)blockIdx.x * 256 + threadIdx.x;
  if (i >= rows * pieces) return;
  float4 v = *(const float4*)(x + i * 4);
  *(uint2*)(to + i / pieces * ts + i % pieces * 4) = make_uint2(pack(v.x * scale, v.y * scale), pack(v.z * scale, v.w * scale));
}
