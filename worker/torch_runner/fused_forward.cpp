// All of a llama-like model but its attention, fp32, for any CPU with a C++17 compiler. Plain C ABI, no library needed.
//
// A stage is what lies between two calls of the attention: the rest of one layer (output projection, residual, norm, gate
// and up projections, activation, down projection, residual) and the beginning of the next one (norm, projections of
// queries, keys and values, their norms, rotation), or at the end the last norm and the logits. With an attention that
// a team of threads can call, all stages are one parallel region; with any other one each stage is. Each row's result
// depends on that row alone, bit by bit: see linear.h.

#include "linear.h"
#include "paged_attention.h"
#include "team.h"

extern "C" {

// Mirrored by `worker/torch_runner/fused_library.py`. Matrices are [outputs, inputs]; what a model lacks is null.
struct FusedLayer {
  const float* norm;                    // [hidden]
  const float *projections, *projections_bias;  // queries, keys, values: [(query_heads + 2 kv_heads) * head_dim, hidden]
  const float *query_norm, *key_norm;   // [head_dim]
  const float *output, *output_bias;    // [hidden, query_heads * head_dim]
  const float* mlp_norm;                // [hidden]
  const float *gate_up, *gate_up_bias;  // [2 * intermediate, hidden]
  const float *down, *down_bias;        // [hidden, intermediate]
};

struct FusedModel {
  const FusedLayer* layers;
  const float *embedding, *last_norm, *head, *head_bias;  // embedding and head [vocabulary, hidden]
  int32_t num_layers, hidden, intermediate, num_query_heads, num_kv_heads, head_dim, rotary_dim, vocabulary;
  float epsilon, head_epsilon;  // of the norms of whole rows and of single heads
};

// Buffers have a row per token, but `normed`, which has at least 8 for every thread.
struct FusedStep {
  float *hidden, *normed, *projected, *activated, *logits;
  float* attended;                 // [tokens, query_heads * head_dim]
  const float *cosines, *sines;    // [positions, rotary_dim]
  const int64_t *positions;        // [tokens]
  int32_t num_rows, num_threads;
};

// The attention of all layers, as `paged_attention.h` offers it.
struct FusedAttention {
  void (*attend)(const Step*, const Layer*, Team*, int thread);
  const Step* const* steps;  // [layers], of each one's group
  const Layer* layers;       // reads `projected`, writes `attended`
};
}

namespace {

constexpr int kRowBlock = LANES == 16 ? 192 : 96;  // rows of one task: transposing a panel pays when many multiply it
static_assert(kRowBlock % kTileRows == 0, "a task is rounded up to whole tiles");
constexpr int kOutputs = 32;        // outputs of one task
constexpr int kMaxHeadDim = 256;
constexpr int kProducts = 4;        // of a stage
constexpr int kOwnRows = 8;         // up to that many rows every thread norms all by itself instead of waiting
struct Context {
  const FusedModel& model;
  const FusedStep& step;
  Team& team;
  int* claimed;  // next task of each product
  int thread;

