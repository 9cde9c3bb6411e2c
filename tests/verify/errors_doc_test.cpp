// docs/errors.md against verify: every code is there, and every example says what the page says.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "penstock/core/text.h"
#include "penstock/verify/stepped.h"
#include "penstock/verify/verify.h"
#include "tests/support/golden.h"

namespace penstock::verify {
namespace {

using testing_support::read_source_file;

struct Section {
  std::string sizes;  // What stands behind ```csv.
  std::string csv;
  std::string steps;  // In place of a CSV: a schedule in DeepSpeed's form.
  std::string text;
  bool has_repair = false;
};

// The sections "## S012: ..." of the page, by code.
std::map<std::string, Section> sections_of(const std::string& page) {
  std::map<std::string, Section> sections;
  std::string code;
  std::string fence;  // The language of the block that is open.
  for (const std::string& line : split(page, '\n')) {
    if (line.starts_with("## ")) code = line.substr(3, 4);
    if (code.empty()) continue;
    Section& section = sections[code];
    if (line.starts_with("```")) {
      fence = fence.empty() ? line.substr(3) : "";
      if (fence.starts_with("csv")) section.sizes = fence.substr(3);
    } else if (fence.starts_with("csv")) {
      section.csv += line + "\n";
    } else if (fence == "steps") {
      section.steps += line + "\n";
    } else if (fence == "text") {
      section.text += line + "\n";
    } else if (line.starts_with("Repair: ")) {
      section.has_repair = true;
    }
  }
  return sections;
}

// The codes that verify.h lists: "  BeforeItsInput = 12,  // S012: ...".
std::set<std::string> codes_of(const std::string& header) {
  std::set<std::string> codes;
  for (const std::string& line : split(header, '\n')) {
    const std::size_t equals = line.find(" = ");
    const std::size_t comma = line.find(',');
    if (equals == std::string::npos || comma == std::string::npos || comma < equals) continue;
    const auto value = parse_integer(std::string_view(line).substr(equals + 3, comma - equals - 3));
    if (value) codes.insert(to_string(static_cast<Code>(*value)));
  }
  return codes;
}

Verdict verify_example(const Section& section) {
  if (!section.steps.empty()) {
    return verify_stepped(schedule::deepspeed::parse_stepped(section.steps, "example"));
  }
  schedule::Schedule schedule = schedule::parse_csv(section.csv, "example");
  Limits limits;
  for (const std::string& size : split(trim(section.sizes), ' ')) {
    if (size.empty()) continue;
    const auto parts = split(size, '=');
    const int value = std::stoi(parts.at(1));
    if (parts[0] == "microbatches") {
      schedule.microbatches = value;
    } else if (parts[0] == "activations_max") {
      limits.activations_max = value;
    } else {
      ADD_FAILURE() << "unknown size " << size;
    }
  }
  return verify(schedule, limits);
}

TEST(ErrorsPage, ListsEveryCodeAndNoOther) {
  std::set<std::string> documented;
  for (const auto& [code, section] : sections_of(read_source_file("docs/errors.md"))) {
    documented.insert(code);
  }
  const auto codes = codes_of(read_source_file("penstock/verify/verify.h"));
  EXPECT_GE(codes.size(), 15u);
  EXPECT_EQ(documented, codes);
}

TEST(ErrorsPage, ExamplesSayWhatThePageSays) {
  for (const auto& [code, section] : sections_of(read_source_file("docs/errors.md"))) {
    SCOPED_TRACE(code);
    const Verdict verdict = verify_example(section);
    std::string text;
    std::set<std::string> codes;
    for (const Diagnostic& diagnostic : verdict.diagnostics) {
      text += to_string(diagnostic) + "\n";
      codes.insert(to_string(diagnostic.code));
    }
    EXPECT_EQ(text, section.text);
    EXPECT_TRUE(codes.contains(code));
    EXPECT_TRUE(section.has_repair);
  }
}

}  // namespace
}  // namespace penstock::verify
