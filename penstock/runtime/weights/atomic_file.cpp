#include "penstock/runtime/weights/atomic_file.h"

#include "penstock/core/atomic_file.h"
#include "penstock/core/error.h"

namespace penstock::weights {

void write_atomically(const std::string& path, const std::vector<std::string_view>& pieces,
                      const std::function<void()>& advanced) {
  try {
    penstock::write_atomically(path, pieces, advanced);
  } catch (const Error& error) {
    throw CheckpointError(error.message());
  }
}

}  // namespace penstock::weights
