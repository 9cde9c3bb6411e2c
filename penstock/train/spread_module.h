// Parameters of a module that somebody else runs, each rank of a data group with its piece of them.
//
// The Python package has one for every module that it spreads while a model is made (zero.Init),
// and a ModuleReplica has one under ZeRO 3.  Here they come and go when asked for; what an operator
// reads, a zero::Pager brings.  Knows no gradients and no optimizer.
// Parameters are numbered as they were given.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/comm/shard_group.h"
#include "penstock/stage/stage.h"
#include "penstock/zero/parameter_shards.h"

namespace penstock::train {

// DeepSpeed's words and numbers.
enum class ParameterStatus : std::uint8_t { Available = 1, NotAvailable = 2, InFlight = 3 };

class SpreadModule {
 public:
  // As ParameterShards; afterwards all are away.
  SpreadModule(const std::vector<stage::NamedParameter>& parameters, comm::ShardGroup& group,
               std::int64_t bucket_bytes);

  zero::ParameterShards& shards() { return shards_; }
  const zero::ParameterShards& shards() const { return shards_; }

  // Whether it may be read now, by operators that would bring it or by anyone.
  ParameterStatus status(std::size_t parameter) const;
  // Operators bring what they read, from now on or no longer.
  void set_open(bool is_open) { is_open_ = is_open; }

  // This rank's part of it: flat, and a view of what is updated.
  at::Tensor shard(std::size_t parameter) const;

  // Collective: brings them, to stay until as many release().
  void hold(const std::vector<std::size_t>& parameters);
  // Throws: Error, naming it, for a parameter that was changed in place meanwhile.
  void release(const std::vector<std::size_t>& parameters);

  // Collective, while it is held: its values are those that the group's `root`-th rank sees in it,
  // from now on and on all ranks.
  void take_changes(std::size_t parameter, std::int32_t root);
  // Those among held parameters that are not what they were when they came, as far as this rank
  // can tell.
  std::vector<std::size_t> changed(const std::vector<std::size_t>& parameters) const;
  // They may be released all the same.
  void forget_changes(const std::vector<std::size_t>& parameters);

 private:
  struct Held {
    std::int32_t times = 0;
    std::int64_t version = 0;  // Of the tensor, when it came.
  };
  const at::Tensor& tensor(std::size_t parameter) const {
    return shards_.parameters()[parameter].tensor;
  }
  zero::Page& page(std::size_t parameter) const { return shards_.page_of(parameter); }
  const zero::ShardSlice* slice(std::size_t parameter) const;
  bool is_changed(std::size_t parameter) const;

  zero::ParameterShards shards_;
  std::vector<Held> held_;  // By parameter.
  bool is_open_ = false;
};

}  // namespace penstock::train
