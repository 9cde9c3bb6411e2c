// Bytes that torch's allocator hands out, per rank, against what the plan promises.
#include <ATen/ops/rand.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "penstock/runtime/nn/mlp.h"
#include "tests/execute/pipeline.h"

namespace penstock::execute {
namespace {

struct Bytes {
  std::atomic<std::int64_t> current{0};
  std::atomic<std::int64_t> peak{0};

  void add(std::int64_t bytes) {
    const std::int64_t now = current += bytes;
    for (std::int64_t seen = peak; now > seen && !peak.compare_exchange_weak(seen, now);) continue;
  }
};

// While it lives, counts what the threads that called count_for() allocate, until it is freed, on
// whatever thread.
class CountingAllocator : public c10::Allocator {
 public:
  CountingAllocator() { c10::SetCPUAllocator(this, /*priority=*/100); }
  ~CountingAllocator() override { c10::SetCPUAllocator(inner_, /*priority=*/100); }

  static void count_for(Bytes* bytes) { of_thread() = bytes; }

  c10::DataPtr allocate(std::size_t size) override {
    if (of_thread() == nullptr) return inner_->allocate(size);
    auto* block = new Block{inner_->allocate(size), of_thread(), static_cast<std::int64_t>(size)};
    block->bytes->add(block->size);
    return {block->data.get(), block, &free_block, block->data.device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }

 private:
  struct Block {
    c10::DataPtr data;
    Bytes* bytes;
    std::int64_t size;
  };
  static void free_block(void* context) {
    auto* block = static_cast<Block*>(context);
    block->bytes->add(-block->size);
    delete block;
  }
  static Bytes*& of_thread() {
    thread_local Bytes* bytes = nullptr;
    return bytes;
  }
  c10::Allocator* inner_ = c10::GetCPUAllocator();
};

constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kSamples = 128;
constexpr std::int64_t kLayers = 8;
constexpr std::int64_t kHopBytes = kSamples * kWidth * 4;

class Memory : public testing::Test {
 protected:
  StepInputs step(std::size_t microbatches) const {
    StepInputs step{.loss = mean_squared_error};
    step.inputs.assign(microbatches, input_);
    step.targets.assign(microbatches, input_);
    return step;
  }

  // What one stage of `layers` layers needs by itself.
  struct OfOneStage {
    std::int64_t kept = 0;  // From forward to backward, by one microbatch.
    std::int64_t peak = 0;  // During forward and backward of one, with the others' gradients there.
  };
  OfOneStage measure(std::int64_t layers, bool is_last) const {
    const at::Tensor input = input_.detach().requires_grad_(true);
    const at::Tensor gradient = is_last ? at::full({}, 1.0) : input_.clone();
    OfOneStage result;
    Bytes bytes;
    {
      const auto count = std::make_shared<stage::ActivationCount>();
      stage::Stage stage(StageId(1), nn::mlp_layers(kWidth, layers), 0, layers, kSeed, count);
      CountingAllocator::count_for(&bytes);
      for (int repeat = 0; repeat < 2; ++repeat) {
        const std::int64_t before = bytes.current;
        if (is_last) {
          stage.forward_loss(Microbatch(0), input, input_, mean_squared_error, /*keep_graph=*/true);
        } else {
          stage.forward(Microbatch(0), input, /*keep_graph=*/true);
        }
        result.kept = bytes.current - before;
        stage.backward(Microbatch(0), gradient);
      }
      CountingAllocator::count_for(nullptr);
    }
    result.peak = bytes.peak;
    EXPECT_EQ(bytes.current, 0);
    return result;
  }

