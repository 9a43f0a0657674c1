// Causal attention over paged keys and values, for any CPU with a C++17 compiler. Plain C ABI, no library needed.
//
// A row is one sequence of the step: its new tokens attend to everything before them. The step's keys and values are
// written first, as elements of the pool's type, and read from there like any others. Two ways through the same online
// softmax:
//   * few query rows per key head (decode): keys stream once from memory, all heads side by side, dot products;
//   * many (prefill, rows that share a prefix): a tile of keys is transposed once, then multiplied in registers.
// Tasks are tokens × heads × a range of keys. Ranges are split where threads would idle, and where rows of the step have
// the same blocks in front: those are read once for all of them. What one token gets from several tasks is folded
// together by maxima and sums.
// In fixed order there is only the second way, over tiles and splits at fixed positions of the sequence, folded from
// left to right: what a row gets does not depend on its neighbours, on the chunk it came in, or on threads.
// Only keys of a row's own tokens inside its window are read: other slots may hold anything, and tables name none there.

#include "paged_attention.h"

#include <algorithm>

#include "kv_elements.h"
#include "row_shares.h"
#include "team.h"

// Used by all element types: compiled once, and to the same instructions wherever it is called.
#define SEPARATE __attribute__((noinline))

namespace {

constexpr int kKeyTile = 64;      // keys per tile of the many-rows way
constexpr int kStreamTile = 32;   // keys per tile of the few-rows way
constexpr int kQueryRows = 96;    // query rows per task of the many-rows way: 4 tiles of 64 x 64 floats stay in cache
constexpr int kQueryFloats = 96 * 256;  // the same for wide heads
constexpr int kMaxWidth = 1024;
constexpr int kManyRows = 12;     // rows from which on transposing keys pays, for several tokens
constexpr int kManyHeads = 24;    // the same for one token, whose keys come from memory and not from the cache
constexpr int kMinChunk = 256;    // keys; below that folding costs more than an idle thread
constexpr int kSplit = 256;       // keys between two splits in fixed order; whole tiles
constexpr int kTasksPerThread = 4;
constexpr int kReading = 6;       // query rows whose arithmetic takes as long as reading a key: an estimate for balance
alignas(64) const float kZeros[kMaxWidth] = {};

struct Task {
  int32_t list, count;          // its tokens: `order[list .. list + count)`
  int32_t row;                  // whose block table is read
  int32_t head_low, head_high;  // query heads
  int32_t key_low, key_high;    // positions
  int32_t part;                 // which of its tokens' partial results it makes
  int32_t many;
};

struct Token {
  int32_t row, position;
  int32_t num_parts;  // 1: its task writes the output itself
  int32_t first_part;
};

// In front of the workspace: what the threads share.
struct Plan {
  int32_t num_tasks, next_task;
  int32_t num_parts;  // partial results of all tokens
};

struct Context {
  const Step& step;
  const Layer& layer;
  int group;           // query heads per key head
  int heads_per_task;  // query heads of a task of the many-rows way, all of one key head
  int tokens_per_task;
  int64_t state;       // floats of one query row's running result: maximum, sum, value_width values

