#include "penstock/runtime/stage/piece_check.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/exchange/code.h"

namespace penstock::stage {
namespace {

using exchange::Code;
using exchange::kInvariant;
using torch::autograd::Edge;

// What a value is computed of.
struct Reached {
  std::set<std::size_t> inputs;
  std::vector<at::Tensor> leaves;  // Others that require a gradient.
};

class GraphOfPiece {
 public:
  explicit GraphOfPiece(const nn::Values& inputs) {
    for (const at::Tensor& input : inputs) {
      const bool takes_one = input.defined() && input.requires_grad();
      inputs_.push_back(takes_one ? torch::autograd::impl::gradient_edge(input) : Edge());
    }
  }

  Reached from(const at::Tensor& output) const {
    Reached reached;
    std::set<const torch::autograd::Node*> seen;
    std::vector<Edge> open = {torch::autograd::impl::gradient_edge(output)};
    while (!open.empty()) {
      const Edge edge = std::move(open.back());
      open.pop_back();
      if (!edge.is_valid()) continue;
      const auto input = std::ranges::find(inputs_, edge);
      if (input != inputs_.end()) {
        reached.inputs.insert(static_cast<std::size_t>(input - inputs_.begin()));
        continue;
      }
      if (!seen.insert(edge.function.get()).second) continue;
      const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get());
      if (leaf != nullptr) reached.leaves.push_back(leaf->variable);
      for (const Edge& next : edge.function->next_edges()) open.push_back(next);
    }
    return reached;
  }

 private:
  std::vector<Edge> inputs_;
};

void check_input(const exchange::Held& given, std::size_t output, const exchange::Held& taken,
                 std::size_t input, const std::string& piece) {
  if ((given == kInvariant) == (taken == kInvariant)) return;
  const std::string what =
      str(piece, " computes value ", output, ", which it gives ", to_string(given), ", of value ",
          input, ", which it takes ", to_string(taken));
  if (given == kInvariant) {
    throw ConfigError(coded(Code::NotWhole, str(what, ": ranks have different ones")),
                      {"let the description say what ranks have of it, and an exchange behind the "
                       "piece make it whole"});
  }
  throw ConfigError(
      coded(Code::NotSummed,
            str(what, ": each rank would have a summand of its gradient, which nobody sums")),
      {"let an exchange behind the piece before make it replicated: from "
       "exchange::kInvariant to exchange::kReplicated"});
}

void check_parameter(const exchange::Piece& said, const exchange::Held& given, std::size_t output,
                     const std::string& name, const std::string& piece) {
  const std::vector<std::string>& names = said.parameters;
  if (std::ranges::find(names, name) == names.end()) {
    throw ConfigError(
        coded(Code::NotNamed, str(piece, " uses the parameter ", in_quotes(name),
                                  ", which its description does not name")),
        {str("its description names: ", names.empty() ? std::string("none") : join(names, ", ")),
         "which gradients ranks sum follows from these names"});
  }
  if (given != kInvariant || !exchange::sums_gradients(said)) return;
  throw ConfigError(
      coded(Code::TwoGradients,
            str(piece, " computes value ", output, ", which it gives invariant, with ",
                in_quotes(name),
                ", whose gradient ranks sum: other values of the piece are not invariant")),
      {"compute it in a piece of its own"});
}

}  // namespace

void check_piece_graph(const exchange::Piece& said, const std::string& piece,
                       const nn::Values& inputs, const nn::Values& outputs,
                       const ParameterName& name_of) {
  const GraphOfPiece graph(inputs);
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].defined() || !outputs[o].requires_grad()) continue;
    const Reached reached = graph.from(outputs[o]);
    for (const std::size_t i : reached.inputs) {
      if (i < said.takes.size()) check_input(said.gives[o], o, said.takes[i], i, piece);
    }
    for (const at::Tensor& leaf : reached.leaves) {
      const std::optional<std::string> name = name_of(leaf);
      if (name) check_parameter(said, said.gives[o], o, *name, piece);
    }
  }
}

}  // namespace penstock::stage
