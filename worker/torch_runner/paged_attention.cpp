// Causal attention over paged keys and values, fp32, for any CPU with a C++17 compiler. Plain C ABI, no library needed.
//
// A pool holds blocks of `block_size` tokens, each token num_kv_heads x head_dim floats; `block_stride` floats lie
// between two blocks of one layer. A row is one sequence of the step: its new tokens attend to everything before them.
// Two ways through the same online softmax:
//   * few query rows per key head (decode): keys stream once from memory, all heads side by side, dot products;
//   * many (prefill): a tile of keys is transposed once, then multiplied in registers with many query rows.
// Long rows are split into chunks of keys where threads would idle; the chunks are merged by their maxima and sums.
// Only keys of the row's own tokens are read, so slots beyond its length may hold anything, NaN included.

#include "simd.h"

extern "C" {

// What is the same for all layers of a group. Mirrored by `worker/torch_runner/native_attention.py`.
struct Step {
  const int32_t* tables;        // block tables of all rows, one after the other
  const int32_t* table_starts;  // [rows + 1]
  const int32_t* row_starts;    // [rows + 1], in tokens of the batch
  const int32_t* lengths;       // [rows], tokens readable, the new ones included
  const int64_t* token_blocks;  // [tokens], slot of each new token
  const int64_t* token_offsets; // [tokens], its place in the block
  int32_t num_rows, num_tokens, block_size, num_threads;
};

// One call. Strides in floats; the last dimension is dense. `out` is [tokens, query_heads, head_dim].
struct Layer {
  const float *query, *key, *value;
  float *keys, *values, *out;
  const float* sinks;  // [query_heads] or null
  float* workspace;    // of `stemcache_workspace` floats
  int64_t query_token_stride, query_head_stride, key_token_stride, key_head_stride, value_token_stride,
      value_head_stride, block_stride;
  int32_t num_query_heads, num_kv_heads, head_dim, window;
  float scaling, softcap;
};
}

namespace {

constexpr int kKeyTile = 64;        // keys per tile of the many-rows way
constexpr int kStreamTile = 32;     // keys per tile of the few-rows way
constexpr int kMaxQueryRows = 128;  // query rows per task of the many-rows way
constexpr int kQueryRows = 96;      // aimed at: 4 tiles of 64 x 64 floats stay in the second-level cache
constexpr int kMaxHeadDim = 256;
constexpr int kManyRows = 6;        // rows from which on transposing keys pays, for several new tokens
constexpr int kManyHeads = 24;      // the same for one new token, whose keys come from memory and not from the cache
constexpr int kMinChunk = 256;      // keys; below that merging costs more than an idle thread

struct Task {
  int row, token_low, token_high;  // tokens of the batch
  int head_low, head_high;         // key heads
  int key_low, key_high;           // positions
};

struct Context {
  const Step& step;
  const Layer& layer;
  int group;        // query heads per key head
  int64_t token;    // floats of one token in a block
  int64_t partial;  // floats of one query row of a partial result: maximum, sum, head_dim values

