#include "penstock/runtime/update/offloaded_parts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <array>

#include "penstock/runtime/update/master_weights.h"
#include "tests/support/resident_bytes.h"
#include "tests/support/temporary_folder.h"

namespace penstock::update {
namespace {

using testing_support::resident_bytes;
using testing_support::TemporaryFolder;

offload::Where in(const TemporaryFolder& folder) {
  return {.place = offload::Place::File, .folder = folder.path()};
}

std::vector<parameters::Part> in_memory(const std::vector<at::Tensor>& tensors) {
  std::vector<parameters::Part> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back({.tensor = tensor});
  return parts;
}

// Eight parts of a mebibyte with two states each, in runs of two parts.
TEST(OffloadedParts, StatesAreInMemoryARunAtATime) {
  constexpr std::int64_t kElements = 1 << 18;
  constexpr std::int64_t kRunBytes = 2 * 2 * 4 * kElements;
  const TemporaryFolder folder;
  const std::vector<at::Tensor> parts(8, at::empty({kElements}));
  OffloadedParts states(in_memory(parts), in(folder), /*states_per_part=*/2);
  EXPECT_EQ(states.file_bytes(), 4 * kRunBytes);
  std::vector<at::Tensor> made;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (int state = 0; state < 2; ++state) made.push_back(states.zeros_like(i, parts[i]));
  }
  const auto runs =
      partition::part_runs(std::vector<std::int64_t>(parts.size(), kElements), 2 * kElements);
  for (int step = 1; step <= 3; ++step) {
    std::size_t updated = 0;
    states.in_turn(runs, [&](PartRun run) {
      for (std::size_t i = 2 * run.first; i < 2 * run.end; ++i, ++updated) made[i].add_(1);
      EXPECT_LE(resident_bytes(made[0].data_ptr()), 2 * kRunBytes);
    });
    EXPECT_EQ(updated, made.size());
    EXPECT_EQ(resident_bytes(made[0].data_ptr()), 0) << "after step " << step;
  }
  for (const at::Tensor& state : made) EXPECT_EQ(state.sum().item<double>(), 3.0 * kElements);
}

// Two files of four parts of a mebibyte, whose states are in memory.
TEST(OffloadedParts, PartsAreInMemoryARunAtATime) {
  constexpr std::int64_t kElements = 1 << 18;
  const TemporaryFolder folder;
  std::array files = {offload::MappedFile("first", folder.path(), 16 * kElements),
                      offload::MappedFile("second", folder.path(), 16 * kElements)};
  std::vector<parameters::Part> parts;
  for (std::int64_t i = 0; i < 8; ++i) {
    offload::MappedFile& file = files[static_cast<std::size_t>(i / 4)];
    const std::int64_t first = i % 4 * 4 * kElements;
    parts.push_back({.tensor = file.tensor(first, at::empty({kElements})), .file = &file});
  }
  OffloadedParts offloaded(parts, {}, /*states_per_part=*/2);
  EXPECT_EQ(offloaded.file_bytes(), 0);
  const at::Tensor state = offloaded.zeros_like(0, parts[0].tensor);
  EXPECT_EQ(state.count_nonzero().item<std::int64_t>(), 0);
  const auto resident = [&] {
    return resident_bytes(parts[0].tensor.data_ptr()) + resident_bytes(parts[4].tensor.data_ptr());
  };
  const auto runs =
      partition::part_runs(std::vector<std::int64_t>(parts.size(), kElements), 3 * kElements);
  EXPECT_EQ(runs.size(), 3u) << "the second has parts of both files";
  for (int step = 1; step <= 3; ++step) {
    offloaded.in_turn(runs, [&](PartRun run) {
      for (std::size_t i = run.first; i < run.end; ++i) parts[i].tensor.add_(1);
      EXPECT_LE(resident(), 3 * 4 * kElements);
    });
    EXPECT_EQ(resident(), 0) << "after step " << step;
  }
  for (const parameters::Part& part : parts)
    EXPECT_EQ(part.tensor.sum().item<double>(), 3.0 * kElements);
}

TEST(OffloadedParts, MastersAreLetGoAsSoonAsTheyAreMade) {
  const TemporaryFolder folder;
  const std::vector<at::Tensor> parts(4, at::full({1 << 18}, 3, at::kBFloat16));
  OffloadedParts states(in_memory(parts), in(folder), /*states_per_part=*/2);
  EXPECT_EQ(states.file_bytes(), 4 * 3 * 4 * (1 << 18));
  const MasterWeights masters(parts, MastersPlace::Host, &states);
  EXPECT_EQ(resident_bytes(masters.tensors()[0].data_ptr()), 0);
  for (const at::Tensor& master : masters.tensors()) {
    EXPECT_EQ(master.scalar_type(), at::kFloat);
    EXPECT_EQ(master.sum().item<double>(), 3.0 * (1 << 18));
  }
}

// A run has more than so many elements only where one part has.
TEST(PartRuns, AreAsLongAsTheyMayBe) {
  const auto ends = [](const std::vector<std::int64_t>& sizes) {
    std::vector<std::size_t> found;
    for (const PartRun& run : partition::part_runs(sizes, 8)) found.push_back(run.end);
    return found;
  };
  EXPECT_EQ(ends({3, 5, 1, 20, 4}), (std::vector<std::size_t>{2, 3, 4, 5}));
  EXPECT_EQ(ends({9}), (std::vector<std::size_t>{1}));
  EXPECT_TRUE(ends({}).empty());
}

// The number of states is not known: the file has what the first and the second step make.
TEST(OffloadedParts, AFileOfStatesGrowsWhereNobodyKnowsTheirNumber) {
  constexpr std::int64_t kElements = 1 << 18;
  const TemporaryFolder folder;
  const std::vector<at::Tensor> parts(6, at::empty({kElements}));
  OffloadedParts states(in_memory(parts), in(folder), /*states_per_part=*/{});
  EXPECT_EQ(states.file_bytes(), 0);
  std::vector<at::Tensor> made;
  const auto runs =
      partition::part_runs(std::vector<std::int64_t>(parts.size(), kElements), 2 * kElements);
  for (int step = 1; step <= 3; ++step) {
    states.in_turn(runs, [&](PartRun run) {
      for (std::size_t i = run.first; i < run.end; ++i) {
        if (step == 1) made.push_back(states.keep(i, at::full({kElements}, 1.0)));
        if (step == 2) made.push_back(states.zeros_like(i, parts[i]));
        made[i].add_(1);
      }
    });
    for (const at::Tensor& each : made) EXPECT_EQ(resident_bytes(each.data_ptr()), 0);
  }
  EXPECT_EQ(states.file_bytes(), 12 * 4 * kElements);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(made[i].sum().item<double>(), 4.0 * kElements);
  for (std::size_t i = 6; i < 12; ++i) EXPECT_EQ(made[i].sum().item<double>(), 0.0);
}

}  // namespace
}  // namespace penstock::update
