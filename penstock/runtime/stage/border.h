// The border behind a part of layers that ranks share: the exchanges there, forward, and their
// duals, backward.
//
// Segment and LossRun have one behind each part that they run.  Knows no graphs and no layers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "penstock/plan/exchange/pieces.h"
#include "penstock/runtime/nn/values.h"
#include "penstock/runtime/stage/exchanges.h"

namespace penstock::stage {

// What a microbatch's samples decide: the whole size of values whose parts the layers have (see
// exchange::Held::whole).  0: nobody has asked yet.
struct SampleSizes {
  std::int64_t tokens = 0;
};

// Values of which some come by exchanges that have started.
class StartedValues {
 public:
  StartedValues() = default;
  explicit StartedValues(nn::Values values) : values_(std::move(values)), coming_(values_.size()) {}

  // The value, once it is there.
  at::Tensor& awaited(std::size_t value);
  void start(std::size_t value, std::unique_ptr<StartedExchange> exchange) {
    coming_[value] = std::move(exchange);
  }
  // All of them.  Once.
  nn::Values await();

 private:
  nn::Values values_;
  std::vector<std::unique_ptr<StartedExchange>> coming_;  // Exchanges by value; null: it is there.
};

class Border {
 public:
  Border() = default;  // Nothing is exchanged.
  // `ahead`: how many values come before the piece's: skips.  `behind`: "piece 0 of layer "fc"".
  Border(std::vector<exchange::Exchange> exchanges, std::size_t ahead, const std::string& behind,
         std::shared_ptr<Exchanges> ranks, Waits waits = Waits::Aside);

  bool exchanges() const { return !exchanges_.empty(); }

  // What the ranks have of the values behind the exchanges: without a graph, and requiring a
  // gradient where `given` do.
  // Throws: Error for a part whose size is not that of a share.
  nn::Values exchanged(const nn::Values& given, SampleSizes& sizes) const;
  // Whether gradients are sent backward.
  bool sends_gradients() const;
  // Starts to make the gradients of what was given, from those behind the exchanges.  `given` are
  // tensors of these sizes that require a gradient where those did.
  StartedValues start_gradients(nn::Values of_exchanged, const nn::Values& given,
                                const SampleSizes& sizes) const;

  // The values that are gathered here from parts.
  std::vector<std::size_t> gathered() const;
  // Starts to gather one again, of the part that was given.
  std::unique_ptr<StartedExchange> gather_again(std::size_t value, const at::Tensor& part,
                                                const SampleSizes& sizes) const;

 private:
  struct Named {
    exchange::Exchange exchange;
    const char* forward;
    const char* backward;
    const char* sizes;
  };
  at::Tensor run(exchange::Action action, const exchange::Held& parts, const at::Tensor& value,
                 std::int64_t whole, const char* name) const;
  // REQUIRES: the action sends.
  std::unique_ptr<StartedExchange> start(exchange::Action action, const exchange::Held& parts,
                                         const at::Tensor& value, std::int64_t whole,
                                         const char* name) const;
  std::int64_t whole_of(const exchange::Held& parts, const at::Tensor& part, SampleSizes& sizes,
                        const char* name) const;
  void note_whole(const exchange::Held& parts, std::int64_t whole, SampleSizes& sizes,
                  const char* name) const;
  void check_part(const exchange::Held& parts, const at::Tensor& part, std::int64_t whole,
                  const char* name) const;

  std::vector<Named> exchanges_;
  std::shared_ptr<Exchanges> ranks_;
  Waits waits_ = Waits::Aside;
};

}  // namespace penstock::stage
