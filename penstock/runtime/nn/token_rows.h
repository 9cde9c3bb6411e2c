// Rows of a table by tokens, and the targets of a loss over tokens: what is checked of them, and
// how a rank does with a part of a vocabulary.
//
// Embeddings and token losses use it.  On a device no check waits (later_checks.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

#include "penstock/plan/partition/cut.h"
#include "penstock/runtime/nn/making.h"

namespace penstock::nn {

// What is computed of a token that is none, where no check waits.
inline constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

// What a table has rows of.
enum class RowsOf : std::uint8_t { Tokens, Positions };

// The rows of `weight` for tokens, of which this rank has those that `here` says; zeros for others.
// Shapes: tokens [microbatch, sequence] int64, result [microbatch, sequence, hidden].
// Throws: Error for what is no token of the whole vocabulary.
at::Tensor embedding_of_part(const at::Tensor& weight, const partition::Cut& here,
                             std::int64_t vocabulary, const at::Tensor& tokens,
                             RowsOf rows = RowsOf::Tokens);

// A table of rows by tokens, or by positions, whose values are filled in by whoever makes it. Ranks
// that share it have some rows each.
class TableOfRows : public CutModule {
 public:
  // Throws: ConfigError for more ranks than rows.
  TableOfRows(const Making& making, RowsOf what, std::int64_t rows, std::int64_t width);
  // The rows of these numbers.  REQUIRES: all rows are here.
  at::Tensor forward(const at::Tensor& numbers) const;
  // The same of rows that are here, and zeros for others.
  // Throws: Error for a number that has no row.
  at::Tensor summand(const at::Tensor& numbers) const;

 private:
  RowsOf what_;
  std::int64_t rows_;
  at::Tensor weight_;
};

// Throws: Error, unless logits have a row for each target.
void check_rows(const at::Tensor& logits, const at::Tensor& targets);

// One bool: whether a target is no token, and not ignored.
// Throws: Error that names one, where the host can see it.
at::Tensor any_wrong_target(const at::Tensor& targets, std::int64_t vocabulary);

// Rows of [rows, n] at a time: on a processor, so that they stay in a cache or two; on a device, so
// that kernels are few and long.
std::int64_t rows_at_once(const at::Tensor& logits);

}  // namespace penstock::nn
