// Masters: the copies of parameters that an optimizer updates in their place.
//
// Parameters of a short type have copies in float, because small updates would round to nothing.
// Parameters on a device have copies in host memory, where the host is to update them.
//
// A Trainer keeps a master for each part that its rank updates: a whole parameter or a slice.  A
// loop with an optimizer of its own may do the same.  A parameter that needs no copy is its own
// master, so the loop is the same for all.  Knows no optimizer and no ranks.
//
//   const auto all = masters.all();
//   masters.take_gradients(all, {.scale = 138.0});
//   optimizer.step();  // on masters.tensors()
//   masters.put_back(all);
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/plan/partition/part_runs.h"

namespace penstock::update {

using partition::PartRun;

class OffloadedParts;

// What a gradient is divided by, and then multiplied by.
struct Unscale {
  double scale = 1.0;
  double factor = 1.0;
};

// The place of masters.
enum class MastersPlace : std::uint8_t { Device, Host };  // Device: where the parameter is.

class MasterWeights {
 public:
  // Masters begin as what `parameters` are now.  Those in host memory are in `memory`, where it is
  // not null.
  explicit MasterWeights(std::vector<at::Tensor> parameters,
                         MastersPlace place = MastersPlace::Device,
                         OffloadedParts* memory = nullptr);

  // Masters by parameter.
  const std::vector<at::Tensor>& tensors() const { return masters_; }
  PartRun all() const { return {0, masters_.size()}; }
  // The runs in which gradients are copied, of about `elements` each.  One run where every
  // parameter is its own master.
  std::vector<PartRun> runs(std::int64_t elements) const;

  // Takes over values that somebody has set: where a parameter differs from its rounded master, the
  // master becomes the parameter.
  void take_changes(PartRun run);
  // The parameters' gradients become their masters', each element rounded once for the division
  // and once for the multiplication; a master of a parameter without a gradient has none.
  void take_gradients(PartRun run, const Unscale& unscale);
  // Parameters whose gradients were taken become their masters, rounded to the nearest; those
  // gradients are given up.
  void put_back(PartRun run);
  // Makes all parameters their masters, which somebody has set.
  void put_back_all();
  // Gives up gradients that were taken and not put back.
  void drop_gradients();

 private:
  bool is_its_own(std::size_t i) const { return masters_[i].is_same(parameters_[i]); }

  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> masters_;
};

}  // namespace penstock::update
