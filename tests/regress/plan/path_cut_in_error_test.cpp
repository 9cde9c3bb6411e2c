// An error about a file in a deep folder said the first 80 bytes of its path, and not which file.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/core/error.h"
#include "tests/support/temporary_folder.h"

namespace penstock::checkpoint {
namespace {

using testing_support::TemporaryFolder;

TEST(PathCutInError, NamesTheFile) {
  const TemporaryFolder folder;
  const std::string deep = folder.file(std::string(100, 'd'));
  std::filesystem::create_directory(deep);
  std::string message;
  try {
    SavedCheckpoint saved(deep);
  } catch (const CheckpointError& error) {
    message = error.message();
  }
  EXPECT_NE(message.find(deep + "/manifest.json"), std::string::npos) << message;
}

}  // namespace
}  // namespace penstock::checkpoint
