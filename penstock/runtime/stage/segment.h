// Some layers of a stage whose activations are kept, or computed again, as one.
//
// Stage is a row of them: a single one, unless activations are checkpointed.  A segment that is
// recomputed keeps its inputs from a microbatch's forward to its backward.  It then makes the graph
// that it would have kept, once for B, or for I and W together.  Where ranks share layers, it runs
// in parts, with exchanges between (segment_parts.h).  Knows no messages.
// Invariants: 1. What is computed again has the same bits.  Random numbers are those of the same
// place (nn/draw.h); buffers are put back to what they were and left as they are, so that BatchNorm
// counts each microbatch once (state_before.h).  2. An evaluation changes neither.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/nn/layer.h"
#include "penstock/runtime/nn/draw.h"
#include "penstock/runtime/stage/backward.h"
#include "penstock/runtime/stage/layer_run.h"
#include "penstock/runtime/stage/segment_parts.h"
#include "penstock/runtime/stage/state_before.h"

namespace penstock::stage {

enum class Activations : std::uint8_t { Kept, Recomputed };

class Segment {
 public:
  // What a microbatch leaves until its backward.
  struct Kept {
    KeptParts graph;
    nn::DrawPlace place;  // Place of the first layer.
    // The next two: for a segment that is recomputed, until it is.
    nn::Values inputs;
    StateBefore before;
  };

  Segment(LayerRun layers, Activations activations);
  // The same of parts that follow each other, each with the border behind it.
  Segment(std::vector<LayerRun> parts, Borders borders, Activations activations);

  bool is_recomputed() const { return activations_ == Activations::Recomputed; }
  // Whether what is behind it has a graph of its own: none goes through an exchange.
  bool ends_graph() const { return is_recomputed() || borders_->back().exchanges(); }

  // Runs the layers.  Outputs have their graph; those of a recomputed segment have none, but
  // require a gradient where they would with it.  So do those behind an exchange.  `kept` has what
  // is known of the samples, and gets what becomes known.  REQUIRES: grad mode is on.
  nn::Values forward(const nn::Values& inputs, nn::DrawPlace place, Kept& kept);
  nn::Values evaluate(const nn::Values& inputs, const nn::DrawPlace& place,
                      SampleSizes& sizes) const;

  // Whether recompute() gives layers another state for a while.  Known once forward() has run.
  bool puts_buffers_back() const { return is_recomputed() && !buffers_.empty(); }
  bool puts_generators_back() const { return is_recomputed() && has_generators_; }

  // Gives `kept` its graph, if forward() did not.
  void recompute(Kept& kept) const;

  // What failed in the backward of a part of `kept`, as LayerRun says it.
  std::string maker_of(const NodeFailure& failure, std::size_t part, const Kept& kept) const {
    const KeptPart& failed = kept.graph.parts[part];
    return parts_[part].maker_of(failure, failed.leaves, failed.marks);
  }

 private:
  // What a forward with its graph shows of the layers.
  struct Learned {
    std::vector<bool> of_inputs;   // Inputs that required a gradient then.
    std::vector<bool> of_outputs;  // Outputs that did.
    bool changes_inputs = false;   // Changes them in place: they have to be kept as copies.
  };
  RunPart run_part(const nn::DrawPlace& place) const;
  // Runs all parts, and leaves no graph behind exchanges.
  nn::Values pass(const nn::Values& inputs, const nn::DrawPlace& place, const Notes& notes,
                  SampleSizes& sizes) const;
  nn::Values forward_without_graph(const nn::Values& inputs, Kept& kept);

  std::vector<LayerRun> parts_;
  std::shared_ptr<const Borders> borders_;  // Borders behind each.
  Activations activations_;
  std::vector<at::Tensor> buffers_;
  bool has_generators_ = false;  // Layers draw from some of their own.
  std::optional<Learned> learned_;
};

}  // namespace penstock::stage
