// save DIRECTORY STEP [SEED]: saves a checkpoint of two shards there, keeps the newest two, and
// prints "saved".  What it has depends on the step, or on the seed.  An error is a line, and its
// exit code.
#include <iostream>

#include "penstock/core/error.h"
#include "tests/checkpoint/checkpoints.h"

namespace {

using namespace penstock::checkpoint;

// As a run does it.
void save(const SmallCheckpoint& small, const std::string& path, std::int64_t step) {
  CheckpointDirectory directory(path);
  try {
    small.save(directory, path, step);
  } catch (...) {
    directory.abandon(name_of(step));
    throw;
  }
  for (const Found& old : not_kept(checkpoints_in(path), {.last = 2})) directory.remove(old);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) return 2;
  SmallCheckpoint small;
  const auto seed = static_cast<std::uint32_t>(std::stoll(argv[argc - 1]));
  small.cut = bytes_of_numbers(SmallCheckpoint::kCut, seed);
  try {
    save(small, argv[1], std::stoll(argv[2]));
  } catch (const penstock::Error& error) {
    std::cerr << "penstock: " << error.what() << "\n";
    return static_cast<int>(error.exit_code());
  }
  std::cout << "saved\n";
  return 0;
}