  const int32_t* table(int row) const { return step.tables + step.table_starts[row]; }
  int num_tokens(int row) const { return step.row_starts[row + 1] - step.row_starts[row]; }
  int history(int row) const { return step.lengths[row] - num_tokens(row); }
  int first_key(int position) const {
    return layer.window > 0 && position >= layer.window ? position - layer.window + 1 : 0;
  }
  bool shares() const { return step.num_shares > 0 && !step.fixed_order && layer.window == 0; }
  int tokens_of_share(int share) const {
    int count = 0;
    for (int i = step.share_starts[share]; i < step.share_starts[share + 1]; i++) count += num_tokens(step.share_rows[i]);
    return count;
  }
  bool is_many(int tokens) const {
    return step.fixed_order || tokens * group >= (tokens > 1 ? kManyRows : kManyHeads);
  }
};

// ---- softmax as it goes -----------------------------------------------------------------------------------------

// One query row's scores of `count` keys, in place, become weights; updates its running maximum and sum. Returns the
// factor for what was accumulated before. Scores from `count` up to the next full vector are ignored.
SEPARATE float soften(float* scores, int count, float softcap, float& maximum, float& sum) {
  const int padded = (count + LANES - 1) / LANES * LANES;
  if (softcap > 0)
    for (int j = 0; j < padded; j += LANES) {
      const vec s = load(scores + j);
      store(scores + j, s == splat(-INFINITY) ? s : capped(s, softcap));
    }
  for (int j = count; j < padded; j++) scores[j] = -INFINITY;
  vec top = load(scores);
  for (int j = LANES; j < padded; j += LANES) top = larger(top, load(scores + j));
  const float highest = max_of(top);
  const float next = highest > maximum ? highest : maximum;
  if (highest == -INFINITY && maximum == -INFINITY) {  // all masked so far
    for (int j = 0; j < padded; j += LANES) store(scores + j, splat(0));
    return 1.0f;
  }
  vec total = splat(0);
  for (int j = 0; j < padded; j += LANES) {
    const vec weight = exp_of(load(scores + j) - next);
    store(scores + j, weight);
    total += weight;
  }
  const float factor = maximum == -INFINITY ? 0.0f : expf(maximum - next);
  sum = sum * factor + sum_of(total);
  maximum = next;
  return factor;
}

void empty(float* state, int64_t floats) {
  memset(state, 0, sizeof(float) * floats);
  state[0] = -INFINITY;
}

// Adds the result of further keys to a running one.
SEPARATE void fold(float* state, const float* more, int64_t floats) {
  const float next = more[0] > state[0] ? more[0] : state[0];
  const float kept = state[0] == -INFINITY ? 0.0f : expf(state[0] - next);
  const float added = more[0] == -INFINITY ? 0.0f : expf(more[0] - next);
  state[0] = next;
  for (int64_t i = 1; i < floats; i++) state[i] = state[i] * kept + more[i] * added;
}

// Lets the sink take its weight, divides, and writes the output of one token and head.
SEPARATE void finish(const Context& c, float* state, int token, int head) {
  const Layer& l = c.layer;
  if (l.sinks) {
    const float next = l.sinks[head] > state[0] ? l.sinks[head] : state[0];
    const float kept = expf(state[0] - next);
    state[1] = state[1] * kept + expf(l.sinks[head] - next);
    for (int d = 0; d < l.value_width; d++) state[2 + d] *= kept;
  }
  float* out = l.out + ((int64_t)token * l.num_query_heads + head) * l.value_width;
  for (int d = 0; d < l.value_width; d++) out[d] = state[2 + d] / state[1];
}

// ---- query rows and tiles of keys -------------------------------------------------------------------------------

struct QueryRow {
  const float* query;
  int first, position;  // the keys that it may read
  int token, head;
};

inline QueryRow query_row(const Context& c, const Task& task, const int32_t* order, const Token* tokens, int index,
                          int head) {
  const int token = order[task.list + index], position = tokens[token].position;
  const float* query = c.layer.query + token * c.layer.query_token_stride + head * c.layer.query_head_stride;
  return QueryRow{query, c.first_key(position), position, token, head};
}

// Hides the keys base + j that the query must not read.
inline void hide(const QueryRow& row, int base, int count, float* scores) {
  for (int j = 0; j < count && base + j < row.first; j++) scores[j] = -INFINITY;
  for (int j = row.position < base ? 0 : row.position - base + 1; j < count; j++) scores[j] = -INFINITY;
}

template <typename E>
struct Tile {
  int base, skip, count;  // keys at positions base + skip to base + count
  const E *keys[kKeyTile], *values[kKeyTile];  // of the first key head
  const float *key_scales[kKeyTile], *value_scales[kKeyTile];
};

// Keys are read by fours: the last one stands in for more. Skipped ones have no place.
template <typename E>
inline void place_tile(const Context& c, int row, int base, int low, int high, int size, Tile<E>& tile) {
  const Layer& l = c.layer;
  const int64_t key_step = (int64_t)l.num_kv_heads * l.key_width;
  const int64_t value_step = l.values ? (int64_t)l.num_kv_heads * l.value_width : key_step;
  const char* all_values = (const char*)(l.values ? l.values : l.keys);
  const char* all_value_scales = (const char*)(l.values ? l.value_scales : l.key_scales);
  tile.base = base;
  tile.skip = low > base ? low - base : 0;
  tile.count = high - base < size ? high - base : size;
  const int32_t* table = c.table(row);
  int block = (base + tile.skip) / c.step.block_size, offset = (base + tile.skip) % c.step.block_size;
  int64_t start = table[block] * l.block_stride;
  for (int j = tile.skip; j < tile.count; j++) {
    tile.keys[j] = (const E*)((const char*)l.keys + start) + offset * key_step;
    tile.values[j] = (const E*)(all_values + start) + offset * value_step;
    if (Element<E>::scaled) {
      tile.key_scales[j] = (const float*)((const char*)l.key_scales + start) + offset * l.num_kv_heads;
      tile.value_scales[j] = (const float*)(all_value_scales + start) + offset * l.num_kv_heads;
    }
    if (++offset == c.step.block_size && j + 1 < tile.count) {
      offset = 0;
      start = table[++block] * l.block_stride;
    }
  }
  for (int j = tile.count; j < (tile.count + 3) / 4 * 4; j++) {
    tile.keys[j] = tile.keys[tile.count - 1];
    tile.values[j] = tile.values[tile.count - 1];
    if (Element<E>::scaled) {
      tile.key_scales[j] = tile.key_scales[tile.count - 1];
      tile.value_scales[j] = tile.value_scales[tile.count - 1];
    }
  }
}

// ---- few query rows: keys are read as they lie -------------------------------------------------------------------

// Scores of 4 keys for R query heads.
template <int R, typename E>
inline void dots(const E* const* keys, const float* const* queries, int width, float* scores) {
  vec sums[R][4] = {};
  for (int d = 0; d < width; d += LANES) {
    vec q[R];  // with these, 12 sums and a key all of 16 registers are used
    for (int r = 0; r < R; r++) q[r] = load(queries[r] + d);
    for (int i = 0; i < 4; i++) {
      const vec key = load(keys[i] + d);
      for (int r = 0; r < R; r++) sums[r][i] += q[r] * key;
    }
  }
  for (int r = 0; r < R; r++) {
    const quad result = sums_of_4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    memcpy(scores + r * kStreamTile, &result, sizeof(result));
  }
}

// acc[r][0 .. C*LANES) = acc[r] * factors[r] + sum over keys of weights[r][j] * values[j].
template <int R, int C, typename E>
inline void weigh(float* const* acc, const float* factors, const float* weights, const E* const* values, int count,
                  int64_t at, int d) {
  vec sums[R][C];
  for (int r = 0; r < R; r++)
    for (int i = 0; i < C; i++) sums[r][i] = load(acc[r] + d + i * LANES) * factors[r];
  for (int j = 0; j < count; j++) {
    const E* value = values[j] + at + d;
    for (int i = 0; i < C; i++) {
      const vec v = load(value + i * LANES);
      for (int r = 0; r < R; r++) sums[r][i] += weights[r * kStreamTile + j] * v;
    }
  }
  for (int r = 0; r < R; r++)
    for (int i = 0; i < C; i++) store(acc[r] + d + i * LANES, sums[r][i]);
}

// Reads one element of every cache line of what a tile's keys, or values, are: in the order in which they lie, which a
// CPU looks ahead in. Heads take their parts in leaps, for which it would be waited again and again.
template <typename E>
inline void touch(const E* const* places, int count, int64_t width) {
  constexpr int64_t kLine = 64 / sizeof(E);
  for (int j = 0; j < count; j++)
    for (int64_t d = 0; d < width; d += kLine) (void)*(const volatile E*)(places[j] + d);
}

template <int R, typename E>
inline void attend_rows(const Context& c, const Tile<E>& tile, int key_head, const QueryRow* rows, float* const* states) {
  const Layer& l = c.layer;
  const int64_t key_at = (int64_t)key_head * l.key_width, value_at = l.values ? (int64_t)key_head * l.value_width : key_at;
  float scores[R * kStreamTile], factors[R];
  const float* queries[R];
  float* acc[R];
  for (int r = 0; r < R; r++) queries[r] = rows[r].query;
  for (int j = 0; j < tile.count; j += 4) {
    const E* four[4] = {tile.keys[j] + key_at, tile.keys[j + 1] + key_at, tile.keys[j + 2] + key_at,
                        tile.keys[j + 3] + key_at};
    dots<R>(four, queries, l.key_width, scores + j);
  }
  float factors_of_keys[kStreamTile];
  for (int j = 0; j < tile.count; j++)
    factors_of_keys[j] = Element<E>::scaled ? l.scaling * Element<E>::unit * tile.key_scales[j][key_head] : l.scaling;
  for (int r = 0; r < R; r++) {
    float* weights = scores + r * kStreamTile;
    for (int j = 0; j < tile.count; j++) weights[j] *= factors_of_keys[j];
    hide(rows[r], tile.base, tile.count, weights);
    factors[r] = soften(weights, tile.count, l.softcap, states[r][0], states[r][1]);
    acc[r] = states[r] + 2;
    if (Element<E>::scaled)
      for (int j = 0; j < tile.count; j++) weights[j] *= Element<E>::unit * tile.value_scales[j][key_head];
  }
  int d = 0;
  if (!Element<E>::scaled)  // memory is read in longer pieces, which is worth more than loading each value once
    for (; d + 8 * LANES <= l.value_width; d += 8 * LANES)
      for (int r = 0; r < R; r++)
        weigh<1, 8>(acc + r, factors + r, scores + r * kStreamTile, tile.values, tile.count, value_at, d);
  for (; d + 4 * LANES <= l.value_width; d += 4 * LANES)
    weigh<R, 4>(acc, factors, scores, tile.values, tile.count, value_at, d);
  for (; d < l.value_width; d += LANES) weigh<R, 1>(acc, factors, scores, tile.values, tile.count, value_at, d);
}

// Results of all query rows of a task, [count, query heads of the task].
template <typename E>
void attend_few(const Context& c, const Task& task, const int32_t* order, const Token* tokens, float* states) {
  const int heads = task.head_high - task.head_low, rows = task.count * c.group;
  Tile<E> tile;
  for (int base = task.key_low; base < task.key_high; base += kStreamTile) {
    place_tile(c, task.row, base, base, task.key_high, kStreamTile, tile);
    touch(tile.keys, tile.count, (int64_t)c.layer.num_kv_heads * c.layer.key_width);
    if (c.layer.values) touch(tile.values, tile.count, (int64_t)c.layer.num_kv_heads * c.layer.value_width);
    for (int first = task.head_low; first < task.head_high; first += c.group)
      for (int r = 0; r < rows;) {
        const int some = rows - r < 3 ? 1 : 3;
        QueryRow queries[3];
        float* running[3];
        for (int i = 0; i < some; i++) {
          const int index = (r + i) / c.group, head = first + (r + i) % c.group;
          queries[i] = query_row(c, task, order, tokens, index, head);
          running[i] = states + ((int64_t)index * heads + head - task.head_low) * c.state;
        }
        const int key_head = first / c.group;
        if (some == 3) attend_rows<3>(c, tile, key_head, queries, running);
        else attend_rows<1>(c, tile, key_head, queries, running);
        r += some;
      }
  }
}

// ---- many query rows: keys are transposed -----------------------------------------------------------------------

// scores[r][0 .. 2*LANES) = queries[r] . keys, the keys lying as columns.
template <int R>
inline void score_panel(const float* queries, int width, const float* columns, float* scores) {
  vec sums[R][2] = {};
  for (int d = 0; d < width; d++) {
    const vec k0 = load(columns + d * kKeyTile), k1 = load(columns + d * kKeyTile + LANES);
    for (int r = 0; r < R; r++) {
      const float q = queries[r * width + d];
      sums[r][0] += q * k0;
      sums[r][1] += q * k1;
    }
  }
  for (int r = 0; r < R; r++) {
    store(scores + r * kKeyTile, sums[r][0]);
    store(scores + r * kKeyTile + LANES, sums[r][1]);
  }
}

// acc[r][0 .. C*LANES) += sum over keys of weights[r][j] * values[j].
template <int R, int C>
inline void value_panel(const float* weights, const float* const* values, int count, int64_t at, float* acc,
                        int64_t stride) {
  vec sums[R][C];
  for (int r = 0; r < R; r++)
    for (int i = 0; i < C; i++) sums[r][i] = load(acc + r * stride + i * LANES);
  for (int j = 0; j < count; j++) {
    const float* value = values[j] + at;
    vec v[C];
    for (int i = 0; i < C; i++) v[i] = load(value + i * LANES);
    for (int r = 0; r < R; r++)
      for (int i = 0; i < C; i++) sums[r][i] += weights[r * kKeyTile + j] * v[i];
  }
  for (int r = 0; r < R; r++)
    for (int i = 0; i < C; i++) store(acc + r * stride + i * LANES, sums[r][i]);
}

template <int R>
SEPARATE void multiply(const float* queries, int width, const float* columns, int count, float* scores) {
  for (int j = 0; j < count; j += 2 * LANES) score_panel<R>(queries, width, columns + j, scores + j);
}

template <int R>
SEPARATE void accumulate(const float* weights, const float* const* values, int count, int width, float* acc, int64_t stride) {
  int d = 0;
  for (; d + 2 * LANES <= width; d += 2 * LANES) value_panel<R, 2>(weights, values, count, d, acc + d, stride);
  if (d < width) value_panel<R, 1>(weights, values, count, d, acc + d, stride);
}

inline void transpose_4(const float* const* keys, int64_t at, float* columns) {
  quad k[4];
  for (int i = 0; i < 4; i++) memcpy(&k[i], keys[i] + at, sizeof(quad));
  const quad a = SHUFFLE(k[0], k[1], 0, 4, 1, 5), b = SHUFFLE(k[2], k[3], 0, 4, 1, 5);
  const quad c = SHUFFLE(k[0], k[1], 2, 6, 3, 7), d = SHUFFLE(k[2], k[3], 2, 6, 3, 7);
  const quad rows[4] = {SHUFFLE(a, b, 0, 1, 4, 5), SHUFFLE(a, b, 2, 3, 6, 7), SHUFFLE(c, d, 0, 1, 4, 5),
                        SHUFFLE(c, d, 2, 3, 6, 7)};
  for (int i = 0; i < 4; i++) memcpy(columns + i * kKeyTile, &rows[i], sizeof(quad));
}

SEPARATE void transpose(const float* const* keys, int count, int width, float* columns) {
  for (int d = 0; d < width; d += 4)
    for (int j = 0; j < count; j += 4) transpose_4(keys + j, d, columns + d * kKeyTile + j);
}

// A tile's keys and values of one head as floats.
struct FloatTile {
  const float *keys[kKeyTile], *values[kKeyTile];
};

inline void as_floats(const Context& c, const Tile<float>& tile, int key_head, float*, FloatTile& out) {
  const int64_t key_at = (int64_t)key_head * c.layer.key_width;
  const int64_t value_at = c.layer.values ? (int64_t)key_head * c.layer.value_width : key_at;
  for (int j = tile.skip; j < (tile.count + 3) / 4 * 4; j++) {
    out.keys[j] = tile.keys[j] + key_at;
    out.values[j] = tile.values[j] + value_at;
  }
}

template <typename E>
inline void as_floats(const Context& c, const Tile<E>& tile, int key_head, float* scratch, FloatTile& out) {
  const Layer& l = c.layer;
  for (int j = tile.skip; j < (tile.count + 3) / 4 * 4; j++) {
    float* key = scratch + (int64_t)j * l.key_width;
    expand(tile.keys[j] + (int64_t)key_head * l.key_width, tile.key_scales[j][key_head], l.key_width, key);
    out.keys[j] = out.values[j] = key;
    if (!l.values) continue;
    float* value = scratch + (int64_t)kKeyTile * l.key_width + (int64_t)j * l.value_width;
    expand(tile.values[j] + (int64_t)key_head * l.value_width, tile.value_scales[j][key_head], l.value_width, value);
    out.values[j] = value;
  }
}

// Memory of one thread, in floats.
struct Scratch {
  int64_t states, folded, queries, columns, scores, tile, total;

