// What ranks must have in common: every fact that they compare, when, and who hands it in.
//
// A fact that is not in this table cannot be compared: Facts are made of its rows, and
// docs/handshake.md is written from them.  Knows no values and no ranks.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::agreement {

// The occasions on which ranks compare facts.
enum class Occasion : std::uint8_t {
  Trainer,     // It is made: before step 1 of `penstock train`, and of programs in C++.
  Layers,      // A Trainer's ranks have made theirs.
  Program,     // A run changes its program between two steps.
  Engine,      // A Python engine, or a schedule, is made.
  Step,        // An optimizer is about to take one.
  Checkpoint,  // A checkpoint is opened, to be loaded.
  Generation,  // `penstock generate` begins.
};

// "trainer"; find_occasion(name_of(occasion)) == occasion.
std::string_view name_of(Occasion occasion);
std::optional<Occasion> find_occasion(std::string_view name);
// What ranks do that differ: "do not run the same thing".
std::string_view words_of(Occasion occasion);

enum class Fact : std::uint8_t {
  ConfigValue,
  ModelConfig,
  ModelTensors,
  ModelWeights,
  ModelTokenizer,
  ModelAdapters,
  DocumentEnd,
  TextFiles,
  TextBytesToTrainOn,
  TextBytesToValidate,
  TextToTrainOn,
  TextToValidate,
  TokenSources,
  TokenSamplesToValidate,
  TokenSource,
  TokenSourceToValidate,
  OfProgram,
  Prompt,
  TokensToGenerate,
  Sampling,
  PenstockVersion,
  TorchVersion,
  DefaultDtype,
  DeterministicAlgorithms,
  Float32Precision,
  SumsOfCublas,
  Cudnn,
  Onednn,
  Environment,
  Schedule,
  Purpose,
  ScheduleProgram,
  Mesh,
  Partition,
  Seed,
  Device,
  Optimizer,
  Updates,
  Scheduler,
  Steps,
  GradientClipping,
  LossScale,
  SumsOfGradients,
  Types,
  GradientScale,
  ZeroStage,
  ZeroBucketBytes,
  ZeroBudget,
  ZeroPersistence,
  LayersOfModel,
  Layer,
  BitsOfUpdate,
  Threads,
  CpuKernels,
  Parameter,
  FrozenParameter,
  Buffer,
  LossFunction,
  Topology,
  ZeroSettings,
  BatchSizes,
  TrainingData,
  OptimizerGroup,
  LearningRate,
  SetParameter,
  ChangedGradient,
  GivenTensor,
  OwnOptimizer,
  StepsTaken,
  MicrobatchesTaken,
  DataLoader,
  Checkpoint,
  WhatIsLoaded,
};

struct FactRow {
  Fact fact;
  // The name in errors and on the page.  A word in capitals stands for what one of many is called
  // by: "layer N".
  std::string_view name;
  std::string_view meaning;  // Empty: the name says it.
  std::string_view who;      // Hands it in.
  std::vector<Occasion> occasions;
  std::string_view repair = "start every rank with the same program and config";
};

// The rows in the order of the page.
std::span<const FactRow> fact_table();
const FactRow& row_of(Fact fact);
bool is_compared(Fact fact, Occasion occasion);

// name_of(Fact::Layer, "3") == "layer 3".  REQUIRES: a `subject` exactly where the row has a word
// in capitals.
std::string name_of(Fact fact, std::string_view subject = "");
// The fact with this name: find_fact(name_of(fact, subject)) == fact.
std::optional<Fact> find_fact(std::string_view name);

}  // namespace penstock::agreement
