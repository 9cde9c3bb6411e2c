// How messages travel between two ranks: what a Communicator's send() and receive() stand on.
//
// One implementation per transport, a folder each: gloo/, shm/, tcp/.  World chooses one for
// each peer; nobody above comm/ knows which it is. Thread safety: one thread at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/runtime/comm/interrupt.h"

namespace penstock::comm {

// What every wait of a communicator heeds.
struct WaitRules {
  std::chrono::milliseconds deadline{0};
  // While a connection is made: by two ranks that are both there, so this one need not be as long.
  std::chrono::milliseconds connecting{0};
  Interrupt interrupt;
  // Asks the ranks where they are, and says it if they are not in one call (call_words.h).
  std::function<std::string()> call_words = {};

  // The error of a wait that was not given what it waited for: `what` says so.
  CommError failed(const std::string& what) const;
};

// What is waited for, as messages say it: "receive from rank 3, tag 5, 24 bytes".
struct Operation {
  const char* verb = "";  // "receive from", "send to", "all-reduce over", ...
  std::string peers;      // "rank 3" or "ranks 0, 2".

  // Collectives are named without a tag.
  std::string describe(std::optional<std::int32_t> tag, std::uint64_t bytes) const;
};

// A transfer that was over when it began.
class Done : public Transfer {
 public:
  void wait() override {}
  bool is_over() override { return true; }
};

// A connection of this rank and one other, both ways.  send() and receive() are as Communicator's,
// of tensors in host memory, or of all.
class Link {
 public:
  virtual ~Link() = default;
  virtual bool takes_device_memory() const { return false; }
  virtual std::unique_ptr<Transfer> send(const at::Tensor& tensor, std::int32_t tag) = 0;
  virtual std::unique_ptr<Transfer> receive(const at::Tensor& tensor, std::int32_t tag) = 0;
};

}  // namespace penstock::comm