  Scratch(const Context& c) {
    const Layer& l = c.layer;
    const int64_t many = (int64_t)c.tokens_per_task * c.heads_per_task, few = (int64_t)kManyRows * l.num_query_heads;
    int64_t at = 0;
    states = take(at, std::max(many, few) * c.state);
    folded = take(at, c.step.fixed_order ? many * c.state : c.state);
    queries = take(at, many * l.key_width);
    columns = take(at, (int64_t)l.key_width * kKeyTile);
    scores = take(at, many * kKeyTile);
    tile = take(at, l.element == STEMCACHE_FLOAT32 ? 0 : (int64_t)kKeyTile * (l.key_width + l.value_width));
    total = at;
  }
  static int64_t take(int64_t& at, int64_t floats) {
    const int64_t place = at;
    at += (floats + 15) / 16 * 16;  // whole cache lines
    return place;
  }
};

// Results of all query rows of a task, [count, query heads of the task], which belong to one key head.
template <typename E>
void attend_many(const Context& c, const Task& task, const int32_t* order, const Token* tokens, const Scratch& at,
                 float* memory) {
  const Layer& l = c.layer;
  const int heads = task.head_high - task.head_low, rows = task.count * heads, key_head = task.head_low / c.group;
  float *states = memory + at.states, *folded = memory + at.folded, *queries = memory + at.queries;
  float *columns = memory + at.columns, *scores = memory + at.scores;
  QueryRow list[kQueryRows];
  for (int r = 0; r < rows; r++) {
    list[r] = query_row(c, task, order, tokens, r / heads, task.head_low + r % heads);
    for (int d = 0; d < l.key_width; d++) queries[r * l.key_width + d] = list[r].query[d] * l.scaling;
    if (c.step.fixed_order) empty(folded + r * c.state, c.state);
  }
  memset(columns, 0, sizeof(float) * l.key_width * kKeyTile);
  Tile<E> tile;
  FloatTile floats;
  for (int base = c.step.fixed_order ? task.key_low / kKeyTile * kKeyTile : task.key_low; base < task.key_high;
       base += kKeyTile) {
    place_tile(c, task.row, base, task.key_low, task.key_high, kKeyTile, tile);
    as_floats(c, tile, key_head, memory + at.tile, floats);
    for (int j = 0; j < tile.skip; j++) floats.keys[j] = floats.values[j] = kZeros;
    transpose(floats.keys, tile.count, l.key_width, columns);
    int r = 0;
    for (; r + 6 <= rows; r += 6)
      multiply<6>(queries + r * l.key_width, l.key_width, columns, tile.count, scores + r * kKeyTile);
    for (; r + 3 <= rows; r += 3)
      multiply<3>(queries + r * l.key_width, l.key_width, columns, tile.count, scores + r * kKeyTile);
    for (; r < rows; r++)
      multiply<1>(queries + r * l.key_width, l.key_width, columns, tile.count, scores + r * kKeyTile);
    for (r = 0; r < rows; r++) {
      float* state = states + r * c.state;
      hide(list[r], base, tile.count, scores + r * kKeyTile);
      const float factor = soften(scores + r * kKeyTile, tile.count, l.softcap, state[0], state[1]);
      if (factor != 1.0f)
        for (int d = 0; d < l.value_width; d += LANES) store(state + 2 + d, load(state + 2 + d) * factor);
    }
    float* acc = states + 2;
    r = 0;
    for (; r + 6 <= rows; r += 6)
      accumulate<6>(scores + r * kKeyTile, floats.values, tile.count, l.value_width, acc + r * c.state, c.state);
    for (; r + 3 <= rows; r += 3)
      accumulate<3>(scores + r * kKeyTile, floats.values, tile.count, l.value_width, acc + r * c.state, c.state);
    for (; r < rows; r++)
      accumulate<1>(scores + r * kKeyTile, floats.values, tile.count, l.value_width, acc + r * c.state, c.state);
    if (c.step.fixed_order && ((base + kKeyTile) % kSplit == 0 || base + kKeyTile >= task.key_high))
      for (r = 0; r < rows; r++) {
        fold(folded + r * c.state, states + r * c.state, c.state);
        empty(states + r * c.state, c.state);
      }
  }
  if (c.step.fixed_order) memcpy(states, folded, sizeof(float) * rows * c.state);
}

// ---- the plan of one call ---------------------------------------------------------------------------------------

// Decides how ranges of keys are split.
struct Splitter {
  const Context& c;
  int64_t per_task = INT64_MAX;  // query rows times keys
  bool apart = false;            // in fixed order: each split is a task, else a task folds its splits itself

