// The command line of `penstock evaluate`, as both programs read it.
//
// `penstock` parses it to start ranks, `penstock-runtime` parses the same words to be one.
// Knows no tensors.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "penstock/cli/train_command.h"
#include "penstock/core/result_form.h"

namespace penstock::cli {

struct EvaluateCommand {
  TrainCommand ranks;  // Its `config` may be the folder of a model.
  bool json = false;

  ResultForm form() const { return json ? ResultForm::Json : ResultForm::Text; }
};

// Declares the options on `app`; they are in `command` once the app has parsed.
void declare_evaluate(CLI::App& app, EvaluateCommand& command);

// The words after `evaluate` that give the same command again.
std::vector<std::string> words_of(const EvaluateCommand& command);

}  // namespace penstock::cli
