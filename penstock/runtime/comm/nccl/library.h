// libnccl's C interface, opened while a program runs.
//
// No header of NCCL or CUDA is needed to build, and a build beside a torch for CPUs has NCCL beside
// one for CUDA.  What is declared here is the interface's binary form, which NCCL has kept since
// 2.18.  Source: NVIDIA's documentation of NCCL, "NCCL API".
// Thread safety: NCCL's own; abort() may be called while another thread is inside any other.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace penstock::comm::nccl {

// A communicator, as NCCL hands it out.
using Comm = void*;

enum Result : int { kSuccess = 0, kInProgress = 7 };  // Others are errors.

// What the ranks of a communicator are made from, which one of them gets and tells the other.
struct UniqueId {
  std::array<char, 128> bytes{};
};

// How a communicator is made.  What is kUnset is NCCL's choice.
struct Config {
  static constexpr int kUnset = -2147483647 - 1;
  std::size_t size = sizeof(Config);
  std::uint32_t magic = 0xCAFEBEEF;
  std::uint32_t version = 2'18'00;
  int blocking = 0;  // Calls return at once; get_async_error() says when they are done.
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;
  const char* net_name = nullptr;
  int split_share = kUnset;
};

struct Library {
  int (*get_version)(int* version);
  int (*get_unique_id)(UniqueId* id);
  int (*comm_init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
  int (*comm_get_async_error)(Comm comm, int* error);
  int (*comm_finalize)(Comm comm);
  int (*comm_destroy)(Comm comm);
  int (*comm_abort)(Comm comm);
  int (*send)(const void* from, std::size_t count, int type, int peer, Comm comm, void* stream);
  int (*recv)(void* to, std::size_t count, int type, int peer, Comm comm, void* stream);
  const char* (*get_error_string)(int result);
};

inline constexpr int kUint8 = 1;  // The type of bytes.

// NCCL's functions, as this process has them or finds them: torch for CUDA brings the library.
// Null: there is none.
const Library* library();

// "2.27.5"; empty: there is no NCCL.
std::string version();

}  // namespace penstock::comm::nccl
