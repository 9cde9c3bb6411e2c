// Programs that are started with standard streams closed.
#include "penstock/core/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "tests/support/in_child.h"

namespace penstock {
namespace {

using testing_support::in_child;

bool hold_after_opening(const std::vector<int>& closed) {
  return in_child([&] {
    for (const int stream : closed) ::close(stream);
    open_missing_streams();
    for (const int stream : {0, 1, 2}) {
      if (::fcntl(stream, F_GETFD) != 0) return false;  // Open, and for programs it starts, too.
    }
    for (const int stream : closed) {
      char byte = 0;
      if (stream == 0 && ::read(stream, &byte, 1) != 0) return false;
      if (stream != 0 && (::write(stream, "x", 1) != -1 || errno != EBADF)) return false;
      if (can_be_written(stream)) return false;
    }
    return ::open("/dev/null", O_RDONLY) > 2;
  });
}

TEST(StandardStreams, NoFileGetsTheNumberOfAnyThatWasClosed) {
  for (int bits = 0; bits < 8; ++bits) {
    std::vector<int> closed;
    for (int stream = 0; stream < 3; ++stream) {
      if ((bits >> stream & 1) != 0) closed.push_back(stream);
    }
    EXPECT_TRUE(hold_after_opening(closed)) << bits;
  }
}

TEST(StandardStreams, ThoseThatAreOpenStayAsTheyAre) {
  EXPECT_TRUE(in_child([] {
    int ends[2];
    if (::pipe(ends) != 0 || ::dup2(ends[1], 1) != 1) return false;
    open_missing_streams();
    return can_be_written(1) && !can_be_written(ends[0]) && ::write(1, "x", 1) == 1;
  }));
}

}  // namespace
}  // namespace penstock