  // Waits until all threads have finished a product, which then may be begun again.
  void end(int product) const {
    team.wait();
    if (thread == 0) claimed[product] = 0;  // nobody claims any of it before the next wait
  }
};

// ---- rows -------------------------------------------------------------------------------------------------------

__attribute__((noinline)) void norm_row(const float* x, const float* weight, int width, float epsilon, float* out) {
  vec squares = splat(0);
  int i = 0;
  for (; i + LANES <= width; i += LANES) squares += load(x + i) * load(x + i);
  float sum = sum_of(squares);
  for (; i < width; i++) sum += x[i] * x[i];
  const float factor = 1.0f / sqrtf(sum / width + epsilon);
  for (i = 0; i + LANES <= width; i += LANES) store(out + i, load(weight + i) * (load(x + i) * factor));
  for (; i < width; i++) out[i] = weight[i] * (x[i] * factor);
}

// Rotates the first `rotary` values of a head: value i with value i + rotary / 2.
__attribute__((noinline)) void rotate(float* x, const float* cosines, const float* sines, int rotary) {
  const int half = rotary / 2;
  for (int i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cosines[i] - b * sines[i];
    x[i + half] = b * cosines[i + half] + a * sines[i + half];
  }
}

inline vec silu(vec x) { return x / (exp_of(smaller(-x, splat(87.0f))) + 1.0f); }

inline void add_bias(float* x, const float* bias, int count) {
  if (bias)
    for (int i = 0; i < count; i++) x[i] += bias[i];
}

// All rows of `hidden`, normed; where they are few, every thread has them all for itself.
const float* norm_all(const Context& c, const float* weight) {
  const int rows = c.step.num_rows, width = c.model.hidden;
  const bool is_own = rows <= kOwnRows;
  float* out = c.step.normed + (is_own ? (int64_t)c.thread * kOwnRows * width : 0);
  for (int r = is_own ? 0 : c.thread; r < rows; r += is_own ? 1 : c.team.size)
    norm_row(c.step.hidden + (int64_t)r * width, weight, width, c.model.epsilon, out + (int64_t)r * width);
  if (!is_own) c.team.wait();
  return out;
}

// ---- products ---------------------------------------------------------------------------------------------------

// x [rows, inputs] times `parts` matrices [outputs, inputs] that lie one after the other, in tasks of some rows and
// `width` outputs that threads claim. finish(row, output, count, sums) gets a task's row: `count` sums of the first
// matrix, and those of the next one `padded(width)` further on.
inline int padded(int width) { return (width + kPanel - 1) / kPanel * kPanel; }

template <typename Finish>
void product(const Context& c, int number, const float* weights, int parts, int outputs, int inputs, const float* x,
             int width, Finish finish) {
  alignas(64) float sums[kRowBlock * (kMaxHeadDim + kPanel)];
  const int rows = c.step.num_rows, blocks = (rows + kRowBlock - 1) / kRowBlock;
  if (rows == 0) return;
  const int height = ((rows + blocks - 1) / blocks + kTileRows - 1) / kTileRows * kTileRows;
  const int columns = (outputs + width - 1) / width, stride = parts * padded(width);
  for (;;) {
    const int task = __atomic_fetch_add(&c.claimed[number], 1, __ATOMIC_RELAXED);
    if (task >= blocks * columns) return;
    const int low = task / columns * height, high = low + height < rows ? low + height : rows;
    const int output = task % columns * width, count = outputs - output < width ? outputs - output : width;
    if (low >= high) continue;
    for (int part = 0; part < parts; part++)
      multiply(weights + ((int64_t)part * outputs + output) * inputs, count, inputs, x + (int64_t)low * inputs, high - low,
               sums + part * padded(width), stride);
    for (int r = low; r < high; r++) finish(r, output, count, sums + (int64_t)(r - low) * stride);
  }
}

// hidden += x . weights + bias.
void add_product(const Context& c, int number, const float* weights, const float* bias, int inputs, const float* x) {
  const int hidden = c.model.hidden;
  product(c, number, weights, 1, hidden, inputs, x, kOutputs, [&](int r, int output, int count, float* sums) {
    add_bias(sums, bias ? bias + output : nullptr, count);
    float* target = c.step.hidden + (int64_t)r * hidden + output;
    for (int i = 0; i < count; i++) target[i] += sums[i];
  });
}

void project_heads(const Context& c, const FusedLayer& layer, const float* x) {
  const FusedModel& m = c.model;
  const int outputs = (m.num_query_heads + 2 * m.num_kv_heads) * m.head_dim;
  const int width = (m.head_dim < kOutputs ? kOutputs / m.head_dim : 1) * m.head_dim;
  product(c, 3, layer.projections, 1, outputs, m.hidden, x, width, [&](int r, int output, int count, float* sums) {
    add_bias(sums, layer.projections_bias ? layer.projections_bias + output : nullptr, count);
    const int64_t place = c.step.positions[r] * m.rotary_dim;
    for (int at = 0; at < count; at += m.head_dim) {
      const int head = (output + at) / m.head_dim;
      if (head >= m.num_query_heads + m.num_kv_heads) break;  // values are left as they are
      const float* norm = head < m.num_query_heads ? layer.query_norm : layer.key_norm;
      if (norm) norm_row(sums + at, norm, m.head_dim, m.head_epsilon, sums + at);
      rotate(sums + at, c.step.cosines + place, c.step.sines + place, m.rotary_dim);
    }
    memcpy(c.step.projected + (int64_t)r * outputs + output, sums, sizeof(float) * count);
  });
}

void activate(const Context& c, const FusedLayer& layer, const float* x) {
  const int width = c.model.intermediate;
  product(c, 1, layer.gate_up, 2, width, c.model.hidden, x, kOutputs, [&](int r, int output, int count, float* gates) {
    float* ups = gates + padded(kOutputs);
    add_bias(gates, layer.gate_up_bias ? layer.gate_up_bias + output : nullptr, count);
    add_bias(ups, layer.gate_up_bias ? layer.gate_up_bias + width + output : nullptr, count);
    for (int i = 0; i < padded(count); i += LANES) store(gates + i, silu(load(gates + i)) * load(ups + i));
    memcpy(c.step.activated + (int64_t)r * width + output, gates, sizeof(float) * count);
  });
}

void finish_layer(const Context& c, const FusedLayer& layer) {
  add_product(c, 0, layer.output, layer.output_bias, c.model.num_query_heads * c.model.head_dim, c.step.attended);
  c.end(0);
  activate(c, layer, norm_all(c, layer.mlp_norm));
  c.end(1);
  add_product(c, 2, layer.down, layer.down_bias, c.model.intermediate, c.step.activated);
  c.end(2);
}

void compute_logits(const Context& c) {
  const FusedModel& m = c.model;
  product(c, 3, m.head, 1, m.vocabulary, m.hidden, norm_all(c, m.last_norm), kOutputs,
          [&](int r, int output, int count, float* sums) {
            add_bias(sums, m.head_bias ? m.head_bias + output : nullptr, count);
            memcpy(c.step.logits + (int64_t)r * m.vocabulary + output, sums, sizeof(float) * count);
          });
}

void embed(const Context& c, const int64_t* token_ids) {
  const int64_t width = c.model.hidden;
  for (int r = c.thread; r < c.step.num_rows; r += c.team.size)
    memcpy(c.step.hidden + r * width, c.model.embedding + token_ids[r] * width, sizeof(float) * width);
  c.team.wait();
}

// Moves those rows of what goes through all layers to the front.
void keep_rows(const Context& c, const int64_t* rows, int count) {
  const int64_t hidden = c.model.hidden, attended = (int64_t)c.model.num_query_heads * c.model.head_dim;
  for (int i = 0; i < count; i++) {
    memmove(c.step.hidden + i * hidden, c.step.hidden + rows[i] * hidden, sizeof(float) * hidden);
    memmove(c.step.attended + i * attended, c.step.attended + rows[i] * attended, sizeof(float) * attended);
  }
}

void run_stage(const Context& c, int layer) {
  if (layer > 0) finish_layer(c, c.model.layers[layer - 1]);
  if (layer == c.model.num_layers) return compute_logits(c);
  const FusedLayer& next = c.model.layers[layer];
  project_heads(c, next, norm_all(c, next.norm));
}

}  // namespace

