#include "penstock/runtime/execute/form_numbers.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/runtime/comm/call_words.h"
#include "penstock/runtime/comm/calls.h"

namespace penstock::execute {
namespace {

std::int32_t tag_for(StageId stage) {
  return lower::message_tag(
      {.stage = stage, .op = schedule::Op::RecvForward, .microbatch = Microbatch(0)},
      lower::kFormNumbersPart);
}

using NameBytes = std::array<char, 32>;

NameBytes name_bytes(std::string_view name) {
  NameBytes bytes{};
  std::copy_n(name.data(), std::min(name.size(), bytes.size()), bytes.data());
  return bytes;
}

std::string text_of(const NameBytes& bytes) {
  const std::string_view all(bytes.data(), bytes.size());
  return std::string(all.substr(0, all.find('\0')));
}

}  // namespace

FormNumbers::FormNumbers(const lower::Plan& plan, comm::Communicator& communicator,
                         Progress& progress)
    : plan_(plan),
      communicator_(communicator),
      progress_(progress),
      numbers_(at::zeros({1 + kNameWords + plan.microbatches}, at::kLong)) {}

void FormNumbers::begin(const std::vector<nn::Values>& inputs) {
  known_ = false;
  if (plan_.has_first_stage) {
    number(inputs);
    pass_on();
    known_ = true;
  } else {
    incoming_ =
        communicator_.receive(numbers_, plan_.form_numbers_from, tag_for(plan_.chunks.front()));
  }
}

void FormNumbers::number(const std::vector<nn::Values>& inputs) {
  auto* words = numbers_.data_ptr<std::int64_t>();
  const NameBytes name = name_bytes(comm::Call::name());
  std::memcpy(words + 1, name.data(), name.size());
  if (forms_.size() > kFormsMax) {
    forms_.clear();
    ++words[0];
  }
  std::size_t guess = 0;  // Neighbours are mostly alike.
  for (std::size_t m = 0; m < inputs.size(); ++m) {
    if (guess >= forms_.size() || !nn::has_form(inputs[m], forms_[guess])) {
      const auto found = std::ranges::find_if(
          forms_, [&](const nn::Form& form) { return nn::has_form(inputs[m], form); });
      guess = static_cast<std::size_t>(found - forms_.begin());
      if (found == forms_.end()) forms_.push_back(nn::form_of(inputs[m]));
    }
    words[1 + kNameWords + static_cast<std::int64_t>(m)] = static_cast<std::int64_t>(guess);
  }
}

void FormNumbers::pass_on() {
  for (const lower::Plan::FormNumbersTo& next : plan_.form_numbers_to) {
    outgoing_.push_back(communicator_.send(numbers_, next.rank, tag_for(next.stage)));
  }
}

void FormNumbers::learn() {
  if (known_) return;
  {
    const Waiting waiting(progress_);
    incoming_->wait();
  }
  check_call();
  known_ = true;
  pass_on();
}

void FormNumbers::check_call() const {
  const NameBytes mine = name_bytes(comm::Call::name());
  NameBytes theirs{};
  std::memcpy(theirs.data(), words() + 1, theirs.size());
  if (mine == theirs) return;
  const auto in = [](Rank rank, const NameBytes& name) {
    return comm::SeenRank{
        .rank = rank,
        .place = comm::CallPlace{.name = text_of(name), .is_inside = true, .has_spoken = true}};
  };
  const Rank self = communicator_.rank();
  throw CommError(comm::call_words({in(plan_.form_numbers_from, theirs), in(self, mine)}, self));
}

Microbatch FormNumbers::first_with(std::int64_t number) const {
  const std::int64_t* first = numbers();
  const std::int64_t* found = std::find(first, first + plan_.microbatches, number);
  PENSTOCK_CHECK(found != first + plan_.microbatches, "form ", number);
  return Microbatch(static_cast<std::int32_t>(found - first));
}

void FormNumbers::finish() {
  learn();
  for (const auto& transfer : outgoing_) transfer->wait();
  outgoing_.clear();
}

}  // namespace penstock::execute
