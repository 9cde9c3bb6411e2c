#include "penstock/runtime/nn/adapter_checks.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::nn {
namespace {

// Whether a regular expression is a name alone.
bool is_plain(const std::string& word) {
  return !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
    return c == '_' || std::isalnum(c) != 0;
  });
}

// Refuses whole modules that are none, that have adapters, or of which the model has another copy.
void check_trained_modules(const DecoderOptions& options) {
  const AdapterOptions& adapter = *options.adapter;
  if (adapter.trained.empty()) return;
  DecoderOptions plain = options;
  plain.adapter.reset();
  std::vector<std::string> modules;
  std::vector<std::string> trained;
  for (const DecoderParameter& each : decoder_parameters(plain)) {
    const std::string module = module_of(each.name);
    if (std::ranges::find(modules, module) == modules.end()) modules.push_back(module);
    if (!adapter.trains(each.name)) continue;
    trained.push_back(module);
    if (adapter.adapts(module) && each.shape.size() == 2 &&
        std::ranges::count(each.name, '.') > 2) {
      throw ConfigError(
          penstock::str("model.adapter.modules_to_save = ", in_quotes(adapter.trained), ": ",
                        each.name, " has an adapter by model.adapter.targets"));
    }
  }
  const std::string about =
      penstock::str("model.adapter.modules_to_save = ", in_quotes(adapter.trained), ": ");
  if (options.tie_embeddings &&
      (adapter.trains("lm_head.weight") ||
       adapter.trains(is_gpt2(options) ? "transformer.wte.weight" : "model.embed_tokens.weight"))) {
    throw ConfigError(about + "the head of this model is its embedding, and PEFT would train two",
                      {"adapters alone, or all weights, can be trained"});
  }
  for (const std::string& word : penstock::split(adapter.trained, '|')) {
    const bool is_known = std::ranges::find(modules, word) != modules.end();
    if (is_known || (!is_plain(word) && !trained.empty())) continue;
    throw ConfigError(
        about + in_quotes(word) + " is no module of the model" + suggest(word, modules),
        {penstock::str("its modules are ", join(modules, ", "))});
  }
}

// Names in all forms: one list of targets may be for models of any.
std::vector<std::string> all_linear_names() {
  std::vector<std::string> names = linear_names({.form = DecoderForm::Gpt2, .mlp = MlpKind::Gelu});
  for (const DecoderOptions& options : {DecoderOptions{}, {.fuses_projections = true}}) {
    for (std::string& name : linear_names(options)) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
    }
  }
  return names;
}

// A word in "q_proj|vproj" that is no linear of any model is misspelt.
void check_words(const std::string& targets) {
  const std::vector<std::string> known = all_linear_names();
  for (const std::string& word : split(targets, '|')) {
    if (!is_plain(word) || std::ranges::find(known, word) != known.end()) continue;
    throw ConfigError(penstock::str("model.adapter.targets = ", in_quotes(targets), ": ",
                                    in_quotes(word), " is no linear", suggest(word, known)),
                      {penstock::str("linears are ", join(known, ", "))});
  }
}

}  // namespace

void check_adapters(const DecoderOptions& options) {
  if (!options.adapter) return;
  check_trained_modules(options);
  if (options.adapter->targets == kAllLinears) return;
  const std::vector<std::string> names = linear_names(options);
  const auto is_adapted = [&](const std::string& name) { return options.adapter->adapts(name); };
  if (std::ranges::any_of(names, is_adapted)) return check_words(options.adapter->targets);
  throw ConfigError(penstock::str("model.adapter.targets = ", in_quotes(options.adapter->targets),
                                  ": matches no linear of the model"),
                    {penstock::str("its linears are ", join(names, ", "))});
}

}  // namespace penstock::nn
