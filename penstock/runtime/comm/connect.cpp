#include "penstock/runtime/comm/connect.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tanh.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/failure_words.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/answer_of.h"
#include "penstock/runtime/comm/await_listener.h"
#include "penstock/runtime/comm/interruptible_store.h"
#include "penstock/runtime/comm/own_address.h"
#include "penstock/runtime/comm/store_calls.h"
#include "penstock/runtime/comm/world.h"

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;
using Store = c10::intrusive_ptr<c10d::Store>;

Store open_store(const Rendezvous& rendezvous, milliseconds deadline) {
  if (rendezvous.kind == Rendezvous::Kind::File) {
    auto store = c10::make_intrusive<c10d::FileStore>(rendezvous.path, rendezvous.world_size);
    store->setTimeout(deadline);
    return store;
  }
  c10d::TCPStoreOptions options;
  options.port = rendezvous.port;
  options.isServer = rendezvous.kind == Rendezvous::Kind::Server;
  options.waitWorkers = false;
  options.timeout = deadline;
  if (options.isServer && rendezvous.socket >= 0) options.masterListenFd = rendezvous.socket;
  if (options.isServer) options.useLibUV = runs_newer_store();
  return c10::make_intrusive<c10d::TCPStore>(rendezvous.host, options);
}

// The part of a store that is this run's.  A process that another launcher has started may make run
// after run, all in one store: each rank counts its own, and so all ranks find the same number.
Store open_run_store(const Rendezvous& rendezvous, milliseconds deadline) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("penstock" + rendezvous.prefix,
                                                            open_store(rendezvous, deadline));
  const auto number = store->add(str("runs of rank ", rendezvous.rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>(str(number), store);
}

// c10d waits without a deadline for a program that takes the connection and never answers.
Store open_store_within(const Rendezvous& rendezvous, milliseconds deadline,
                        milliseconds first_word) {
  constexpr milliseconds kLonger(2000);  // It may name its own reason at the deadline.
  const Interrupt never;                 // There is nobody yet to raise it.
  return answer_of([=] { return open_run_store(rendezvous, deadline); }, never,
                   first_word.count() > 0 ? std::min(first_word, deadline) : deadline + kLonger,
                   "what listens there does not answer; is it another program?");
}

std::string where(const Rendezvous& rendezvous) {
  if (rendezvous.kind == Rendezvous::Kind::File) return str("file \"", rendezvous.path, "\"");
  const bool is_ipv6 = rendezvous.host.find(':') != std::string::npos;
  return is_ipv6 ? str("[", rendezvous.host, "]:", rendezvous.port)
                 : str(rendezvous.host, ":", rendezvous.port);
}

// Rank 0's first word, of which the others know its run from another's.
void say_or_hear_first_word(const Store& run_store, const Rendezvous& rendezvous,
                            milliseconds first_word) {
  const auto never = std::make_shared<Interrupt>();  // There is nobody yet to raise it.
  InterruptibleStore store(run_store, never);
  const std::string key = "first word";
  const std::string own = str(rendezvous.world_size);
  if (rendezvous.rank.value == 0) {
    store.set(key, std::vector<std::uint8_t>(own.begin(), own.end()));
    return;
  }
  if (first_word.count() == 0) return;
  try {
    store.wait({key}, first_word);
  } catch (const std::exception&) {
    throw CommError(str("rank ", rendezvous.rank, " found a store at ", where(rendezvous),
                        " in which rank 0 of this run has said nothing"),
                    {"it is another program's or another run's; each run takes a port of its own"});
  }
  const std::vector<std::uint8_t> word = store.get(key);
  const std::string of_rank_0(word.begin(), word.end());
  if (of_rank_0 == own) return;
  throw CommError(str("rank ", rendezvous.rank, " of ", own, " found a run of ", of_rank_0,
                      " ranks at ", where(rendezvous)),
                  {"it is another run's; each run takes a port of its own"});
}

// Announces this rank and waits for all others; a run that lacks ranks says which.
void meet(const Store& run_store, const Rendezvous& rendezvous, milliseconds deadline) {
  const auto never = std::make_shared<Interrupt>();  // There is nobody yet to raise it.
  InterruptibleStore store(run_store, never);
  const auto key = [](std::int32_t rank) { return str("here/", rank); };
  store.set(key(rendezvous.rank.value), std::vector<std::uint8_t>{1});
  std::vector<std::string> keys;
  for (std::int32_t rank = 0; rank < rendezvous.world_size; ++rank) keys.push_back(key(rank));
  try {
    store.wait(keys, deadline);
  } catch (const std::exception& error) {
    const std::string waited = str("rank ", rendezvous.rank, " waited ", deadline.count() / 1000,
                                   " s at ", where(rendezvous), " for ");
    std::vector<std::int32_t> absent;
    try {
      for (std::int32_t rank = 0; rank < rendezvous.world_size; ++rank) {
        if (!store.check({key(rank)})) absent.push_back(rank);
      }
    } catch (const std::exception&) {
      throw CommError(str(waited, "the other ranks: ", exception_text(error)));
    }
    throw CommError(str(waited, absent.size() == 1 ? "rank " : "ranks ", join(absent, ", "), " of ",
                        rendezvous.world_size));
  }
}

Store reach_store(const Rendezvous& rendezvous, milliseconds deadline, milliseconds first_word) {
  const std::string failed =
      str("rank ", rendezvous.rank, " could not reach the store at ", where(rendezvous), ": ");
  try {
    if (rendezvous.kind == Rendezvous::Kind::Server) require_known(rendezvous.host);
    if (rendezvous.kind == Rendezvous::Kind::Client) {
      await_listener(rendezvous.host, rendezvous.port, deadline);
    }
    return open_store_within(rendezvous, deadline, first_word);
  } catch (const Error& error) {
    throw CommError(failed + error.message(), error.notes(), error.exit_code());
  } catch (const std::exception& error) {
    const std::string text = exception_text(error);
    throw CommError(failed + text.substr(0, text.find('\n')));
  }
}

std::string own_address(const Store& run_store, const Rendezvous& rendezvous,
                        milliseconds deadline) {
  const bool is_file = rendezvous.kind == Rendezvous::Kind::File;
  return choose_own_address(run_store, rendezvous.rank, rendezvous.world_size,
                            is_file ? "" : rendezvous.host, deadline);
}

}  // namespace

