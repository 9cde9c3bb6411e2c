// Parameters that are spread over the ranks of a data group, brought and dropped when asked for.
//
// The Python package has them for every module that it spreads while a model is made (zero.Init).
// It has them, too, for each set of RankParameters whose parameters come and go.  What an
// operator reads, a Pager brings.  Knows no gradients and no optimizer.
// Parameters are numbered as they were given.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/parameters/pager.h"
#include "penstock/runtime/parameters/parameter_shards.h"
#include "penstock/runtime/stage/stage.h"

namespace penstock::parameters {

// DeepSpeed's words and numbers.
enum class ParameterStatus : std::uint8_t { Available = 1, NotAvailable = 2, InFlight = 3 };

class ZeroInitParameters {
 public:
  // Spreads these parameters, in buckets of up to `bucket_bytes`.  Collective over `group`, which
  // outlives it; afterwards all are away.
  ZeroInitParameters(const std::vector<stage::NamedParameter>& parameters, comm::ShardGroup& group,
                     std::int64_t bucket_bytes);
  // Has the parameters of `shards` that come and go.  `pager` brings them.  Both outlive it.
  ZeroInitParameters(ParameterShards& shards, Pager& pager);

  std::vector<stage::NamedParameter> parameters() const;
  comm::ShardGroup& group() const { return shards_.group(); }
  std::vector<std::shared_ptr<Page>> pages() const { return shards_.pages(); }

  // Whether it may be read now, by operators that would bring it or by anyone.
  ParameterStatus status(std::size_t parameter) const;

  // This rank's part of a parameter: flat, and a view of what is updated.
  at::Tensor shard(std::size_t parameter) const;

  // Collective: brings them, to stay until as many release().
  void hold(const std::vector<std::size_t>& parameters);
  // Throws: Error, naming it, for a parameter that was changed in place meanwhile.
  void release(const std::vector<std::size_t>& parameters);

  // Collective, while it is held: its values are those that the group's `root`-th rank sees in it,
  // from now on and on all ranks.
  void take_changes(std::size_t parameter, std::int32_t root);
  // The held parameters that are not what they were when they came, as far as this rank can tell.
  std::vector<std::size_t> changed(const std::vector<std::size_t>& parameters) const;
  // Lets changed parameters be released all the same.
  void forget_changes(const std::vector<std::size_t>& parameters);

 private:
  struct Held {
    std::int32_t times = 0;
    std::int64_t version = 0;  // The tensor's version when it came.
  };
  const at::Tensor& tensor(std::size_t parameter) const {
    return shards_.parameters()[numbers_[parameter]].tensor;
  }
  Page& page(std::size_t parameter) const { return shards_.page_of(numbers_[parameter]); }
  const ShardSlice* slice(std::size_t parameter) const {
    return shards_.slice_of(numbers_[parameter]);
  }
  // The other ranks hear what all do next with a parameter.
  void say(Word::Kind what, std::size_t parameter);
  bool is_changed(std::size_t parameter) const;

  std::unique_ptr<ParameterShards> own_;  // Unless they are somebody else's.
  ParameterShards& shards_;
  Pager* pager_ = nullptr;
  std::vector<std::size_t> numbers_;  // Numbers in shards_, by parameter.
  std::vector<Held> held_;            // Holds by parameter.
};

}  // namespace penstock::parameters
