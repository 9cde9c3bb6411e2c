#include "penstock/core/kept_text.h"

#include <mutex>
#include <set>

namespace penstock {

const char* kept_text(const std::string& text) {
  static std::mutex mutex;
  static auto* const all = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return all->insert(text).first->c_str();
}

}  // namespace penstock
