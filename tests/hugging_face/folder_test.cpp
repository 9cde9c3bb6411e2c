#include "penstock/hugging_face/folder.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "penstock/core/text.h"
#include "penstock/files/checkpoint/model_files.h"
#include "penstock/runtime/hugging_face/families.h"
#include "penstock/runtime/nn/model.h"
#include "penstock/runtime/weights/safetensors.h"
#include "penstock/weights/weights.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace penstock::hugging_face {
namespace {

using testing_support::message_of;
using testing_support::same_bits;
using testing_support::TemporaryFolder;
using weights::NamedTensors;

const std::string kLlama = R"("model_type": "llama", "vocab_size": 20, "hidden_size": 8,
  "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
  "max_position_embeddings": 16)";
const std::string kGpt2 = R"("model_type": "gpt2", "vocab_size": 20, "n_embd": 8, "n_layer": 1,
  "n_head": 2, "n_positions": 16)";

nn::DecoderOptions options_of(const std::string& fields) {
  return read_options(json::parse(std::make_shared<json::Source>(
      json::Source{.name = "config.json", .text = "{" + fields + "}"})));
}

NamedTensors random_weights(const nn::DecoderOptions& options) {
  NamedTensors tensors;
  for (const auto& [name, shape] : nn::decoder_parameters(options)) {
    tensors.emplace_back(name, at::rand(shape));
  }
  return tensors;
}

void write_config(const TemporaryFolder& folder, const std::string& fields) {
  std::ofstream(folder.file("config.json")) << "{" << fields << "}\n";
}

void write_model(const TemporaryFolder& folder, const std::string& fields,
                 const NamedTensors& tensors) {
  write_config(folder, fields);
  weights::write_safetensors(folder.file("model.safetensors"), tensors);
}

// The values that the layers have when they are made.
NamedTensors values_of(const ModelFolder& folder) {
  const auto specs = folder.layers();
  NamedTensors values;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto built = nn::build_layer(specs, 1, static_cast<std::int64_t>(i));
    for (const auto& each : nn::parameters_of(built, specs[i].meta.name)) {
      if (!each.is_copy) values.emplace_back(each.name, each.tensor.detach());
    }
  }
  return values;
}

void expect_same(const NamedTensors& values, const NamedTensors& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i].first, expected[i].first);
    EXPECT_TRUE(same_bits(values[i].second, expected[i].second)) << values[i].first;
  }
}

std::string refusal_of(const std::string& fields) {
  return message_of([&] { options_of(fields); });
}

TEST(Families, EachIsReadFromItsConfig) {
  EXPECT_EQ(join(families(), " "),
            "gemma gemma2 gemma3_text gpt2 granite llama mistral olmo2 phi3 qwen2 qwen3 smollm3");
  const nn::DecoderOptions llama = options_of(
      kLlama + R"(, "num_key_value_heads": 1, "attention_bias": true, "rms_norm_eps": 1e-4,
                    "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2})");
  EXPECT_EQ(llama.kv_heads, 1);
  EXPECT_EQ(llama.head_dim, 4);
  EXPECT_TRUE(llama.qkv_bias && llama.output_bias && !llama.mlp_bias && !llama.tie_embeddings);
  EXPECT_EQ(llama.norm_epsilon, 1e-4);
  EXPECT_EQ(llama.rotary->theta, 5e5);
  EXPECT_EQ(llama.rotary->scaling, nn::RotaryScaling::Linear);
  EXPECT_EQ(llama.rotary->factor, 2.0);
  const nn::DecoderOptions gpt2 = options_of(kGpt2);
  EXPECT_FALSE(gpt2.rotary);
  EXPECT_EQ(gpt2.intermediate, 32);
  EXPECT_TRUE(gpt2.tie_embeddings);
}

