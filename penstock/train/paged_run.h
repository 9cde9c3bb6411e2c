// A program's run during which parameters come and go.
//
// The Trainer and the Pipeline run theirs in it.  Knows no programs.
#pragma once
#include "penstock/comm/communicator.h"
#include "penstock/train/or_fail.h"
#include "penstock/zero/pager.h"

namespace penstock::train {

// What `run` returns.  Where it throws, `abandon` ends the pager's run, and the other ranks are
// told.
template <class Run, class Abandon>
auto in_paged_run(comm::Communicator& communicator, zero::Pager& pager, const char* name,
                  const Run& run, const Abandon& abandon) {
  return or_fail(communicator, [&] {
    try {
      pager.begin_run(name);
      auto result = run();
      pager.end_run();
      return result;
    } catch (...) {
      abandon();
      throw;
    }
  });
}

}  // namespace penstock::train
