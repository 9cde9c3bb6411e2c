// The lowest loss of a run's validations, and whether the run has waited long enough for a lower
// one.
//
// run.cpp tells it each validation of the set that run.best names.  Every rank has one, with the
// same losses.  Checkpoints keep it as texts, so a run that goes on decides as one that was never
// stopped.  Of models it knows what the best one's folder is known by.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "penstock/files/checkpoint/manifest.h"

namespace penstock::run {

class BestLoss {
 public:
  struct Validation {
    std::int64_t step = 0;
    double loss = 0.0;
  };

  // set: what is validated with.  patience: validations in a row without a lower loss after which
  // is_over() says so; 0: never.
  BestLoss(std::string set, std::int64_t patience) : set_(std::move(set)), patience_(patience) {}

  // Takes in a validation.  Returns whether its loss is below all before; the first one's is.
  bool add(const Validation& validation);

  // Absent before the first validation.
  const std::optional<Validation>& best() const { return best_; }
  std::int64_t validated_step() const { return validated_step_; }
  // Validations since the best one.
  std::int64_t waited() const { return waited_; }
  bool is_over() const { return patience_ > 0 && waited_ >= patience_; }

  // The model of the lowest loss was saved, and is known by this (SavedModel::identity()).
  void saved(const std::string& model) { model_ = model; }
  // "" where it was not saved.
  const std::string& model() const { return model_; }

  // Law: go_on_from(state()) of another one makes it the same.
  checkpoint::Texts state() const;
  // Texts without such a state begin anew.  So do those of another set: returns its name.
  // Throws: CheckpointError for texts that are none.
  std::optional<std::string> go_on_from(const checkpoint::Texts& texts);

 private:
  std::string set_;
  std::int64_t patience_;
  std::optional<Validation> best_;
  std::int64_t validated_step_ = 0;
  std::int64_t waited_ = 0;
  std::string model_;
};

}  // namespace penstock::run
