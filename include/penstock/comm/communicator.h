// What ranks say to each other: point-to-point transfers and collectives over groups of ranks.
//
// connect() makes one per process, run_ranks() one per thread; execute/ and train/ use it.  Knows
// no schedules: a message is named by its tag alone. Connections exist only to ranks named in
// link() and make_group(). Thread safety: one thread at a time, but for interrupt().
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "penstock/core/ids.h"

namespace penstock::comm {

// An operation under way.  Holds its tensor until it is destroyed.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Returns once it is under way, if a device can do it beside what it computes.  Else, and where
  // nobody calls this, wait() does that, too.
  // Throws: as wait().
  virtual void begin() {}
  // Returns once the operation is over.
  // Throws: CommError when the peer is gone or the communicator's deadline has passed; it names the
  // operation, the peer, the tag and the bytes.
  virtual void wait() = 0;
  // Whether wait() would return at once.  May stay false where a transport cannot tell.
  virtual bool is_over() { return false; }
};

// What ranks that are linked are to each other.  Between devices, messages with a neighbour have
// streams of their own; those of a group share some, so that any number of ranks may wait at once.
enum class Peers : std::uint8_t { Neighbours, Group };

// What carries the messages between two ranks, and so the collectives, which are messages.
enum class Transport : std::uint8_t {
  Auto,  // Shared memory between ranks of one host, else TCP.
  Gloo,
  Tcp,  // A connection per peer.
  Shm,  // Shared memory; an error between hosts.
};

// Some ranks that run collectives together, by its index in the communicator.
struct Group {
  std::int32_t index = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual Rank rank() const = 0;
  virtual std::int32_t world_size() const = 0;
  std::vector<Rank> all_ranks() const;

  // The longest that any wait lasts.
  virtual void set_deadline(std::chrono::milliseconds deadline) = 0;
  virtual std::chrono::milliseconds deadline() const = 0;
  // Ends every wait for a rank, now and later, by a CommError that says `why`.  Any thread may call
  // it.
  virtual void interrupt(const std::string& why) = 0;
  // Throws: that CommError, when there is one.
  virtual void check_interrupt() const = 0;
  // Tells that this rank can go on no more: interrupts all ranks with `why`, unless they know of a
  // failure already.  Needs neither a launcher nor the store.
  virtual void fail(const std::string& why) = 0;
  // fail() in the words in which all hear of an exception: "rank 2 failed: ...".  A message that
  // begins with this rank's name does not say it twice.
  void fail(const std::exception& error);
  void fail_with(const std::string& message);

  // A call for all ranks begins, the next one that this rank's caller makes.  Where one before has
  // failed on some rank, which fail() told all, the ranks begin anew with this call: with the links
  // and groups that they have, and without what was under way.  Collective over all ranks; `place`
  // says which call it is and is the same on all: "Trainer::step() with 3 steps taken".
  // Throws: CommError with the failure, where it was in this call, or a rank has ended; one that
  // names a rank which does not come by the deadline, or begins another call; the reason of
  // interrupt(), after which nothing begins anew.
  virtual void begin_call(const std::string& place) = 0;
  // Tells that this rank makes no more calls.  Who waits for it in a later call than its last hears
  // of that.  It is said at the latest when the communicator is destroyed.
  virtual void leave() = 0;
  // How often the ranks have begun anew.  Transfers of an earlier age will not end.
  virtual std::int64_t age() const = 0;

  // Says which calls the ranks are in, if they are not in the same one (call_words.h); empty: they
  // are.  Asks the other ranks, for a second at most.
  virtual std::string call_words() const = 0;

  // What carries this rank's messages by now: "TCP", or "NCCL 2.27.5, shared memory"; "": it has no
  // connection.
  virtual std::string transports() const = 0;

  // Opens the connections to `peers`; the peers do the same.  Links that exist are kept.  Returns
  // when both ends have each: who ends at once then takes none away that is still being made.
  // REQUIRES: as a group, this rank is one of `peers`, in the same order on each of them.
  virtual void link(std::vector<Rank> peers, Peers are = Peers::Neighbours) = 0;
  // Collective over `ranks`, which are the same, and in the same order, on each of them.  Returns
  // when all are connected.  There is one group of the same ranks, whoever asks for it.
  virtual Group make_group(const std::vector<Rank>& ranks) = 0;

  // Post a transfer; a tensor on a device, or one with gaps, goes through a copy in host memory,
  // and what comes is there after wait().  Messages between two ranks find each other by tag, in
  // any order; two with one tag, by their order.  Sizes must agree on both ends. REQUIRES: link()
  // named the peer; tag >= 0.
  virtual std::unique_ptr<Transfer> send(const at::Tensor& tensor, Rank to, std::int32_t tag) = 0;
  virtual std::unique_ptr<Transfer> receive(const at::Tensor& tensor, Rank from,
                                            std::int32_t tag) = 0;

  // Sums `tensor` over the group in place; every rank gets the same bits.
  virtual std::unique_ptr<Transfer> all_reduce(const at::Tensor& tensor, Group group) = 0;
  // `tensor` of the group's `root`-th rank, to all of the group, in place.
  virtual std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, Group group,
                                              std::int32_t root) = 0;

  // Small texts shared by all ranks.  get() waits until some rank has put the key.
  // Throws: CommError after the deadline, naming the key.
  virtual void put(const std::string& key, const std::string& value) = 0;
  virtual std::string get(const std::string& key) = 0;

  // Collective over all ranks: every rank's text, by rank.  Goes through the store, so it is for
  // start and end, not for steps.  The name says in messages what is exchanged; it may repeat.
  // Rank 0 returns last: its process may hold the store, which the others read.
  std::vector<std::string> exchange(const std::string& name, const std::string& text);
  // Waits until every rank has called it; rank 0 returns last.
  void barrier(const std::string& name);

 private:
  std::int64_t exchanges_ = 0;  // Exchanges of this age.
  std::int64_t exchanges_age_ = 0;
};

// The place at which the ranks of a run find each other.
struct Rendezvous {
  enum class Kind : std::uint8_t {
    Server,  // This rank holds the TCP store: at `host`:`port`, or on the listening `socket`.
    Client,  // Another process holds it at `host`:`port`.
    File,    // All ranks share the file `path`.
  };
  Kind kind = Kind::Client;
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  int socket = -1;
  std::string path;
  std::string prefix;  // Keeps the keys of one run apart from another's in a shared store.
  Rank rank;
  std::int32_t world_size = 1;
  // What this rank listens at: a name or address of this host; "": found out (own_address.h).
  std::string listen = "127.0.0.1";
  Transport transport = Transport::Auto;
  // What this rank computes on: between two CUDA devices, NCCL carries messages where torch has it.
  c10::Device device = at::kCPU;
};

// Meets the other ranks, within `deadline`.
// Throws: CommError that names the ranks which did not come.
std::unique_ptr<Communicator> connect(const Rendezvous& rendezvous,
                                      std::chrono::milliseconds deadline);

// Runs `body` on `world_size` threads, each with a communicator of its own on loopback; rethrows
// the first error.  For tests and examples: ranks in one process.
void run_ranks(std::int32_t world_size, const std::function<void(Communicator&)>& body,
               std::chrono::milliseconds deadline = std::chrono::seconds(60),
               Transport transport = Transport::Auto);

}  // namespace penstock::comm
