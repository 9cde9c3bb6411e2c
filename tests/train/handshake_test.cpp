// What ranks compare: each fact follows what it is of, and a difference in it is named on every
// rank.  Which facts there are, and the page: tests/agreement.
#include "penstock/runtime/train/handshake.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>

#include "penstock/core/content_hash.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/flat.h"
#include "penstock/plan/config/keys.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/runtime/nn/mlp.h"
#include "penstock/runtime/run/data.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

namespace penstock::train {
namespace {

using Names = std::set<std::string>;

constexpr std::int64_t kWidth = 6;

// "layer 3" is one of many.
std::string kind_of(const std::string& name) {
  return name.starts_with("layer ") ? "layer N" : name;
}

// "3" of "layer 3".
std::string subject_of(const agreement::StatedFact& fact) {
  return fact.fact == agreement::Fact::Layer ? fact.name.substr(6) : "";
}

Names names_of(const Facts& facts) {
  Names names;
  for (const agreement::StatedFact& each : facts) names.insert(kind_of(each.name));
  return names;
}

// Those whose value is another one.
Names differences(const Facts& before, const Facts& after) {
  Names names;
  for (const agreement::StatedFact& each : after) {
    if (std::ranges::count(before, each) == 0) names.insert(kind_of(each.name));
  }
  return names;
}

TrainerOptions usual() { return {.mesh = {.pipe = 2}, .microbatches = 4}; }

Facts facts_with(const TrainerOptions& options, std::vector<nn::LayerSpec> model) {
  nn::count_parameters(model);
  const auto schedule = lower::training_program(program_of(options));
  const auto partition =
      partition::partition(nn::meta_of(model), schedule.schedule().stages, options.partition);
  return facts_of(options, model, schedule, partition);
}

struct Change {
  const char* fact;
  std::function<void(TrainerOptions&)> change;
};

const std::vector<Change>& changes() {
  static const std::vector<Change> kChanges = {
      {"mesh", [](TrainerOptions& o) { o.mesh.data = 2; }},
      {"schedule", [](TrainerOptions& o) { o.microbatches = 8; }},
      {"schedule", [](TrainerOptions& o) { o.schedule = "gpipe"; }},
      {"schedule program", [](TrainerOptions& o) { o.schedule = "gpipe"; }},
      {"partition", [](TrainerOptions& o) { o.partition = partition::ByBounds{{0, 1, 4}}; }},
      {"seed", [](TrainerOptions& o) { o.seed = 1; }},
      {"device", [](TrainerOptions& o) { o.device = at::kMeta; }},
      {"updates", [](TrainerOptions& o) { o.device = at::kMeta; }},
      {"optimizer", [](TrainerOptions& o) { o.optimizer.type = config::OptimizerType::Sgd; }},
      {"optimizer", [](TrainerOptions& o) { o.optimizer.lr = 0.5; }},
      {"optimizer", [](TrainerOptions& o) { o.optimizer.betas[1] = 0.5; }},
      {"optimizer", [](TrainerOptions& o) { o.optimizer.eps = 0.5; }},
      {"optimizer", [](TrainerOptions& o) { o.optimizer.weight_decay = 0.5; }},
      {"optimizer", [](TrainerOptions& o) { o.optimizer.momentum = 0.5; }},
      {"scheduler",
       [](TrainerOptions& o) { o.scheduler.type = config::SchedulerType::WarmupCosine; }},
      {"steps", [](TrainerOptions& o) { o.total_steps = 3; }},
      {"gradient_clipping", [](TrainerOptions& o) { o.gradient_clipping = 1; }},
      {"loss scale", [](TrainerOptions& o) { o.loss_scale = LossScale::sum(); }},
      {"sums of gradients", [](TrainerOptions& o) { o.sums = GradientSums::Invariant; }},
      {"types", [](TrainerOptions& o) { o.precision.type = at::kBFloat16; }},
      {"gradient scale", [](TrainerOptions& o) { o.precision.gradient_scale.enabled = true; }},
      {"ZeRO stage", [](TrainerOptions& o) { o.zero.stage = ZeroStage::Gradients; }},
      {"ZeRO bucket bytes", [](TrainerOptions& o) { o.zero.bucket_bytes = 64; }},
      {"ZeRO budget and prefetch bytes", [](TrainerOptions& o) { o.zero.limits.budget_bytes = 1; }},
      {"ZeRO persistence", [](TrainerOptions& o) { o.zero.persistence.elements = 1; }},
      {"given", [](TrainerOptions& o) { o.facts = Facts::of_program({{"given", "2"}}); }}};
  return kChanges;
}

// What a process cannot change of itself, or a Trainer does not hand in.
const Names kFixed = {"penstock version", "torch version", "CPU kernels", "purpose"};

TEST(Handshake, EveryOptionThatDecidesOnResultsIsAFact) {
  TrainerOptions options = usual();
  options.facts = Facts::of_program({{"given", "1"}});
  const auto model = nn::mlp_layers(kWidth, 4);
  const Facts before = facts_with(options, model);
  Names covered = kFixed;
  for (const Change& one : changes()) {
    TrainerOptions changed = options;
    one.change(changed);
    EXPECT_TRUE(differences(before, facts_with(changed, model)).contains(one.fact)) << one.fact;
    covered.insert(one.fact);
  }
  EXPECT_TRUE(differences(before, facts_with(options, nn::mlp_layers(kWidth, 5)))
                  .contains("layers of the model"));
  EXPECT_EQ(differences(before, facts_with(options, nn::mlp_layers(kWidth + 2, 4))),
            Names{"layer N"});
  covered.insert("layers of the model");
  covered.insert("layer N");
  for (const Facts& more : {facts_of_process(), facts_of_host_updates(), facts_of_bits()}) {
    covered.merge(names_of(more));
  }
  EXPECT_EQ(names_of(before + facts_of_bits()), covered) << "a fact without a case here";
}

// Of this process, and put back at the end.
struct Setting {
  const char* fact;
  std::function<void()> change;
  std::function<void()> restore;
  bool reaches_products = false;  // Their bits are a part of "CPU kernels".
};

TEST(Handshake, EverySettingOfAProcessThatDecidesOnResultsIsAFact) {
  at::Context& context = at::globalContext();
  const int threads = at::get_num_threads();
  const at::Float32Precision products =
      context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  const Setting settings[] = {
      {"default dtype", [] { c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kDouble)); },
       [] { c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kFloat)); }},
      {"deterministic algorithms", [&] { context.setDeterministicAlgorithms(true, false); },
       [&] { context.setDeterministicAlgorithms(false, false); }},
      {"float32 precision",
       [&] {
         context.setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL,
                                     at::Float32Precision::BF16);
       },
       [&] {
         context.setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL, products);
       },
       true},
      {"sums of cuBLAS", [&] { context.setAllowFP16ReductionCuBLAS(false); },
       [&] { context.setAllowFP16ReductionCuBLAS(true); }},
      {"cuDNN", [&] { context.setBenchmarkCuDNN(true); },
       [&] { context.setBenchmarkCuDNN(false); }},
      {"oneDNN", [&] { context.setUserEnabledMkldnn(false); },
       [&] { context.setUserEnabledMkldnn(true); }, true},
      {"environment", [] { ::setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", 1); },
       [] { ::unsetenv("ONEDNN_DEFAULT_FPMATH_MODE"); }},
      {"bits of an update on the host", [&] { at::Context::setFlushDenormal(true); },
       [&] { at::Context::setFlushDenormal(false); }},
      {"threads", [&] { at::set_num_threads(threads + 1); },
       [&] { at::set_num_threads(threads); }}};
  const auto all = [] { return facts_of_process() + facts_of_host_updates() + facts_of_bits(); };
  const Facts before = all();
  EXPECT_EQ(all(), before);
  Names covered = kFixed;
  for (const Setting& one : settings) {
    one.change();
    Names found = differences(before, all());
    if (one.reaches_products) found.erase("CPU kernels");
    EXPECT_EQ(found, Names{one.fact});
    one.restore();
    covered.insert(one.fact);
  }
  EXPECT_EQ(all(), before);
  for (const std::string& name : names_of(before)) EXPECT_TRUE(covered.contains(name)) << name;
}