  const int32_t* table(int row) const { return step.tables + step.table_starts[row]; }
  int64_t place(const int32_t* table, int position) const {
    return table[position / step.block_size] * layer.block_stride + position % step.block_size * token;
  }
  // Position of a token of the batch in its sequence.
  int position(int row, int index) const { return step.lengths[row] - step.row_starts[row + 1] + index; }
  int first_key(int position) const {
    return layer.window > 0 && position >= layer.window ? position - layer.window + 1 : 0;
  }
  const float* query(int index, int head) const {
    return layer.query + index * layer.query_token_stride + head * layer.query_head_stride;
  }
};

void write_token(const Context& c, int t) {
  const Layer& l = c.layer;
  const size_t bytes = sizeof(float) * l.head_dim;
  const int64_t place = c.step.token_blocks[t] * l.block_stride + c.step.token_offsets[t] * c.token;
  for (int h = 0; h < l.num_kv_heads; h++) {
    memcpy(l.keys + place + h * l.head_dim, l.key + t * l.key_token_stride + h * l.key_head_stride, bytes);
    memcpy(l.values + place + h * l.head_dim, l.value + t * l.value_token_stride + h * l.value_head_stride, bytes);
  }
}

// One query row's scores of `count` keys, in place, become weights; updates its running maximum and sum. Returns the
// factor for what was accumulated before. Scores from `count` up to the next full vector are ignored.
inline float soften(float* scores, int count, float softcap, float& maximum, float& sum) {
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

// ---- few query rows: keys are read as they lie -------------------------------------------------------------------

// Scores of 4 keys for R query heads.
template <int R>
inline void dots(const float* const* keys, const float* const* queries, int width, float scaling, float* scores) {
  vec sums[R][4] = {};
  for (int d = 0; d < width; d += LANES) {
    const vec k0 = load(keys[0] + d), k1 = load(keys[1] + d), k2 = load(keys[2] + d), k3 = load(keys[3] + d);
    for (int r = 0; r < R; r++) {
      const vec q = load(queries[r] + d);
      sums[r][0] += q * k0;
      sums[r][1] += q * k1;
      sums[r][2] += q * k2;
      sums[r][3] += q * k3;
    }
  }
  for (int r = 0; r < R; r++) {
    const quad result = sums_of_4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]) * scaling;
    memcpy(scores + r * kStreamTile, &result, sizeof(result));
  }
}

// acc[0 .. C*LANES) = acc * factor + sum of weights[j] * values[j].
template <int C>
inline void weigh(float* acc, float factor, const float* weights, const float* const* values, int count, int64_t at) {
  vec sums[C];
  for (int i = 0; i < C; i++) sums[i] = load(acc + i * LANES) * factor;
  for (int j = 0; j < count; j++) {
    const float* value = values[j] + at;
    for (int i = 0; i < C; i++) sums[i] += weights[j] * load(value + i * LANES);
  }
  for (int i = 0; i < C; i++) store(acc + i * LANES, sums[i]);
}

// Positions of the keys that some query of a task reads.
struct Span {
  int low, high;
};

// Empties the partial results of a task.
Span begin(const Context& c, const Task& task, float* partials) {
  const int64_t rows = (int64_t)(task.token_high - task.token_low) * (task.head_high - task.head_low) * c.group;
  for (int64_t r = 0; r < rows; r++) {
    memset(partials + r * c.partial, 0, sizeof(float) * c.partial);
    partials[r * c.partial] = -INFINITY;
  }
  const int first = c.first_key(c.position(task.row, task.token_low));
  const int end = c.position(task.row, task.token_high - 1) + 1;
  return Span{first > task.key_low ? first : task.key_low, end < task.key_high ? end : task.key_high};
}

// A query row of a task: token and head, and which keys it may read.
struct QueryRow {
  int index;  // among the partial results of the task
  const float* query;
  int first, position;
};

inline QueryRow query_row(const Context& c, const Task& task, int key_head, int r) {
  const int token = task.token_low + r / c.group, head = key_head * c.group + r % c.group;
  const int heads = (task.head_high - task.head_low) * c.group;
  const int position = c.position(task.row, token);
  const int index = (token - task.token_low) * heads + head - task.head_low * c.group;
  return QueryRow{index, c.query(token, head), c.first_key(position), position};
}

// Hides the keys base + j that the query must not read.
inline void hide(const QueryRow& row, int base, int count, float* scores) {
  for (int j = 0; j < count && base + j < row.first; j++) scores[j] = -INFINITY;
  for (int j = row.position < base ? 0 : row.position - base + 1; j < count; j++) scores[j] = -INFINITY;
}

struct Tile {
  int base, count;
  const float *keys[kKeyTile], *values[kKeyTile];
};

inline void place_tile(const Context& c, int row, int base, int high, int size, Tile& tile) {
  const int32_t* table = c.table(row);
  tile.base = base;
  tile.count = high - base < size ? high - base : size;
  for (int j = 0; j < (tile.count + 3) / 4 * 4; j++) {  // keys are read by fours: the last one stands in for more
    const int64_t place = c.place(table, base + (j < tile.count ? j : tile.count - 1));
    tile.keys[j] = c.layer.keys + place;
    tile.values[j] = c.layer.values + place;
  }
}

