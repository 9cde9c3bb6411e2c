// A store whose waits end: when the communicator is interrupted, and when the store does not
// answer.
//
// World reads and writes through it, and so does Gloo while it connects.  Knows no keys.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "penstock/runtime/comm/interrupt.h"

namespace penstock::comm {

class InterruptibleStore : public c10d::PrefixStore {
 public:
  // Calls whose waits have ended go on in threads of their own, and use both arguments.
  InterruptibleStore(c10::intrusive_ptr<c10d::Store> store,
                     std::shared_ptr<const Interrupt> interrupt);

  // Each waits until the keys are there.
  // Throws: CommError with the interrupt's reason once that is raised, and when the store does not
  // answer (its process is stopped, say); what the store throws when it is lost, or has waited for
  // too long.
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  // Whether all are there; throws as the others, but never waits for a key.
  bool check(const std::vector<std::string>& keys) override;

 private:
  template <class Call>
  auto answer(Call call) const;

  c10::intrusive_ptr<c10d::PrefixStore> answering_;  // Kept by threads that are left behind.
  std::shared_ptr<const Interrupt> interrupt_;
};

}  // namespace penstock::comm
