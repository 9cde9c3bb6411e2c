#include "penstock/runtime/execute/braid.h"

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cfenv>
#include <exception>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/runtime/nn/draw.h"

namespace penstock::execute {
namespace {

// Unwinds a half whose other one has failed.
struct OtherHalfFailed {};

// What stages hold over an exchange of what a thread has for itself.
class OfHalf {
 public:
  OfHalf()
      : autograd_(c10::AutogradState::get_tls_state()),
        keys_(c10::impl::tls_local_dispatch_key_set()),
        scope_(nn::DrawScope::current()) {}
  void put_back() const {
    c10::AutogradState::set_tls_state(autograd_);
    c10::impl::_force_tls_local_dispatch_key_set(keys_);
    nn::DrawScope::set_current(scope_);
  }

 private:
  c10::AutogradState autograd_;
  c10::impl::LocalDispatchKeySet keys_;
  nn::DrawScope* scope_;
};

}  // namespace

struct Braid::Pair {
  explicit Pair(const Halves& both) : halves(both) { std::fegetenv(&arithmetic); }

  const Halves& halves;
  OfHalf at_begin = {};
  std::fenv_t arithmetic = {};  // How the thread rounds, and whether it flushes.
  Half running = Half::First;
  bool has_begun = false;    // The second one.
  bool has_started = false;  // The running half, since it last went on.
  bool first_is_over = false;
  bool second_is_over = false;
  std::exception_ptr failure = nullptr;  // The first one.

  // What is thrown there ends both halves, where they stand.
  void run(const std::function<void()>& part) {
    try {
      part();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
};

void Braid::run(const Halves& halves) {
  PENSTOCK_CHECK(pair_ == nullptr, "a pair within a pair");
  Pair pair(halves);
  pair_ = &pair;
  pair.run([&] {
    halves.runs(Half::First);
    halves.first();
  });
  pair.first_is_over = true;
  const bool is_left = pair.has_begun ? !pair.second_is_over : !pair.failure;
  if (is_left) run_second();
  pair_ = nullptr;
  if (pair.failure) std::rethrow_exception(pair.failure);
}

void Braid::note_start() {
  if (pair_ != nullptr) pair_->has_started = true;
}

void Braid::step_aside() {
  if (pair_ == nullptr || !std::exchange(pair_->has_started, false)) return;
  Pair& pair = *pair_;
  if (pair.running == Half::First) {
    if (!pair.second_is_over) run_second();
  } else if (!pair.first_is_over) {
    const OfHalf mine;
    second_.leave();
    mine.put_back();
  }
  if (pair.failure) throw OtherHalfFailed();
}

// Returns when it leaves, or is over.
void Braid::run_second() {
  Pair& pair = *pair_;
  const OfHalf mine;
  pair.running = Half::Second;
  pair.run([&] { pair.halves.runs(Half::Second); });
  if (pair.has_begun) {
    second_.go_on();
  } else if (!pair.failure) {
    pair.has_begun = true;
    second_.begin([&pair] {
      std::fesetenv(&pair.arithmetic);  // The stack has that of the pair before.
      pair.at_begin.put_back();
      pair.run(pair.halves.second);
      pair.second_is_over = true;
    });
  }
  mine.put_back();
  pair.running = Half::First;
  if (!pair.first_is_over) pair.run([&] { pair.halves.runs(Half::First); });
}

}  // namespace penstock::execute
