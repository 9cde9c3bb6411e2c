// docs/errors.md against verify: every code is there, and every example says what the page says.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "penstock/core/text.h"
#include "penstock/plan/verify/stepped.h"
#include "penstock/verify/verify.h"
#include "tests/support/golden.h"

namespace penstock::verify {
namespace {

using testing_support::read_source_file;

struct Example {
  std::string sizes;  // What stands behind ```csv.
  std::string csv;
  std::string steps;  // In place of a CSV: a schedule in DeepSpeed's form.
  std::string text;
};

struct Section {
  std::vector<Example> examples;
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
      if (fence.starts_with("csv")) section.examples.push_back({.sizes = fence.substr(3)});
      if (fence == "steps") section.examples.emplace_back();
    } else if (fence.starts_with("csv")) {
      section.examples.back().csv += line + "\n";
    } else if (fence == "steps") {
      section.examples.back().steps += line + "\n";
    } else if (fence == "text") {
      section.examples.back().text += line + "\n";
    } else if (line.starts_with("Repair: ")) {
      section.has_repair = true;
    }
  }
  return sections;
}

// The codes that diagnostic.h lists: "  BeforeItsInput = 12,  // S012: ...".
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

Verdict verify_example(const Example& example) {
  if (!example.steps.empty()) {
    return verify_stepped(schedule::deepspeed::parse_stepped(example.steps, "example"));
  }
  schedule::Schedule schedule = schedule::parse_csv(example.csv, "example");
  Options options;
  for (const std::string& size : split(trim(example.sizes), ' ')) {
    if (size.empty()) continue;
    const auto parts = split(size, '=');
    const std::string& value = parts.at(1);
    if (parts[0] == "microbatches") {
      schedule.microbatches = std::stoi(value);
    } else if (parts[0] == "activations_max") {
      options.activations_max = std::stoi(value);
    } else if (parts[0] == "activation") {
      options.activation = std::stod(value);
    } else if (parts[0] == "memory_max") {
      options.memory_max = std::stod(value);
    } else if (parts[0] == "channels") {
      options.channels =
          *std::ranges::find(kChannels, value, [](Channels each) { return to_string(each); });
    } else {
      ADD_FAILURE() << "unknown size " << size;
    }
  }
  return verify(schedule, options);
}

TEST(ErrorsPage, ListsEveryCodeAndNoOther) {
  std::set<std::string> documented;
  for (const auto& [code, section] : sections_of(read_source_file("docs/errors.md"))) {
    documented.insert(code);
  }
  const auto codes = codes_of(read_source_file("penstock/plan/verify/diagnostic.h"));
  EXPECT_GE(codes.size(), 15u);
  EXPECT_EQ(documented, codes);
}

TEST(ErrorsPage, ExamplesSayWhatThePageSays) {
  for (const auto& [code, section] : sections_of(read_source_file("docs/errors.md"))) {
    SCOPED_TRACE(code);
    EXPECT_FALSE(section.examples.empty());
    for (const Example& example : section.examples) {
      std::string text;
      std::set<std::string> codes;
      for (const Diagnostic& diagnostic : verify_example(example).diagnostics) {
        text += to_string(diagnostic) + "\n";
        codes.insert(to_string(diagnostic.code));
      }
      EXPECT_EQ(text, example.text);
      EXPECT_TRUE(codes.contains(code));
    }
    EXPECT_TRUE(section.has_repair);
  }
}

}  // namespace
}  // namespace penstock::verify
