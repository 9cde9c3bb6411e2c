// What a layer or a loss depends on and nobody trains: a tensor that requires a gradient and is no
// parameter of the stage.
//
// Such are parameters that a module makes in its first forward, and those of modules that a
// function captures: their gradients would pile up unseen.  LayerRun and Stage look for them once a
// step, in the graph of its first microbatch.  Knows no gradients: it throws before there are any.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/nn/layer.h"
#include "penstock/runtime/nn/draw.h"
#include "penstock/runtime/stage/any_node.h"
#include "penstock/runtime/stage/stage_layers.h"

namespace penstock::stage {

class Untrained {
 public:
  // Looks at a stage whose parameters are these.
  explicit Untrained(const StageLayers& layers);

  // Whether nobody has asked for this layer and step, with a graph; the loss counts as the layer
  // behind the last.  Later pieces of a layer are due with the first.  Threads may ask at the same
  // time.
  bool is_due(const nn::DrawPlace& place);

  // What is behind these values, and so not the next layer's doing.
  static Nodes behind(const nn::Values& values);

  // Throws: ConfigError for a tensor on which `outputs` depend by more than `known`.
  void check_layer(const std::string& name, nn::Layer& layer, const nn::Values& outputs,
                   Nodes known) const;
  void check_loss(const nn::Values& loss, Nodes known) const;
  // The same of a piece of a layer, which computes what its description says (piece_check.h).
  void check_piece(const partition::LayerMeta& meta, std::size_t piece, nn::Layer& layer,
                   const nn::Values& inputs, const nn::Values& outputs) const;

 private:
  std::optional<at::Tensor> find(const nn::Values& outputs, Nodes known) const;

  ska::flat_hash_set<const c10::TensorImpl*> trained_;
  std::int64_t first_;
  // The last step that was asked for, by layer, and its microbatch.
  std::vector<std::atomic<std::int64_t>> steps_;
  std::vector<std::atomic<std::int64_t>> microbatches_;
};

}  // namespace penstock::stage
