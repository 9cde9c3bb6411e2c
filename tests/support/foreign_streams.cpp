#include "tests/support/foreign_streams.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/nccl/library.h"

namespace penstock::testing_support {
namespace foreign {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

enum class Carries : std::uint8_t { Kernels, Sends, Receives };

struct Mark {
  bool is_over = false;
  std::chrono::steady_clock::time_point over_at;
  Carries of = Carries::Kernels;  // Its stream's.
};

// One end of a message.
struct End {
  WirePtr wire;
  bool sends = false;
  void* memory = nullptr;
  std::size_t bytes = 0;
  int device = 0;
  int held = 0;  // Multiprocessors.
  bool is_over = false;
};

struct Wire {
  std::deque<End*> sends, receives;  // In their order.
  bool is_aborted = false;
};

// What waits in a stream: one of these.
struct Entry {
  std::function<void()> kernel;
  MarkPtr awaits;
  MarkPtr marks;
  std::unique_ptr<End> end;
};

struct Stream {
  int device;
  std::int64_t id;
  std::deque<Entry> entries;
  bool is_running = false;  // Its first kernel.
  std::int64_t priority = 0;
  Carries carries = Carries::Kernels;
};

namespace {

struct Device {
  int free = 0;
  std::int64_t kernels = 0;
  std::map<LeftOut::What, std::int64_t> waits;
};

struct Move {
  enum class Kind : std::uint8_t { Pass, BeginSend, BeginReceive, EndMessage, Kernel };
  Kind kind;
  Stream* stream;
};

// A host that gives nothing more for as long has nothing more to give, or waits.
constexpr microseconds kQuiet(500);
// What goes on when a host looks whether something is over.
constexpr std::int64_t kMovesOfALook = 20;
constexpr std::int64_t kMovesBetweenDraws = 100, kPriorities = 1 << 20;

class Late {
 public:
  explicit Late(const Lateness& lateness)
      : lateness_(lateness),
        random_(lateness.seed),
        is_lazy_(draw(4) > 0),
        thread_([this] { run(); }) {}
  ~Late() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Stream& stream(int device, std::int64_t id) {
    const std::lock_guard lock(mutex_);
    auto& found = streams_[{device, id}];
    if (!found) {
      found = std::make_unique<Stream>(
          Stream{.device = device, .id = id, .entries = {}, .priority = draw(kPriorities)});
    }
    return *found;
  }

  void put(Stream& stream, Entry entry) {
    {
      const std::lock_guard lock(mutex_);
      if (entry.end) {
        End* const end = entry.end.get();
        end->device = stream.device;
        if (end->wire->is_aborted) return;
        stream.carries = end->sends ? Carries::Sends : Carries::Receives;
        const bool is_behind = !stream.entries.empty() && stream.entries.back().awaits;
        const auto wait =
            end->sends ? LeftOut::What::KernelsBeforeSend : LeftOut::What::KernelsBeforeReceive;
        if (is_behind && is_left_out(wait, stream.device)) stream.entries.pop_back();
        (end->sends ? end->wire->sends : end->wire->receives).push_back(end);
      }
      if (entry.marks) entry.marks->of = stream.carries;
      if (entry.awaits && entry.awaits->of != Carries::Kernels) {
        const auto wait = entry.awaits->of == Carries::Sends ? LeftOut::What::SendBeforeKernels
                                                             : LeftOut::What::ReceiveBeforeKernels;
        if (is_left_out(wait, stream.device)) return;
      }
      stream.entries.push_back(std::move(entry));
      last_change_ = last_entry_ = Clock::now();
    }
    changed_.notify_all();
  }

  bool is_over(const MarkPtr& mark) {
    const std::lock_guard lock(mutex_);
    granted_ = mark->is_over ? 0 : granted_ + kMovesOfALook;
    changed_.notify_all();
    check();
    return mark->is_over;
  }

