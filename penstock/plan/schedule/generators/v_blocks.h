// A building block of one microbatch, repeated every six steps and squeezed: V-Min and V-Half.
//
// Two chunks per rank, to and fro, with split backwards: as ZB-V with less memory, for some bubble.
// Source: Qi et al., Pipeline parallelism with controllable memory, arXiv 2405.15362: its building
// blocks.  How they are squeezed is ours: its greedy reordering is not given as a rule.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {

// The steps within the block at which a rank runs the F and the I of each chunk.
struct Offsets {
  std::array<std::int32_t, 2> forward{};
  std::array<std::int32_t, 2> input{};
};

struct Block {
  std::int32_t activations_max = 0;  // Largest number on any rank.
  Offsets (*offsets)(std::int32_t ranks, std::int32_t rank) = nullptr;
};

// REQUIRES: the block's steps on a rank are different modulo six.
Schedule squeeze(std::string name, const Sizes& sizes, const Block& block);

std::string object_to_v_blocks(const Sizes& sizes);

}  // namespace penstock::schedule
