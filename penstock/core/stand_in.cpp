#include "penstock/core/stand_in.h"

#include "penstock/core/text.h"

namespace penstock {

std::string_view stand_in(std::string_view beginning) {
  if (beginning.starts_with("version https://git-lfs")) {
    return "it is a pointer of Git LFS, in place of the file; git lfs pull fetches that";
  }
  const std::string first = lower_case(trim(beginning.substr(0, 64)));
  if (first.starts_with("<!doctype") || first.starts_with("<html") || first.starts_with("<?xml")) {
    return "it is a page of HTML or XML, as a refused download leaves it";
  }
  return {};
}

}  // namespace penstock