  // Whether the copy is awaited.
  bool awaits_copy(int device) {
    const std::lock_guard lock(mutex_);
    return !is_left_out(LeftOut::What::Copy, device);
  }

  void await(const MarkPtr& mark) {
    std::unique_lock lock(mutex_);
    ++hosts_;
    changed_.notify_all();
    over_.wait(lock, [&] { return mark->is_over || !hang_.empty() || error_; });
    --hosts_;
    check();
  }

  std::int64_t waits(LeftOut::What what, int device) {
    const std::lock_guard lock(mutex_);
    return this->device(device).waits[what];
  }
  std::string hang() {
    const std::lock_guard lock(mutex_);
    return hang_;
  }

  bool is_empty(const Wire& wire) {
    const std::lock_guard lock(mutex_);
    granted_ += kMovesOfALook;
    changed_.notify_all();
    return wire.sends.empty() && wire.receives.empty();
  }

  void abort(Wire& wire) {
    {
      const std::lock_guard lock(mutex_);
      wire.is_aborted = true;
      for (auto* ends : {&wire.sends, &wire.receives}) {
        for (End* end : *ends) finish(*end);
        ends->clear();
      }
    }
    changed_.notify_all();
  }

 private:
  bool is_left_out(LeftOut::What what, int index) {
    const std::int64_t number = device(index).waits[what]++;
    const LeftOut& left_out = lateness_.left_out;
    return left_out.what == what && left_out.device == index && number >= left_out.first;
  }

  void check() const {
    if (error_) std::rethrow_exception(error_);
    if (!hang_.empty()) throw Error("the device hangs: " + hang_);
  }

  Device& device(int index) {
    return devices_.try_emplace(index, Device{.free = lateness_.multiprocessors, .waits = {}})
        .first->second;
  }

  void finish(End& end) {
    end.is_over = true;
    device(end.device).free += std::exchange(end.held, 0);
  }

  bool is_whole(const End& end) const { return end.held == lateness_.held; }

  // Both ends are first on the wire, and have what they need.
  bool can_end(const End& end) const {
    const Wire& wire = *end.wire;
    if (wire.sends.empty() || wire.receives.empty()) return false;
    const bool is_first = wire.sends.front() == &end || wire.receives.front() == &end;
    return is_first && is_whole(*wire.sends.front()) && is_whole(*wire.receives.front());
  }

  std::vector<Move> moves() {
    std::vector<Move> found;
    for (auto& [key, stream] : streams_) {
      if (stream->entries.empty() || stream->is_running) continue;
      const Entry& first = stream->entries.front();
      const auto add = [&](Move::Kind kind) { found.push_back({kind, stream.get()}); };
      if (first.awaits) {
        if (first.awaits->is_over) add(Move::Kind::Pass);
      } else if (first.marks || (first.end && first.end->is_over)) {
        add(Move::Kind::Pass);
      } else if (first.end) {
        if (!is_whole(*first.end) && device(stream->device).free > 0) {
          add(first.end->sends ? Move::Kind::BeginSend : Move::Kind::BeginReceive);
        } else if (can_end(*first.end)) {
          add(Move::Kind::EndMessage);
        }
      } else if (device(stream->device).free > 0) {
        add(Move::Kind::Kernel);
      }
    }
    return found;
  }

  std::int64_t draw(std::int64_t below) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below));
  }

  // Of the stream that goes before others, by a draw that changes now and then: most of the time,
  // some streams wait until nobody else can go on.  Source: Burckhardt et al., "A randomized
  // scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010.
  Move at_random(const std::vector<Move>& moves) {
    const Move move = *std::ranges::max_element(
        moves, {}, [&](const Move& each) { return each.stream->priority; });
    if (draw(kMovesBetweenDraws) == 0) move.stream->priority = draw(kPriorities);
    return move;
  }

  Move messages_first(const std::vector<Move>& moves) {
    return *std::ranges::min_element(moves, {}, [&](const Move& move) {
      const bool computes = move.kind == Move::Kind::Kernel;
      return std::pair(move.kind, computes ? device(move.stream->device).kernels : 0);
    });
  }

