// The C interface of paged_attention.cpp. Mirrored by `worker/torch_runner/native_attention.py`.

#pragma once

#include <stdint.h>

struct Team;  // team.h

extern "C" {

// Element types of a pool.
enum { STEMCACHE_FLOAT32 = 0, STEMCACHE_INT8 = 1, STEMCACHE_FLOAT8 = 2 };

// What is the same for all layers of a group in one step.
struct Step {
  const int32_t* tables;         // block tables of all rows, one after the other
  const int32_t* table_starts;   // [rows + 1]
  const int32_t* row_starts;     // [rows + 1], in tokens of the batch
  const int32_t* lengths;        // [rows], tokens readable, the new ones included
  const int64_t* token_blocks;   // [tokens], slot of each new token
  const int64_t* token_offsets;  // [tokens], its place in the block
  const int32_t* row_shares;     // [rows], the share that a row belongs to, or -1; as `stemcache_shares` made them
  const int32_t* share_starts;   // [shares + 1], in `share_rows`
  const int32_t* share_rows;     // rows whose tables begin alike
  const int32_t* share_lengths;  // [shares], tokens that they have in common
  int32_t num_rows, num_tokens, block_size, num_threads;
  int32_t num_shares;   // 0: every row reads all of its keys itself, and the four arrays above are not read
  int32_t fixed_order;  // 1: a row's bits depend on nothing but its own query, keys and values; shares are ignored
};

// One call. Query, key and value: strides in floats, the last dimension dense. `out` is [tokens, query_heads, value_width].
// Pools: `block_stride` bytes between two blocks; inside a block [block_size, kv_heads, width], dense.
struct Layer {
  const float *query, *key, *value;  // no key: the step's tokens are in the pool already
  void* keys;
  void* values;  // null: a value is the beginning of its key, as with latent vectors
  float *key_scales, *value_scales;  // [block_size, kv_heads] in each block; null for float32
  float* out;
  const float* sinks;  // [query_heads] or null
  void* workspace;     // of `stemcache_workspace` bytes
  int64_t query_token_stride, query_head_stride, key_token_stride, key_head_stride, value_token_stride,
      value_head_stride, block_stride;
  int32_t num_query_heads, num_kv_heads, key_width, value_width, window, element;
  float scaling, softcap;
};

// Whether layers of that shape can be computed.
int stemcache_supports(int num_query_heads, int num_kv_heads, int key_width, int value_width);

// Bytes of workspace that a call needs; the same for all layers of one shape, window and element type.
int64_t stemcache_workspace(const Step* step, const Layer* layer);

// Finds rows whose block tables begin alike, once per step, and writes the four arrays of the step that tell them:
// [rows], [rows + 1], [rows], [rows]. Returns the number of shares. `scratch` is [3 * rows].
int stemcache_shares(const Step* step, int32_t* scratch, int32_t* row_shares, int32_t* share_starts, int32_t* share_rows,
                     int32_t* share_lengths);

// Writes the step's keys and values to the pool, then computes `out`, with `num_threads` threads.
void stemcache_attend(const Step* step, const Layer* layer);

// The same, called by every thread of a running team of at most `num_threads`; returns when all have finished.
void stemcache_attend_in_team(const Step* step, const Layer* layer, Team* team, int thread);
}
