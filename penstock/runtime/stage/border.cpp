#include "penstock/runtime/stage/border.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/kept_text.h"
#include "penstock/core/text.h"

namespace penstock::stage {
namespace {

using exchange::Action;
using exchange::Exchange;
using exchange::Held;
using exchange::State;

Action forward_action(const Exchange& exchange) {
  return exchange::action_of(exchange.before, exchange.after).value();
}

std::optional<Action> gradient_action(const Exchange& exchange) {
  return exchange::gradient_action_of(exchange.before, exchange.after);
}

// The one of the two states in which ranks have parts.
const Held& parts_of(const Exchange& exchange) {
  return exchange.before.state == State::Cut ? exchange.before : exchange.after;
}

std::size_t dimension_of(const Held& parts) { return static_cast<std::size_t>(parts.dimension); }

// The sizes that a value of these has behind its exchange.
std::vector<std::int64_t> sizes_behind(const Exchange& exchange, std::vector<std::int64_t> sizes,
                                       std::int64_t whole, const partition::Share& share) {
  const Held& parts = parts_of(exchange);
  if (parts.state != State::Cut) return sizes;
  std::int64_t& size = sizes[dimension_of(parts)];
  if (exchange.before.state == State::Cut) size = whole;
  if (exchange.after.state == State::Cut) size = partition::part_of(size, share).count;
  return sizes;
}

}  // namespace

at::Tensor& StartedValues::awaited(std::size_t value) {
  if (coming_[value]) values_[value] = std::exchange(coming_[value], nullptr)->await();
  return values_[value];
}

nn::Values StartedValues::await() {
  for (std::size_t i = 0; i < coming_.size(); ++i) awaited(i);
  return std::move(values_);
}

Border::Border(std::vector<Exchange> exchanges, std::size_t ahead, const std::string& behind,
               std::shared_ptr<Exchanges> ranks, Waits waits)
    : ranks_(std::move(ranks)), waits_(waits) {
  for (Exchange& each : exchanges) {
    each.value += ahead;
    const auto backward = gradient_action(each);
    exchanges_.push_back(
        {.exchange = each,
         .forward = kept_text(exchange::name_of(forward_action(each), behind)),
         .backward = backward ? kept_text(exchange::gradient_name_of(*backward, behind)) : "",
         .sizes = kept_text(exchange::sizes_name_of(behind))});
  }
}

void Border::note_whole(const Held& parts, std::int64_t whole, SampleSizes& sizes,
                        const char* name) const {
  std::int64_t& known = sizes.tokens;
  if (parts.whole == 0 && known == 0) known = whole;
  const std::int64_t expected = parts.whole > 0 ? parts.whole : known;
  if (whole == expected) return;
  throw Error(str(name, ": the value has ", whole, " indices along dimension ", parts.dimension,
                  ", and ", expected, " are known"),
              {"values that ranks share have one size along the dimension that is cut"});
}

void Border::check_part(const Held& parts, const at::Tensor& part, std::int64_t whole,
                        const char* name) const {
  const std::int64_t here = part.size(parts.dimension);
  const std::int64_t expected = partition::part_of(whole, ranks_->share()).count;
  if (here == expected) return;
  throw Error(str(name, ": this rank's part has ", here, " indices along dimension ",
                  parts.dimension, "; its share of ", whole, " has ", expected));
}

std::int64_t Border::whole_of(const Held& parts, const at::Tensor& part, SampleSizes& sizes,
                              const char* name) const {
  if (parts.whole > 0) return parts.whole;
  if (sizes.tokens == 0) sizes.tokens = ranks_->sum(part.size(parts.dimension), name);
  return sizes.tokens;
}

// `whole`: along the dimension that is cut; 0 where none is.
at::Tensor Border::run(Action action, const Held& parts, const at::Tensor& value,
                       std::int64_t whole, const char* name) const {
  const at::NoGradGuard no_grad;
  if (action == Action::Keep) return value.detach();
  if (action == Action::TakePart) {
    const Interval mine = partition::part_of(whole, ranks_->share());
    return value.detach().narrow(parts.dimension, mine.first, mine.count).contiguous();
  }
  return start(action, parts, value, whole, name)->await();
}

std::unique_ptr<StartedExchange> Border::start(Action action, const Held& parts,
                                               const at::Tensor& value, std::int64_t whole,
                                               const char* name) const {
  return ranks_->start({.action = action,
                        .dimension = parts.dimension,
                        .whole = whole,
                        .name = name,
                        .waits = waits_},
                       value.detach());
}

nn::Values Border::exchanged(const nn::Values& given, SampleSizes& sizes) const {
  nn::Values values = given;
  for (const Named& each : exchanges_) {
    const Exchange& exchange = each.exchange;
    if (exchange.value >= values.size() || !values[exchange.value].defined()) {
      throw Error(str(each.forward, " is of value ", exchange.value,
                      ", which is not there: ", values.size(), " were given"));
    }
    at::Tensor& value = values[exchange.value];
    const bool requires_grad = given[exchange.value].requires_grad();
    const Held& parts = parts_of(exchange);
    std::int64_t whole = 0;
    if (exchange.before.state == State::Cut) {
      whole = whole_of(parts, value, sizes, each.sizes);
      check_part(parts, value, whole, each.forward);
    } else if (exchange.after.state == State::Cut) {
      whole = value.size(parts.dimension);
      note_whole(parts, whole, sizes, each.forward);
    }
    value = run(forward_action(exchange), parts, value, whole, each.forward);
    if (requires_grad && exchange.before.state != State::Candidates) value.requires_grad_(true);
  }
  return values;
}

bool Border::sends_gradients() const {
  return std::ranges::any_of(exchanges_, [](const Named& each) {
    const auto action = gradient_action(each.exchange);
    return action && exchange::sends(*action);
  });
}

StartedValues Border::start_gradients(nn::Values of_exchanged, const nn::Values& given,
                                      const SampleSizes& sizes) const {
  StartedValues all(std::move(of_exchanged));
  for (std::size_t i = exchanges_.size(); i-- > 0;) {
    const Named& each = exchanges_[i];
    const Exchange& exchange = each.exchange;
    const auto action = gradient_action(exchange);
    const at::Tensor& value = given[exchange.value];
    if (!action || !value.requires_grad()) continue;
    const Held& parts = parts_of(exchange);
    std::int64_t whole = parts.whole > 0 ? parts.whole : sizes.tokens;
    if (parts.state != State::Cut) whole = 0;
    if (exchange.after.state == State::Cut) whole = value.size(parts.dimension);
    at::Tensor& gradient = all.awaited(exchange.value);
    if (!gradient.defined()) {  // The others may have one.
      gradient = at::zeros(sizes_behind(exchange, value.sizes().vec(), whole, ranks_->share()),
                           value.options().requires_grad(false));
    }
    if (exchange::sends(*action)) {
      all.start(exchange.value, start(*action, parts, gradient, whole, each.backward));
    } else {
      gradient = run(*action, parts, gradient, whole, each.backward);
    }
  }
  return all;
}

std::vector<std::size_t> Border::gathered() const {
  std::vector<std::size_t> values;
  for (const Named& each : exchanges_) {
    if (forward_action(each.exchange) == Action::AllGather) values.push_back(each.exchange.value);
  }
  return values;
}

std::unique_ptr<StartedExchange> Border::gather_again(std::size_t value, const at::Tensor& part,
                                                      const SampleSizes& sizes) const {
  for (const Named& each : exchanges_) {
    const bool is_it =
        each.exchange.value == value && forward_action(each.exchange) == Action::AllGather;
    if (!is_it) continue;
    const Held& parts = each.exchange.before;
    return start(Action::AllGather, parts, part, parts.whole > 0 ? parts.whole : sizes.tokens,
                 each.forward);
  }
  PENSTOCK_CHECK(false, "value ", value, " is not gathered");
  return nullptr;
}

}  // namespace penstock::stage
