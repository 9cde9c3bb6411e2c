// What the generators share: where stages live, and rows of actions being written.
//
// Knows no schedule.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {

// The stage that is chunk `chunk` of `rank`.
using Placement = StageId (*)(std::int32_t ranks, std::int32_t rank, std::int32_t chunk);

// Round the ranks: stage s on rank s mod ranks.
inline StageId in_a_loop(std::int32_t ranks, std::int32_t rank, std::int32_t chunk) {
  return StageId(chunk * ranks + rank);
}

// The stage of a chunk, to and fro.  Chunks of odd number run from the last rank to the first, so
// that the hop between two chunks stays on its rank.  Two chunks make the letter V.
inline StageId to_and_fro(std::int32_t ranks, std::int32_t rank, std::int32_t chunk) {
  return StageId(chunk * ranks + (chunk % 2 == 0 ? rank : ranks - 1 - rank));
}

// A rank's program as it is written.
class Row {
 public:
  Row(const Sizes& sizes, std::int32_t rank, Placement placement)
      : sizes_(sizes), rank_(rank), placement_(placement) {}

  void add(Op op, std::int32_t chunk, std::int32_t microbatch) {
    program_.push_back({.stage = stage(chunk), .op = op, .microbatch = Microbatch(microbatch)});
  }
  void add_overlapped(std::int32_t forward_chunk, std::int32_t forward_microbatch,
                      std::int32_t backward_chunk, std::int32_t backward_microbatch) {
    add(Op::Forward, forward_chunk, forward_microbatch);
    program_.back().overlaps_next = true;
    add(Op::Backward, backward_chunk, backward_microbatch);
  }

  std::int32_t rank() const { return rank_; }
  const Sizes& sizes() const { return sizes_; }
  void reserve(std::size_t actions) { program_.reserve(actions); }
  Program take() { return std::move(program_); }

 private:
  StageId stage(std::int32_t chunk) const { return placement_(sizes_.ranks, rank_, chunk); }

  Sizes sizes_;
  std::int32_t rank_;
  Placement placement_;
  Program program_;
};

// The schedule in which `write` has written every rank's row.
template <class Write>
Schedule write_rows(std::string name, const Sizes& sizes, Placement placement, const Write& write) {
  Schedule schedule{.name = std::move(name),
                    .stages = sizes.ranks * sizes.stages_per_rank,
                    .microbatches = sizes.microbatches};
  schedule.programs.reserve(static_cast<std::size_t>(sizes.ranks));
  for (std::int32_t rank = 0; rank < sizes.ranks; ++rank) {
    Row row(sizes, rank, placement);
    // Every rank runs as many actions as the first.
    if (rank > 0) row.reserve(schedule.programs.front().size());
    write(row);
    schedule.programs.push_back(row.take());
  }
  return schedule;
}

}  // namespace penstock::schedule
