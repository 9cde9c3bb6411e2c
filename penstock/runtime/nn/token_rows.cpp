#include "penstock/runtime/nn/token_rows.h"

#include <ATen/TensorOperators.h>

#include <algorithm>

#include "penstock/core/error.h"
#include "penstock/core/ignored_target.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/embedding.h"
#include "penstock/runtime/nn/host_kernels.h"
#include "penstock/runtime/nn/later_checks.h"

namespace penstock::nn {
namespace {

// Finds what is no token.
at::Tensor are_wrong(const at::Tensor& tokens, std::int64_t vocabulary) {
  return (tokens < 0).logical_or(tokens >= vocabulary);
}
at::Tensor are_wrong_targets(const at::Tensor& targets, std::int64_t vocabulary) {
  return (targets != kIgnoredTarget).logical_and(are_wrong(targets, vocabulary));
}

std::string first_of(const at::Tensor& tokens, const at::Tensor& are_wrong) {
  return penstock::str(tokens.masked_select(are_wrong)[0].item<std::int64_t>());
}

}  // namespace

at::Tensor embedding_of_part(const at::Tensor& weight, const partition::Cut& here,
                             std::int64_t vocabulary, const at::Tensor& tokens, RowsOf rows_of) {
  const at::Tensor wrong = are_wrong(tokens, vocabulary);
  refuse_if(wrong.any(), [=] {
    const std::string first = first_of(tokens, wrong);
    throw Error(rows_of == RowsOf::Positions
                    ? penstock::str("a token's position is ", first, "; the model has ", vocabulary,
                                    " positions")
                    : penstock::str("a token is ", first, "; the model's vocabulary has ",
                                    vocabulary, " tokens"));
  });
  const Interval mine = here.is_whole() ? Interval{.count = vocabulary} : here.interval();
  const at::Tensor rows = tokens - mine.first;
  const at::Tensor is_elsewhere = are_wrong(rows, mine.count).unsqueeze(-1);
  const at::Tensor embedded =
      rows_of_table(weight, rows.clamp(0, mine.count - 1)).masked_fill(is_elsewhere, 0);
  if (uses_host_kernels(tokens)) return embedded;
  return embedded.masked_fill(wrong.unsqueeze(-1), kNotANumber);
}

TableOfRows::TableOfRows(const Making& making, RowsOf what, std::int64_t rows, std::int64_t width)
    : what_(what), rows_(rows), weight_(register_part("weight", making, {rows, width}, {})) {}

at::Tensor TableOfRows::forward(const at::Tensor& numbers) const {
  return rows_of_table(weight_, numbers);
}

at::Tensor TableOfRows::summand(const at::Tensor& numbers) const {
  return embedding_of_part(weight_, cut_of(cuts(), "weight"), rows_, numbers, what_);
}

void check_rows(const at::Tensor& logits, const at::Tensor& targets) {
  if (logits.dim() != targets.dim() + 1 ||
      logits.sizes().slice(0, static_cast<std::size_t>(targets.dim())) != targets.sizes()) {
    throw Error(penstock::str("the loss of logits ", logits.sizes(),
                              " needs a target for each row; targets ", "are ", targets.sizes()));
  }
}

at::Tensor any_wrong_target(const at::Tensor& targets, std::int64_t vocabulary) {
  const at::Tensor is_wrong = are_wrong_targets(targets, vocabulary).any();
  refuse_if(is_wrong, [=] {
    throw Error(
        penstock::str("a target is ", first_of(targets, are_wrong_targets(targets, vocabulary)),
                      "; the model's vocabulary has ", vocabulary, " tokens"),
        {penstock::str("a target is a token, or ", kIgnoredTarget, " where none counts")});
  });
  return is_wrong;
}

std::int64_t rows_at_once(const at::Tensor& logits) {
  const std::int64_t elements = std::int64_t{1} << (uses_host_kernels(logits) ? 19 : 27);
  return std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, logits.size(1)));
}

}  // namespace penstock::nn
