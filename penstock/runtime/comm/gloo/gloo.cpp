#include "penstock/runtime/comm/gloo/gloo.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "penstock/core/blocked_signals.h"
#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/answer_of.h"

namespace penstock::comm {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;
using std::chrono::milliseconds;

// Gloo tries each connection again, and takes a deadline for each try.
constexpr int kConnections = 5;

class GlooTransfer : public Transfer {
 public:
  GlooTransfer(Work work, const at::Tensor& tensor, const Operation& operation,
               std::optional<std::int32_t> tag, WaitRules& rules)
      : work_(std::move(work)),
        tensor_(tensor),
        operation_(operation),
        tag_(tag),
        rules_(rules),
        deadline_(rules.deadline) {}

  void wait() override {
    try {
      const Interrupt::Waiting waiting(rules_.interrupt, [this] { wake(); });
      if (tag_ ? work_->wait(deadline_) : wait_for_collective()) return;
    } catch (const std::exception& error) {
      rules_.interrupt.check_soon();
      throw rules_.failed(str(describe(), " failed: ", reason(error)));
    }
    rules_.interrupt.check();
    throw CommError(describe() + ": interrupted");
  }

 private:
  std::string describe() const { return operation_.describe(tag_, tensor_.nbytes()); }

  // Gloo's messages can be aborted; its collectives cannot, but may be waited for in slices.
  void wake() {
    if (tag_) work_->abort();
  }

  bool wait_for_collective() {
    constexpr milliseconds kSlice(200);
    const auto end = std::chrono::steady_clock::now() + deadline_;
    while (true) {
      const auto left = std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now());
      // Work that ends just after a slice has not failed: the next wait says how it ended.
      const bool is_last = work_->isCompleted() || left <= kSlice;
      try {
        return work_->wait(std::clamp(left, milliseconds(1), kSlice));
      } catch (const std::exception&) {
        if (is_last || rules_.interrupt.raised()) throw;
      }
    }
  }

  Work work_;
  at::Tensor tensor_;
  const Operation& operation_;
  std::optional<std::int32_t> tag_;  // Collectives have none.
  WaitRules& rules_;
  milliseconds deadline_;
};

class GlooLink : public Link {
 public:
  GlooLink(Backend backend, int peer_index, Rank peer, WaitRules& rules)
      : backend_(std::move(backend)),
        peer_index_(peer_index),
        send_{"send to", str("rank ", peer)},
        receive_{"receive from", str("rank ", peer)},
        rules_(rules) {}

  std::unique_ptr<Transfer> send(const at::Tensor& tensor, std::int32_t tag) override {
    std::vector<at::Tensor> tensors = {tensor};
    return start_gloo(send_, tensor, tag, rules_,
                      [&] { return backend_->send(tensors, peer_index_, tag); });
  }

  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, std::int32_t tag) override {
    std::vector<at::Tensor> tensors = {tensor};
    return start_gloo(receive_, tensor, tag, rules_,
                      [&] { return backend_->recv(tensors, peer_index_, tag); });
  }

 private:
  Backend backend_;
  int peer_index_;  // The peer's rank inside the pair.
  Operation send_;
  Operation receive_;
  WaitRules& rules_;
};

}  // namespace

std::string reason(const std::exception& error) {
  const std::string text = exception_text(error);
  std::string line = text.substr(0, text.find('\n'));
  line = line.substr(0, line.find(". This is typically caused by"));
  if (const std::size_t place = line.find("] "); line.starts_with("[/") && place < line.size()) {
    line.erase(0, place + 2);
  }
  return line;
}

std::unique_ptr<Transfer> start_gloo(const Operation& operation, const at::Tensor& tensor,
                                     std::optional<std::int32_t> tag, WaitRules& rules,
                                     const std::function<Work()>& post) {
  rules.interrupt.check();
  try {
    return std::make_unique<GlooTransfer>(post(), tensor, operation, tag, rules);
  } catch (const std::exception& error) {
    throw CommError(str(operation.verb, " ", operation.peers, ": ", reason(error)));
  }
}

struct GlooConnector::Impl {
  c10::intrusive_ptr<c10d::Store> store;
  Rank rank;
  std::shared_ptr<::gloo::transport::Device> device;
};

namespace {

// Makes a device, with a thread of its own that takes none of the process's signals.
std::shared_ptr<::gloo::transport::Device> make_device(const std::string& listen) {
  const BlockedSignals blocked;
  try {
    return c10d::ProcessGroupGloo::createDeviceForHostname(listen);
  } catch (const std::exception& error) {
    throw CommError(str("cannot listen on ", in_quotes(listen), ": ", reason(error)),
                    {"it must be a name or an address of this host"});
  }
}

}  // namespace

GlooConnector::GlooConnector(c10::intrusive_ptr<c10d::Store> store, Rank rank,
                             const std::string& listen)
    : impl_(std::make_unique<Impl>(Impl{std::move(store), rank, make_device(listen)})) {}

GlooConnector::~GlooConnector() = default;

// While Gloo waits for a member's socket, nothing can end that: the member may have failed after it
// said where it is.
Backend GlooConnector::connect(const std::string& name, int index, int size,
                               const std::string& peers, const WaitRules& rules) {
  auto options = c10d::ProcessGroupGloo::Options::create(rules.connecting);
  options->devices = {impl_->device};
  options->threads = 1;
  try {
    auto store = c10::make_intrusive<c10d::PrefixStore>(name, impl_->store);
    return answer_of(
        [store, index, size, options]() -> Backend {
          return c10::make_intrusive<c10d::ProcessGroupGloo>(store, index, size, options);
        },
        rules.interrupt, rules.connecting* kConnections, "some did not come");
  } catch (const std::exception& error) {
    rules.interrupt.check();
    throw CommError(
        str("rank ", impl_->rank, " could not connect to ", peers, ": ", reason(error)));
  }
}

std::unique_ptr<Link> GlooConnector::link(Rank peer, WaitRules& rules) {
  const auto [low, high] = std::minmax(peer, impl_->rank);
  const int index = impl_->rank == low ? 0 : 1;
  Backend pair = connect(str("link/", low, "-", high), index, 2, str("rank ", peer), rules);
  return std::make_unique<GlooLink>(std::move(pair), 1 - index, peer, rules);
}

}  // namespace penstock::comm
