// What `penstock plan` prints of its candidates: a table, CSV, JSON, a page, and why one lost.
//
// Knows no command line.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "penstock/plan/choose/planner.h"

namespace penstock::cli {

// What was asked for, as the texts repeat it.
struct PlanQuestion {
  std::string config;  // Its path.
  std::string costs;   // Source of the layers' times, in a line.
  std::string memory;  // Source of their memory.
  std::string links;
  const choose::Request& request;

  // Positions of a sample.
  std::int64_t positions() const { return request.config.model.sequence_length; }
};

std::string plan_text(const PlanQuestion& question, const choose::Plans& plans);
std::string plan_csv(const PlanQuestion& question, const choose::Plans& plans);
std::string plan_json(const PlanQuestion& question, const choose::Plans& plans);
// The picture of times against memory, with the line of those that nothing beats in both.
std::string plan_svg(const choose::Plans& plans);
// The same, and the timeline of every candidate that is on it.
// Throws: ConfigError for timelines that are too long for a page.
std::string plan_page(const PlanQuestion& question, const choose::Plans& plans);

// Layouts that were asked for: where each rank's time and bytes go, and how two differ.
std::string priced_text(const PlanQuestion& question, const std::vector<choose::Priced>& priced);
std::string priced_json(const PlanQuestion& question, const std::vector<choose::Priced>& priced);

// Why candidate `number`, from 1 on, is slower than the first one.
std::string plan_explanation(const choose::Plans& plans, std::size_t number);

}  // namespace penstock::cli
