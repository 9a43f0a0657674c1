// Products of activations with weights [outputs, inputs] as they lie, fp32: no second copy of the weights.
//
// Every result is the same chain of operations: acc = 0; for k in order: acc = fma(x[k], w[k], acc). Neither the rows
// beside it, nor tiles, nor threads, nor the width of vectors change a bit of it.
//   * few rows: weights stream from memory once and are transposed in registers;
//   * more rows: a panel of weights is transposed once into the first-level cache and multiplied with all rows.

#pragma once

#include <utility>

#include "simd.h"

// In every quad of the result: elements i, j, k, l of the same quad of `a` (0 ... 3) and of `b` (LANES ... LANES + 3).
#if LANES == 16
#define QUADS(i, j, k, l) i, j, k, l, i + 4, j + 4, k + 4, l + 4, i + 8, j + 8, k + 8, l + 8, i + 12, j + 12, k + 12, l + 12
#elif LANES == 8
#define QUADS(i, j, k, l) i, j, k, l, i + 4, j + 4, k + 4, l + 4
#else
#define QUADS(i, j, k, l) i, j, k, l
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define IN_QUADS(a, b, i, j, k, l) __builtin_shufflevector(a, b, QUADS(i, j, k, l))
#else
#define IN_QUADS(a, b, i, j, k, l) __builtin_shuffle(a, b, ivec{QUADS(i, j, k, l)})
#endif

