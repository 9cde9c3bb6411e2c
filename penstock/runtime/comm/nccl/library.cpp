#include "penstock/runtime/comm/nccl/library.h"

#include <dlfcn.h>

#include <optional>

#include "penstock/core/text.h"

namespace penstock::comm::nccl {
namespace {

// All functions of `handle`, or none.
std::optional<Library> functions_of(void* handle) {
  bool has_all = true;
  const auto find = [&](auto& function, const char* name) {
    void* const found = ::dlsym(handle, name);
    has_all = has_all && found != nullptr;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  Library library{};
  find(library.get_version, "ncclGetVersion");
  find(library.get_unique_id, "ncclGetUniqueId");
  find(library.comm_init_rank_config, "ncclCommInitRankConfig");
  find(library.comm_get_async_error, "ncclCommGetAsyncError");
  find(library.comm_finalize, "ncclCommFinalize");
  find(library.comm_destroy, "ncclCommDestroy");
  find(library.comm_abort, "ncclCommAbort");
  find(library.send, "ncclSend");
  find(library.recv, "ncclRecv");
  find(library.get_error_string, "ncclGetErrorString");
  return has_all ? std::optional(library) : std::nullopt;
}

// torch's own first: a second copy of the library would know nothing of torch's communicators.
std::optional<Library> open() {
  if (auto found = functions_of(RTLD_DEFAULT)) return found;
  void* handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) handle = ::dlopen("libnccl.so.2", RTLD_NOW);
  return handle == nullptr ? std::nullopt : functions_of(handle);
}

}  // namespace

const Library* library() {
  static const std::optional<Library> only = open();
  return only ? &*only : nullptr;
}

std::string version() {
  int number = 0;
  if (library() == nullptr || library()->get_version(&number) != kSuccess) return "";
  return str(number / 10000, ".", number / 100 % 100, ".", number % 100);
}

}  // namespace penstock::comm::nccl