template <int R>
inline void attend_rows(const Context& c, const Tile& tile, int64_t at, const QueryRow* rows, float* partials) {
  const int width = c.layer.head_dim;
  float scores[R * kStreamTile];
  const float* queries[R];
  for (int r = 0; r < R; r++) queries[r] = rows[r].query;
  for (int j = 0; j < tile.count; j += 4) {
    const float* four[4] = {tile.keys[j] + at, tile.keys[j + 1] + at, tile.keys[j + 2] + at, tile.keys[j + 3] + at};
    dots<R>(four, queries, width, c.layer.scaling, scores + j);
  }
  for (int r = 0; r < R; r++) {
    float* weights = scores + r * kStreamTile;
    hide(rows[r], tile.base, tile.count, weights);
    float* state = partials + rows[r].index * c.partial;
    const float factor = soften(weights, tile.count, c.layer.softcap, state[0], state[1]);
    int d = 0;
    for (; d + 8 * LANES <= width; d += 8 * LANES)
      weigh<8>(state + 2 + d, factor, weights, tile.values, tile.count, at + d);
    for (; d + 2 * LANES <= width; d += 2 * LANES)
      weigh<2>(state + 2 + d, factor, weights, tile.values, tile.count, at + d);
    for (; d < width; d += LANES) weigh<1>(state + 2 + d, factor, weights, tile.values, tile.count, at + d);
  }
}

