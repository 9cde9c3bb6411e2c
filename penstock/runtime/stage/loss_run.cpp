#include "penstock/runtime/stage/loss_run.h"

#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/text.h"
#include "penstock/runtime/stage/cut.h"
#include "penstock/runtime/stage/piece_check.h"
#include "penstock/runtime/stage/untrained.h"

namespace penstock::stage {
namespace {

nn::Values with_targets(nn::Values outputs, const nn::Values& targets) {
  nn::Values values = detached(outputs);
  for (const at::Tensor& target : without_gradient(targets)) values.push_back(target);
  return values;
}

}  // namespace

LossRun::LossRun(std::shared_ptr<const nn::LossPieces> loss,
                 const std::shared_ptr<Exchanges>& ranks)
    : loss_(std::move(loss)), shared_(loss_->make(ranks->share())) {
  // In place: a microbatch without targets has no loss, on its replica alone, and all replicas
  // change between two passes at the same places.
  auto borders = std::make_shared<Borders>();
  for (std::size_t p = 0; p < loss_->pieces.size(); ++p) {
    borders->emplace_back(loss_->pieces[p].behind, /*ahead=*/0, str("piece ", p, " of the loss"),
                          ranks, Waits::InPlace);
  }
  borders_ = std::move(borders);
}

nn::Values LossRun::run_piece(std::size_t piece, const nn::Values& values) const {
  const exchange::Piece& said = loss_->pieces[piece];
  try {
    nn::Values given = shared_->run_piece(piece, values);
    if (given.size() == said.gives.size()) return given;
    throw Error(str("piece ", piece, " gives ", given.size(), " values; its description says ",
                    said.gives.size()));
  } catch (...) {
    rethrow_from("the loss");
  }
}

at::Tensor LossRun::forward(nn::Values outputs, const nn::Values& targets,
                            const Untrained* untrained, KeptParts& kept) const {
  const auto run = [&](std::size_t piece, const nn::Values& values, LayerMarks&) {
    if (untrained == nullptr) return run_piece(piece, values);
    Nodes known = Untrained::behind(values);
    nn::Values given = run_piece(piece, values);
    untrained->check_loss(given, std::move(known));
    check_piece_graph(loss_->pieces[piece], str("piece ", piece, " of the loss"), values, given,
                      [](const at::Tensor&) { return std::nullopt; });
    return given;
  };
  nn::Values values = with_targets(std::move(outputs), targets);
  const nn::Values given = run_with_graphs(borders_, values, run, Graphs::ForLater, kept);
  empty(kept.parts.front().leaves);  // Lets the loss work in the outputs' memory.
  return nn::the_only(given, "a loss in pieces");
}

at::Tensor LossRun::evaluate(nn::Values outputs, const nn::Values& targets,
                             SampleSizes& sizes) const {
  nn::Values values = with_targets(std::move(outputs), targets);
  for (std::size_t p = 0; p < borders_->size(); ++p) {
    values = (*borders_)[p].exchanged(run_piece(p, values), sizes);
  }
  return nn::the_only(values, "a loss in pieces");
}

}  // namespace penstock::stage
