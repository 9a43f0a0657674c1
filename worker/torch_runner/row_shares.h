// Which rows of a step have block tables that begin alike, so that the keys in front are read once for all of them.
//
// Tables are sorted, so that rows with the same beginning are neighbours. A set of neighbours either shares what all of
// them have in common, or is cut where they have least in common: whichever saves more reads.

#pragma once

#include <algorithm>
#include <cstring>

#include "paged_attention.h"

namespace {

constexpr int kMinShare = 128;     // tokens in common from which on reading them together pays
constexpr int kMaxNewTokens = 16;  // of a row; more of them read its keys together anyway

class Sharing {
 public:
  // Scratch of [rows] each.
  Sharing(const Step& step, int32_t* rows, int32_t* in_common, int32_t* taken)
      : step_(step), rows_(rows), in_common_(in_common), taken_(taken) {
    for (int row = 0; row < step.num_rows; row++)
      if (num_new(row) <= kMaxNewTokens && blocks(row) * step.block_size >= kMinShare) rows_[num_rows_++] = row;
    std::sort(rows_, rows_ + num_rows_, [&](int a, int b) {
      const int order = memcmp(table(a), table(b), sizeof(int32_t) * std::min(blocks(a), blocks(b)));
      return order ? order < 0 : blocks(a) < blocks(b);
    });
    for (int i = 0; i + 1 < num_rows_; i++) in_common_[i] = common(rows_[i], rows_[i + 1]);
    weigh_up(0, num_rows_);
  }

  // Calls visit(rows, number of rows, blocks in common) for every share.
  template <typename Visit>
  void each(Visit visit) const {
    each(0, num_rows_, visit);
  }

 private:
  const Step& step_;
  int32_t* rows_;       // those that may share, sorted by their tables
  int32_t* in_common_;  // blocks that a row and the next one begin with alike
  int32_t* taken_;      // whether the neighbours that are cut here share as a whole
  int num_rows_ = 0;

  int num_new(int row) const { return step_.row_starts[row + 1] - step_.row_starts[row]; }
  int blocks(int row) const { return (step_.lengths[row] - num_new(row)) / step_.block_size; }
  const int32_t* table(int row) const { return step_.tables + step_.table_starts[row]; }
  int cut(int low, int high) const {
    return (int)(std::min_element(in_common_ + low, in_common_ + high - 1) - in_common_);
  }

  int common(int a, int b) const {
    const int32_t *left = table(a), *right = table(b);
    const int most = std::min(blocks(a), blocks(b));
    return (int)(std::mismatch(left, left + most, right).first - left);
  }

  // Blocks that need not be read thanks to the best shares of the neighbours [low, high).
  int64_t weigh_up(int low, int high) {
    if (high - low < 2) return 0;
    const int at = cut(low, high);
    const int64_t apart = weigh_up(low, at + 1) + weigh_up(at + 1, high);
    const int64_t together = (int64_t)in_common_[at] * (high - low - 1);
    taken_[at] = in_common_[at] * step_.block_size >= kMinShare && together >= apart;
    return taken_[at] ? together : apart;
  }

  template <typename Visit>
  void each(int low, int high, Visit visit) const {
    if (high - low < 2) return;
    const int at = cut(low, high);
    if (taken_[at]) return visit(rows_ + low, high - low, in_common_[at]);
    each(low, at + 1, visit);
    each(at + 1, high, visit);
  }
};

}  // namespace
