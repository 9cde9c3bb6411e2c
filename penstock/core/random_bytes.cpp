#include "penstock/core/random_bytes.h"

#include <fcntl.h>
#include <sys/random.h>

#include "penstock/core/error.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/core/read_at.h"

namespace penstock {
namespace {

// Few bytes come at once.
bool fill_by_call(std::span<std::byte> bytes) {
  return ::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
}

bool fill_from_device(std::span<std::byte> bytes) {
  const FileDescriptor device(::open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  return device && read_at(device.get(), 0, bytes).bytes == bytes.size();
}

}  // namespace

void fill_with_random_bytes(std::span<std::byte> bytes) {
  if (fill_by_call(bytes) || fill_from_device(bytes)) return;
  throw Error("the system has no random bytes: neither getrandom() nor /dev/urandom gives some");
}

}  // namespace penstock
