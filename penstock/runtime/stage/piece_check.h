// Whether what a piece of a shared layer computes is what its description says.
//
// Which gradients ranks sum, and which exchanges gradients go through, follows from descriptions
// (plan/exchange/pieces.h).  States alone do not tell of what a value is computed: the graph of a
// first microbatch does.  Changes nothing.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "penstock/plan/exchange/pieces.h"
#include "penstock/runtime/nn/values.h"

namespace penstock::stage {

// The layer's name for one of its parameters; absent: it is none of the layer's.
using ParameterName = std::function<std::optional<std::string>(const at::Tensor& tensor)>;

// `piece`: "piece 1 of layer "fc"".  `outputs` have the graph that begins at `inputs`.
// Throws: ConfigError for a value that is computed of one whose gradient would then be wrong, and
// for a parameter that the description does not name, or whose gradient would be summed and must
// not be.
void check_piece_graph(const exchange::Piece& said, const std::string& piece,
                       const nn::Values& inputs, const nn::Values& outputs,
                       const ParameterName& name_of);

}  // namespace penstock::stage
