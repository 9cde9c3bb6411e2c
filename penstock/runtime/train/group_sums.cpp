#include "penstock/runtime/train/group_sums.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace penstock::train {

GroupSums::GroupSums(mesh::Groups groups, comm::Communicator& communicator,
                     execute::Progress& progress)
    : communicator_(communicator),
      progress_(progress),
      groups_(std::move(groups)),
      same_parameters_(communicator, groups_.same_parameters.ranks),
      other_parameters_(communicator.make_group(groups_.other_parameters.ranks)),
      other_samples_(communicator.make_group(groups_.other_samples.ranks)) {}

void GroupSums::over_model(const at::Tensor& tensor) {
  if (!groups_.other_parameters.counts) tensor.zero_();
  communicator_.all_reduce(tensor, other_parameters_)->wait();
}

void GroupSums::once_over_model(const at::Tensor& tensor) {
  if (!counts_here()) tensor.zero_();
  over_model(tensor);
}

std::vector<double> GroupSums::over_copies(const std::vector<double>& mine, const char* phase) {
  return groups_.same_parameters.size() == 1 ? mine : sums(mine, same_parameters_.group(), phase);
}

std::vector<double> GroupSums::over_replicas(const std::vector<double>& mine, const char* phase) {
  const mesh::Group& replicas = groups_.other_samples;
  if (replicas.size() == 1) return mine;
  std::vector<double> all(mine.size() * replicas.ranks.size(), 0.0);
  std::ranges::copy(mine, all.begin() + std::ssize(mine) * replicas.here);
  return sums(all, other_samples_, phase);
}

std::vector<double> GroupSums::sums(const std::vector<double>& mine, comm::Group group,
                                    const char* phase) {
  const at::Tensor sums = at::zeros({std::ssize(mine)}, at::kDouble);
  auto* value = sums.data_ptr<double>();
  std::ranges::copy(mine, value);
  const execute::WaitMark wait(progress_, phase);
  communicator_.all_reduce(sums, group)->wait();
  return {value, value + sums.numel()};
}

}  // namespace penstock::train