void attend_few(const Context& c, const Task& task, const Span& span, float* partials) {
  const int rows = (task.token_high - task.token_low) * c.group;
  Tile tile;
  for (int base = span.low; base < span.high; base += kStreamTile) {
    place_tile(c, task.row, base, span.high, kStreamTile, tile);
    for (int head = task.head_low; head < task.head_high; head++) {
      const int64_t at = (int64_t)head * c.layer.head_dim;
      for (int r = 0; r < rows;) {
        const int some = rows - r < 3 ? rows - r : 3;
        QueryRow queries[3];
        for (int i = 0; i < some; i++) queries[i] = query_row(c, task, head, r + i);
        if (some == 3) attend_rows<3>(c, tile, at, queries, partials);
        else if (some == 2) attend_rows<2>(c, tile, at, queries, partials);
        else attend_rows<1>(c, tile, at, queries, partials);
        r += some;
      }
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
inline void value_panel(const float* weights, const float* const* values, int count, int64_t at, float* acc, int64_t stride) {
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
void multiply(const float* queries, int width, const float* columns, int count, float* scores) {
  for (int j = 0; j < count; j += 2 * LANES) score_panel<R>(queries, width, columns + j, scores + j);
}

template <int R>
void accumulate(const float* weights, const float* const* values, int count, int64_t at, int width, float* acc, int64_t stride) {
  int d = 0;
  for (; d + 2 * LANES <= width; d += 2 * LANES) value_panel<R, 2>(weights, values, count, at + d, acc + d, stride);
  if (d < width) value_panel<R, 1>(weights, values, count, at + d, acc + d, stride);
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

inline void transpose(const Tile& tile, int64_t at, int width, float* columns) {
  for (int d = 0; d < width; d += 4)
    for (int j = 0; j < tile.count; j += 4) transpose_4(tile.keys + j, at + d, columns + d * kKeyTile + j);
}

void attend_many(const Context& c, const Task& task, const Span& span, float* partials) {
  const int width = c.layer.head_dim, rows = (task.token_high - task.token_low) * c.group;
  const int64_t at = (int64_t)task.head_low * width;
  alignas(64) float queries[kMaxQueryRows * kMaxHeadDim];
  alignas(64) float columns[kMaxHeadDim * kKeyTile];
  alignas(64) float scores[kMaxQueryRows * kKeyTile];
  for (int r = 0; r < rows; r++) {
    const float* query = query_row(c, task, task.head_low, r).query;
    for (int d = 0; d < width; d++) queries[r * width + d] = query[d] * c.layer.scaling;
  }
  memset(columns, 0, sizeof(float) * width * kKeyTile);
  Tile tile;
  for (int base = span.low; base < span.high; base += kKeyTile) {
    place_tile(c, task.row, base, span.high, kKeyTile, tile);
    transpose(tile, at, width, columns);
    int r = 0;
    for (; r + 6 <= rows; r += 6) multiply<6>(queries + r * width, width, columns, tile.count, scores + r * kKeyTile);
    for (; r + 2 <= rows; r += 2) multiply<2>(queries + r * width, width, columns, tile.count, scores + r * kKeyTile);
    if (r < rows) multiply<1>(queries + r * width, width, columns, tile.count, scores + r * kKeyTile);
    for (r = 0; r < rows; r++) {
      float* state = partials + r * c.partial;
      hide(query_row(c, task, task.head_low, r), base, tile.count, scores + r * kKeyTile);
      const float factor = soften(scores + r * kKeyTile, tile.count, c.layer.softcap, state[0], state[1]);
      if (factor != 1.0f)
        for (int d = 0; d < width; d += LANES) store(state + 2 + d, load(state + 2 + d) * factor);
    }
    float* acc = partials + 2;
    r = 0;
    for (; r + 6 <= rows; r += 6)
      accumulate<6>(scores + r * kKeyTile, tile.values, tile.count, at, width, acc + r * c.partial, c.partial);
    for (; r + 2 <= rows; r += 2)
      accumulate<2>(scores + r * kKeyTile, tile.values, tile.count, at, width, acc + r * c.partial, c.partial);
    if (r < rows) accumulate<1>(scores + r * kKeyTile, tile.values, tile.count, at, width, acc + r * c.partial, c.partial);
  }
}

// ---- tasks ------------------------------------------------------------------------------------------------------

bool is_many(const Context& c, int row) {
  const int tokens = c.step.row_starts[row + 1] - c.step.row_starts[row];
  return tokens * c.group >= (tokens > 1 ? kManyRows : kManyHeads);
}

// Calls visit(task, chunk, num_chunks, offset) for every task, in order; chunks of one tile follow one another.
// `offset` is the place of its partial result in the workspace. Returns the floats of the whole workspace.
template <typename Visit>
int64_t each_task(const Context& c, Visit visit) {
  int64_t offset = 0;
  int tiles = 0;
  const int per_tile = c.group < kQueryRows ? kQueryRows / c.group : 1;
  for (int row = 0; row < c.step.num_rows; row++) {
    const int tokens = c.step.row_starts[row + 1] - c.step.row_starts[row];
    tiles += is_many(c, row) ? (tokens + per_tile - 1) / per_tile * c.layer.num_kv_heads : 1;
  }
  const int wanted = c.step.num_threads > 1 ? (4 * c.step.num_threads + tiles - 1) / tiles : 1;
  for (int row = 0; row < c.step.num_rows; row++) {
    const int start = c.step.row_starts[row], stop = c.step.row_starts[row + 1];
    const bool many = is_many(c, row);
    const int heads = many ? 1 : c.layer.num_kv_heads;
    for (int low = start; low < stop; low += many ? per_tile : stop - start) {
      const int high = many && low + per_tile < stop ? low + per_tile : stop;
      const int key_low = c.first_key(c.position(row, low)), key_high = c.position(row, high - 1) + 1;
      int chunks = (key_high - key_low) / kMinChunk;
      chunks = chunks < 1 ? 1 : chunks < wanted ? chunks : wanted;
      const int size = (key_high - key_low + chunks - 1) / chunks;
      for (int head = 0; head < c.layer.num_kv_heads; head += heads)
        for (int chunk = 0; chunk < chunks; chunk++) {
          const int from = key_low + chunk * size, to = from + size < key_high ? from + size : key_high;
          visit(Task{row, low, high, head, head + heads, from, to}, chunk, chunks, offset);
          offset += (int64_t)(high - low) * heads * c.group * c.partial;
        }
    }
  }
  return offset;
}

// Merges the partial results of a tile's chunks, adds the sinks, divides, and writes the output.
void finish(const Context& c, const Task& task, int chunks, const float* partials) {
  const Layer& l = c.layer;
  const int heads = (task.head_high - task.head_low) * c.group;
  const int64_t chunk_size = (int64_t)(task.token_high - task.token_low) * heads * c.partial;
  for (int t = task.token_low; t < task.token_high; t++)
    for (int h = 0; h < heads; h++) {
      const float* state = partials + ((int64_t)(t - task.token_low) * heads + h) * c.partial;
      const int head = task.head_low * c.group + h;
      float maximum = l.sinks ? l.sinks[head] : -INFINITY;
      for (int k = 0; k < chunks; k++) maximum = fmaxf(maximum, state[k * chunk_size]);
      float sum = l.sinks ? expf(l.sinks[head] - maximum) : 0.0f;
      float* out = l.out + ((int64_t)t * l.num_query_heads + head) * l.head_dim;
      for (int d = 0; d < l.head_dim; d++) out[d] = 0;
      for (int k = 0; k < chunks; k++) {
        const float* part = state + k * chunk_size;
        const float factor = part[0] == -INFINITY ? 0.0f : expf(part[0] - maximum);
        sum += factor * part[1];
        for (int d = 0; d < l.head_dim; d++) out[d] += factor * part[2 + d];
      }
      for (int d = 0; d < l.head_dim; d++) out[d] /= sum;
    }
}

// Every thread walks over all tasks, which is cheap, and runs those that it claims from the common counter.
void claim_tasks(const Context& c, int& claimed) {
  int mine = __atomic_fetch_add(&claimed, 1, __ATOMIC_RELAXED), index = 0;
  each_task(c, [&](const Task& task, int, int, int64_t offset) {
    if (index++ != mine) return;
    float* partials = c.layer.workspace + offset;
    const Span span = begin(c, task, partials);
    is_many(c, task.row) ? attend_many(c, task, span, partials) : attend_few(c, task, span, partials);
    mine = __atomic_fetch_add(&claimed, 1, __ATOMIC_RELAXED);
  });
}

void claim_tiles(const Context& c, int& claimed) {
  int mine = __atomic_fetch_add(&claimed, 1, __ATOMIC_RELAXED), index = 0;
  each_task(c, [&](const Task& task, int chunk, int chunks, int64_t offset) {
    if (chunk || index++ != mine) return;
    finish(c, task, chunks, c.layer.workspace + offset);
    mine = __atomic_fetch_add(&claimed, 1, __ATOMIC_RELAXED);
  });
}

Context context(const Step& step, const Layer& layer) {
  return Context{step, layer, layer.num_query_heads / layer.num_kv_heads, (int64_t)layer.num_kv_heads * layer.head_dim,
                 layer.head_dim + 2};
}

}  // namespace

extern "C" {

// Whether layers of that shape can be computed.
int stemcache_supports(int num_query_heads, int num_kv_heads, int head_dim) {
  return num_query_heads % num_kv_heads == 0 && num_query_heads / num_kv_heads <= kMaxQueryRows &&
         head_dim % LANES == 0 && head_dim <= kMaxHeadDim;
}

// Floats of workspace that `stemcache_attend` needs.
int64_t stemcache_workspace(const Step* step, const Layer* layer) {
  return each_task(context(*step, *layer), [](const Task&, int, int, int64_t) {});
}

// Writes the step's keys and values to the pool, then computes `out`.
void stemcache_attend(const Step* step, const Layer* layer) {
  const Context c = context(*step, *layer);
  int claimed = 0;
#pragma omp parallel num_threads(step->num_threads) if (step->num_threads > 1)
  {
#pragma omp for schedule(static)
    for (int t = 0; t < step->num_tokens; t++) write_token(c, t);
    claim_tasks(c, claimed);
#pragma omp barrier
#pragma omp single
    claimed = 0;
    claim_tiles(c, claimed);
  }
}
}