  // Each rank's peak in a step after the first, above what it has between steps.
  std::vector<std::int64_t> peaks(const verify::VerifiedSchedule& schedule,
                                  std::vector<std::optional<lower::Plan>>& plans) const {
    const std::int32_t ranks = schedule.schedule().ranks();
    std::vector<Bytes> bytes(static_cast<std::size_t>(ranks));
    std::vector<std::int64_t> peaks(bytes.size());
    plans.resize(bytes.size());
    const auto inputs = step(static_cast<std::size_t>(schedule.schedule().microbatches));
    comm::run_ranks(ranks, [&](comm::Communicator& communicator) {
      const std::size_t me = communicator.rank().index();
      RankPipeline rank(communicator, schedule, nn::mlp_layers(kWidth, kLayers), {.pipe = ranks});
      CountingAllocator::count_for(&bytes[me]);
      for (int repeat = 0; repeat < 3; ++repeat) rank.run(inputs);
      CountingAllocator::count_for(nullptr);
      EXPECT_EQ(rank.count->peak, rank.executor->plan().peak_activations);
      peaks[me] = bytes[me].peak;
      plans[me].emplace(rank.executor->plan());
    });
    return peaks;
  }

  CountingAllocator allocator_;
  at::Tensor input_ = at::rand({kSamples, kWidth});
};

// The promise: one microbatch's bytes for each activation of the peak but one, plus what does not
// depend on the number of microbatches: that one with its working memory and the weights' gradients
// (the peak of a stage alone), and a message's bytes for each buffer and transfer in the plan.
TEST_F(Memory, PeakBytesAreThePlansActivationsTimesOneMicrobatchPlusAConstant) {
  for (const char* name : {"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"}) {
    const bool loops = schedule::find_generator(name).stages_per_rank > 1;
    for (const std::int32_t ranks : {2, 4}) {
      for (const std::int32_t microbatches : {4, 16}) {
        std::vector<std::optional<lower::Plan>> plans;
        const auto schedule = from_name(
            name, {.ranks = ranks, .stages_per_rank = loops ? 2 : 1, .microbatches = microbatches});
        const std::int64_t layers = kLayers / schedule.schedule().stages;
        const OfOneStage inner = measure(layers, false), last = measure(layers, true);
        const auto measured = peaks(schedule, plans);
        for (std::size_t rank = 0; rank < plans.size(); ++rank) {
          const lower::Plan& plan = *plans[rank];
          const bool all_last = plan.has_last_stage && plan.chunks.size() == 1;
          const std::int64_t most =
              plan.has_last_stage ? std::max(inner.kept, last.kept) : inner.kept;
          const std::int64_t least = all_last ? last.kept : std::min(inner.kept, last.kept);
          const std::int64_t alone =
              plan.has_last_stage ? std::max(inner.peak, last.peak) : inner.peak;
          std::int64_t messages = plan.send_slots;
          for (std::size_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
            messages += plan.forward_slots[chunk] + plan.backward_slots[chunk];
          }
          // Each further stage has gradients of its own.
          const auto others = static_cast<std::int64_t>(plan.chunks.size()) - 1;
          const std::int64_t constant =
              alone + others * layers * kWidth * (kWidth + 1) * 4 + messages * kHopBytes;
          EXPECT_LE(measured[rank], (plan.peak_activations - 1) * most + constant)
              << name << ", " << ranks << " ranks, " << microbatches << " microbatches, rank "
              << rank;
          EXPECT_GE(measured[rank], plan.peak_activations * least)
              << "the counter missed something";
        }
      }
    }
  }
}

TEST_F(Memory, OneFOneBDoesNotGrowWithTheNumberOfMicrobatchesAndGPipeDoes) {
  const auto peak_of = [&](const char* name, std::int32_t microbatches) {
    std::vector<std::optional<lower::Plan>> plans;
    return peaks(from_name(name, {.ranks = 2, .microbatches = microbatches}), plans);
  };
  const std::int64_t kept = measure(kLayers / 2, /*is_last=*/false).kept;
  const auto few = peak_of("1f1b", 8), many = peak_of("1f1b", 32);
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_LE(many[rank] - few[rank], kHopBytes / 8);
  EXPECT_GE(peak_of("gpipe", 32)[0] - peak_of("gpipe", 8)[0], 24 * kept);
}

}  // namespace
}  // namespace penstock::execute
