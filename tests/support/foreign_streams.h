// Streams of the stand-in device that are late, in a random order that events allow.
//
// While a LateStreams lives, nothing that a host gives the stand-in is done at once.  Each kernel,
// copy and message waits in its stream, and one thread takes the streams' first entries in an order
// that a seed draws; it takes its time while no host waits.  Each device has streams and
// multiprocessors of its own.  Freed memory is poisoned by a kernel of the stream that took it,
// which may take it again at once, as torch's allocator for CUDA has it.  So whatever lacks an
// event shows in the bits.
//
// A kernel that sends or receives waits for its other end, and holds multiprocessors meanwhile; one
// that finds too few takes those that are left, and waits for more.  Others run if one is left.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace penstock::testing_support {

enum class Order : std::uint8_t {
  Random,
  // Hosts run ahead; sends begin before receives, these before messages end, and a kernel runs
  // where nothing of these can, of the device that is furthest behind: multiprocessors are held as
  // long as can be.
  MessagesFirst,
};

// Waits that are not made, for tests of tests: those of a kind on a device, from the `first` on.
struct LeftOut {
  enum class What : std::uint8_t {
    Nothing,
    KernelsBeforeSend,     // A send begins before what it sends is computed.
    KernelsBeforeReceive,  // A receive writes while what was there is still used.
    SendBeforeKernels,     // What is sent is overwritten, or freed.
    ReceiveBeforeKernels,  // What comes is used before.
    Copy,                  // The host reads before a copy to it.
  };
  What what = What::Nothing;
  int device = 0;
  std::int64_t first = 0;
};

struct Lateness {
  std::uint64_t seed = 0;
  Order order = Order::Random;
  int multiprocessors = 132;
  int held = 8;  // What one that sends or receives takes.
  // Nothing goes on for so long, and a host waits: it hangs.
  std::chrono::milliseconds hangs_after = std::chrono::seconds(20);
  LeftOut left_out = {};
};

// All of the stand-in's streams are late for its life.  REQUIRES: no other is alive, and ranks have
// a device each, of which nothing is alive when it begins or ends.
class LateStreams {
 public:
  explicit LateStreams(const Lateness& lateness);
  ~LateStreams();
  LateStreams(const LateStreams&) = delete;
  LateStreams& operator=(const LateStreams&) = delete;

  // Waits of a kind on a device so far, with those that are left out.
  std::int64_t waits(LeftOut::What what, int device) const;
  // What hangs, if a host has waited and nothing could go on: what each stream waits for; "" else.
  // Hosts that wait then get it as an error.
  std::string hang() const;
};

// Whether comm/nccl/ finds the stand-in's NCCL: not in a torch for CUDA, which brings its own.
bool has_foreign_nccl();

// What the stand-in itself is made of.
namespace foreign {

bool are_late();

// Memory that was freed meanwhile (foreign_memory.cpp): before streams end, and after.
void forget_freed_memory();
void take_back_memory();

struct Stream;

// A place in a stream.
struct Mark;
using MarkPtr = std::shared_ptr<Mark>;

// Channels of messages, as a communicator of two ranks.
struct Wire;
using WirePtr = std::shared_ptr<Wire>;

// The stream of a device by its number; 0 is the one that computes.
Stream& stream(int device, std::int64_t id);
std::int64_t new_stream_id();

// Puts a kernel behind what the stream has.
void enqueue(Stream& stream, std::function<void()> kernel);
MarkPtr mark(Stream& stream);
// What the stream has from now on comes behind the mark.
void await_in_stream(Stream& stream, const MarkPtr& mark);
bool is_over(const MarkPtr& mark);
// REQUIRES: both are over.
double milliseconds_between(const MarkPtr& from, const MarkPtr& to);
// Waits on the host.  Throws: what a kernel has thrown, or that all hangs.
void await(const MarkPtr& mark);
void await(Stream& stream);
// Waits on the host for a copy to it.
void await_copy(Stream& stream);

WirePtr new_wire();
// One end of a message, of memory that the host may touch.
void send(Stream& stream, const WirePtr& wire, void* memory, std::size_t bytes);
void receive(Stream& stream, const WirePtr& wire, void* memory, std::size_t bytes);
bool is_empty(const WirePtr& wire);
// Its messages end, and bring nothing.
void abort(const WirePtr& wire);

}  // namespace foreign
}  // namespace penstock::testing_support
