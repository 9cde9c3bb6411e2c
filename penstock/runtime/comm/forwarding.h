// A communicator around another one, which does all but what it overrides.
//
// probe/ notes times with one, emulate/ has clocks and links in one.  Knows no messages.
// Thread safety: as the inner one's.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "penstock/comm/communicator.h"

namespace penstock::comm {

// Whoever derives from it says what transfers, texts and groups are; the inner one outlives it.
class Forwarding : public Communicator {
 public:
  explicit Forwarding(Communicator& inner) : inner_(inner) {}

  Rank rank() const override { return inner_.rank(); }
  std::int32_t world_size() const override { return inner_.world_size(); }
  void set_deadline(std::chrono::milliseconds deadline) override { inner_.set_deadline(deadline); }
  std::chrono::milliseconds deadline() const override { return inner_.deadline(); }
  void interrupt(const std::string& why) override { inner_.interrupt(why); }
  void check_interrupt() const override { inner_.check_interrupt(); }
  void fail(const std::string& why) override { inner_.fail(why); }
  void begin_call(const std::string& place) override { inner_.begin_call(place); }
  void leave() override { inner_.leave(); }
  std::int64_t age() const override { return inner_.age(); }
  std::string call_words() const override { return inner_.call_words(); }
  std::string transports() const override { return inner_.transports(); }
  void link(std::vector<Rank> peers, Peers are) override { inner_.link(std::move(peers), are); }
  Group make_group(const std::vector<Rank>& ranks) override { return inner_.make_group(ranks); }
  void put(const std::string& key, const std::string& value) override { inner_.put(key, value); }
  std::string get(const std::string& key) override { return inner_.get(key); }

 protected:
  Communicator& inner() { return inner_; }

 private:
  Communicator& inner_;
};

}  // namespace penstock::comm
