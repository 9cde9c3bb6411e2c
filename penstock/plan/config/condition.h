// The condition under which a key has an effect: what another key must say, or what a run must be
// like.
//
// The tables of keys (fields.h, initialize_fields.h) give keys their conditions while their values
// are visited; effects.h finds the keys that were given in vain, and keys.h lists the conditions.
// A pure value that prints as text.  Knows no configuration: it is made of a value that was read.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace penstock::config {

// What no configuration says, and a run knows.
enum class RunFact : std::uint8_t {
  IsPipeline,      // The model of penstock.initialize is a PipelineModule.
  HasNoOptimizer,  // penstock.initialize was given none as an argument.
  HasAnOptimizer,  // penstock.initialize was given one.
  HasNoScheduler,  // penstock.initialize was given none as an argument.
};

// Known facts; the others may hold or not.
using Facts = std::map<RunFact, bool>;

enum class Truth : std::uint8_t { No, Yes, Unknown };

class Condition {
 public:
  // "fp16.enabled = true".
  static Condition flag(std::string_view key, bool value);
  // "zero_optimization.stage >= 1".
  static Condition at_least(std::string_view key, std::int64_t value, std::int64_t least);
  static Condition above_zero(std::string_view key, double value);
  // "fp16.loss_scale = 0"; both are JSON.
  static Condition equals(std::string_view key, std::string_view value, std::string_view wanted);
  // "a value of optimizer.type".
  static Condition given(std::string_view key, bool is_given);
  // "a model that is a PipelineModule".
  static Condition of_run(RunFact fact);

  // Holds where one of them does.
  friend Condition operator||(Condition a, const Condition& b);

  Truth holds(const Facts& facts) const;
  bool is_about(std::string_view key) const;

  // "fp16.enabled = true or bf16.enabled = true".
  std::string needs() const;
  // "fp16.enabled is false and bf16.enabled is false": how it is where it does not hold.
  std::string found() const;

 private:
  struct Part {
    std::string key;  // Empty: of the run.
    std::string needs;
    std::string found;
    std::variant<bool, RunFact> holds;
  };
  explicit Condition(Part part) : parts_{std::move(part)} {}

  std::vector<Part> parts_;
};

}  // namespace penstock::config
