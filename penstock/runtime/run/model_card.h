// The README.md of a folder that a run saves: what was trained on what, with which losses.
//
// run.cpp writes one beside each model of a Hugging Face folder.  Its head is the YAML that model
// hubs read; the license is that of the base model's card.  Names files and folders by their last
// parts: nothing in it is a path of this machine.
// Source: the fields of Hugging Face's model cards.
#pragma once
#include <cstdint>
#include <string>

#include "penstock/config/config.h"
#include "penstock/plan/render/loss_svg.h"
#include "penstock/runtime/run/from_config.h"

namespace penstock::run {

struct TrainedOn {
  std::int64_t step = 0;  // The model is that after this step.
  std::string layout;     // "pipe(2) x data(2), ...".
  std::string data;       // What the data are.
  render::LossCurve losses;
};

// REQUIRES: the model is a folder's.
std::string model_card(const config::Config& config, const Model& model, const TrainedOn& trained);

// The card of a model to which the adapters of a folder were added, in the folder `to`.
std::string merged_card(const hugging_face::ModelFolder& model, const std::string& adapters,
                        const std::string& to);

// The lines of a card's YAML head that say the license, "license: mit\n"; "" where it says none.
std::string license_lines(const std::string& card);

}  // namespace penstock::run