TEST(Families, WhatIsNotSupportedIsRefusedByName) {
  EXPECT_EQ(refusal_of(R"("vocab_size": 3)"),
            str("config.json:1:1: model_type: is missing; penstock has ", join(families(), ", ")));
  const std::string lama = refusal_of(R"("model_type": "lama")");
  EXPECT_TRUE(
      lama.starts_with("config.json:1:16: model_type = \"lama\": penstock has \"gemma\", "));
  EXPECT_TRUE(lama.ends_with("; did you mean \"llama\"?")) << lama;
  const auto names = [](const std::string& fields, const std::string& part) {
    EXPECT_NE(refusal_of(fields).find(part), std::string::npos) << refusal_of(fields);
  };
  names(kLlama + R"(, "hidden_act": "relu")", "hidden_act = \"relu\": penstock has \"silu\"");
  names(kLlama + R"(, "rope_scaling": {"rope_type": "axial", "factor": 4})",
        "rope_type = \"axial\": penstock has \"default\", \"linear\", \"dynamic\", \"yarn\"");
  names(kLlama + R"(, "rope_scaling": {"rope_type": "longrope", "short_factor": [1]})",
        "short_factor = a list: expected 2 numbers, one for each pair that is turned");
  names(kLlama + R"(, "rope_scaling": {"rope_type": "linear"})", "factor: is missing");
  names(kLlama + R"(, "rope_parameters": {"partial_rotary_factor": 0.5})", "turns whole heads");
  names(kLlama + R"(, "quantization_config": {"bits": 4})", "quantization_config");
  names(kLlama + R"(, "num_key_value_heads": 3)", "must divide num_attention_heads = 2");
  names(kLlama + R"(, "head_dim": 3)", "head_dim = 3: heads of 3 elements cannot be turned");
  names(kLlama + R"(, "attention_bias": 1)", "attention_bias = 1: expected true or false");
  names(kGpt2 + R"(, "activation_function": "relu")", "activation_function = \"relu\"");
  names(kGpt2 + R"(, "scale_attn_by_inverse_layer_idx": true)", "penstock has false only");
  std::string qwen = kLlama;
  qwen.replace(qwen.find("llama"), 5, "qwen2");
  qwen += R"(, "num_key_value_heads": 2)";
  names(qwen + R"(, "use_sliding_window": true, "sliding_window": null)",
        "use_sliding_window = true: needs sliding_window");
  names(qwen + R"(, "use_sliding_window": true, "sliding_window": 4,
                   "layer_types": ["full_attention", "chunked_attention"])",
        "layer 1 is \"chunked_attention\"");
  const std::string all = refusal_of(R"("model_type": "llama", "hidden_size": 0)");
  for (const char* key : {"vocab_size", "hidden_size = 0", "num_hidden_layers"}) {
    EXPECT_NE(all.find(key), std::string::npos) << key << " in " << all;
  }
}

TEST(ModelFolder, LayersHaveTheFoldersWeights) {
  for (const std::string& fields : {kLlama, kGpt2}) {
    const TemporaryFolder folder;
    const NamedTensors weights = random_weights(options_of(fields));
    write_model(folder, fields, weights);
    expect_same(values_of(ModelFolder(folder.path())), weights);
  }
}

TEST(ModelFolder, ShardsAndOtherTypesGiveTheSameValues) {
  const TemporaryFolder folder;
  NamedTensors weights = random_weights(options_of(kLlama));
  const std::array types = {at::kBFloat16, at::kHalf, at::kDouble};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i].second = weights[i].second.to(at::kBFloat16).to(types[i % 3]);
  }
  write_config(folder, kLlama);
  checkpoint::ModelIndex index;
  for (std::int32_t shard = 0; shard < 2; ++shard) {
    const auto middle = weights.begin() + 7;
    const NamedTensors part(shard == 0 ? weights.begin() : middle,
                            shard == 0 ? middle : weights.end());
    weights::write_safetensors(folder.file(checkpoint::model_file(shard, 2)), part);
    index.names.emplace_back();
    for (const auto& [name, tensor] : part) index.names.back().push_back(name);
  }
  weights::write_index(folder.path(), index);
  const ModelFolder model(folder.path());
  EXPECT_EQ(model.type_of(weights[1].first), checkpoint::ScalarType::F16);
  for (auto& [name, tensor] : weights) tensor = tensor.to(at::kFloat);
  expect_same(values_of(model), weights);
  const auto refusal = [&] { return message_of([&] { ModelFolder again(folder.path()); }); };
  std::filesystem::remove(folder.file(checkpoint::model_file(1, 2)));
  EXPECT_NE(
      refusal().find("names 2 files of weights, of which 1 is not there: model-00002-of-0000"),
      std::string::npos);
  std::filesystem::remove(folder.file(checkpoint::model_file(0, 2)));
  EXPECT_NE(refusal().find("of which none is there: model-00001-of"), std::string::npos);
}

