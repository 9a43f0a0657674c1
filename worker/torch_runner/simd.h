// Vectors of floats as wide as the CPU's, by the vector extensions of gcc and clang; no intrinsics of one CPU.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, quad_index{i, j, k, l})
#endif

namespace {

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef float quad __attribute__((vector_size(16), aligned(4)));
typedef int32_t quad_index __attribute__((vector_size(16)));

inline vec load(const float* p) { return *reinterpret_cast<const vec*>(p); }
inline void store(float* p, vec v) { *reinterpret_cast<vec*>(p) = v; }
inline vec splat(float x) { return vec{} + x; }
inline vec larger(vec a, vec b) { return a > b ? a : b; }
inline vec smaller(vec a, vec b) { return a < b ? a : b; }

inline quad fold(vec v) {
  quad parts[LANES / 4];
  memcpy(parts, &v, sizeof(v));
  quad sum = parts[0];
  for (int i = 1; i < LANES / 4; i++) sum += parts[i];
  return sum;
}

// The sums of four vectors.
#if LANES == 8 && (defined(__clang__) || __GNUC__ >= 12)
#define IN_HALVES(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4)
inline quad sums_of_4(vec a, vec b, vec c, vec d) {
  const vec ab = IN_HALVES(a, b, 0, 8, 1, 9) + IN_HALVES(a, b, 2, 10, 3, 11);
  const vec cd = IN_HALVES(c, d, 0, 8, 1, 9) + IN_HALVES(c, d, 2, 10, 3, 11);
  return fold(IN_HALVES(ab, cd, 0, 1, 8, 9) + IN_HALVES(ab, cd, 2, 3, 10, 11));
}
#else
inline quad sums_of_4(vec a, vec b, vec c, vec d) {
  const quad qa = fold(a), qb = fold(b), qc = fold(c), qd = fold(d);
  const quad ab = SHUFFLE(qa, qb, 0, 4, 1, 5) + SHUFFLE(qa, qb, 2, 6, 3, 7);
  const quad cd = SHUFFLE(qc, qd, 0, 4, 1, 5) + SHUFFLE(qc, qd, 2, 6, 3, 7);
  return SHUFFLE(ab, cd, 0, 1, 4, 5) + SHUFFLE(ab, cd, 2, 3, 6, 7);
}
#endif

inline float sum_of(vec v) { const quad q = fold(v); return (q[0] + q[2]) + (q[1] + q[3]); }

inline float max_of(vec v) {
  float result = v[0];
  for (int i = 1; i < LANES; i++) result = v[i] > result ? v[i] : result;
  return result;
}

// exp for x <= 88, relative error about 1e-7, 0 below -87, NaN of NaN. Cephes' polynomial after reduction by ln 2.
inline vec exp_of(vec x) {
  const ivec vanishes = x < splat(-87.0f);
  x = vanishes ? splat(-87.0f) : x;
  const vec scaled = x * 1.44269504089f;
  const ivec whole = __builtin_convertvector(scaled + (scaled < splat(0) ? splat(-0.5f) : splat(0.5f)), ivec);
  const vec n = __builtin_convertvector(whole, vec);
  const vec f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vec p = splat(1.9875691500e-4f);
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  const ivec power = (whole + 127) << 23;
  vec factor;
  memcpy(&factor, &power, sizeof(factor));
  return vanishes ? splat(0) : p * factor;
}

inline vec capped(vec x, float cap) {  // cap * tanh(x / cap)
  const vec e = exp_of(larger(splat(-30.0f), smaller(splat(30.0f), x * (2.0f / cap))));
  return cap - (2.0f * cap) / (e + 1.0f);
}

}  // namespace
