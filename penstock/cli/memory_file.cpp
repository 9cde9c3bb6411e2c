#include "penstock/cli/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>

#include "penstock/core/error.h"
#include "penstock/core/read_at.h"
#include "penstock/core/refused_call.h"
#include "penstock/core/text.h"
#include "penstock/core/unnamed_file.h"

namespace penstock::cli {
namespace {

[[noreturn]] void fail(int error) {
  throw Error(str("cannot hand on a text in memory: ", std::strerror(error)));
}

// Opens a file on disk in place of one in memory.
FileDescriptor file_on_disk() {
  std::error_code error;
  const std::string folder = std::filesystem::temp_directory_path(error).string();
  FileDescriptor file = open_unnamed(error ? "/tmp" : folder);
  if (file) ::fcntl(file.get(), F_SETFD, 0);
  return file;
}

}  // namespace

FileDescriptor memory_file(const char* name) {
  FileDescriptor file(::memfd_create(name, 0));
  if (!file && is_refused(errno)) file = file_on_disk();
  if (!file) fail(errno);
  return file;
}

void write_whole(int file, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(file, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    done += static_cast<std::size_t>(written);
  }
}

std::string read_whole(int file) {
  struct stat status{};
  if (::fstat(file, &status) != 0) fail(errno);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  const ReadAt read = read_at(file, 0, std::as_writable_bytes(std::span(text)));
  if (read.error != 0) fail(read.error);
  text.resize(read.bytes);
  return text;
}

}  // namespace penstock::cli
