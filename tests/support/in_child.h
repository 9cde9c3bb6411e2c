// Runs a body in a process of its own.
//
// For tests that change the whole process; knows nothing of what they check.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

namespace penstock::testing_support {

// Whether `body`, which returns a bool, is true there.  A child that takes 20 s is killed.
template <class Body>
bool in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace penstock::testing_support
