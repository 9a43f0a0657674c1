// Element types of cached keys and values: read as vectors of floats, written with a scale for each token and head.

#pragma once

#include "simd.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

struct Float8 {  // e4m3 without infinities: sign, 4 bits of exponent (bias 7), 3 bits of mantissa
  uint8_t bits;
};

// Compilers convert short vectors of bytes one by one, so there are instructions for the CPUs that matter most.
#if defined(__AVX512F__) && defined(__F16C__)

inline vec load(const int8_t* p) {
  return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}

inline vec load(const Float8* p) {
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)), 7);
  return (vec)_mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((short)0xbfff)));
}

constexpr float kFloat8Unit = 256;  // half precision's exponent has a larger bias

#elif defined(__AVX2__) && defined(__F16C__)

inline vec load(const int8_t* p) {
  return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}

inline vec load(const Float8* p) {
  const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)p)), 7);
  return (vec)_mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16((short)0xbfff)));
}

constexpr float kFloat8Unit = 256;  // half precision's exponent has a larger bias

#else

typedef int8_t byte_lanes __attribute__((vector_size(LANES), aligned(1)));
typedef uint8_t ubyte_lanes __attribute__((vector_size(LANES), aligned(1)));

inline vec load(const int8_t* p) {
  return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const byte_lanes*>(p), ivec), vec);
}

inline vec load(const Float8* p) {
  const ivec bits = __builtin_convertvector(*reinterpret_cast<const ubyte_lanes*>(p), ivec);
  const ivec magnitude = bits & 0x7f;
  const ivec normal = (magnitude << 20) + (120 << 23);  // the exponent with the bias of float32
  const vec subnormal = __builtin_convertvector(magnitude, vec) * (1.0f / 512);
  ivec small;
  memcpy(&small, &subnormal, sizeof(small));
  const ivec value = (magnitude < 8 ? small : normal) | (bits & 0x80) << 24;
  vec result;
  memcpy(&result, &value, sizeof(result));
  return result;
}

constexpr float kFloat8Unit = 1;

#endif

// What `load` is multiplied with beside the scale, and whether there is a scale.
template <typename E>
struct Element;
template <>
struct Element<float> {
  static constexpr bool scaled = false;
  static constexpr float unit = 1, largest = 0;
};
template <>
struct Element<int8_t> {
  static constexpr bool scaled = true;
  static constexpr float unit = 1, largest = 127;
};
template <>
struct Element<Float8> {
  static constexpr bool scaled = true;
  static constexpr float unit = kFloat8Unit, largest = 448;
};

inline void put(float x, int8_t* to) { *to = (int8_t)lrintf(x); }

inline void put(float x, Float8* to) {  // to the nearest, ties to even; |x| is at most 448 and a rounding error
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  uint32_t code;
  if (magnitude < 121u << 23) {  // below 2^-6: steps of 2^-9
    code = (uint32_t)lrintf(fabsf(x) * 512);
  } else {
    code = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
    code = code < 0x7e ? code : 0x7e;
  }
  to->bits = (uint8_t)(sign | code);
}

constexpr float kVanishing = 1e-30f;  // rows whose largest element is below are stored as zeros

// `width` floats as elements and their scale. A row with NaN or infinity gets the scale NaN.
template <typename E>
inline void quantise(const float* from, int width, E* to, float* scale) {
  float top = 0, poison = 0;
  for (int d = 0; d < width; d++) {
    top = fmaxf(top, fabsf(from[d]));
    poison += from[d] * 0.0f;
  }
  const float most = Element<E>::largest, factor = top < kVanishing ? 0.0f : most / top;
  *scale = top < kVanishing ? poison : top / most + poison;
  if (poison != 0.0f) {  // NaN
    memset(to, 0, width * sizeof(E));
    return;
  }
  for (int d = 0; d < width; d++) put(from[d] * factor, to + d);
}

inline void quantise(const float* from, int width, float* to, float*) { memcpy(to, from, sizeof(float) * width); }

template <typename E>
inline void expand(const E* from, float scale, int width, float* to) {
  scale *= Element<E>::unit;
  for (int d = 0; d < width; d += LANES) store(to + d, load(from + d) * scale);
}

}  // namespace
