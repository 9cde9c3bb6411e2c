// Looks into the text of an SVG: whether its tags nest, how often something occurs.
//
// The tests of the drawings use it.  No XML parser: it reads what render/svg.h writes.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::render {

inline std::size_t occurrences(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

// The first tag that closes what is not open, or what stays open; empty for a well-formed text.
inline std::string misplaced_tag(std::string_view text) {
  std::vector<std::string> open;
  for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::string_view tag = text.substr(at + 1, text.find('>', at) - at - 1);
    const std::string name(tag.substr(0, tag.find(' ')));
    if (tag.ends_with('/')) continue;
    if (!tag.starts_with('/')) {
      open.push_back(name);
    } else if (!open.empty() && '/' + open.back() == name) {
      open.pop_back();
    } else {
      return name;
    }
  }
  return open.empty() ? "" : open.back();
}

}  // namespace penstock::render
