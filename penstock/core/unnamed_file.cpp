#include "penstock/core/unnamed_file.h"

#include <fcntl.h>
#include <stdlib.h>

namespace penstock {
namespace {

FileDescriptor open_named_for_a_moment(const std::string& folder) {
  std::string name = folder + "/.penstock-XXXXXX";
  FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (file) ::unlink(name.c_str());
  return file;
}

}  // namespace

FileDescriptor open_unnamed(const std::string& folder) {
  FileDescriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  // Systems say in many ways that they have no such files; of the folder, the second try tells.
  return file ? std::move(file) : open_named_for_a_moment(folder);
}

}  // namespace penstock
