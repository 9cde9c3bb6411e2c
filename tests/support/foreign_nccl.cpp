// NCCL's functions for the stand-in device, while its streams are late: comm/nccl/ finds them in
// this program as it finds those of a library, and runs as it is.
//
// A communicator has two ranks, of which rank 0 sends.  A send ends when its receive has begun, and
// holds multiprocessors until then (foreign_streams.h).
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "penstock/runtime/comm/nccl/library.h"
#include "tests/support/foreign_memory.h"
#include "tests/support/foreign_streams.h"

namespace {

using penstock::comm::nccl::Comm;
using penstock::comm::nccl::Config;
using penstock::comm::nccl::kInProgress;
using penstock::comm::nccl::kSuccess;
using penstock::comm::nccl::UniqueId;
namespace foreign = penstock::testing_support::foreign;

struct Communicator {
  foreign::WirePtr wire;
  bool is_ending = false;
};

// The wires of communicators that one rank has made, by their ids.
struct Wires {
  std::mutex mutex;
  std::uint64_t next = 1;
  std::map<std::uint64_t, foreign::WirePtr> made;
};

Wires& wires() {
  static Wires only;
  return only;
}

Communicator& of(Comm comm) { return *static_cast<Communicator*>(comm); }

}  // namespace

extern "C" {

// As NCCL's own headers declare them.
int ncclGetVersion(int* version);
int ncclGetUniqueId(UniqueId* id);
int ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
int ncclCommGetAsyncError(Comm comm, int* error);
int ncclCommFinalize(Comm comm);
int ncclCommDestroy(Comm comm);
int ncclCommAbort(Comm comm);
int ncclSend(const void* from, std::size_t count, int type, int peer, Comm comm, void* stream);
int ncclRecv(void* to, std::size_t count, int type, int peer, Comm comm, void* stream);
const char* ncclGetErrorString(int result);

int ncclGetVersion(int* version) {
  *version = 2'99'00;
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  const std::lock_guard lock(wires().mutex);
  const std::uint64_t number = wires().next++;
  std::memcpy(id->bytes.data(), &number, sizeof(number));
  return kSuccess;
}

int ncclCommInitRankConfig(Comm* comm, int, UniqueId id, int, Config*) {
  std::uint64_t number = 0;
  std::memcpy(&number, id.bytes.data(), sizeof(number));
  const std::lock_guard lock(wires().mutex);
  foreign::WirePtr wire = wires().made[number];
  if (wire == nullptr) {
    wires().made[number] = wire = foreign::new_wire();
  } else {
    wires().made.erase(number);
  }
  *comm = new Communicator{.wire = wire};
  return kSuccess;
}

int ncclCommGetAsyncError(Comm comm, int* error) {
  *error = of(comm).is_ending && !foreign::is_empty(of(comm).wire) ? kInProgress : kSuccess;
  return kSuccess;
}

int ncclCommFinalize(Comm comm) {
  of(comm).is_ending = true;
  return kInProgress;
}

int ncclCommDestroy(Comm comm) {
  delete &of(comm);
  return kSuccess;
}

int ncclCommAbort(Comm comm) {
  foreign::abort(of(comm).wire);
  return kSuccess;
}

int ncclSend(const void* from, std::size_t count, int, int, Comm comm, void* stream) {
  foreign::send(*static_cast<foreign::Stream*>(stream), of(comm).wire, foreign::opened(from),
                count);
  return kSuccess;
}

int ncclRecv(void* to, std::size_t count, int, int, Comm comm, void* stream) {
  foreign::receive(*static_cast<foreign::Stream*>(stream), of(comm).wire, foreign::opened(to),
                   count);
  return kSuccess;
}

const char* ncclGetErrorString(int) { return "no such error"; }
}
