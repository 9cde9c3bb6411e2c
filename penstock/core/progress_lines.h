// Lines that say how far long work on bytes is: "penstock: reading runs/a: 512 MiB of 2048 MiB".
//
// Commands on large files have one.  Work that is over within the interval is told of in no line.
// Knows no files.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "penstock/core/output.h"
#include "penstock/core/pace.h"

namespace penstock {

class ProgressLines {
 public:
  static constexpr std::chrono::seconds kEvery{5};

  // `doing` says what the work is; it is over after `bytes`.  Lines are `every` apart or more.
  ProgressLines(Output& output, std::string doing, std::uint64_t bytes,
                std::chrono::nanoseconds every = kEvery);

  // Adds bytes that are done.
  void add(std::uint64_t bytes);

 private:
  Output& output_;
  std::string doing_;
  std::uint64_t bytes_;
  Pace pace_;
  std::uint64_t done_ = 0;
};

}  // namespace penstock
