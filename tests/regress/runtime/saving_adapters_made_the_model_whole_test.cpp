// A save of adapters under ZeRO 3 brought all of the base model to each rank, which had no room for
// it, and ranks that share layers sent each other their parts of it.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>

#include "penstock/config/read.h"
#include "penstock/core/text.h"
#include "penstock/run/saved_model.h"
#include "penstock/runtime/run/configured_trainer.h"
#include "tests/support/temporary_folder.h"

namespace penstock::run {
namespace {

constexpr const char* kModel = R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
  "hidden_act": "silu"})";

// Bytes that a rank has of parameters that nobody trains.
std::int64_t bytes_of_base(train::Trainer& trainer) {
  std::int64_t bytes = 0;
  for (const stage::Stage& stage : trainer.rank_model().stages()) {
    for (const auto& [name, tensor] : stage.layers().state()) {
      if (!is_of_adapter(name)) {
        bytes += static_cast<std::int64_t>(tensor.storage().nbytes());
      }
    }
  }
  return bytes;
}

TEST(SavingAdapters, LeavesTheBaseModelWhereItIs) {
  const testing_support::TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("model"));
  std::ofstream(folder.file("model/config.json")) << kModel;
  const config::ReadConfig read =
      config::parse_config(str(R"({"train_batch_size": 4, "mesh": {"data": 2, "tensor": 2},
              "zero_optimization": {"stage": 3},
              "model": {"type": "hugging_face", "weights": "random", "sequence_length": 8,
                        "path": )",
                               json_quote(folder.file("model")), R"(, "adapter": {"rank": 2}}})"),
                           "adapters");
  std::atomic<std::int64_t> looks = 0, bytes = 0;
  comm::run_ranks(4, [&](comm::Communicator& ranks) {
    execute::Progress progress;
    ConfiguredTrainer made(read.config, ranks, at::kCPU, progress);
    made.read_model();
    made.build({}, train::LossScale::tokens());
    SavedModel saved(folder.file("adapters"), made.model(), made.trainer(), ranks, progress);
    progress.arrived = [&](std::string_view place) {
      if (!place.starts_with("making tensors whole")) return;
      ++looks;
      bytes += bytes_of_base(made.trainer());
    };
    saved.write();
    progress.arrived = nullptr;
  });
  EXPECT_EQ(looks, 2);  // Of the first replica.
  EXPECT_EQ(bytes, 0);
  EXPECT_TRUE(std::filesystem::exists(folder.file("adapters/adapter_model.safetensors")));
}

}  // namespace
}  // namespace penstock::run
