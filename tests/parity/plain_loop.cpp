// A GPT and its training loop in plain LibTorch: outside truth for penstock, of which it includes
// and links nothing.
//
//   parity_plain_loop FOLDER
//
// Reads the initial weights and the batches that `parity_dump steps FOLDER` wrote, trains, and
// compares loss and every gradient of each step with the dump, bit for bit.  The last line says how
// many; any difference is a line of its own and exit code 1.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>

namespace {

using torch::Tensor;
using Tensors = std::map<std::string, Tensor>;

constexpr int64_t kMicrobatches = 3;
constexpr int64_t kHeads = 4;

// Every tensor of a safetensors file that our own writer made: no spaces, fields in this order.
Tensors read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::string header = bytes.substr(8, length);
  static const std::regex entry(
      R"re("([^"]+)":\{"dtype":"(\w+)","shape":\[([\d,]*)\],"data_offsets":\[(\d+),(\d+)\]\})re");
  const std::map<std::string, torch::Dtype> types = {
      {"F32", torch::kFloat}, {"F64", torch::kDouble}, {"I64", torch::kLong}};
  Tensors tensors;
  for (std::sregex_iterator found(header.begin(), header.end(), entry), end; found != end;
       ++found) {
    const std::smatch& match = *found;
    std::vector<int64_t> shape;
    const std::string sizes = match[3];
    for (std::size_t at = 0; at < sizes.size(); at = sizes.find(',', at) + 1) {
      shape.push_back(std::stoll(sizes.substr(at)));
      if (sizes.find(',', at) == std::string::npos) break;
    }
    const Tensor tensor = torch::empty(shape, types.at(match[2]));
    std::memcpy(tensor.data_ptr(), bytes.data() + 8 + length + std::stoull(match[4]),
                tensor.nbytes());
    tensors[match[1]] = tensor;
  }
  return tensors;
}

Tensor gpt(const Tensors& w, const Tensor& tokens) {
  const auto norm = [&](const std::string& name, const Tensor& x) {
    return torch::layer_norm(x, {x.size(2)}, w.at(name + ".weight"), w.at(name + ".bias"));
  };
  const auto linear = [&](const std::string& name, const Tensor& x) {
    return torch::linear(x, w.at(name + ".weight"), w.at(name + ".bias"));
  };
  Tensor x = torch::embedding(w.at("transformer.wte.weight"), tokens) +
             torch::embedding(w.at("transformer.wpe.weight"), torch::arange(tokens.size(1)));
  for (int layer = 0; w.count("transformer.h." + std::to_string(layer) + ".ln_1.weight"); ++layer) {
    const std::string h = "transformer.h." + std::to_string(layer) + ".";
    const auto qkv = linear(h + "attn.c_attn", norm(h + "ln_1", x)).chunk(3, 2);
    const auto heads = [&](const Tensor& t) {
      return t.view({t.size(0), t.size(1), kHeads, t.size(2) / kHeads}).transpose(1, 2);
    };
    const Tensor mixed = torch::scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]),
                                                             heads(qkv[2]), {}, 0.0, true);
    x = x + linear(h + "attn.c_proj", mixed.transpose(1, 2).reshape(x.sizes()));
    x = x +
        linear(h + "mlp.c_proj", torch::gelu(linear(h + "mlp.c_fc", norm(h + "ln_2", x)), "tanh"));
  }
  return torch::linear(norm("head.ln_f", x), w.at("head.lm_head.weight"));
}

class Comparison {
 public:
  void compare(int step, const std::string& name, const Tensor& ours, const Tensor& theirs) {
    ++compared_;
    if (ours.sizes() == theirs.sizes() &&
        std::memcmp(ours.contiguous().data_ptr(), theirs.data_ptr(), ours.nbytes()) == 0) {
      return;
    }
    ++different_;
    std::printf("step %d: %s differs, by at most %g\n", step, name.c_str(),
                (ours - theirs).abs().max().item<double>());
  }
  int finish() const {
    std::printf("%d of %d losses and gradients have the same bits\n", compared_ - different_,
                compared_);
    return different_ == 0 && compared_ > 0 ? 0 : 1;
  }

 private:
  int compared_ = 0;
  int different_ = 0;
};

int run(const std::string& folder) {
  torch::set_num_threads(1);
  Tensors weights = read(folder + "/initial.safetensors");
  std::vector<Tensor> parameters, averages, squares, steps;
  for (auto& [name, weight] : weights) {
    parameters.push_back(weight.requires_grad_(true));
    averages.push_back(torch::zeros_like(weight));
    squares.push_back(torch::zeros_like(weight));
    steps.push_back(torch::zeros({}));
  }
  Comparison comparison;
  for (int step = 1; step <= 3; ++step) {
    const Tensors dump = read(folder + "/step-" + std::to_string(step) + ".safetensors");
    const auto inputs = dump.at("input").chunk(kMicrobatches);
    const auto targets = dump.at("target").chunk(kMicrobatches);
    double loss = 0.0;
    for (int64_t m = 0; m < kMicrobatches; ++m) {
      const Tensor logits = gpt(weights, inputs[m]);
      const Tensor mean =
          torch::nn::functional::cross_entropy(logits.flatten(0, 1), targets[m].flatten());
      mean.backward();
      loss += mean.item<double>();
    }
    comparison.compare(step, "loss", torch::tensor(loss / kMicrobatches, torch::kDouble),
                       dump.at("loss"));
    for (const auto& [name, weight] : weights) {
      weight.mutable_grad().div_(kMicrobatches);  // The mean, of the sum: docs/numerics.md.
      comparison.compare(step, name, weight.grad(), dump.at("gradient." + name));
    }
    torch::NoGradGuard no_grad;
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : parameters) gradients.push_back(parameter.grad());
    for (const Tensor& count : steps) count.add_(1);
    torch::_fused_adamw_(parameters, gradients, averages, squares, {}, steps, /*lr=*/1e-2, 0.9,
                         0.95, /*weight_decay=*/0.1, /*eps=*/1e-8, false, false);
    for (Tensor& parameter : parameters) parameter.mutable_grad().reset();
  }
  return comparison.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: parity_plain_loop FOLDER\n");
    return 2;
  }
  return run(argv[1]);
}
