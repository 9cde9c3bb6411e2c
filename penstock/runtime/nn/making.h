// What a layer is made with: its share of the weights, and where its parameters lie.
//
// Whoever makes a layer gives it to the layer's function (layer.h), which may pass it on to the
// modules of the layer.  A module registers its part of a parameter by it; the other parts are in
// the layers that other ranks make.  Knows no connections: a share is two numbers.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "penstock/plan/partition/cut.h"

namespace penstock::nn {

struct Making {
  partition::Share share = {};
  c10::Device device = at::kCPU;
  // Blocks of this share in which sums over what ranks share are added (block_sums.h), so that no
  // number of ranks changes their bits; absent: as is fastest.
  std::optional<std::int64_t> blocks = {};

  // The same, of what every rank has all of.
  Making whole() const { return {.device = device}; }
  // The same, of a layer whose sums have no blocks.
  Making as_they_come() const { return {.share = share, .device = device}; }
  // A parameter without values, of which every rank that shares the layer has the whole.
  at::Tensor parameter(at::IntArrayRef shape) const;
};

using Cuts = std::map<std::string, partition::Cut>;

// A module some of whose parameters may be parts of parameters.
class CutModule : public torch::nn::Module {
 public:
  // Cuts by the names of its own parameters; others are whole.
  const Cuts& cuts() const { return cuts_; }

 protected:
  // Registers this share's part, without values, of a parameter of that shape.
  // Throws: ConfigError where there are more shares than parts.
  at::Tensor register_part(const std::string& name, const Making& making, at::IntArrayRef shape,
                           const partition::Along& along);
  // Takes over the cuts of parameters that are a module's own, and are registered here, too.
  void take_cuts(const torch::nn::Module& module);

 private:
  Cuts cuts_;
};

// A share's part of a tensor with that many dimensions as the whole parameter: a copy where that is
// several fused ones.
at::Tensor part_of(const at::Tensor& whole, const partition::Cut& cut);
// Makes `part` the share's part of a whole tensor, which is contiguous.
void set_part(const at::Tensor& whole, const partition::Cut& cut, const at::Tensor& part);

// The cuts in a module and in those that it consists of, by the names of their parameters there.
Cuts cuts_in(const torch::nn::Module& module);
// The cut of a parameter: that of one which is not there is whole.
partition::Cut cut_of(const Cuts& cuts, const std::string& parameter);

}  // namespace penstock::nn
