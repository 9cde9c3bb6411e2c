#include "penstock/plan/memory/layers_file.h"

#include <gtest/gtest.h>

#include <memory>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::memory {
namespace {

using devices::KernelKind;
using Step = devices::PassStep::Kind;

constexpr std::int64_t kManyOperations = std::int64_t{1} << 60;

LayersFile read(const std::string& text) {
  return read_layers(json::parse(
      std::make_shared<const json::Source>(json::Source{.name = "layers.json", .text = text})));
}

LayersFile file() {
  const LayerMemory layer{.parameters = {{.name = "a \"weight\"",
                                          .type = "bfloat16",
                                          .element_bytes = 2,
                                          .elements = 6,
                                          .is_trainable = false,
                                          .is_tied = true,
                                          .copies = 2,
                                          .sum_element_bytes = 4}},
                          .buffers = 1,
                          .output = 2,
                          .input_gradient = 3,
                          .kept = 4,
                          .keeps_input = true,
                          .half_kept = 5,
                          .half_keeps_gradient = true,
                          .forward_peak = 6,
                          .plain_forward_peak = 7,
                          .backward_peak = {.first = 8, .later = 9},
                          .input_peak = 10,
                          .weight_peak = {.first = 11, .later = 12},
                          .backward_sent = 14,
                          .backward_exchanges = 15,
                          .exchanges = {{.group = LayerGroup::Experts,
                                         .way = ExchangeWay::ByNode,
                                         .copies = 8,
                                         .forward_bytes = 21,
                                         .forward_count = 2,
                                         .backward_bytes = 22,
                                         .backward_count = 3}},
                          .forward_kernels = {{{KernelKind::Other, 17}, 1},
                                              {{KernelKind::ShortProduct, kManyOperations}, 2}},
                          .weight_kernels = {{{KernelKind::AttentionBackward, 18}, 3}},
                          .backward_pass = {{.kind = Step::Begin, .bytes = 19},
                                            {.kernels = {{{KernelKind::Other, 20}, 4}}},
                                            {.kind = Step::Await, .number = 0}}};
  return {.made_for = "a model",
          .model = {{.name = "h.0", .type = "Block", .parameters = 6}},
          .sample_bytes = 13,
          .sizes = {{.microbatch = 1, .memory = {.layers = {layer}, .loss = {.output = 4}}},
                    {.microbatch = 1,
                     .is_selective = true,
                     .memory = {.layers = {layer}, .loss = {.output = 4}}},
                    {.microbatch = 4, .memory = {.layers = {layer}, .loss = {.output = 5}}},
                    {.microbatch = 1,
                     .sharers = 2,
                     .context = 3,
                     .experts = 5,
                     .memory = {.layers = {layer}, .loss = {}, .again = {{.kept = 16}}}}}};
}

TEST(LayersFile, ReadsWhatItWrites) {
  const LayersFile read_file = read(to_json(file()));
  EXPECT_EQ(to_json(read_file), to_json(file()));
  const Parameter& parameter = read_file.sizes[2].memory.layers[0].parameters[0];
  EXPECT_EQ(parameter.name, "a \"weight\"");
  EXPECT_TRUE(parameter.is_tied);
  EXPECT_EQ(parameter.copies, 2);
  EXPECT_TRUE(read_file.sizes[1].is_selective);
  EXPECT_EQ(read_file.sizes[3].sharers, 2);
  EXPECT_EQ(read_file.sizes[3].memory.again[0].kept, 16);
  const LayerMemory& layer = read_file.sizes[2].memory.layers[0];
  EXPECT_EQ(layer.forward_kernels, file().sizes[2].memory.layers[0].forward_kernels);
  EXPECT_EQ(layer.weight_kernels, file().sizes[2].memory.layers[0].weight_kernels);
  EXPECT_EQ(layer.input_kernels, devices::Kernels());
  EXPECT_EQ(layer.exchanges, file().sizes[2].memory.layers[0].exchanges);
  EXPECT_EQ(read_file.sizes[3].context, 3);
  EXPECT_EQ(read_file.sizes[3].experts, 5);
  EXPECT_EQ(layer.backward_pass, file().sizes[1].memory.layers[0].backward_pass);
  EXPECT_FALSE(parameter.is_trainable);
  EXPECT_EQ(read_file.sizes[2].memory.layers[0].weight_peak.later, 12);
  EXPECT_EQ(read_file.sizes[2].memory.loss.output, 5);
}

// Four blocks, of which the third keeps more.
LayersFile blocks() {
  LayersFile file{.made_for = "a model", .sample_bytes = 1};
  ModelMemory memory;
  for (int i = 0; i < 4; ++i) {
    const std::string name = str("h.", i);
    file.model.push_back({.name = name, .type = "Block", .parameters = 6});
    memory.layers.push_back({.parameters = {{.name = name + ".weight", .elements = 6}},
                             .kept = i == 2 ? 9 : 8,
                             .forward_kernels = {{{KernelKind::Other, 17}, 1}}});
  }
  file.sizes.push_back({.memory = memory});
  return file;
}

TEST(LayersFile, SaysOnceWhatLayersThatAreAlikeTake) {
  const std::string text = to_json(blocks());
  std::size_t whole = 0;
  for (std::size_t at = 0; (at = text.find("\"kept\"", at)) != std::string::npos; ++at) ++whole;
  EXPECT_EQ(whole, 3U) << "of the loss, and two kinds of blocks";
  const LayersFile read_file = read(text);
  EXPECT_EQ(to_json(read_file), text);
  const std::vector<LayerMemory>& layers = read_file.sizes[0].memory.layers;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layers[i].parameters[0].name, str("h.", i, ".weight"));
    EXPECT_EQ(layers[i].kept, i == 2 ? 9 : 8);
    EXPECT_EQ(layers[i].forward_kernels, layers[0].forward_kernels);
  }
}