TEST(ModelFolder, NamesTensorsThatDoNotFit) {
  const TemporaryFolder folder;
  NamedTensors weights = random_weights(options_of(kLlama));
  const auto at_name = [&](const std::string& name) -> at::Tensor& {
    return std::ranges::find(weights, name, &NamedTensors::value_type::first)->second;
  };
  at_name("model.norm.weight") = at::rand({9});
  at_name("lm_head.weight") = at::ones({20, 8}, at::kInt);
  std::erase_if(weights,
                [](const auto& each) { return each.first == "model.layers.1.mlp.up_proj.weight"; });
  weights.emplace_back("model.layers.2.mlp.up_proj.weight", at::rand({12, 8}));
  weights.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", at::rand({2}));
  write_model(folder, kLlama, weights);
  EXPECT_EQ(message_of([&] { ModelFolder model(folder.path()); }),
            str("the weights in ", quoted_path(folder.path()), " do not fit its config.json\n",
                "  note: missing: model.layers.1.mlp.up_proj.weight\n",
                "  note: of another shape: model.norm.weight is [9] and config.json says [8]\n",
                "  note: of a type that is not F32, F64, BF16 or F16: lm_head.weight is I32\n",
                "  note: not the model's: model.layers.2.mlp.up_proj.weight"));
}

TEST(ModelFolder, ATiedHeadMayBeThereIfItIsTheEmbedding) {
  const TemporaryFolder folder;
  const std::string fields = kLlama + R"(, "tie_word_embeddings": true)";
  NamedTensors weights = random_weights(options_of(fields));
  weights.emplace_back("lm_head.weight", weights.front().second.clone());
  write_model(folder, fields, weights);
  EXPECT_EQ(values_of(ModelFolder(folder.path())).size(), weights.size() - 1);
  weights.back().second[3][2] += 1;
  write_model(folder, fields, weights);
  EXPECT_NE(message_of([&] { ModelFolder model(folder.path()); }).find("two different ones"),
            std::string::npos);
}

// As a file is whose writer kept one name of two tensors that share their memory.
TEST(ModelFolder, ATiedHeadWithoutTheEmbeddingIsBoth) {
  const TemporaryFolder folder;
  const std::string fields = kLlama + R"(, "tie_word_embeddings": true)";
  NamedTensors weights = random_weights(options_of(fields));
  const NamedTensors expected = weights;
  weights.front().first = "lm_head.weight";
  write_model(folder, fields, weights);
  expect_same(values_of(ModelFolder(folder.path())), expected);
  write_model(folder, kLlama, weights);
  EXPECT_NE(message_of([&] {
              ModelFolder model(folder.path());
            }).find("missing: model.embed_tokens.weight"),
            std::string::npos);
}

TEST(ModelFolder, AModelWithAdaptersBesideItIsRefused) {
  const TemporaryFolder folder;
  write_model(folder, kLlama, random_weights(options_of(kLlama)));
  std::ofstream(folder.file("adapter_config.json")) << "{}";
  EXPECT_NE(message_of([&] { ModelFolder model(folder.path()); }).find("adapter_config.json"),
            std::string::npos);
}