  explicit Splitter(const Context& context) : c(context) {
    const Step& s = c.step;
    if (s.num_threads == 1) return;
    int64_t work = 0, tasks = 0;
    const int64_t tiles_of_heads = (c.group + c.heads_per_task - 1) / c.heads_per_task * c.layer.num_kv_heads;
    for (int row = 0; row < s.num_rows; row++) {
      const int tokens = c.num_tokens(row);
      work += cost(tokens, false) * (s.lengths[row] - c.first_key(c.history(row)));
      tasks += (tokens + c.tokens_per_task - 1) / c.tokens_per_task * tiles_of_heads;
    }
    per_task = std::max<int64_t>(1, work / (s.num_threads * kTasksPerThread));
    apart = tasks < s.num_threads * kTasksPerThread;
  }

  // Of one key, for a task of that many tokens.
  int64_t cost(int tokens, bool many) const {
    return many ? tokens * c.heads_per_task + kReading : c.layer.num_kv_heads * (tokens * c.group + kReading);
  }

  int num_parts(int low, int high, int tokens, bool many) const {
    if (c.step.fixed_order) return apart ? (high - 1) / kSplit - low / kSplit + 1 : 1;
    if (c.step.num_threads == 1) return 1;
    const int64_t parts = ((high - low) * cost(tokens, many) + per_task - 1) / per_task;
    return (int)std::max<int64_t>(1, std::min<int64_t>(parts, (high - low) / kMinChunk));
  }

