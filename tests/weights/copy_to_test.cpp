// Weights of folders of all layouts, in modules of a program's own.
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "penstock/core/error.h"
#include "penstock/weights/weights.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace penstock::weights {
namespace {

using testing_support::same_bits;
using testing_support::TemporaryFolder;

struct Head : torch::nn::Module {
  Head() {
    register_module("dense", dense);
    register_module("norm", norm);
  }
  torch::nn::Linear dense{3, 2};
  torch::nn::BatchNorm1d norm{2};
};

NamedTensors tensors_of(const Head& head) {
  NamedTensors tensors;
  for (const auto& each : head.named_parameters()) {
    tensors.emplace_back(each.key(), at::rand(each.value().sizes()));
  }
  for (const auto& each : head.named_buffers()) {
    tensors.emplace_back(each.key(), at::rand(each.value().sizes()).to(each.value().scalar_type()));
  }
  return tensors;
}

void expect_has(const Head& head, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const auto parameters = head.named_parameters(), buffers = head.named_buffers();
    const at::Tensor* found = parameters.find(name);
    if (found == nullptr) found = buffers.find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_TRUE(same_bits(found->detach(), tensor)) << name;
  }
}

TEST(CopyTo, ReadsAModelInOneFileOfAnyNameAndInShards) {
  const Head source;
  const NamedTensors tensors = tensors_of(source);
  for (const char* name : {"model.safetensors", "vit-base.safetensors"}) {
    const TemporaryFolder folder;
    write_safetensors(folder.file(name), tensors);
    // Not of the model.
    write_safetensors(folder.file("adapter_model.safetensors"), {{"lora", at::rand({2})}});
    for (const std::string& path : {folder.path(), folder.file(name)}) {
      Head head;
      copy_to(head, path);
      expect_has(head, tensors);
    }
  }
  const TemporaryFolder folder;
  const NamedTensors first(tensors.begin(), tensors.begin() + 2);
  const NamedTensors second(tensors.begin() + 2, tensors.end());
  checkpoint::ModelIndex index;
  for (const NamedTensors* part : {&first, &second}) {
    write_safetensors(folder.file(checkpoint::model_file(part == &second, 2)), *part);
    index.names.emplace_back();
    for (const auto& [name, tensor] : *part) index.names.back().push_back(name);
  }
  write_index(folder.path(), index);
  Head head;
  copy_to(head, folder.path());
  expect_has(head, tensors);
}

TEST(CopyTo, TakesOtherNamesAndTypes) {
  const NamedTensors stored = {{"encoder.weight", at::rand({2, 3}).to(at::kHalf)},
                               {"encoder.bias", at::rand({2})},
                               {"pooler.bias", at::rand({9})}};
  torch::nn::Linear linear(3, 2);
  copy_to(*linear, stored, [](const std::string& name) -> std::string {
    return name.starts_with("encoder.") ? name.substr(8) : "";
  });
  EXPECT_TRUE(same_bits(linear->weight.detach(), stored[0].second.to(at::kFloat)));
  EXPECT_TRUE(same_bits(linear->bias.detach(), stored[1].second));
  EXPECT_TRUE(linear->weight.requires_grad());
}

TEST(CopyTo, ListsAllThatDoesNotFitAndCopiesNothing) {
  Head head;
  NamedTensors tensors = tensors_of(head);
  const at::Tensor before = head.norm->weight.detach().clone();
  tensors[0].first = "dense.weigth";
  tensors[1].second = at::rand({7});
  const TemporaryFolder folder;
  write_safetensors(folder.file("model.safetensors"), tensors);
  try {
    copy_to(head, folder.path());
    ADD_FAILURE() << "copied";
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(folder.path()), std::string::npos) << text;
    for (const char* problem : {"unexpected: \"dense.weigth\"; did you mean \"dense.weight\"",
                                "of another shape: \"dense.bias\" is [7], the module has [2]",
                                "missing: \"dense.weight\", [2, 3]"}) {
      EXPECT_NE(text.find(problem), std::string::npos) << problem << " in " << text;
    }
  }
  EXPECT_TRUE(same_bits(head.norm->weight.detach(), before));
}

TEST(CopyTo, RefusesFoldersThatHaveSeveralFilesOrAPartOfAModel) {
  const auto refused = [](const TemporaryFolder& folder, const std::string& words) {
    try {
      read_weights(folder.path());
      ADD_FAILURE() << "read, expected: " << words;
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const TemporaryFolder several, part, none;
  write_safetensors(several.file("a.safetensors"), {{"a", at::rand({2})}});
  write_safetensors(several.file("b.safetensors"), {{"b", at::rand({2})}});
  refused(several, "it has a.safetensors, b.safetensors: read one of them by its path");
  write_safetensors(part.file(checkpoint::model_file(0, 2)), {{"a", at::rand({2})}});
  refused(part, "one of several files");
  refused(none, "has no weights");
}

}  // namespace
}  // namespace penstock::weights
