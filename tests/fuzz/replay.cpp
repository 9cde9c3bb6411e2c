// Every target on its corpus, without libFuzzer: the ordinary tests run it, so that neither the
// targets nor the corpus rot.
//
// fuzz_replay CORPUS
// A file accepted_* must be accepted, a file refused_* refused.  Around each, a few hundred more
// inputs are made by a fixed rule: cut off, with a byte changed, with a part doubled.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "penstock/core/text.h"
#include "tests/fuzz/targets.h"

namespace {

namespace fs = std::filesystem;
using penstock::mix;
using penstock::fuzz::Outcome;
using penstock::fuzz::Target;

constexpr std::uint64_t kVariants = 300;

// What is being checked: a check that fails aborts, and whoever reads it wants to know.
std::string& current() {
  static std::string text;
  return text;
}

extern "C" void tell_current(int) {
  [[maybe_unused]] const auto written = ::write(2, current().data(), current().size());
}

std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The variant of that number.  REQUIRES: text is not empty.
std::string variant(const std::string& text, std::uint64_t number) {
  const auto place = static_cast<std::size_t>(mix(number) % text.size());
  const auto other = static_cast<std::size_t>(mix(number + kVariants) % text.size());
  std::string changed = text;
  switch (number % 3) {
    case 0:
      changed.resize(place);
      break;
    case 1:
      changed[place] = number % 2 == 0 ? text[other] : static_cast<char>(mix(other) % 256);
      break;
    default:
      changed.insert(place, text.substr(other, 16));
  }
  return changed;
}

Outcome check(const Target& target, const fs::path& path, const std::string& input) {
  current() = penstock::str("input made of ", path.string(), ":\n", input, "\n");
  return target.check(input);
}

std::string replay(const Target& target, const fs::path& path) {
  const std::string text = read_bytes(path);
  const bool accepted = check(target, path, text) == Outcome::Accepted;
  const bool expected = path.filename().string().starts_with("accepted_");
  for (std::uint64_t v = 0; v < (text.empty() ? 0 : kVariants); ++v) {
    check(target, path, variant(text, v));
  }
  if (accepted == expected) return {};
  return penstock::str(path.string(), ": was ", accepted ? "accepted" : "refused", "\n");
}

std::string replay(const Target& target, const fs::path& folder, std::set<std::string> kinds) {
  std::string faults;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    kinds.erase(name.substr(0, name.find('_')));
    faults += replay(target, entry.path());
  }
  for (const std::string& kind : kinds) {
    faults += penstock::str(folder.string(), ": no file ", kind, "_*\n");
  }
  return faults;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: fuzz_replay CORPUS\n", stderr);
    return 2;
  }
  std::signal(SIGABRT, tell_current);
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(argv[1])) {
    folders.insert(entry.path().filename().string());
  }
  std::string faults;
  for (const Target& target : penstock::fuzz::targets()) {
    if (folders.erase(std::string(target.name)) == 0) {
      faults += penstock::str(target.name, ": has no folder in the corpus\n");
      continue;
    }
    faults += replay(target, fs::path(argv[1]) / target.name, {"accepted", "refused"});
  }
  for (const std::string& folder : folders) faults += folder + ": is no target\n";
  std::fputs(faults.c_str(), stderr);
  return faults.empty() ? 0 : 1;
}