  // Positions where part `part` of keys [low, high) begins; `part` == `parts` gives the end.
  int bound(int low, int high, int parts, int part) const {
    if (part == 0) return low;
    if (part == parts) return high;
    if (c.step.fixed_order) return (low / kSplit + part) * kSplit;
    return low + (int)((int64_t)(high - low) / kKeyTile * part / parts) * kKeyTile;
  }
};

// Calls visit for the tasks of a list of tokens that read the keys of `task`.
template <typename Visit>
void split(const Context& c, const Splitter& splitter, Task task, int parts, int first_part, Visit visit) {
  const int low = task.key_low, high = task.key_high, heads = c.layer.num_query_heads;
  for (int part = 0; part < parts; part++) {
    task.part = first_part + part;
    task.key_low = splitter.bound(low, high, parts, part);
    task.key_high = splitter.bound(low, high, parts, part + 1);
    const int group = task.many ? c.group : heads, step = task.many ? c.heads_per_task : heads;
    for (int first = 0; first < heads; first += group)
      for (int head = 0; head < group; head += step) {
        task.head_low = first + head;
        task.head_high = first + std::min(head + step, group);
        visit(task);
      }
  }
}

// Calls visit(task) for every task, those of many rows first, and number(token, row, position, parts) for every token.
template <typename Visit, typename Number>
void each_task(const Context& c, Visit visit, Number number) {
  const Step& s = c.step;
  const Splitter splitter(c);
  const auto parts_of_share = [&](int count, int length) {
    const bool many = c.is_many(count);
    return splitter.num_parts(0, length, many ? std::min(count, c.tokens_per_task) : count, many);
  };
  int list = s.num_tokens;  // the tokens of shares follow those of the batch
  for (int share = 0; c.shares() && share < s.num_shares; share++) {
    const int count = c.tokens_of_share(share), length = s.share_lengths[share], parts = parts_of_share(count, length);
    const bool many = c.is_many(count);
    const int step = many ? c.tokens_per_task : count;
    for (int at = 0; at < count; at += step) {
      const Task task{list + at, std::min(step, count - at), s.share_rows[s.share_starts[share]], 0, 0, 0, length, 0, many};
      split(c, splitter, task, parts, 0, visit);
    }
    list += count;
  }
  for (int pass = 0; pass < 2; pass++)
    for (int row = 0; row < s.num_rows; row++) {
      const int start = s.row_starts[row], tokens = c.num_tokens(row), share = c.shares() ? s.row_shares[row] : -1;
      const bool many = c.is_many(tokens);
      if (many != (pass == 0)) continue;
      const int shared = share < 0 ? 0 : s.share_lengths[share], step = many ? c.tokens_per_task : tokens;
      const int before = share < 0 ? 0 : parts_of_share(c.tokens_of_share(share), shared);
      for (int at = 0; at < tokens; at += step) {
        const int some = std::min(step, tokens - at), position = c.history(row) + at;
        const int low = std::max(shared, c.first_key(position)), high = position + some;
        const int parts = splitter.num_parts(low, high, some, many);
        split(c, splitter, Task{start + at, some, row, 0, 0, low, high, 0, many}, parts, before, visit);
        for (int t = 0; t < some; t++) number(start + at + t, row, position + t, before + parts);
      }
    }
}

// The workspace: plan, tokens, lists of tokens, tasks, partial results, memory of each thread.
struct Workspace {
  Plan* plan;
  Token* tokens;
  int32_t* order;
  Task* tasks;
  float* parts;  // [num_parts, query heads, state]
  float* threads;
  int64_t bytes;

