// Parameters that several layers share: one weight on a rank, one gradient on all.
//
// The Trainer makes one for each set of ranks of a replica that share parameters.  It calls it when
// the gradients of a step are summed over the replicas.  Until then every layer has a gradient of
// its own.  Knows no layers' names and no schedule.  Invariant: after sum_gradients(), a parameter
// has one gradient on all ranks of the group, to the bit, or none where no layer has one: that of
// its first layer, plus that of the second, plus that of the third, and so on, wherever they are.
// So all copies stay equal under one optimizer, and no layout changes a bit.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/nn/model.h"

namespace penstock::parameters {

// Whether a rank's gradients are among those that are summed, or another rank of the group has the
// same ones.
enum class Summand : std::uint8_t { Mine, OfAnother };

class TiedParameters {
 public:
  // `copies` are those on this rank, of trainable parameters that are the same, and in the same
  // order, on every rank of the group.  From now on those of one parameter share their storage.
  // `sums`: the type of gradients of short parameters (accumulated_gradients.h); absent: theirs.
  TiedParameters(comm::Communicator& communicator, comm::Group group,
                 const std::vector<nn::TiedParameter>& copies,
                 std::optional<at::ScalarType> sums = {}, Summand summand = Summand::Mine);

  // Makes those here share the storage of the first again, after somebody has given it another one.
  void share();

  // Collective over the group.
  void sum_gradients();

 private:
  struct Parameter {
    std::vector<nn::TiedParameter> copies;  // Here, in the order of the model.
    std::int64_t first_place = 0;
    std::int64_t places = 0;  // Gradients to add up: the first two layers share one place.
    std::int64_t flag = 0;    // Index of the flag that says whether any layer has a gradient.
  };
  struct Flat {  // Parameters of one type.
    std::vector<Parameter> parameters;
    std::int64_t size = 0;
    at::Tensor values;
  };
  Parameter& find_or_add(const nn::TiedParameter& copy);
  static void collect(const Parameter& parameter, const at::Tensor& values);
  // `values`: undefined where no layer has a gradient.
  static void hand_out(const Parameter& parameter, const at::Tensor& values);

  comm::Communicator& communicator_;
  comm::Group group_;
  Summand summand_;
  std::vector<Flat> flats_;
};

}  // namespace penstock::parameters
