// What runs one after the other with exchanges between: the parts of a segment, or of a loss that
// ranks share.
//
// The graph is cut behind each part, so that no exchange is in it: I and W are split, and graphs
// made again, part by part.  Layers that are not shared are one part, with nothing behind it.
// Knows no layers.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/runtime/nn/values.h"
#include "penstock/runtime/stage/backward.h"
#include "penstock/runtime/stage/border.h"
#include "penstock/runtime/stage/layer_run.h"

namespace penstock::stage {

// A value that a part takes and that was gathered for it.  It has memory while the part runs; for
// the backward it is gathered again.
struct GatheredInput {
  std::size_t value = 0;                   // Its place among the values of the border ahead.
  at::Tensor gathered;                     // Shares its memory.
  at::Tensor part;                         // This rank's part of it.
  std::unique_ptr<StartedExchange> again;  // Once the second gather has started.
};

// What a part leaves until its backward.
struct KeptPart {
  nn::Values leaves;   // Tensors at which gradients of the inputs arrive.
  nn::Values outputs;  // Outputs with their graph; without memory, if an exchange is behind.
  // Weights' part of the backward, between I and W, when those above are gone.
  DeferredWeights weights;
  LayerMarks marks;  // Marks of the graph.
  std::vector<GatheredInput> gathered;
};

using Borders = std::vector<Border>;  // Borders behind each part.

// What all parts leave.
struct KeptParts {
  std::vector<KeptPart> parts;
  std::shared_ptr<const Borders> borders;  // Null: nothing is exchanged.
  SampleSizes sizes;
  // Gradients of the outputs of the part whose backward is next, once one behind it had its own.
  std::optional<StartedValues> gradients;
};

// Makes the outputs of a part, of inputs on which its graph begins.
using RunPart =
    std::function<nn::Values(std::size_t part, const nn::Values& inputs, LayerMarks& marks)>;

// The reason to run parts with their graphs.
enum class Graphs : std::uint8_t {
  ForLater,  // A forward.
  ForNow,    // A backward is next: what is behind the last part was exchanged in the forward.
};

// Runs the parts with their graphs, which `kept` gets.  Returns what is behind the last one: with
// its graph, if nothing is exchanged there.
nn::Values run_with_graphs(const std::shared_ptr<const Borders>& borders, const nn::Values& inputs,
                           const RunPart& run, Graphs graphs, KeptParts& kept);

// The same graph edges and sizes, without memory.
nn::Values without_memory(const nn::Values& outputs);

// What comes ahead of a part's backward: its gathered inputs have memory again, and those of the
// part before begin to come.  Returns the gradients of its outputs: of the last part from `behind`,
// the gradients of what is behind its exchanges; of others, those that hand_back() has started.
nn::Values begin_backward(KeptParts& kept, std::size_t part, nn::Values behind);

// Whether the gradients of a part's inputs are sent to other ranks, for the part before.
bool sends_gradients(const KeptParts& kept, std::size_t part);
// Takes the gradients of a part's inputs: starts the exchanges that the part before waits for.
// Those of the first part are the result.
nn::Values hand_back(KeptParts& kept, std::size_t part, nn::Values gradients);

}  // namespace penstock::stage
