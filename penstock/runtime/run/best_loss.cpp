#include "penstock/runtime/run/best_loss.h"

#include <cmath>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::run {
namespace {

constexpr const char* kBest = "best validation";  // "STEP LOSS VALIDATED WAITED".
constexpr const char* kSet = "best validation of";
constexpr const char* kModel = "best model";

}  // namespace

bool BestLoss::add(const Validation& validation) {
  validated_step_ = validation.step;
  const bool is_lower = std::isfinite(validation.loss) && (!best_ || validation.loss < best_->loss);
  if (is_lower) {
    best_ = validation;
    waited_ = 0;
    model_.clear();
  } else {
    ++waited_;
  }
  return is_lower;
}

checkpoint::Texts BestLoss::state() const {
  if (!best_) return {};
  return {{kBest, str(best_->step, " ", shortest(best_->loss), " ", validated_step_, " ", waited_)},
          {kSet, set_},
          {kModel, model_}};
}

std::optional<std::string> BestLoss::go_on_from(const checkpoint::Texts& texts) {
  *this = BestLoss(set_, patience_);
  const auto found = texts.find(kBest);
  if (found == texts.end()) return std::nullopt;
  const auto set = texts.find(kSet);
  if (set != texts.end() && set->second != set_) return set->second;
  const std::vector<std::string> words = penstock::split(found->second, ' ');
  const bool are_four = words.size() == 4;
  const auto step = are_four ? parse_integer(words[0]) : std::nullopt;
  const auto loss = are_four ? parse_number(words[1]) : std::nullopt;
  const auto validated = are_four ? parse_integer(words[2]) : std::nullopt;
  const auto waited = are_four ? parse_integer(words[3]) : std::nullopt;
  if (!step || !loss || !validated || !waited) {
    throw CheckpointError(str("the checkpoint's ", kBest, " is ", in_quotes(found->second)));
  }
  best_ = Validation{.step = *step, .loss = *loss};
  validated_step_ = *validated;
  waited_ = *waited;
  const auto model = texts.find(kModel);
  if (model != texts.end()) model_ = model->second;
  return std::nullopt;
}

}  // namespace penstock::run
