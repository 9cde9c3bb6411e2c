// A small checkpoint on disk, of two shards, and the values that it was made of.
//
// The tests of checkpoint/ and tests/torn save it.  Knows no torch.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/files/checkpoint/shard.h"

namespace penstock::checkpoint {

inline std::string bytes_of_numbers(std::size_t count, std::uint32_t seed) {
  std::string bytes(count * sizeof(std::uint32_t), '\0');
  for (std::size_t i = 0; i < count; ++i) {
    const auto number = static_cast<std::uint32_t>(i * 2654435761U + seed);
    std::memcpy(bytes.data() + i * sizeof number, &number, sizeof number);
  }
  return bytes;
}

// Tensors "whole", all in shard 0, and "cut", of which each shard has a part, with a state.
struct SmallCheckpoint {
  static constexpr std::int64_t kWhole = 60, kCut = 700'000, kFirst = 300'032;  // Elements.

  std::string whole = bytes_of_numbers(kWhole, 1);
  std::string cut = bytes_of_numbers(kCut, 2);  // More than a chunk in either shard.
  std::string average = bytes_of_numbers(kCut, 3);
  std::string count = bytes_of_numbers(1, 4);

  std::vector<PieceToSave> pieces_of(std::size_t shard) const {
    const std::int64_t first = shard == 0 ? 0 : kFirst;
    const std::int64_t size = shard == 0 ? kFirst : kCut - kFirst;
    const auto piece = [&](const std::string& state, const std::string& values) {
      return PieceToSave{
          .name = "cut",
          .state = state,
          .shape = {700, 1000},
          .first = first,
          .count = size,
          .bytes = std::string_view(values).substr(static_cast<std::size_t>(first) * 4,
                                                   static_cast<std::size_t>(size) * 4)};
    };
    std::vector<PieceToSave> pieces = {piece("weight", cut), piece("exp_avg", average)};
    if (shard == 0) {
      pieces.push_back(
          {.name = "whole", .state = "weight", .shape = {3, 20}, .count = kWhole, .bytes = whole});
      pieces.push_back({.name = "cut", .state = "step", .count = 1, .bytes = count});
    }
    return pieces;
  }

  // Saves in `directory`, as step `step`.  Returns its folder.
  std::string save(CheckpointDirectory& directory, const std::string& path,
                   std::int64_t step) const {
    const std::string folder = directory.begin(name_of(step), 0);
    std::vector<Manifest> shards;
    for (std::size_t s = 0; s < 2; ++s) {
      shards.push_back(write_shard(folder, s, 2, pieces_of(s)));
      shards.back().step = step;
      shards.back().facts = {{"seed", "1234"}};
      shards.back().values = {{"skipped steps", "0"}};
    }
    directory.commit(name_of(step), merge(shards));
    return folder_of(path, step);
  }

  // Reads everything, and compares.
  void expect_in(SavedCheckpoint& saved) const {
    const std::map<std::pair<std::string, std::string>, const std::string*> all = {
        {{"whole", "weight"}, &whole},
        {{"cut", "weight"}, &cut},
        {{"cut", "exp_avg"}, &average},
        {{"cut", "step"}, &count}};
    EXPECT_EQ(saved.manifest().tensors.size(), all.size());
    for (const auto& [key, values] : all) {
      const Tensor* const tensor = saved.manifest().find(key.first, key.second);
      ASSERT_NE(tensor, nullptr) << key.first << " " << key.second;
      std::string read(values->size(), '\0');
      saved.read(*tensor, 0, tensor->elements(), std::as_writable_bytes(std::span(read)));
      EXPECT_EQ(read, *values) << key.first << " " << key.second;
    }
  }
};

}  // namespace penstock::checkpoint