namespace {

constexpr int kPanel = 2 * LANES;   // outputs side by side
constexpr int kDepth = 320;         // most inputs of a panel at once: 20 KB with 8 lanes
constexpr int kFewRows = 4;         // beyond, transposing into the cache pays
constexpr int kTileRows = LANES == 16 ? 12 : 6;  // rows multiplied at once: two sums each in registers, AVX-512 has 32
constexpr int kResident = 1 << 16;  // floats of activations that stay in the second-level cache

inline quad quad_at(const float* p) {
  quad q;
  memcpy(&q, p, sizeof(q));
  return q;
}

// Four consecutive floats of rows 0, 4, 8, ... side by side.
inline vec every_fourth(const float* const* rows, int64_t at) {
#if LANES == 8 && (defined(__clang__) || __GNUC__ >= 12)
  return __builtin_shufflevector(quad_at(rows[0] + at), quad_at(rows[4] + at), 0, 1, 2, 3, 4, 5, 6, 7);
#elif LANES == 16 && (defined(__clang__) || __GNUC__ >= 12)
  const auto low = __builtin_shufflevector(quad_at(rows[0] + at), quad_at(rows[4] + at), 0, 1, 2, 3, 4, 5, 6, 7);
  const auto high = __builtin_shufflevector(quad_at(rows[8] + at), quad_at(rows[12] + at), 0, 1, 2, 3, 4, 5, 6, 7);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  vec all;
  for (int i = 0; i < LANES / 4; i++) memcpy(reinterpret_cast<float*>(&all) + 4 * i, rows[4 * i] + at, sizeof(quad));
  return all;
#endif
}

// columns[j][r] = rows[r][at + j] for four j and LANES rows.
inline void columns_of(const float* const* rows, int64_t at, vec* columns) {
  const vec a = every_fourth(rows, at), b = every_fourth(rows + 1, at);
  const vec c = every_fourth(rows + 2, at), d = every_fourth(rows + 3, at);
  const vec ab = IN_QUADS(a, b, 0, LANES, 1, LANES + 1), AB = IN_QUADS(a, b, 2, LANES + 2, 3, LANES + 3);
  const vec cd = IN_QUADS(c, d, 0, LANES, 1, LANES + 1), CD = IN_QUADS(c, d, 2, LANES + 2, 3, LANES + 3);
  columns[0] = IN_QUADS(ab, cd, 0, 1, LANES, LANES + 1);
  columns[1] = IN_QUADS(ab, cd, 2, 3, LANES + 2, LANES + 3);
  columns[2] = IN_QUADS(AB, CD, 0, 1, LANES, LANES + 1);
  columns[3] = IN_QUADS(AB, CD, 2, 3, LANES + 2, LANES + 3);
}

// The same for fewer than four j.
inline void last_columns(const float* const* rows, int64_t at, int count, vec* columns) {
  for (int j = 0; j < count; j++)
    for (int r = 0; r < LANES; r++) columns[j][r] = rows[r][at + j];
}

// Calls visit(k, low, high) for every k in order: column k of a panel's weights.
template <typename Visit>
inline void each_column(const float* const* weights, int depth, Visit visit) {
  vec low[4], high[4];
  int k = 0;
  for (; k + 4 <= depth; k += 4) {
    columns_of(weights, k, low);
    columns_of(weights + LANES, k, high);
    for (int j = 0; j < 4; j++) visit(k + j, low[j], high[j]);
  }
  if (k == depth) return;
  last_columns(weights, k, depth - k, low);
  last_columns(weights + LANES, k, depth - k, high);
  for (int j = 0; k + j < depth; j++) visit(k + j, low[j], high[j]);
}

// out[c][0 .. kPanel) for C rows of x: weights go from memory into the sums.
template <int C>
void multiply_few(const float* const* weights, const float* x, int64_t stride, int depth, float* out, int64_t out_stride) {
  vec sums[C][2] = {};
  each_column(weights, depth, [&](int k, vec low, vec high) {
    for (int c = 0; c < C; c++) {
      const float a = x[c * stride + k];
      sums[c][0] += a * low;
      sums[c][1] += a * high;
    }
  });
  for (int c = 0; c < C; c++) {
    store(out + c * out_stride, sums[c][0]);
    store(out + c * out_stride + LANES, sums[c][1]);
  }
}

void transpose_panel(const float* const* weights, int depth, float* panel) {
  each_column(weights, depth, [&](int k, vec low, vec high) {
    store(panel + k * kPanel, low);
    store(panel + k * kPanel + LANES, high);
  });
}

// Goes on with out[c][0 .. kPanel) for C rows of x and `depth` inputs. `next` are the weights that come after these:
// they are fetched meanwhile.
template <int C>
void multiply_panel(const float* panel, const float* x, int64_t stride, int depth, float* out, int64_t out_stride,
                    bool is_first, const float* const* next) {
  vec sums[C][2] = {};
  if (!is_first)
    for (int c = 0; c < C; c++) {
      sums[c][0] = load(out + c * out_stride);
      sums[c][1] = load(out + c * out_stride + LANES);
    }
  for (int k = 0; k < depth; k++) {
    const vec low = load(panel + k * kPanel), high = load(panel + k * kPanel + LANES);
    if (next) __builtin_prefetch(next[k % kPanel] + k / kPanel * 16, 0, 2);
    for (int c = 0; c < C; c++) {
      const float a = x[c * stride + k];
      sums[c][0] += a * low;
      sums[c][1] += a * high;
    }
  }
  for (int c = 0; c < C; c++) {
    store(out + c * out_stride, sums[c][0]);
    store(out + c * out_stride + LANES, sums[c][1]);
  }
}

using Few = void (*)(const float* const*, const float*, int64_t, int, float*, int64_t);
using Many = void (*)(const float*, const float*, int64_t, int, float*, int64_t, bool, const float* const*);
constexpr Few kFew[kFewRows + 1] = {nullptr, multiply_few<1>, multiply_few<2>, multiply_few<3>, multiply_few<4>};

struct ManyByRows {
  Many of[kTileRows + 1];
};

template <int... C>
constexpr ManyByRows many_by_rows(std::integer_sequence<int, C...>) {
  return {{nullptr, multiply_panel<C + 1>...}};
}

constexpr ManyByRows kMany = many_by_rows(std::make_integer_sequence<int, kTileRows>{});

// Weights of the outputs from `output` on; the last one stands in for those beyond `num_outputs`.
inline void place_panel(const float* weights, int inputs, int output, int num_outputs, int64_t at, const float** rows) {
  for (int i = 0; i < kPanel; i++) {
    const int row = output + i < num_outputs ? output + i : num_outputs - 1;
    rows[i] = weights + (int64_t)row * inputs + at;
  }
}

// Inputs of a panel at once, so that all parts are about as large.
inline int even_part(int inputs) {
  const int parts = (inputs + kDepth - 1) / kDepth;
  return ((inputs + parts - 1) / parts + 3) / 4 * 4;
}

// One panel at `depth` inputs from `at` on, for all rows.
void advance_panel(const float* const* rows, const float* const* next, const float* x, int num_rows, int inputs, int at,
                   int depth, float* out, int64_t out_stride) {
  alignas(64) float panel[kPanel * kDepth];
  transpose_panel(rows, depth, panel);
  for (int c = 0; c < num_rows; c += kTileRows) {
    const int count = num_rows - c < kTileRows ? num_rows - c : kTileRows;
    kMany.of[count](panel, x + (int64_t)c * inputs + at, inputs, depth, out + c * out_stride, out_stride, at == 0,
                 c ? nullptr : next);
  }
}

// out[rows][outputs] = x[rows][inputs] . weights[outputs][inputs]. `out_stride` is a multiple of kPanel: sums beyond
// `outputs` are written and mean nothing.
void multiply(const float* weights, int outputs, int inputs, const float* x, int num_rows, float* out, int64_t out_stride) {
  const float *rows[kPanel], *next[kPanel];
  if (num_rows <= kFewRows) {
    for (int n = 0; n < outputs; n += kPanel) {
      place_panel(weights, inputs, n, outputs, 0, rows);
      kFew[num_rows](rows, x, inputs, inputs, out + n, out_stride);
    }
    return;
  }
  const int depth = even_part(inputs);
  const bool is_small = (int64_t)num_rows * inputs <= kResident;  // then weights are best read along their rows
  const int outer = is_small ? outputs : inputs, inner = is_small ? inputs : outputs;
  const int outer_step = is_small ? kPanel : depth, inner_step = is_small ? depth : kPanel;
  for (int i = 0; i < outer; i += outer_step)
    for (int j = 0; j < inner; j += inner_step) {
      const int n = is_small ? i : j, k = is_small ? j : i;
      const bool is_last = j + inner_step >= inner;
      const int next_n = is_last ? (is_small ? n + kPanel : 0) : (is_small ? n : n + kPanel);
      const int next_k = is_last ? (is_small ? 0 : k + depth) : (is_small ? k + depth : k);
      place_panel(weights, inputs, n, outputs, k, rows);
      place_panel(weights, inputs, next_n, outputs, next_k < inputs ? next_k : 0, next);
      advance_panel(rows, next, x, num_rows, inputs, k, inputs - k < depth ? inputs - k : depth, out + n, out_stride);
    }
}

}  // namespace