TEST(ModelFolder, AFileThatIsNoWeightsIsSaidToBeWhatItIs) {
  const std::pair<const char*, const char*> files[] = {
      {"", "it is empty"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 12\n", "Git LFS"},
      {"<!DOCTYPE html><html>", "HTML"},
      {"PK\x03\x04 and more", "torch.save()"},
      {"1234", "4 bytes"}};
  const TemporaryFolder folder;
  write_config(folder, kLlama);
  const auto refusal = [&] { return message_of([&] { ModelFolder model(folder.path()); }); };
  for (const auto& [content, said] : files) {
    std::ofstream(folder.file("model.safetensors")) << content;
    EXPECT_NE(refusal().find("model.safetensors\" is no safetensors file"), std::string::npos)
        << refusal();
    EXPECT_NE(refusal().find(said), std::string::npos) << refusal();
  }
  std::filesystem::remove(folder.file("model.safetensors"));
  std::ofstream(folder.file("pytorch_model.bin")) << "PK";
  EXPECT_NE(refusal().find("pytorch_model.bin\" is no file of torch.save(): it has no directory"),
            std::string::npos)
      << refusal();
  EXPECT_NE(refusal().find("save_pretrained"), std::string::npos) << refusal();
  std::ofstream(folder.file("pytorch_model.bin")) << files[1].first;
  EXPECT_NE(refusal().find("Git LFS"), std::string::npos) << refusal();
}

TEST(ModelFolder, MetadataThatChangeWhatTensorsAreAreRefused) {
  const TemporaryFolder folder;
  write_config(folder, kLlama);
  const NamedTensors weights = random_weights(options_of(kLlama));
  const auto refusal = [&](const std::string& key, const std::string& value) {
    weights::write_safetensors(folder.file("model.safetensors"), weights, {{key, value}});
    return message_of([&] { ModelFolder model(folder.path()); });
  };
  EXPECT_EQ(refusal("format", "pt"), "no error");
  EXPECT_EQ(refusal("modelspec.title", "a \x1b[2J title"), "no error");
  EXPECT_NE(refusal("format", "tf").find("\"format\" = \"tf\""), std::string::npos);
  EXPECT_NE(refusal("Quantization", "int8").find("not quantized"), std::string::npos);
}

// Opening a pipe as others do would wait for ever.
TEST(ModelFolder, APipeInPlaceOfAnyFileIsRefused) {
  for (const char* const name : {"config.json", "model.safetensors"}) {
    const TemporaryFolder folder;
    write_model(folder, kLlama, random_weights(options_of(kLlama)));
    std::filesystem::remove(folder.file(name));
    ASSERT_EQ(::mkfifo(folder.file(name).c_str(), 0600), 0);
    EXPECT_NE(message_of([&] { ModelFolder model(folder.path()); }).find("is a pipe, and no file"),
              std::string::npos)
        << name;
  }
}

// 300 bytes of a config.json took all memory: a name was made for each tensor of each layer.
TEST(Families, SizesOfNoModelAreRefusedBeforeAnythingIsMadeOfThem) {
  const auto with = [](std::string fields, const std::string& key, const std::string& value) {
    const std::size_t at = fields.find(':', fields.find("\"" + key + "\""));
    const std::size_t end = fields.find_first_of(",", at);
    return fields.replace(at + 1, end == std::string::npos ? end : end - at - 1, value);
  };
  EXPECT_NE(refusal_of(with(kLlama, "num_hidden_layers", "1000000000"))
                .find("num_hidden_layers = 1000000000: expected an integer in [1, 16384]"),
            std::string::npos);
  EXPECT_NE(refusal_of(with(kGpt2, "n_layer", "1000000000")).find("n_layer = 1000000000"),
            std::string::npos);
  for (const char* const key : {"vocab_size", "hidden_size", "intermediate_size"}) {
    EXPECT_NE(refusal_of(with(kLlama, key, "2000000000")).find(key), std::string::npos) << key;
  }
  // Each is one of a model, and they are not together.
  EXPECT_NE(refusal_of(with(with(kLlama, "vocab_size", "1073741824"), "hidden_size", "1073741824"))
                .find("penstock takes up to"),
            std::string::npos);
}

TEST(ModelFolder, ABodyOfGpt2AloneHasNamesWithoutTheBodys) {
  const TemporaryFolder folder;
  const NamedTensors weights = random_weights(options_of(kGpt2));
  NamedTensors body;
  for (const auto& [name, tensor] : weights) body.emplace_back(name.substr(12), tensor);
  body.emplace_back("h.0.attn.bias", at::ones({1, 1, 16, 16}));
  write_model(folder, kGpt2, body);
  expect_same(values_of(ModelFolder(folder.path())), weights);
}

TEST(ModelFolder, FactsTellFoldersApart) {
  const TemporaryFolder folder;
  NamedTensors weights = random_weights(options_of(kLlama));
  write_model(folder, kLlama, weights);
  const auto before = ModelFolder(folder.path()).facts();
  EXPECT_EQ(ModelFolder(folder.path()).facts(), before);
  weights[3].second += 1;
  write_model(folder, kLlama, weights);
  const auto after = ModelFolder(folder.path()).facts();
  EXPECT_EQ(after.all()[0], before.all()[0]);
  EXPECT_EQ(after.all()[1], before.all()[1]);
  EXPECT_NE(after.all()[2], before.all()[2]);
}

TEST(ModelFolder, IsRefusedWhereAFileIsMissing) {
  const TemporaryFolder folder;
  EXPECT_NE(message_of([&] { ModelFolder model(folder.path() + "/none"); }).find("no such folder"),
            std::string::npos);
  EXPECT_NE(message_of([&] { ModelFolder model(folder.path()); }).find("config.json"),
            std::string::npos);
  write_config(folder, kLlama);
  EXPECT_NE(message_of([&] { ModelFolder model(folder.path()); }).find("has no weights"),
            std::string::npos);
}

TEST(OtherFiles, AreCopiedAsTheyAre) {
  const TemporaryFolder from, to;
  std::ofstream(from.file("tokenizer.json")) << "{\"a\": 1}";
  std::ofstream(from.file("optimizer.pt")) << "not for a model's readers";
  copy_other_files(from.path(), to.path());
  std::string text;
  std::getline(std::ifstream(to.file("tokenizer.json")), text);
  EXPECT_EQ(text, "{\"a\": 1}");
  EXPECT_FALSE(std::filesystem::exists(to.file("optimizer.pt")));
  EXPECT_EQ(message_of([&] { check_target(to.path()); }), "no error");
  std::ofstream(to.file("model.safetensors")) << "old";
  EXPECT_NE(message_of([&] { check_target(to.path()); }).find("prefer"), std::string::npos);
}

}  // namespace
}  // namespace penstock::hugging_face
