#include "penstock/runtime/train/whole_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <map>
#include <memory>
#include <utility>

#include "penstock/core/parameter_names.h"

namespace penstock::train {
namespace {

// One tag for all: messages with one tag find each other in their order.  Exchanges have others.
constexpr std::int32_t kTag = 2;

// Calls visit(tensor, writer): the number of the rank that writes it, among those that share.
template <class Visit>
void for_each_tensor(RankModel& model, const Visit& visit) {
  const std::int32_t ranks = model.groups().shared_weights.size();
  std::map<std::string, std::int32_t> writers;
  for (const stage::Stage& stage : model.stages()) {
    for (const stage::NamedParameter& each : stage.layers().state()) {
      const auto next = static_cast<std::int32_t>(writers.size()) % ranks;
      visit(each, writers.emplace(linear_of(each.name), next).first->second);
    }
  }
}

WrittenTensor described(RankModel& model, const stage::NamedParameter& each) {
  return {.name = each.name,
          .shape = partition::shape_of_whole(each.tensor.sizes().vec(),
                                             model.sharing().cut_of(each.name)),
          .element_bytes = static_cast<std::int64_t>(each.tensor.element_size())};
}

}  // namespace

std::vector<WrittenTensor> tensors_to_write(RankModel& model) {
  std::vector<WrittenTensor> all;
  for_each_tensor(model, [&](const stage::NamedParameter& each, std::int32_t writer) {
    if (writer == model.groups().shared_weights.here) all.push_back(described(model, each));
  });
  return all;
}

std::vector<WrittenTensor> whole_tensors(RankModel& model, comm::Communicator& communicator,
                                         const Wanted& is_wanted) {
  const at::NoGradGuard no_grad;
  const mesh::Group& ranks = model.groups().shared_weights;
  const auto rank_of = [&](std::int64_t place) {
    return ranks.ranks[static_cast<std::size_t>(place)];
  };
  std::vector<WrittenTensor> all;
  for_each_tensor(model, [&](const stage::NamedParameter& each, std::int32_t writer) {
    if (!is_wanted(each.name)) return;
    const partition::Cut mine = model.sharing().cut_of(each.name);
    const at::Tensor part = each.tensor.detach();
    if (writer != ranks.here) {
      const bool has_it = writer / mine.copies == mine.part;
      if (mine.is_whole() || mine.copy != 0 || has_it) return;
      communicator.send(part.contiguous(), rank_of(writer), kTag)->wait();
      return;
    }
    WrittenTensor& written = all.emplace_back(described(model, each));
    if (mine.is_whole()) {
      written.tensor = part;
      return;
    }
    written.tensor = at::empty(written.shape, part.options().requires_grad(false));
    for (std::int64_t number = 0; number < mine.of; ++number) {
      partition::Cut cut = mine;
      cut.part = number;
      if (number == mine.part) {
        nn::set_part(written.tensor, cut, part);
        continue;
      }
      const at::Tensor come =
          at::empty(partition::shape_of_part(written.shape, cut), written.tensor.options());
      communicator.receive(come, rank_of(number * mine.copies), kTag)->wait();
      nn::set_part(written.tensor, cut, come);
    }
  });
  return all;
}

}  // namespace penstock::train