  Workspace(const Context& c, const Scratch& scratch, int64_t num_tasks, int64_t num_parts) {
    char* at = (char*)(((uintptr_t)c.layer.workspace + 63) / 64 * 64);
    const char* start = at;
    plan = (Plan*)take(at, sizeof(Plan));
    tokens = (Token*)take(at, sizeof(Token) * c.step.num_tokens);
    order = (int32_t*)take(at, sizeof(int32_t) * 2 * c.step.num_tokens);
    tasks = (Task*)take(at, sizeof(Task) * num_tasks);
    parts = (float*)take(at, sizeof(float) * num_parts * c.layer.num_query_heads * c.state);
    threads = (float*)take(at, sizeof(float) * scratch.total * c.step.num_threads);
    bytes = at - start + 64;
  }
  static char* take(char*& at, int64_t bytes) {
    char* place = at;
    at += (bytes + 63) / 64 * 64;
    return place;
  }
};

// Where everything lies; `counted` are the tasks and partial results of the call.
Workspace measure(const Context& c, const Scratch& scratch, Plan& counted) {
  counted = Plan{};
  each_task(
      c, [&](const Task&) { counted.num_tasks++; },
      [&](int, int, int, int parts) { counted.num_parts += parts > 1 ? parts : 0; });
  return Workspace(c, scratch, counted.num_tasks, counted.num_parts);
}

void make_plan(const Context& c, const Workspace& space, const Plan& counted) {
  const Step& s = c.step;
  *space.plan = counted;
  int num_tasks = 0, num_parts = 0;
  for (int t = 0; t < s.num_tokens; t++) space.order[t] = t;
  int at = s.num_tokens;
  for (int i = 0; c.shares() && i < s.share_starts[s.num_shares]; i++)
    for (int t = s.row_starts[s.share_rows[i]]; t < s.row_starts[s.share_rows[i] + 1]; t++) space.order[at++] = t;
  each_task(
      c, [&](const Task& task) { space.tasks[num_tasks++] = task; },
      [&](int token, int row, int position, int parts) {
        space.tokens[token] = Token{row, position, parts, num_parts};
        num_parts += parts > 1 ? parts : 0;
      });
}

// ---- what threads do --------------------------------------------------------------------------------------------

template <typename E>
void write_token(const Context& c, int t) {
  const Layer& l = c.layer;
  const int64_t block = c.step.token_blocks[t] * l.block_stride, first = c.step.token_offsets[t] * l.num_kv_heads;
  for (int h = 0; h < l.num_kv_heads; h++) {
    E* key = (E*)((char*)l.keys + block) + (first + h) * l.key_width;
    float* scale = Element<E>::scaled ? (float*)((char*)l.key_scales + block) + first + h : nullptr;
    quantise(l.key + t * l.key_token_stride + h * l.key_head_stride, l.key_width, key, scale);
    if (!l.values) continue;
    E* value = (E*)((char*)l.values + block) + (first + h) * l.value_width;
    scale = Element<E>::scaled ? (float*)((char*)l.value_scales + block) + first + h : nullptr;
    quantise(l.value + t * l.value_token_stride + h * l.value_head_stride, l.value_width, value, scale);
  }
}

template <typename E>
void run_task(const Context& c, const Workspace& space, const Scratch& at, const Task& task, float* memory) {
  const int heads = task.head_high - task.head_low, rows = task.count * heads;
  float* states = memory + at.states;
  for (int r = 0; r < rows; r++) empty(states + r * c.state, c.state);
  if (task.many) attend_many<E>(c, task, space.order, space.tokens, at, memory);
  else attend_few<E>(c, task, space.order, space.tokens, states);
  for (int r = 0; r < rows; r++) {
    const int token = space.order[task.list + r / heads], head = task.head_low + r % heads;
    const Token& told = space.tokens[token];
    const int64_t part = (int64_t)(told.first_part + task.part) * c.layer.num_query_heads + head;
    if (told.num_parts == 1) finish(c, states + r * c.state, token, head);
    else memcpy(space.parts + part * c.state, states + r * c.state, sizeof(float) * c.state);
  }
}

void fold_parts(const Context& c, const Workspace& space, int token, float* state) {
  const Token& told = space.tokens[token];
  if (told.num_parts == 1) return;
  for (int head = 0; head < c.layer.num_query_heads; head++) {
    empty(state, c.state);
    for (int part = 0; part < told.num_parts; part++)
      fold(state, space.parts + ((int64_t)(told.first_part + part) * c.layer.num_query_heads + head) * c.state, c.state);
    finish(c, state, token, head);
  }
}

int claim(int32_t& counter) { return __atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED); }

