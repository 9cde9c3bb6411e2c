#include "penstock/runtime/train/caller_backwards.h"

#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::train {
namespace {

// The gradient scale of the ModuleReplica's backward that this thread runs; 0: it runs none.
thread_local double scale_of_loss = 0.0;

}  // namespace

CallerBackwards::Own::Own(CallerBackwards& of)
    : of_(of), before_(std::exchange(scale_of_loss, of.scale())) {
  of_.is_own_ = true;
}

CallerBackwards::Own::~Own() {
  of_.is_own_ = false;
  scale_of_loss = before_;
}

CallerBackwards::CallerBackwards(std::vector<stage::NamedParameter> parameters,
                                 std::shared_ptr<const update::GradientScale> scale,
                                 std::function<void()> first)
    : parameters_(std::move(parameters)), scale_(std::move(scale)), first_(std::move(first)) {
  watch();
}

void CallerBackwards::watch() {
  added_.reset();
  added_.emplace(parameters_, [this] {
    first_();
    check();
  });
}

// One of another replica may run through both: what its loss is multiplied by counts.
void CallerBackwards::check() const {
  if (is_own_ || has_successor_ || scale_of_loss == scale()) return;
  if (scale_of_loss == 0.0) {
    if (!refusal_.empty()) throw Error(refusal_);
    return;
  }
  throw Error(
      str("the backward of another engine's loss, which is multiplied by ", shortest(scale_of_loss),
          ", adds to gradients of this engine, which divides them by ", shortest(scale())),
      {"give both engines one precision and one loss scale"});
}

}  // namespace penstock::train
