// Backwards that the caller of a ModuleReplica runs, such as loss.backward() in a user's script,
// and those of other replicas: which of them may add to this one's gradients.
//
// A ModuleReplica has one.  Knows no sums.
// Thread safety: as the replica's.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/runtime/parameters/added_gradients.h"
#include "penstock/runtime/stage/stage.h"
#include "penstock/runtime/update/gradient_scale.h"

namespace penstock::train {

class CallerBackwards {
 public:
  // `scale`: of losses; null: 1.  `first` is called before whatever else is checked.
  CallerBackwards(std::vector<stage::NamedParameter> parameters,
                  std::shared_ptr<const update::GradientScale> scale, std::function<void()> first);
  CallerBackwards(const CallerBackwards&) = delete;
  CallerBackwards& operator=(const CallerBackwards&) = delete;

  // Settle what backwards of the caller may do: add to gradients, or end with an Error that says
  // `why`.  ignore(): they are those of another replica of all the parameters.
  void accept() { refusal_.clear(); }
  void refuse(std::string why) { refusal_ = std::move(why); }
  void ignore() { has_successor_ = true; }
  // Whether the backward that this thread runs may add to gradients.
  bool add_now() const { return added_ && added_->may_come(); }

  double scale() const { return scale_ ? scale_->value() : 1.0; }
  // Asks again at all parameters: one that was cast, and cast back, has another node.
  void watch();

  // While it lives, this thread runs a backward of the replica's own.
  class Own {
   public:
    explicit Own(CallerBackwards& of);
    ~Own();
    Own(const Own&) = delete;
    Own& operator=(const Own&) = delete;

   private:
    CallerBackwards& of_;
    double before_;
  };

 private:
  void check() const;

  std::vector<stage::NamedParameter> parameters_;
  std::shared_ptr<const update::GradientScale> scale_;
  std::function<void()> first_;
  std::optional<parameters::AddedGradients> added_;
  std::string refusal_;  // Empty: there is none.
  bool has_successor_ = false;
  bool is_own_ = false;  // The backward that runs.
};

}  // namespace penstock::train
