#include "penstock/runtime/nn/making.h"

#include <ATen/ops/empty.h>

namespace penstock::nn {
namespace {

void add_cuts(const torch::nn::Module& module, const std::string& prefix, Cuts& all) {
  if (const auto* const own = dynamic_cast<const CutModule*>(&module)) {
    for (const auto& [name, cut] : own->cuts()) all[prefix + name] = cut;
  }
  for (const auto& child : module.named_children()) {
    add_cuts(*child.value(), prefix + child.key() + ".", all);
  }
}

}  // namespace

at::Tensor Making::parameter(at::IntArrayRef shape) const {
  return at::empty(shape, at::dtype(at::kFloat).device(device));
}

at::Tensor CutModule::register_part(const std::string& name, const Making& making,
                                    at::IntArrayRef shape, const partition::Along& along) {
  const partition::Cut cut = partition::cut_along(along, shape.vec(), making.share);
  if (!cut.is_whole()) cuts_[name] = cut;
  return register_parameter(name, making.parameter(partition::shape_of_part(shape.vec(), cut)));
}

void CutModule::take_cuts(const torch::nn::Module& module) {
  if (const auto* const cut = dynamic_cast<const CutModule*>(&module)) cuts_ = cut->cuts_;
}

namespace {

// A share's part, which shares memory with the whole; of several fused ones a dimension more.
at::Tensor view_of_part(const at::Tensor& whole, const partition::Cut& cut) {
  if (cut.is_whole()) return whole;
  const auto dimension = static_cast<std::int64_t>(cut.dimension);
  const Interval mine = cut.interval();
  if (cut.fused == 1) return whole.narrow(dimension, mine.first, mine.count);
  return whole.unflatten(dimension, {cut.fused, -1}).narrow(dimension + 1, mine.first, mine.count);
}

}  // namespace

at::Tensor part_of(const at::Tensor& whole, const partition::Cut& cut) {
  const at::Tensor view = view_of_part(whole, cut);
  if (view.dim() == whole.dim()) return view;
  const auto dimension = static_cast<std::int64_t>(cut.dimension);
  return view.flatten(dimension, dimension + 1);
}

void set_part(const at::Tensor& whole, const partition::Cut& cut, const at::Tensor& part) {
  const at::Tensor view = view_of_part(whole, cut);
  view.copy_(part.view(view.sizes()));
}

Cuts cuts_in(const torch::nn::Module& module) {
  Cuts all;
  add_cuts(module, "", all);
  return all;
}

partition::Cut cut_of(const Cuts& cuts, const std::string& parameter) {
  const auto found = cuts.find(parameter);
  return found == cuts.end() ? partition::Cut{} : found->second;
}

}  // namespace penstock::nn
