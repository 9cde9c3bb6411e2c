// A rank of run_ranks() whose thread could not be started ended the process, without a word.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"

namespace penstock {
namespace {

// Bytes of this process' address space.
rlim_t address_space() {
  std::ifstream pages("/proc/self/statm");
  rlim_t count = 0;
  pages >> count;
  return count * 4096;
}

// Some ranks find room for their stacks, and the others do not.
[[noreturn]] void run_more_ranks_than_there_is_room_for() {
  const rlim_t room = address_space() + (rlim_t{40} << 20);
  const rlimit limit{.rlim_cur = room, .rlim_max = room};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
  try {
    comm::run_ranks(64, [](comm::Communicator&) {}, std::chrono::seconds(1));
  } catch (const CommError& error) {
    const std::string text = error.what();
    std::_Exit(text.find(" of 64: cannot start its thread: ") == std::string::npos ? 3 : 0);
  }
  std::_Exit(4);
}

TEST(RanksOfOneProcessDeathTest, AThreadThatCannotStartIsAnError) {
  EXPECT_EXIT(run_more_ranks_than_there_is_room_for(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace penstock
