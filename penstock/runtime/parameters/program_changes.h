// What a program has made of parameters by itself: other memory, other values.
//
// RankParameters have one.  Whoever takes steps looks before each, so that training goes on
// from what was set, and so that ranks can compare what each has set.  Knows no optimizer.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "penstock/runtime/parameters/parameter_shards.h"
#include "penstock/runtime/stage/stage_layers.h"

namespace penstock::parameters {

class ProgramChanges {
 public:
  // Watches the parameters of these sets, which outlive it.
  explicit ProgramChanges(std::vector<ParameterShards*> sets);

  // Parameters that a program has given other memory, by set_data() for one, train on with what
  // they are now.  Returns those.  To be called before a step and its update.
  // Throws: Error, naming it, for one of another type, shape or device, and for one that comes and
  // goes.
  std::vector<stage::NamedParameter> take_over();

  // Takes over, and looks for what else was set since note(), as far as this rank can tell: in
  // place, or, of what comes and goes, while it was whole.
  void find();
  // Hashes of all values of a parameter as they were set, by name: what find() has found.
  using Hashes = std::map<std::string, std::string>;
  Hashes take_found();
  // What was set up to now was not set by the program.
  void note();
  void forget_found() { found_.clear(); }

  // Sets every parameter of that name on this rank to `values`, which are whole: where it is whole,
  // and in what this rank keeps of it.
  // REQUIRES: its shape; the same values on every rank that has it.
  void set(const std::string& name, const at::Tensor& values);

 private:
  // A parameter that is in no page.
  struct Alone {
    stage::NamedParameter parameter;
    at::Tensor was;  // Values when it was last looked at.
  };
  void add(const std::vector<stage::NamedParameter>& changed);

  std::vector<ParameterShards*> sets_;
  std::vector<Alone> alone_;
  // Versions of all that are always here, when they were noted.
  std::vector<std::int64_t> versions_;
  Hashes found_;
};

}  // namespace penstock::parameters
