#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/plan/schedule/json.h"
#include "tests/fuzz/plan_it.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {

Outcome schedule_json(std::string_view input) {
  schedule::Document document;
  try {
    document = schedule::parse_json(std::string(input), "input");
  } catch (const ParseError&) {
    return Outcome::Refused;
  }
  const auto costs_of = [](const schedule::Document& from) {
    return from.costs ? json::text_of(*from.costs) : std::string_view();
  };
  const std::string text = schedule::to_json(document.schedule, costs_of(document));
  const schedule::Document again = schedule::parse_json(text, "again");
  PENSTOCK_CHECK(again.schedule == document.schedule, text);
  PENSTOCK_CHECK(costs_of(again) == costs_of(document), text);
  plan_it(document.schedule);
  return Outcome::Accepted;
}

}  // namespace penstock::fuzz
