// save DIRECTORY STEP: saves a checkpoint of two shards there, keeps the newest two, and prints
// "saved".  What it has depends on the step.
#include <iostream>

#include "tests/checkpoint/checkpoints.h"

int main(int argc, char** argv) {
  using namespace penstock::checkpoint;
  if (argc != 3) return 2;
  const std::string path = argv[1];
  const std::int64_t step = std::stoll(argv[2]);
  SmallCheckpoint small;
  small.cut = bytes_of_numbers(SmallCheckpoint::kCut, static_cast<std::uint32_t>(step));
  CheckpointDirectory directory(path);
  small.save(directory, path, step);
  for (const Found& old : not_kept(checkpoints_in(path), {.last = 2})) directory.remove(old);
  std::cout << "saved\n";
  return 0;
}
