// `penstock verify CONFIG`: proves the schedule of a run, and what its ranks exchange inside of
// layers, without a rank.
//
// `penstock verify` becomes it for a configuration; schedules alone it verifies itself.
#pragma once
#include <CLI/CLI.hpp>

#include "penstock/cli/asked_run.h"

namespace penstock::cli {

struct VerifyRun {
  AskedRun run;
  bool json = false;
};

void declare_verify_run(CLI::App& app, VerifyRun& command);

// Returns the process's exit code.
// Throws: Error for a configuration that cannot train, with what is wrong.
int run_verify_run(const VerifyRun& command);

}  // namespace penstock::cli
