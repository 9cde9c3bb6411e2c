// The axes of `penstock plan` that no run can have yet, and the layers that none can have.
//
// plan_inputs.h and plan.cpp ask it.  Such layers come from the shapes that a config.json has
// (shapes/); so do layers of ranks that share tokens or experts.  Knows no times.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/plan/choose/planner.h"
#include "penstock/plan/shapes/decoder_layers.h"
#include "penstock/plan/shapes/decoder_shape.h"

namespace penstock::cli {

struct PlanAxes {
  std::vector<std::int32_t> context;  // None: 1.
  std::vector<std::int32_t> expert;   // None: 1, 2, 4, ... 64, where layers have experts.
  std::vector<std::string> shard;     // None: "all".
  bool all = false;                   // Tries those that no run can have, too.
  double expert_load = 1.0;
  std::string context_by = "gather";
  std::string expert_by = "all-to-all";

  // Numbers of ranks that share tokens.
  std::vector<std::int32_t> contexts() const;
};

void declare_axes(CLI::App& app, PlanAxes& axes);

// The shape of the configuration's model, where its layers have experts.
// Throws: ConfigError for sizes that cannot be.
std::optional<shapes::DecoderShape> shape_with_experts(const config::Config& config);

// Layers of such a model, by formula.
class ShapedLayers {
 public:
  ShapedLayers(const config::Config& config, shapes::DecoderShape shape, const PlanAxes& axes);

  // Sizes without ranks that share tokens or experts, of these numbers.
  memory::LayersFile file(const std::vector<std::int64_t>& microbatches,
                          const std::vector<std::int32_t>& tensor) const;
  memory::MeasuredSize size_of(const choose::Layout& layout) const {
    return size_of(layout, load_);
  }
  // The same, if the fullest rank of experts gets so many times as many tokens as on the average.
  memory::MeasuredSize size_of(const choose::Layout& layout, double load) const;
  const shapes::DecoderShape& shape() const { return shape_; }

 private:
  shapes::DecoderShape shape_;
  shapes::Cut cut_;  // What all sizes have.
  double load_;
  std::string made_for_;
};

// Adds the axes' numbers to the choices.
// Throws: ConfigError for numbers that the model's tokens or experts do not have.
void add_axes(const PlanAxes& axes, const config::Config& config, std::int64_t experts,
              choose::Choices& choices);

// What no run can have of this layout, in words; none: `penstock train` takes it.
std::vector<std::string> not_yet(const choose::Request& request, const choose::Layout& layout);

// What a rank exchanges along these axes: of the busiest one as a table, "" where it does not.
std::string axes_text(const choose::Priced& priced);
std::string axes_json(const choose::RankTime& rank);
// What becomes of the layout when one rank's experts get all tokens, a line, or a further member.
std::string worst_text(const choose::Priced& priced);
std::string worst_json(const choose::Priced& priced);

}  // namespace penstock::cli
