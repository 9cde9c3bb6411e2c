// One pipeline stage: some consecutive layers, and the activations that wait for their backward.
//
// execute/ drives it; train/ hands its parameters to the optimizer.  Knows no other stage, no
// schedule and no messages.
// Shapes: as the layers have them; the first dimension is the microbatch's.  Skip connections that
// cross a boundary come first in what crosses there (layer_run.h).  A tuple of gradients has the
// places of the tuple of values; a place without a gradient is undefined.
// Invariants: 1. Alive are the microbatches between forward() with a graph and backward() or
// backward_weight().  2. Weight gradients accumulate in the order of these calls.
// Thread safety: one thread may run a forward while another one runs a backward, of one stage or of
// two.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/partition/segment_ranges.h"
#include "penstock/runtime/nn/model.h"
#include "penstock/runtime/stage/segment.h"
#include "penstock/runtime/stage/stage_layers.h"
#include "penstock/runtime/stage/stage_loss.h"

namespace penstock::stage {

// Counts live activations over all stages of a rank: the executor's proof that memory is what the
// schedule says.
struct ActivationCount {
  std::mutex mutex;  // Guards what stages keep, too.
  std::int32_t alive = 0;
  std::int32_t peak = 0;
};

using Checkpointing = partition::Recomputation;

class Stage {
 public:
  // Builds layers [first_layer, end_layer) of the model, each from (seed, its index).  Layers that
  // have pieces run in them where `making` says with whom ranks exchange.
  // Throws: ConfigError for ties that do not fit and a regular expression that is none.
  Stage(StageId id, const std::vector<nn::LayerSpec>& model, std::int64_t first_layer,
        std::int64_t end_layer, std::int64_t seed, std::shared_ptr<ActivationCount> count,
        const Checkpointing& checkpointing = {}, const Making& making = {});

  StageId id() const { return id_; }
  c10::Device device() const { return device_; }

  // What random numbers depend on, besides the seed and the layer: microbatch m counts as
  // `place.microbatch` + m.
  void begin_step(const nn::DrawPlace& place);

  // Runs the layers.  With `keep_graph`, the activation stays until backward(), which returns
  // gradients of those inputs that require one; the results are detached from the graph, and
  // require a gradient where one is taken.  Without, the layers run as torch's Module::eval() has
  // them; afterwards every module is in its own mode again, and buffers are as they were.  The
  // first layer may change its input in place: the caller's bytes change then.
  nn::Values forward(Microbatch microbatch, const nn::Values& inputs, bool keep_graph);

  // Does what forward() does, but ends in the loss, whose value is returned: a detached scalar.  It
  // draws as a layer behind the last one does.
  // Throws: Error when the loss is no scalar, or has a graph to keep and requires no gradient.
  at::Tensor forward_loss(Microbatch microbatch, const nn::Values& inputs,
                          const nn::Values& targets, const nn::Loss& loss, bool keep_graph);

  // Adds this microbatch's weight gradients and returns the gradients of its inputs: undefined for
  // an input that takes none, and where nothing depends on it.  `output_gradients` are those of
  // forward()'s results, or the factor of the loss (a scalar).
  nn::Values backward(Microbatch microbatch, const nn::Values& output_gradients);

  // backward() in two halves: the gradients of the inputs, and later the weight gradients.  The
  // activation stays until the second.  Where a layer does not split (nn/layer.h), the first half
  // is all of it.
  nn::Values backward_input(Microbatch microbatch, const nn::Values& output_gradients);
  void backward_weight(Microbatch microbatch);

  // Whether the stage's passes exchange, and a backward of it may be left meanwhile for a forward
  // of `other`.  Not in torch's engine; nor where a forward would find the state of an earlier one,
  // which a recomputation needs: buffers of the same layers, or a generator, which any may share.
  bool may_be_left_for(const Stage& other) const;

  const StageLayers& layers() const { return layers_; }
  // The layers' trained ones, in their order.
  const std::vector<NamedParameter>& parameters() const { return layers_.trained(); }

  // Forgets gradients and activations: after a step, or after one that failed.
  void drop_gradients();
  void drop_activations();

 private:
  // Alive between a microbatch's forward and the end of its backward.
  class Activation {
   public:
    explicit Activation(std::shared_ptr<ActivationCount> count);
    ~Activation();
    Activation(const Activation&) = delete;
    Activation& operator=(const Activation&) = delete;

    std::vector<Segment::Kept> segments;  // A loss may be one of its own, the last.
    bool is_half = false;                 // Has had its I.

   private:
    std::shared_ptr<ActivationCount> count_;
  };

  nn::DrawPlace place_of(Microbatch microbatch) const;
  nn::Values run(Microbatch microbatch, const nn::Values& inputs, Activation* activation,
                 SampleSizes& sizes);
  Segment::Kept& graph(std::size_t segment, Activation& activation) const;
  nn::TorchDraws torch_draws() const;
  template <class Part>
  void run_backward(const Part& part) const;
  // Each takes the gradients of the outputs, and leaves those of the inputs.
  void run_whole(Activation& whole, nn::Values& gradients) const;
  void run_inputs(Activation& half, nn::Values& gradients) const;
  void run_weights(std::size_t segment, std::size_t part, const Segment::Kept& kept,
                   DeferredWeights& weights) const;
  void keep(Microbatch microbatch, std::unique_ptr<Activation> activation);
  Activation& kept(Microbatch microbatch);
  std::unique_ptr<Activation> take(Microbatch microbatch);

  StageId id_;
  c10::Device device_;
  std::int64_t seed_;
  bool exchanges_;       // Ranks share its layers.
  nn::DrawPlace place_;  // Place of the step's first microbatch.
  StageLayers layers_;
  std::vector<Segment> segments_;
  std::optional<StageLoss> loss_;
  std::shared_ptr<ActivationCount> count_;
  std::vector<std::unique_ptr<Activation>> activations_;  // Activations by microbatch.
};

}  // namespace penstock::stage