  void pass(Stream& stream) {
    const MarkPtr mark = stream.entries.front().marks;
    stream.entries.pop_front();
    if (!mark) return;
    mark->is_over = true;
    mark->over_at = std::chrono::steady_clock::now();
    over_.notify_all();
  }

  void make(const Move& move, std::unique_lock<std::mutex>& lock) {
    Stream& stream = *move.stream;
    Entry& first = stream.entries.front();
    switch (move.kind) {
      case Move::Kind::Pass:
        return pass(stream);
      case Move::Kind::BeginSend:
      case Move::Kind::BeginReceive: {
        Device& its = device(stream.device);
        const int taken = std::min(its.free, lateness_.held - first.end->held);
        its.free -= taken;
        first.end->held += taken;
        return;
      }
      case Move::Kind::EndMessage: {
        Wire& wire = *first.end->wire;
        End& from = *wire.sends.front();
        End& to = *wire.receives.front();
        if (from.bytes != to.bytes) {
          error_ = std::make_exception_ptr(
              Error(str("a message of ", from.bytes, " bytes is received as ", to.bytes)));
        } else if (to.bytes > 0) {
          std::memcpy(to.memory, from.memory, to.bytes);
        }
        wire.sends.pop_front();
        wire.receives.pop_front();
        finish(from);
        finish(to);
        return;
      }
      case Move::Kind::Kernel: {
        ++device(stream.device).kernels;
        stream.is_running = true;
        const std::function<void()> kernel = std::move(first.kernel);
        lock.unlock();
        std::exception_ptr error;
        try {
          kernel();
        } catch (...) {
          error = std::current_exception();
        }
        lock.lock();
        if (error && !error_) error_ = error;
        stream.is_running = false;
        stream.entries.pop_front();
        if (error_) over_.notify_all();
        return;
      }
    }
  }

  bool has_entries() const {
    return std::ranges::any_of(streams_,
                               [](const auto& each) { return !each.second->entries.empty(); });
  }
  bool is_awaited() const { return hosts_ > 0 || is_ending_ || granted_ > 0; }

  std::string waiting() {
    std::vector<std::string> words;
    for (const auto& [key, stream] : streams_) {
      if (stream->entries.empty()) continue;
      const Entry& first = stream->entries.front();
      std::string what = first.awaits ? "waits for an event" : "has a kernel";
      if (first.end) {
        what = str(first.end->sends ? "sends " : "receives ", first.end->bytes, " bytes, holds ",
                   first.end->held);
      }
      words.push_back(str("device ", stream->device, " stream ", stream->id, " ", what));
    }
    for (const auto& [index, device] : devices_) {
      words.push_back(str("device ", index, " has ", device.free, " free"));
    }
    return join(words, "; ");
  }

  void run() {
    at::set_num_threads(1);
    const at::NoGradGuard no_grad;
    std::unique_lock lock(mutex_);
    while (true) {
      const std::vector<Move> can = moves();
      if (can.empty()) {
        if (is_ending_ && (!has_entries() || !hang_.empty())) return;
        const bool hangs = is_awaited() && has_entries() && hang_.empty() &&
                           Clock::now() - last_change_ > lateness_.hangs_after;
        if (hangs) {
          hang_ = waiting();
          over_.notify_all();
        }
        changed_.wait_for(lock, std::chrono::milliseconds(5));
        continue;
      }
      if (lateness_.order == Order::MessagesFirst) {
        const Move move = messages_first(can);
        const bool is_quiet = is_ending_ || Clock::now() - last_entry_ > kQuiet;
        if (move.kind > Move::Kind::BeginSend && !is_quiet) {
          changed_.wait_for(lock, kQuiet);
          continue;
        }
        make(move, lock);
      } else {
        if (!is_awaited() && (is_lazy_ || draw(4) > 0)) {
          changed_.wait_for(lock, is_lazy_ ? kQuiet : microseconds(draw(300)));
          continue;
        }
        make(at_random(can), lock);
        granted_ = std::max<std::int64_t>(0, granted_ - 1);
      }
      last_change_ = Clock::now();
    }
  }

