#include "penstock/runtime/execute/mailbox.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "penstock/core/check.h"
#include "penstock/core/error.h"

namespace penstock::execute {
namespace {

using lower::Instruction;
using schedule::Op;

// The length of a header, then its words; more of them in a second message.
constexpr std::int64_t kHeaderWords = 32;

bool is_forward(const Instruction& instruction) {
  return instruction.action.op == Op::SendForward || instruction.action.op == Op::RecvForward ||
         instruction.action.op == Op::Forward;
}

// Whether it concerns the boundary to the stage before, not to the stage after.
bool concerns_input(const Instruction& instruction) {
  return instruction.action.op == Op::RecvForward || instruction.action.op == Op::Forward ||
         instruction.action.op == Op::SendBackward;
}

// A value may take no gradient where one was announced: what comes back is not used then.
bool fits(const nn::Values& values, const nn::Form& form) {
  nn::Form actual = nn::form_of(values);
  for (std::size_t i = 0; i < std::min(actual.size(), form.size()); ++i) {
    actual[i].requires_grad |= form[i].requires_grad;
  }
  return actual == form;
}

// The part of a packed message that a tensor of this form is.  It has a version of its own: a layer
// that works in place on one part changes no other.
at::Tensor part_of(const at::Tensor& message, std::int64_t offset, const nn::TensorForm& form) {
  return message.narrow(0, offset, form.bytes()).view(form.dtype).view(form.sizes).variable_data();
}

// The message, in host memory: packed where the values are, and copied at once.
at::Tensor packed(const nn::Values& values, const nn::Form& form, const Packing& packing,
                  c10::Device device) {
  const at::Tensor there =
      at::empty({packing.bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  for (const auto& [place, offset] : packing.parts) {
    const at::Tensor part = part_of(there, offset, form[place]);
    values[place].defined() ? part.copy_(values[place]) : part.zero_();
  }
  at::Tensor message = there.cpu();
  auto* flag = message.data_ptr<std::uint8_t>() + packing.flags;
  if (packing.flags == packing.bytes) return message;
  for (const Packing::Part& part : packing.parts) *flag++ = values[part.place].defined() ? 1 : 0;
  return message;
}

// A gradient with memory of its own: a tensor of Python's around others, as a DTensor's backward
// may leave one, is waited for by an operation that copies nothing.
at::Tensor own_memory(const at::Tensor& gradient, const schedule::Action& action) {
  if (!gradient.defined() || !gradient.key_set().has(c10::DispatchKey::Python)) return gradient;
  const at::NoGradGuard no_grad;
  at::Tensor plain = at::_unsafe_view(gradient, gradient.sizes());
  if (plain.key_set().has(c10::DispatchKey::Python)) {
    throw Error(str(action, ": the gradient of what stage ", action.stage,
                    " takes is of a tensor class without memory of its own, and cannot be sent"));
  }
  return plain;
}

nn::Values own_memory(nn::Values gradients, const schedule::Action& action) {
  for (at::Tensor& each : gradients) each = own_memory(each, action);
  return gradients;
}

}  // namespace

Mailbox::Mailbox(const lower::Plan& plan, comm::Communicator& communicator, Progress& progress,
                 c10::Device device)
    : communicator_(communicator),
      progress_(progress),
      device_(device),
      numbers_(plan, communicator, progress),
      incoming_(plan.chunks.size()),
      outgoing_(plan.chunks.size()) {
  for (std::size_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
    forward_.emplace_back(static_cast<std::size_t>(plan.forward_slots[chunk]));
    backward_.emplace_back(static_cast<std::size_t>(plan.backward_slots[chunk]));
  }
  sends_.resize(static_cast<std::size_t>(plan.send_slots));
}

void Mailbox::begin(const std::vector<nn::Values>& inputs) { numbers_.begin(inputs); }

Mailbox::Hop& Mailbox::hop(const Instruction& instruction) {
  auto& hops =
      (concerns_input(instruction) ? incoming_
                                   : outgoing_)[static_cast<std::size_t>(instruction.chunk)];
  const auto found = std::ranges::find(hops, instruction.peer, &Hop::peer);
  return found == hops.end() ? hops.emplace_back(Hop{instruction.peer, {}}) : *found;
}

Mailbox::Slot& Mailbox::slot(const Instruction& instruction) {
  auto& slots = is_forward(instruction) ? forward_ : backward_;
  return slots[static_cast<std::size_t>(instruction.chunk)]
              [static_cast<std::size_t>(instruction.slot)];
}

void Mailbox::wait(comm::Transfer& transfer) {
  const Waiting waiting(progress_);
  transfer.wait();
}

const Mailbox::Announced* Mailbox::announced(const Instruction& instruction) {
  numbers_.learn();
  if (numbers_.generation() != generation_) forget();
  const auto& known = hop(instruction).forms;
  const auto number = static_cast<std::size_t>(numbers_.of(*instruction.action.microbatch));
  return number < known.size() ? known[number].get() : nullptr;
}

void Mailbox::forget() {
  generation_ = numbers_.generation();
  for (auto* hops : {&incoming_, &outgoing_}) {
    for (auto& known : *hops) known.clear();
  }
  for (auto* chunks : {&forward_, &backward_}) {
    for (auto& slots : *chunks) {
      // Slots point to the forms that have just gone; they are laid out anew.
      for (Slot& each : slots) each.like = nullptr;
    }
  }
}

const Mailbox::Announced& Mailbox::remember(const Instruction& instruction, nn::Form form) {
  auto& known = hop(instruction).forms;
  const auto number = static_cast<std::size_t>(numbers_.of(*instruction.action.microbatch));
  if (known.size() <= number) known.resize(number + 1);
  known[number] = std::make_unique<Announced>();
  known[number]->values = pack(form, Packing::Of::Values);
  known[number]->gradients = pack(form, Packing::Of::Gradients);
  known[number]->form = std::move(form);
  return *known[number];
}

// Named after the first microbatch of the step with such inputs, whichever comes first.
std::int32_t Mailbox::header_tag(const Instruction& instruction) const {
  schedule::Action first = instruction.action;
  first.microbatch = numbers_.first_with(numbers_.of(*instruction.action.microbatch));
  return lower::message_tag(first, lower::kHeaderPart);
}

const Mailbox::Announced& Mailbox::announce(const Instruction& send, const nn::Values& values) {
  nn::Form form = nn::form_of(values);
  const std::vector<std::int64_t> words = encode(form);
  const auto length = std::ssize(words);
  const at::Tensor header = at::zeros({std::max(kHeaderWords, 1 + length)}, at::kLong);
  header.data_ptr<std::int64_t>()[0] = length;
  std::ranges::copy(words, header.data_ptr<std::int64_t>() + 1);
  const std::int32_t tag = header_tag(send);
  const std::int64_t rest = header.numel() - kHeaderWords;
  headers_.push_back(communicator_.send(header.narrow(0, 0, kHeaderWords), send.peer, tag));
  if (rest > 0) {
    headers_.push_back(communicator_.send(header.narrow(0, kHeaderWords, rest), send.peer, tag));
  }
  return remember(send, std::move(form));
}

const Mailbox::Announced& Mailbox::learn(const Instruction& receive) {
  const std::int32_t tag = header_tag(receive);
  std::vector<std::int64_t> words(static_cast<std::size_t>(kHeaderWords));
  const auto next = [&](std::int64_t count) {
    const at::Tensor part = at::zeros({count}, at::kLong);
    learned_.push_back(communicator_.receive(part, receive.peer, tag));
    wait(*learned_.back());
    return part;
  };
  const at::Tensor first = next(kHeaderWords);
  std::copy_n(first.const_data_ptr<std::int64_t>(), kHeaderWords, words.begin());
  const std::int64_t rest = 1 + words[0] - kHeaderWords;
  if (rest > 0) {
    const at::Tensor second = next(rest);
    words.insert(words.end(), second.const_data_ptr<std::int64_t>(),
                 second.const_data_ptr<std::int64_t>() + rest);
  }
  return remember(receive, decode(words.data() + 1));
}

std::int64_t Mailbox::send(const Instruction& instruction, const nn::Values& given) {
  const bool forward = is_forward(instruction);
  const nn::Values values = forward ? given : own_memory(given, instruction.action);
  const Announced* like = announced(instruction);
  if (like == nullptr && forward) like = &announce(instruction, values);
  PENSTOCK_CHECK(like != nullptr, instruction.action);
  if (forward && !fits(values, like->form)) refuse(instruction, values, like->form);
  const Packing& packing = forward ? like->values : like->gradients;
  if (packing.bytes == 0) return 0;
  auto& transfer = sends_[static_cast<std::size_t>(instruction.slot)];
  PENSTOCK_CHECK(!transfer, instruction.action);
  if (packing.alone()) {
    const at::Tensor& only = values[packing.parts.front().place];
    if (!only.defined()) {
      throw Error(str(instruction.action, ": there is no gradient to send: stage ",
                      instruction.action.stage, " does not use its input"));
    }
    transfer = communicator_.send(only.contiguous(), instruction.peer, instruction.tag);
  } else {
    transfer = communicator_.send(packed(values, like->form, packing, device_), instruction.peer,
                                  instruction.tag);
  }
  return packing.bytes;
}

void Mailbox::refuse(const Instruction& instruction, const nn::Values& values,
                     const nn::Form& announced) const {
  const Microbatch first = numbers_.first_with(numbers_.of(*instruction.action.microbatch));
  throw Error(
      penstock::str(instruction.action, ": sends ", nn::to_string(nn::form_of(values)),
                    ", but for inputs of the shape of microbatch ", first,
                    "'s this hop has carried ", to_string(announced)),
      {"what a stage returns may differ in shape and type only with the shapes and types of the "
       "model's inputs"});
}

// The tuple whose tensors are parts of a message that has come.
nn::Values Mailbox::parts_of(const Slot& slot, const at::Tensor& message) const {
  const bool forward = is_forward(slot.posted);
  const Packing& packing = forward ? slot.like->values : slot.like->gradients;
  nn::Values values(slot.like->form.size());
  for (const auto& [place, offset] : packing.parts) {
    values[place] =
        packing.alone() ? message.detach() : part_of(message, offset, slot.like->form[place]);
  }
  if (!forward) return values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const nn::TensorForm& form = slot.like->form[i];
    if (form.dtype == at::ScalarType::Undefined) continue;
    if (form.bytes() == 0) {  // Has a shape, and no bytes that could travel.
      values[i] = at::empty(form.sizes, at::TensorOptions().dtype(form.dtype).device(device_));
    }
    values[i].requires_grad_(form.requires_grad);
  }
  return values;
}

// Several tensors come in host memory, where their flags are read.
void Mailbox::lay_out(Slot& slot, const Announced& like) {
  const Packing& packing = is_forward(slot.posted) ? like.values : like.gradients;
  slot.like = &like;
  if (packing.alone()) {
    const nn::TensorForm& only = like.form[packing.parts.front().place];
    slot.message = at::empty(only.sizes, at::TensorOptions().dtype(only.dtype).device(device_));
  } else {
    slot.message = at::empty({packing.bytes}, at::kByte);
  }
  const bool stays = slot.message.device() == device_;
  slot.tensors = stays ? parts_of(slot, slot.message) : nn::Values();
}

void Mailbox::post(Slot& slot, const Announced& like) {
  if (slot.like != &like) lay_out(slot, like);
  if (slot.message.numel() > 0) {
    slot.transfer = communicator_.receive(slot.message, slot.posted.peer, slot.posted.tag);
  }
  slot.pending = true;
}

void Mailbox::receive(const Instruction& instruction) {
  Slot& at = slot(instruction);
  PENSTOCK_CHECK(!at.pending, instruction.action);
  at.posted = instruction;
  if (const Announced* like = announced(instruction)) post(at, *like);
}

nn::Values Mailbox::take(const Instruction& consumer) {
  Slot& at = slot(consumer);
  if (!at.pending) {
    // Nobody knew the form at the RECV: the receive is posted now, behind its header.
    const Announced* like = announced(at.posted);
    if (like == nullptr && is_forward(consumer)) like = &learn(at.posted);
    PENSTOCK_CHECK(like != nullptr, at.posted.action);
    post(at, *like);
  }
  if (at.message.numel() > 0) wait(*at.transfer);
  at.pending = false;
  nn::Values values = at.tensors;
  if (values.empty()) values = parts_of(at, nn::on_device(nn::Values(at.message), device_).front());
  const Packing& packing = is_forward(consumer) ? at.like->values : at.like->gradients;
  for (std::size_t p = 0; packing.flags < packing.bytes && p < packing.parts.size(); ++p) {
    const auto flag = packing.flags + static_cast<std::int64_t>(p);
    if (at.message.const_data_ptr<std::uint8_t>()[flag] == 0)
      values[packing.parts[p].place].reset();
  }
  return values;
}

void Mailbox::await(const Instruction& instruction) {
  auto& transfer = sends_[static_cast<std::size_t>(instruction.slot)];
  if (transfer) wait(*transfer);
  transfer.reset();
}

void Mailbox::finish() {
  for (auto* transfers : {&sends_, &headers_}) {
    for (auto& transfer : *transfers) {
      if (transfer) wait(*transfer);
      transfer.reset();
    }
  }
  headers_.clear();
  learned_.clear();
  numbers_.finish();
}

}  // namespace penstock::execute