extern "C" {

// Largest width of a head that can be computed.
int stemcache_fused_max_head_dim() { return kMaxHeadDim; }

// Finishes layer `layer` - 1, whose attention is in `attended`, and begins layer `layer`: its queries, keys and values
// are in `projected`. 0 begins only; the number of layers finishes the last one and gives `logits`.
void stemcache_fused_stage(const FusedModel* model, const FusedStep* step, int layer) {
  int claimed[kProducts] = {};
  in_team(step->num_threads, [&](Team& team, int thread) { run_stage(Context{*model, *step, team, claimed, thread}, layer); });
}

// All of it for the tokens `token_ids`; gives the logits of the `num_drawing` rows `drawing`, in ascending order.
void stemcache_fused_forward(const FusedModel* model, const FusedStep* step, const FusedAttention* attention,
                             const int64_t* token_ids, const int64_t* drawing, int num_drawing) {
  int claimed[kProducts] = {};
  FusedStep last = *step;
  last.num_rows = num_drawing;
  const int most = attention->steps[0]->num_threads;  // for so many it has memory
  in_team(step->num_threads < most ? step->num_threads : most, [&](Team& team, int thread) {
    const Context c{*model, *step, team, claimed, thread};
    embed(c, token_ids);
    for (int layer = 0; layer < model->num_layers; layer++) {
      run_stage(c, layer);
      c.end(3);
      attention->attend(attention->steps[layer], &attention->layers[layer], &team, thread);
    }
    if (thread == 0) keep_rows(c, drawing, num_drawing);  // nobody reads what the others have become
    team.wait();
    run_stage(Context{*model, last, team, claimed, thread}, model->num_layers);
  });
}

// out [rows, outputs] = x [rows, inputs] . weights [outputs, inputs] + bias.
void stemcache_linear(const float* weights, const float* bias, int outputs, int inputs, const float* x, int num_rows,
                      float* out, int num_threads) {
  int claimed[kProducts] = {};
  FusedModel model{};
  FusedStep step{};
  step.num_rows = num_rows;
  in_team(num_threads, [&](Team& team, int thread) {
    product(Context{model, step, team, claimed, thread}, 0, weights, 1, outputs, inputs, x, kOutputs,
            [&](int r, int output, int count, float* sums) {
              add_bias(sums, bias ? bias + output : nullptr, count);
              memcpy(out + (int64_t)r * outputs + output, sums, sizeof(float) * count);
            });
  });
}
}
