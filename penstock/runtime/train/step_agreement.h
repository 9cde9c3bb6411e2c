// What a rank's program has set by itself since the last step, and whether all ranks have the same:
// weights, the learning rate, gradients.
//
// The Trainer makes a number of it, which goes along with what ranks share in a step anyway; only
// where numbers differ are the facts themselves exchanged.  Knows no optimizer.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/train/rank_model.h"

namespace penstock::train {

struct OwnSettings {
  std::map<std::string, std::string> weights;  // Hashes by name (parameters::ProgramChanges).
  std::vector<double> rates;                   // The step's learning rate of each group.
};

// A number that differs for different settings, all but surely.  A double holds it exactly.
double number_of(const OwnSettings& own);
// Whether ranks with other parameters have any of these weights, too: a tied parameter's copies, or
// what ranks that share layers have all of.
bool is_in_several_places(const OwnSettings& own, RankModel& here);

// The number of each of the ranks with the same parameters, behind what is given to
// GroupSums::over_copies().
void append_number(std::vector<double>& mine, const mesh::Group& copies, double number);
// Takes the numbers off its result: whether any of them is another one.
bool remove_numbers(std::vector<double>& all, const mesh::Group& copies, double number);

// What ranks that make up the model add up in a step: counts, the squared norms of parameters in
// model order, and at each place the number of its rates.  Zeros of the others make sums exact.
class SharedOverModel {
 public:
  SharedOverModel(std::int64_t counts, const std::vector<double>& squares,
                  const std::vector<double>& rates, const mesh::Groups& here);

  // The tensor to sum (GroupSums::over_model()).
  const at::Tensor& tensor() const { return all_; }
  std::span<double> counts() const { return {first(), counts_}; }
  std::span<double> squares() const { return {first() + counts_, squares_}; }
  // Whether all places have the same rates.  Read behind the sum.
  bool have_rates_alike() const;

 private:
  double* first() const { return all_.data_ptr<double>(); }
  std::size_t counts_;
  std::size_t squares_;
  at::Tensor all_;
};

// Collective over all ranks.
// Throws: DifferenceError, the same on every rank, that names a weight, or the learning rate, of
// which two ranks have different ones.
void agree_on_settings(const OwnSettings& own, RankModel& here, comm::Communicator& communicator);
// The same of the gradients of what replicas update whole.
void agree_on_gradients(RankModel& here, comm::Communicator& communicator);

// Gradients that the program has put in the place of others become such as an update takes.
// Throws: Error, naming it, for one that is not of its parameter's shape.
void settle_gradients(RankModel& here);

}  // namespace penstock::train
