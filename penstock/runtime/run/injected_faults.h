// Makes the failures happen that a user asked for, in the rank that they are for.
//
// A rank of `penstock train --inject` has one.  What a fault is: inject/fault.h.
#pragma once
#include <string_view>
#include <vector>

#include "penstock/launch/inject/fault.h"
#include "penstock/runtime/execute/progress.h"

namespace penstock::run {

class InjectedFaults {
 public:
  // Makes those of `faults` happen that are for this rank in this start of the run.  Each happens
  // when `progress`, which outlives this, comes to its place.  Each is told on the standard error
  // just before.
  InjectedFaults(const std::vector<inject::Fault>& faults, Rank rank, std::int64_t start,
                 execute::Progress& progress);
  ~InjectedFaults();
  InjectedFaults(const InjectedFaults&) = delete;
  InjectedFaults& operator=(const InjectedFaults&) = delete;

  // Tells of those to whose places this rank did not come.
  void finish() const;

 private:
  void arrived(std::string_view place);
  void happen(const inject::Fault& fault, std::string_view place);
  void ran(std::string_view action);

  std::vector<inject::Fault> pending_;
  std::vector<inject::Fault> slow_;  // Told once each: pending_ has those that were not.
  execute::Progress& progress_;
};

}  // namespace penstock::run