  Lateness lateness_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::condition_variable changed_;  // What the thread may do.
  std::condition_variable over_;     // What hosts wait for.
  std::map<std::pair<int, std::int64_t>, std::unique_ptr<Stream>> streams_;
  std::map<int, Device> devices_;
  std::exception_ptr error_;
  std::string hang_;
  int hosts_ = 0;             // Hosts that wait.
  std::int64_t granted_ = 0;  // Moves that hosts have looked for.
  Clock::time_point last_change_, last_entry_;
  bool is_ending_ = false;
  bool is_lazy_;  // It does nothing before a host waits.
  std::thread thread_;
};

Late* late = nullptr;

}  // namespace

bool are_late() { return late != nullptr; }

Stream& stream(int device, std::int64_t id) { return late->stream(device, id); }

std::int64_t new_stream_id() {
  static std::atomic<std::int64_t> next = 1;
  return next++;
}

void enqueue(Stream& stream, std::function<void()> kernel) {
  late->put(stream, {.kernel = std::move(kernel), .awaits = {}, .marks = {}, .end = {}});
}

MarkPtr mark(Stream& stream) {
  auto mark = std::make_shared<Mark>();
  late->put(stream, {.kernel = {}, .awaits = {}, .marks = mark, .end = {}});
  return mark;
}

void await_in_stream(Stream& stream, const MarkPtr& mark) {
  late->put(stream, {.kernel = {}, .awaits = mark, .marks = {}, .end = {}});
}

bool is_over(const MarkPtr& mark) { return late->is_over(mark); }

double milliseconds_between(const MarkPtr& from, const MarkPtr& to) {
  return std::chrono::duration<double, std::milli>(to->over_at - from->over_at).count();
}

void await(const MarkPtr& mark) { late->await(mark); }

void await(Stream& stream) { await(mark(stream)); }

void await_copy(Stream& stream) {
  if (late->awaits_copy(stream.device)) await(stream);
}

WirePtr new_wire() { return std::make_shared<Wire>(); }

namespace {

void put_end(Stream& stream, const WirePtr& wire, bool sends, void* memory, std::size_t bytes) {
  auto end =
      std::make_unique<End>(End{.wire = wire, .sends = sends, .memory = memory, .bytes = bytes});
  late->put(stream, {.kernel = {}, .awaits = {}, .marks = {}, .end = std::move(end)});
}

}  // namespace

void send(Stream& stream, const WirePtr& wire, void* memory, std::size_t bytes) {
  put_end(stream, wire, /*sends=*/true, memory, bytes);
}

void receive(Stream& stream, const WirePtr& wire, void* memory, std::size_t bytes) {
  put_end(stream, wire, /*sends=*/false, memory, bytes);
}

bool is_empty(const WirePtr& wire) { return late == nullptr || late->is_empty(*wire); }

void abort(const WirePtr& wire) {
  if (late != nullptr) late->abort(*wire);
}

}  // namespace foreign

bool has_foreign_nccl() { return comm::nccl::version() == "2.99.0"; }

LateStreams::LateStreams(const Lateness& lateness) {
  PENSTOCK_CHECK(foreign::late == nullptr, "streams are late already");
  foreign::late = new foreign::Late(lateness);
}

LateStreams::~LateStreams() {
  foreign::forget_freed_memory();
  delete foreign::late;
  foreign::late = nullptr;
  foreign::take_back_memory();
}

std::int64_t LateStreams::waits(LeftOut::What what, int device) const {
  return foreign::late->waits(what, device);
}

std::string LateStreams::hang() const { return foreign::late->hang(); }

}  // namespace penstock::testing_support