TEST(Handshake, ADifferenceInAnyFactIsOneErrorOnEveryRank) {
  const Facts facts = facts_with(usual(), nn::mlp_layers(kWidth, 2)) + facts_of_bits();
  for (const Rank odd : {Rank(0), Rank(2)}) {
    comm::run_ranks(3, [&](comm::Communicator& communicator) {
      for (const agreement::StatedFact& fact : facts) {
        Facts mine;
        for (const agreement::StatedFact& each : facts) {
          const bool is_odd = communicator.rank() == odd && each == fact;
          mine.add(each.fact, subject_of(each), each.value + (is_odd ? " here" : ""));
        }
        try {
          agree_on(Occasion::Trainer, mine, communicator);
          ADD_FAILURE() << fact.name;
        } catch (const CommError& error) {
          const std::string one = fact.name + "=" + fact.value;
          const int other = odd.value == 0 ? 1 : odd.value;
          const std::string expected =
              str("ranks 0 and ", other, " do not run the same thing: rank 0 has ", one,
                  odd.value == 0 ? " here" : "", ", rank ", other, " has ", one,
                  odd.value == 0 ? "" : " here");
          EXPECT_EQ(error.message(), expected);
          EXPECT_FALSE(error.notes().empty());
        }
      }
    });
  }
}

