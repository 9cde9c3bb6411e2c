// Texts that never end, each kept once: another thread may read one at any time.
//
// What a rank waits for is told by them (execute/progress.h).  Thread safety: any threads.
#pragma once
#include <string>

namespace penstock {

// Equal texts give one pointer.
const char* kept_text(const std::string& text);

}  // namespace penstock