template <typename E>
void attend(const Context& c, Team& team, int thread) {
  const Scratch scratch(c);
  Plan counted;
  const Workspace space = measure(c, scratch, counted);
  for (int t = thread; t < (c.layer.key ? c.step.num_tokens : 0); t += team.size) write_token<E>(c, t);
  if (thread == 0) make_plan(c, space, counted);
  team.wait();
  float* memory = space.threads + scratch.total * thread;
  for (int i = claim(space.plan->next_task); i < counted.num_tasks; i = claim(space.plan->next_task))
    run_task<E>(c, space, scratch, space.tasks[i], memory);
  team.wait();
  if (!counted.num_parts) return;
  for (int t = thread; t < c.step.num_tokens; t += team.size) fold_parts(c, space, t, memory + scratch.folded);
  team.wait();
}

Context context(const Step& step, const Layer& layer) {
  const int group = layer.num_query_heads / layer.num_kv_heads;
  const int rows = std::max(6, std::min(kQueryRows, kQueryFloats / layer.key_width));
  const int heads = std::min(group, rows);
  return Context{step, layer, group, heads, rows / heads, layer.value_width + 2};
}

}  // namespace

extern "C" {

int stemcache_supports(int num_query_heads, int num_kv_heads, int key_width, int value_width) {
  return num_query_heads % num_kv_heads == 0 && key_width % LANES == 0 && key_width <= kMaxWidth &&
         value_width % LANES == 0 && value_width <= kMaxWidth;
}

int64_t stemcache_workspace(const Step* step, const Layer* layer) {
  const Context c = context(*step, *layer);
  Plan counted;
  return measure(c, Scratch(c), counted).bytes;
}

int stemcache_shares(const Step* step, int32_t* scratch, int32_t* row_shares, int32_t* share_starts, int32_t* share_rows,
                     int32_t* share_lengths) {
  int num_shares = 0, num_members = 0;
  std::fill(row_shares, row_shares + step->num_rows, -1);
  share_starts[0] = 0;
  const int rows = step->num_rows;
  Sharing(*step, scratch, scratch + rows, scratch + 2 * rows).each([&](const int32_t* members, int count, int blocks) {
    for (int i = 0; i < count; i++) row_shares[members[i]] = num_shares;
    std::copy(members, members + count, share_rows + num_members);
    num_members += count;
    share_lengths[num_shares++] = blocks * step->block_size;
    share_starts[num_shares] = num_members;
  });
  return num_shares;
}

void stemcache_attend_in_team(const Step* step, const Layer* layer, Team* team, int thread) {
  const Context c = context(*step, *layer);
  if (layer->element == STEMCACHE_INT8) attend<int8_t>(c, *team, thread);
  else if (layer->element == STEMCACHE_FLOAT8) attend<Float8>(c, *team, thread);
  else attend<float>(c, *team, thread);
}

void stemcache_attend(const Step* step, const Layer* layer) {
  in_team(step->num_threads, [&](Team& team, int thread) { stemcache_attend_in_team(step, layer, &team, thread); });
}
}