TEST(Handshake, ThePageListsEveryKeyThatMayDiffer) {
  const std::string page = testing_support::read_source_file("docs/handshake.md");
  for (const std::string& key : config::keys_of_one_rank()) {
    EXPECT_NE(page.find("`" + key + "`"), std::string::npos) << key;
  }
}

TEST(Handshake, EveryKeyIsCommonUnlessItIsOfOneRank) {
  Names listed;
  for (const auto& [key, value] : config::common_values(config::Config())) listed.insert(key);
  for (const std::string& key : config::keys_of_one_rank()) {
    EXPECT_TRUE(listed.insert(key).second) << key;
  }
  for (const config::KeyInfo& key : config::known_keys()) {
    EXPECT_TRUE(listed.contains(key.path) || !key.only_for.empty()) << key.path;
  }
}

TEST(Handshake, OtherTextsAreOtherFacts) {
  const testing_support::TemporaryFolder folder;
  const std::string text(10'000, 'a');
  const auto facts = [&](const std::string& content) {
    std::ofstream(folder.file("text")) << content;
    return run::TextData::load(folder.file("text")).facts();
  };
  const Facts before = facts(text);
  EXPECT_EQ(facts(text), before);
  EXPECT_FALSE(differences(before, facts(text.substr(40))).empty());
  for (const std::size_t place : {0, 31, 32, 4711, 9499, 9500, 9999}) {
    std::string changed = text;
    changed[place] = 'b';
    EXPECT_EQ(differences(before, facts(changed)),
              Names{place < 9500 ? "text to train on" : "text to validate"});
  }
}

TEST(ContentHash, SeesEveryByteAndTheLength) {
  Names seen;
  std::string text(200, '\0');
  for (std::size_t length = 0; length <= text.size(); ++length) {
    EXPECT_TRUE(seen.insert(content_hash(std::string_view(text).substr(0, length))).second);
  }
  for (char& byte : text) {
    for (const int bit : {0, 3, 7}) {
      byte = static_cast<char>(1 << bit);
      EXPECT_TRUE(seen.insert(content_hash(text)).second);
    }
    byte = '\0';
  }
  EXPECT_EQ(content_hash("penstock").size(), 16u);
}

}  // namespace
}  // namespace penstock::train