void expect_refused(std::string text, const std::string& part, const std::string& other,
                    const std::string& why) {
  const std::size_t place = text.find(part);
  ASSERT_NE(place, std::string::npos) << part;
  text.replace(place, part.size(), other);
  try {
    read(text);
    FAIL() << part << " -> " << other;
  } catch (const ParseError& error) {
    EXPECT_NE(error.message().find(why), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("layers.json:"), std::string::npos) << error.message();
  }
}

TEST(LayersFile, RefusesWhatIsNone) {
  const std::string text = to_json(file());
  expect_refused(text, "\"version\": 5", "\"version\": 4", "this penstock reads version 5");
  expect_refused(text, "\"kept\": 4", "\"kept\": -4", "kept: expected a whole number from 0");
  expect_refused(text, "\"kept\": 4", "\"kapt\": 4", "no key \"kept\"");
  expect_refused(text, "[8, 9]", "[8]", "backward_peak: expected two numbers");
  expect_refused(text, "[\"await\", 0]", "[\"await\", 1]",
                 "backward_pass: expected kernels, begin, or await");
  expect_refused(text, "[\"begin\", 19]", "[\"begins\", 19]", "expected kernels, begin, or await");
  expect_refused(text, "\"microbatch\": 4", "\"microbatch\": 1", "must rise");
  expect_refused(text, "\"microbatch\": 1", "\"microbatch\": 0", "expected 1 or more");
  expect_refused(text, "\"sharers\": 2, \"context\": 3, \"experts\": 5",
                 "\"sharers\": 1, \"context\": 1, \"experts\": 1", "sizes must rise");
  expect_refused(text, "\"by_node\", 8", "\"by_nodes\", 8", "exchanges: expected a group");
  expect_refused(text, "\"by_node\", 8", "\"by_node\", -8", "exchanges: expected a whole number");
  expect_refused(text, "\"expert_parameters\": 0", "\"expert_parameters\": 2",
                 "expected at most the 0 that the layer has");
  expect_refused(text, "\"context\": 3", "\"context\": 0", "expected 1 or more");
  expect_refused(text, "\"selective\": true", "\"selective\": false", "sizes must rise");
  const std::string alike = to_json(blocks());
  expect_refused(alike, "\n   0,", "\n   1,", "expected a layer, or the number of one before it");
  expect_refused(alike, "h.0.weight", "other.weight", "layer 0 has parameters of other names");
}

TEST(LayersFile, SaysWhatItsNumbersDependOn) {
  config::Config config;
  const std::string first = made_for(config);
  config.mesh.pipe = 2;
  config.optimizer.lr = 5;
  EXPECT_EQ(made_for(config), first);
  config.model.tie_embeddings = true;
  EXPECT_NE(made_for(config), first);
  config.model.tie_embeddings = false;
  config.bf16.enabled = true;
  EXPECT_NE(made_for(config), first);
}

}  // namespace
}  // namespace penstock::memory
