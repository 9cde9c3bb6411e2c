// Training on a device whose memory the host must not touch: a stand-in, or CUDA's.
//
// Every layout has the bits of one stage there.  Of models whose operators torch maps to the same
// kernels on both, these are the host's bits, too; attention, for one, it computes otherwise on
// what is not a CPU.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <utility>

#include "penstock/core/text.h"
#include "tests/support/foreign_device.h"
#include "tests/support/same_bits.h"
#include "tests/train/device_training.h"

namespace penstock::train {
namespace {

using testing_support::device_under_test;
using testing_support::has_host_kernels;
using testing_support::same_bits;

constexpr std::int32_t kMicrobatches = 4;
constexpr int kSteps = 3;

std::vector<Batch2> batches_of(const Kind& kind, std::int32_t replicas) {
  std::vector<Batch2> batches;
  for (int i = 0; i < kSteps; ++i) {
    batches.push_back(kind.batch(2 * kMicrobatches * replicas, kSequence));
  }
  return batches;
}

struct Layout {
  const char* schedule = "1f1b";
  mesh::Shape mesh;
  ZeroStage zero = ZeroStage::Off;
  GradientSums sums = GradientSums::AsTheyCome;
};

TrainerOptions options_of(const Layout& layout) {
  return {.mesh = layout.mesh,
          .schedule = layout.schedule,
          .microbatches = kMicrobatches,
          .partition = partition::Uniform{},
          .optimizer = {.lr = 3e-3, .weight_decay = 0.1},
          .sums = layout.sums,
          .zero = {.stage = layout.zero, .bucket_bytes = 6000},
          .device = device_under_test()};
}

class Devices : public testing::TestWithParam<const char*> {};

TEST_P(Devices, GiveEveryLayoutTheBitsOfOneStage) {
  const Kind kind = kind_named(GetParam());
  const std::string name = GetParam();
  const bool has_hosts_bits =
      has_host_kernels() && (name == "Mlp" || name == "Skips" || name == "MixedTypes");
  for (const std::int32_t replicas : {1, 2}) {
    const auto batches = batches_of(kind, replicas);
    TrainerOptions options = options_of({"gpipe", {.pipe = 1, .data = replicas}});
    const DeviceTrained one = train_on_device(options, kind, batches);
    options.device = at::kCPU;
    const DeviceTrained host = train_on_device(options, kind, batches);
    // Five digits of floats' seven, for sums of a few hundred in another order.  Torch's operators
    // draw other numbers on another kind of device.
    if (has_host_kernels() || name != "TorchsDropout") {
      EXPECT_NEAR(one.reports[0].loss / host.reports[0].loss, 1.0, 1e-5);
    }
    if (has_hosts_bits) expect_same(one, host);
    const mesh::Shape two{.pipe = 2, .data = replicas};
    for (const Layout& layout :
         {Layout{"1f1b", two}, Layout{"zbv", two, ZeroStage::OptimizerStates},
          Layout{"interleaved_1f1b", two, ZeroStage::Gradients}}) {
      SCOPED_TRACE(str(layout.schedule, " ", mesh::to_string(layout.mesh), ", ZeRO ",
                       static_cast<int>(layout.zero)));
      expect_same(train_on_device(options_of(layout), kind, batches), one);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Devices,
                         testing::Values("Mlp", "TiedGpt", "GptWithDropout", "TorchsDropout",
                                         "Skips", "MixedTypes"),
                         [](const auto& kind) { return std::string(kind.param); });

constexpr std::array kPlaces = {offload::Place::Device, offload::Place::Host, offload::Place::File};

// Updates of offloaded states are the host's: the bits of the device's where it has its kernels.
class DeviceOffload : public testing::TestWithParam<const char*> {};

TEST_P(DeviceOffload, HasStatesAndMastersInHostMemoryOrAFileToTheSameBits) {
  const Kind kind = kind_named(GetParam());
  const auto batches = batches_of(kind, 2);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const auto zero : {ZeroStage::Off, ZeroStage::Gradients}) {
      TrainerOptions options = options_of({"1f1b", {.pipe = 2, .data = 2}, zero});
      options.precision.type = type;
      std::optional<DeviceTrained> expected;
      if (has_host_kernels()) expected = train_on_device(options, kind, batches);
      for (const offload::Place place : {offload::Place::Host, offload::Place::File}) {
        SCOPED_TRACE(penstock::str(c10::toString(type), ", ZeRO ", static_cast<int>(zero),
                                   ", place ", static_cast<int>(place)));
        options.offload = {.states = {place, std::filesystem::temp_directory_path()},
                           .elements_at_once = 200};
        const DeviceTrained offloaded = train_on_device(options, kind, batches);
        if (expected) expect_same(offloaded, *expected);
        expected = offloaded;
      }
    }
  }
}

TEST(Device, UpdatesOfWhatIsOffloadedAreTheHosts) {
  const Kind kind = kind_named("Mlp");
  TrainerOptions options = options_of({});
  for (const offload::Place place : kPlaces) {
    options.offload.states = {place, std::filesystem::temp_directory_path()};
    comm::run_ranks(1, [&](comm::Communicator& communicator) {
      Trainer trainer(options, kind.model, kind.loss, communicator);
      for (const at::Tensor& master : trainer.updates().masters().tensors()) {
        EXPECT_EQ(master.is_cpu(), place != offload::Place::Device);
      }
      EXPECT_EQ(trainer.offloaded_bytes() > 0, place == offload::Place::File);
    });
  }
}

// Pages come from there, and gradients of slices go there.
TEST_P(DeviceOffload, HasParametersInHostMemoryOrAFileToTheSameBits) {
  using offload::Place;
  const std::string folder = std::filesystem::temp_directory_path();
  const std::string name = GetParam();
  const auto type = name == "TiedGpt" ? at::kBFloat16 : at::kFloat;
  const Kind kind = kind_named(name);
  for (const std::int32_t replicas : {1, 2}) {
    const auto batches = batches_of(kind, replicas);
    TrainerOptions options = options_of({"1f1b", {.pipe = 2, .data = replicas}});
    options.precision.type = type;
    const DeviceTrained whole = train_on_device(options, kind, batches);
    std::optional<DeviceTrained> updated_by_host;
    if (has_host_kernels()) updated_by_host = whole;
    options.zero.stage = ZeroStage::Parameters;
    for (const auto& [parameters, states] : {std::pair(Place::Device, Place::Device),
                                             {Place::Device, Place::File},
                                             {Place::Host, Place::Device},
                                             {Place::File, Place::Host},
                                             {Place::File, Place::File}}) {
      SCOPED_TRACE(penstock::str("replicas ", replicas, ", places ", static_cast<int>(parameters),
                                 " and ", static_cast<int>(states)));
      options.offload = {
          .states = {states, folder}, .parameters = {parameters, folder}, .elements_at_once = 200};
      const DeviceTrained offloaded = train_on_device(options, kind, batches);
      const bool by_host = parameters != Place::Device || states != Place::Device;
      if (!by_host || updated_by_host) expect_same(offloaded, by_host ? *updated_by_host : whole);
      if (by_host) updated_by_host = offloaded;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceOffload, testing::Values("MixedTypes", "TiedGpt"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(Device, SlicesOfParametersThatAreOffloadedAreTheHosts) {
  const Kind kind = kind_named("Mlp");
  const Batch2 batch = kind.batch(kMicrobatches, kSequence);
  TrainerOptions options = options_of({"1f1b", {}, ZeroStage::Parameters});
  for (const offload::Place place : {offload::Place::Host, offload::Place::File}) {
    options.offload.parameters = {place, std::filesystem::temp_directory_path()};
    comm::run_ranks(1, [&](comm::Communicator& communicator) {
      Trainer trainer(options, kind.model, kind.loss, communicator);
      trainer.step(batch.inputs, batch.targets);
      for (const parameters::Part& part : trainer.rank_model().replicated().parts().all()) {
        EXPECT_TRUE(part.tensor.is_cpu() && part.tensor.grad().is_cpu());
      }
      EXPECT_GT(trainer.rank_model().replicated().paging().faults, 0);
      EXPECT_EQ(trainer.offloaded_bytes() > 0, place == offload::Place::File);
    });
  }
}

TEST(Device, MastersInHostMemoryTakeOverWhatSomebodyHasSet) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor parameter = at::full({4}, 1.0, type).to(device_under_test());
    update::MasterWeights masters({parameter}, update::MastersPlace::Host);
    parameter.fill_(2.0);
    masters.take_changes(masters.all());
    const at::Tensor& master = masters.tensors()[0];
    EXPECT_TRUE(same_bits(master, at::full({4}, 2.0, master.scalar_type())));
  }
}

TEST(Device, InvariantSumsAreThoseOfOneRank) {
  const Kind kind = kind_named("Mlp");
  const auto batches = batches_of(kind, 2);
  TrainerOptions options = options_of({"gpipe", {}, ZeroStage::Off, GradientSums::Invariant});
  options.microbatches = 2 * kMicrobatches;
  DeviceTrained one = train_on_device(options, kind, batches);
  options = options_of({"1f1b", {.pipe = 2, .data = 2}, ZeroStage::Off, GradientSums::Invariant});
  DeviceTrained four = train_on_device(options, kind, batches);
  one.outputs.clear();  // Of both replicas' samples, and not of one's.
  four.outputs.clear();
  expect_same(four, one);
}

TEST(Device, ClipsByTheNormOfAllLayouts) {
  const Kind kind = kind_named("Gpt");
  TrainerOptions options = options_of({});
  options.gradient_clipping = 0.05;
  const auto batches = batches_of(kind, 1);
  const DeviceTrained one = train_on_device(options, kind, batches);
  EXPECT_GT(one.reports[0].grad_norm, options.gradient_clipping);
  options.mesh.pipe = 2;
  options.schedule = "zbv";
  const DeviceTrained two = train_on_device(options, kind, batches);
  for (std::size_t i = 0; i < one.reports.size(); ++i) {
    EXPECT_EQ(one.reports[i].grad_norm, two.reports[i].grad_norm);
  }
  expect_same(two, one);
}

TEST(Device, RecomputesActivations) {
  const Kind kind = kind_named("GptWithDropout");
  TrainerOptions options = options_of({"1f1b", {.pipe = 2}});
  const auto batches = batches_of(kind, 1);
  const DeviceTrained kept = train_on_device(options, kind, batches);
  options.checkpointing = {.interval = 2};
  options.device = c10::Device(device_under_test().type());  // The one that the thread is at.
  expect_same(train_on_device(options, kind, batches), kept);
}

TEST(Device, RanksOnDevicesOfTwoTypesAreToldBeforeTheFirstStep) {
  const Kind kind = kind_named("Mlp");
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    TrainerOptions options = options_of({"1f1b", {.pipe = 2}});
    if (communicator.rank().value == 0) options.device = at::kCPU;
    try {
      Trainer trainer(options, kind.model, kind.loss, communicator);
      FAIL() << "they compute on different devices";
    } catch (const CommError& error) {
      EXPECT_EQ(error.message(),
                str("ranks 0 and 1 do not run the same thing: rank 0 has device=cpu, rank 1 has "
                    "device=",
                    c10::DeviceTypeName(device_under_test().type(), /*lower_case=*/true)));
    }
  });
}

}  // namespace
}  // namespace penstock::train
