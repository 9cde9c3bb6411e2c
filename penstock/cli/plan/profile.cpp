#include <memory>
#include <string>
#include <vector>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/profile_command.h"

namespace penstock::cli {

// Layers are tensors: the program that has them does it.
Command declare_profile_command(CLI::App& app) {
  const auto command = std::make_shared<ProfileCommand>();
  declare_profile(app, *command);
  return [command]() -> int {
    std::vector<std::string> words = {runtime_program(), "profile"};
    for (std::string& word : words_of(*command)) words.push_back(std::move(word));
    become(words);
  };
}

}  // namespace penstock::cli
