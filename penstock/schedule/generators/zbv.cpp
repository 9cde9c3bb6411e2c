#include <algorithm>
#include <array>

#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {
namespace {

// Counts the microbatches of each op and chunk.  The rule is written for at least 2 ranks - 1
// microbatches; of fewer, those that do not exist are left out.
class ZbvRow {
 public:
  explicit ZbvRow(Row& row)
      : row_(row), rule_(std::max(2 * row.sizes().ranks - 1, row.sizes().microbatches)) {}

  void write() {
    const std::int32_t ranks = row_.sizes().ranks;
    const std::int32_t rank = row_.rank();
    repeat(2 * (ranks - rank) - 1, [&] { forward(0); });
    repeat(rank, [&] { forward(1), forward(0); });
    repeat(ranks - rank, [&] { forward(1), backward(1); });
    while (forwards_[1] < forwards_[0] || forwards_[0] < rule_) {
      if (forwards_[0] < rule_) forward(0);
      backward(0);
      forward(1);
      backward(1);
    }
    repeat(rank, [&] { input(0), input(1); });
    repeat(ranks - rank, [&] { input(0), weight(0); });
    while (weights_[1] < inputs_[1]) weight(1);
    while (weights_[0] < inputs_[0]) weight(0);
  }

 private:
  using Counts = std::array<std::int32_t, 2>;  // By chunk.

  template <class Do>
  static void repeat(std::int32_t times, const Do& once) {
    for (std::int32_t i = 0; i < times; ++i) once();
  }

  void add(Op op, std::int32_t chunk, Counts& count) {
    const std::int32_t m = count[static_cast<std::size_t>(chunk)]++;
    if (m < row_.sizes().microbatches) row_.add(op, chunk, m);
  }
  void forward(std::int32_t chunk) { add(Op::Forward, chunk, forwards_); }
  void input(std::int32_t chunk) { add(Op::BackwardInput, chunk, inputs_); }
  void weight(std::int32_t chunk) { add(Op::BackwardWeight, chunk, weights_); }
  void backward(std::int32_t chunk) {
    input(chunk);
    weight(chunk);
  }

  Row& row_;
  std::int32_t rule_;
  Counts forwards_{};
  Counts inputs_{};
  Counts weights_{};
};

}  // namespace

Schedule zbv(const Sizes& sizes) {
  return write_rows("zbv", sizes, to_and_fro, [](Row& row) { ZbvRow(row).write(); });
}

}  // namespace penstock::schedule
