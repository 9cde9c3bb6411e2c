// Two chunks per rank, to and fro; in the steady state every F is overlapped with a B.
// Source: DeepSeek-V3, arXiv 2412.19437, and the DualPipe repository's DualPipeV ("cut in half").
#include <array>
#include <deque>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/generators/units.h"
#include "penstock/schedule/generators/objections.h"
#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {
namespace {

// The eight steps of the source; microbatches count up for each chunk and direction.
class DualPipeVRow {
 public:
  explicit DualPipeVRow(Row& row)
      : row_(row), above_(row.sizes().ranks - 1 - row.rank()), below_(row.rank() + 1) {}

  void write() {
    repeat(2 * above_, [&](std::int32_t) { forward(0); });
    repeat(below_, [&](std::int32_t) { forward(0), forward(1); });
    repeat(above_, [&](std::int32_t) { input(1), weight(), forward(1); });
    repeat(row_.sizes().microbatches - 2 * row_.sizes().ranks + below_,
           [&](std::int32_t i) { meet(i == 0); });
    repeat(above_, [&](std::int32_t) { backward(1), overlap(1, 0); });
    bool split = false;
    repeat(below_, [&](std::int32_t i) { split = drain(i, split); });
    repeat(above_, [&](std::int32_t) { weight(), split ? input(0) : backward(0); });
    repeat(below_, [&](std::int32_t) { weight(); });
  }

 private:
  template <class Do>
  static void repeat(std::int32_t times, const Do& once) {
    for (std::int32_t i = 0; i < times; ++i) once(i);
  }

  // Both chunks forward and backward; the last rank has nothing to overlap its first pair with.
  void meet(bool first) {
    if (first && above_ == 0) {
      forward(0);
      backward(1);
    } else {
      overlap(0, 1);
    }
    overlap(1, 0);
  }

  // Backwards of both chunks, of which the second half is split; whether the next ones are, too.
  bool drain(std::int32_t i, bool split) {
    const bool half = i == below_ / 2;
    if (half && below_ % 2 == 0) split = true;
    split ? input(1) : backward(1);
    if (half && below_ % 2 != 0) split = true;
    split ? input(0) : backward(0);
    return split;
  }

  std::int32_t count(std::array<std::int32_t, 2>& counts, std::int32_t chunk) {
    return counts[static_cast<std::size_t>(chunk)]++;
  }
  void forward(std::int32_t chunk) { row_.add(Op::Forward, chunk, count(forwards_, chunk)); }
  void backward(std::int32_t chunk) { row_.add(Op::Backward, chunk, count(backwards_, chunk)); }
  void input(std::int32_t chunk) {
    const std::int32_t m = count(backwards_, chunk);
    row_.add(Op::BackwardInput, chunk, m);
    pending_.push_back({chunk, m});
  }
  void weight() {
    if (pending_.empty()) return;
    row_.add(Op::BackwardWeight, pending_.front().chunk, pending_.front().microbatch);
    pending_.pop_front();
  }
  void overlap(std::int32_t forward_chunk, std::int32_t backward_chunk) {
    const std::int32_t forward = count(forwards_, forward_chunk);
    row_.add_overlapped(forward_chunk, forward, backward_chunk, count(backwards_, backward_chunk));
  }

  Row& row_;
  std::int32_t above_;  // Ranks behind this one on the way down the V.
  std::int32_t below_;  // This one and the ranks before it.
  std::array<std::int32_t, 2> forwards_{};
  std::array<std::int32_t, 2> backwards_{};
  std::deque<Unit> pending_;  // Is whose W is still to come.
};

Schedule make_dualpipev(const Sizes& sizes) {
  return write_rows("dualpipev", sizes, to_and_fro, [](Row& row) { DualPipeVRow(row).write(); });
}

std::string object_to_dualpipev(const Sizes& sizes) {
  const std::int64_t stages = std::int64_t{2} * sizes.ranks;
  const std::string objection =
      first_of({object_to_other_than_two_stages(sizes), object_to_none(sizes)});
  if (!objection.empty() || sizes.microbatches >= stages) return objection;
  return str("microbatches is ", sizes.microbatches, ", must be at least stages (", stages, ")");
}

}  // namespace

Generator dualpipev() {
  return {.position = 110,
          .name = "dualpipev",
          .aliases = {"ScheduleDualPipeV"},
          .summary = "two stages per rank, down and up, forwards overlapped with backwards",
          .constraints = "v = 2, m >= 2p",
          .bubble = "(p-1)f",
          .peak = "2p+1",
          .stages_per_rank = 2,
          .has_pairs = true,
          .make = make_dualpipev,
          .objection = object_to_dualpipev};
}

}  // namespace penstock::schedule
