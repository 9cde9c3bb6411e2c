// Two chunks per rank, to and fro; no bubble within a rank when F, I and W cost the same, at the
// memory of 1F1B.  The rule is for at least 2 ranks - 1 microbatches, and leaves out of its program
// those that do not exist; Rule::Fitted packs what remains.
// Source: arXiv 2401.10241, section 6; the rule is torch's ScheduleZBVZeroBubble.
#include <algorithm>
#include <array>
#include <optional>

#include "penstock/plan/schedule/generators/rehearsal.h"
#include "penstock/schedule/generators/objections.h"

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
  using Counts = std::array<std::int32_t, 2>;  // Counts by chunk.

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

// The makespan in steps of an F, I or W; the sweep of the tests holds it against the programs.
std::int32_t makespan_of_rule(std::int32_t ranks, std::int32_t microbatches) {
  return std::max(6 * microbatches + ranks - 1, 4 * (ranks + microbatches) - 2);
}

// The activations that a rank may hold: as in the published program, but all microbatches at once
// where that program's fullest rank has them all.
std::int32_t activations_max(const Sizes& sizes, std::int32_t rank) {
  if (sizes.microbatches <= sizes.ranks) return 2 * sizes.microbatches;
  return std::min(2 * sizes.ranks, sizes.microbatches + rank + 1);
}

// Chooses a move by preference.  Of all orders of preference this one has the least bubble on up to
// 8 ranks.  A W runs when nothing else can.
std::optional<Move> choose_fitted(const Rehearsal& all, std::int32_t rank) {
  constexpr std::array<Move, 5> kPreference = {{{Op::Forward, 1},
                                                {Op::BackwardInput, 0},
                                                {Op::BackwardInput, 1},
                                                {Op::Forward, 0},
                                                {Op::BackwardWeight}}};
  for (const Move& move : kPreference) {
    if (!all.can_run(rank, move)) continue;
    if (move.op == Op::Forward && all.alive(rank) == activations_max(all.sizes(), rank)) continue;
    return move;
  }
  return {};
}

Schedule zbv_by_rule(const Sizes& sizes) {
  return write_rows("zbv", sizes, to_and_fro, [](Row& row) { ZbvRow(row).write(); });
}

Schedule make_zbv(const Sizes& sizes) {
  const bool suits_rule = sizes.microbatches >= 2 * sizes.ranks - 1;
  if (suits_rule || sizes.rule == Rule::Published) return zbv_by_rule(sizes);
  Rehearsal all(sizes, Op::BackwardInput);
  all.run([&](std::int32_t rank) { return choose_fitted(all, rank); });
  if (all.steps() >= makespan_of_rule(sizes.ranks, sizes.microbatches)) return zbv_by_rule(sizes);
  return std::move(all).schedule("zbv");
}

std::string object_to_zbv(const Sizes& sizes) {
  return first_of({object_to_other_than_two_stages(sizes), object_to_groups(sizes),
                   sizes.rule == Rule::Fitted ? object_to_many_ranks(sizes) : ""});
}

}  // namespace

Generator zbv() {
  return {.position = 80,
          .name = "zbv",
          .aliases = {"ScheduleZBVZeroBubble", "zbv_zero_bubble"},
          .summary = "two stages per rank, down and up: no bubble inside a rank",
          .constraints = "v = 2",
          .bubble = "max(p-1, 4p-2-2m)f/2; fitted: less where 2m < 3p-1",
          .peak = "min(2m, 2p, m+r+1); fitted: at most min(2m, 2p)",
          .stages_per_rank = 2,
          .make = make_zbv,
          .objection = object_to_zbv};
}

}  // namespace penstock::schedule