void Communicator::fail(const std::exception& error) { fail_with(exception_text(error)); }

void Communicator::fail_with(const std::string& message) {
  fail(failure_words(rank().value, message));
}

std::vector<Rank> Communicator::all_ranks() const {
  std::vector<Rank> ranks;
  for (std::int32_t rank = 0; rank < world_size(); ++rank) ranks.emplace_back(rank);
  return ranks;
}

std::vector<std::string> Communicator::exchange(const std::string& name, const std::string& text) {
  if (exchanges_age_ != age()) exchanges_ = 0;
  exchanges_age_ = age();
  const std::string key = str(name, "/", exchanges_++, "/");
  const auto read = [&](std::int32_t of) { return str(key, of, " has read"); };
  put(str(key, rank()), text);
  std::vector<std::string> texts;
  for (std::int32_t other = 0; other < world_size(); ++other) {
    texts.push_back(get(str(key, other)));
  }
  if (rank().value != 0) {
    put(read(rank().value), "");
  } else {
    for (std::int32_t other = 1; other < world_size(); ++other) get(read(other));
  }
  return texts;
}

void Communicator::barrier(const std::string& name) { exchange(name, "here"); }

void set_up_vector_functions() { static const at::Tensor kOnce = at::tanh(at::full({1}, 0.5)); }

std::unique_ptr<Communicator> connect(const Rendezvous& rendezvous, milliseconds deadline) {
  return connect(rendezvous, deadline, milliseconds(0));
}

std::unique_ptr<Communicator> connect(const Rendezvous& rendezvous, milliseconds deadline,
                                      milliseconds first_word) {
  c10::initLogging();
  set_up_vector_functions();
  const Store store = reach_store(rendezvous, deadline, first_word);
  say_or_hear_first_word(store, rendezvous, std::min(first_word, deadline));
  meet(store, rendezvous, deadline);
  const std::string listen =
      rendezvous.listen.empty() ? own_address(store, rendezvous, deadline) : rendezvous.listen;
  return make_world(store, rendezvous.rank, rendezvous.world_size, listen, rendezvous.transport,
                    deadline, rendezvous.device);
}

namespace {

// Makes a rank's communicator, by the store.
using Maker = std::function<std::unique_ptr<Communicator>(Store store, Rank rank)>;

void run_threads(std::int32_t world_size, const std::function<void(Communicator&)>& body,
                 const Maker& make) {
  c10::initLogging();
  set_up_vector_functions();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::condition_variable changed;
  std::exception_ptr first_error;
  std::int32_t finished = 0;
  const auto run_rank = [&](std::int32_t rank) {
    at::set_num_threads(1);
    // Goes last: its end is an error for its peers, and not the first.
    std::unique_ptr<Communicator> communicator;
    try {
      communicator = make(store, Rank(rank));
      body(*communicator);
      communicator->leave();
      // Connections close with the communicator: not before the others are done.
      std::unique_lock lock(mutex);
      ++finished;
      changed.notify_all();
      changed.wait(lock, [&] { return finished == world_size || first_error; });
    } catch (...) {
      const std::string text = handled_text();
      {
        const std::lock_guard lock(mutex);
        if (!first_error) first_error = std::current_exception();
        changed.notify_all();
      }
      if (communicator) communicator->fail_with(text);
    }
  };
  std::vector<std::jthread> threads;  // Joined also where one cannot be started.
  for (std::int32_t rank = 0; rank < world_size; ++rank) {
    try {
      threads.emplace_back(run_rank, rank);
    } catch (const std::system_error& error) {
      throw CommError(str("rank ", rank, " of ", world_size,
                          ": cannot start its thread: ", error.code().message()));
    }
  }
  threads.clear();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace

void run_ranks(std::int32_t world_size, const std::function<void(Communicator&)>& body,
               milliseconds deadline, Transport transport) {
  run_threads(world_size, body, [&](Store store, Rank rank) {
    return make_world(std::move(store), rank, world_size, "127.0.0.1", transport, deadline);
  });
}

void run_ranks_on(c10::DeviceType type, std::int32_t world_size,
                  const std::function<void(Communicator&)>& body, milliseconds deadline,
                  Transport transport) {
  run_threads(world_size, body, [&](Store store, Rank rank) {
    const c10::Device device(type, static_cast<c10::DeviceIndex>(rank.value));
    return make_world(std::move(store), rank, world_size, "127.0.0.1", transport, deadline, device,
                      type);
  });
}

}  // namespace penstock::comm
