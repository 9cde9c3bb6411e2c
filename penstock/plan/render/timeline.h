// Who did what when, rank by rank: the value that the page, the picture and the trace are made of.
//
// simulated_timeline() makes one of a simulation; a measured step can be another.  Knows neither
// where times come from, nor pixels.
// Units: times in `unit`, all from one origin; memory in the unit of the caller's costs.
// Invariants: 1. the bars of a lane do not overlap, and rise.  2. the levels of a row rise in time.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/schedule/action.h"

namespace penstock::render {

// The bar'th bar of the lane'th lane of the row'th row.
struct BarPlace {
  std::int32_t row = 0;
  std::int32_t lane = 0;
  std::int32_t bar = 0;
  friend bool operator==(const BarPlace&, const BarPlace&) = default;
};

struct Bar {
  schedule::Action action;
  double start = 0.0;
  double end = 0.0;
  // What it waited for while its lane was idle; absent: it did not wait, or nobody knows.
  std::optional<BarPlace> waited_for = {};
  std::string name = {};  // What it is a part of the action; empty: the whole.
};

// What one rank does at a time: it computes in the first lane; further ones are what runs beside.
struct Lane {
  std::string name;  // "compute"
  std::vector<Bar> bars;
};

// The rank holds `memory` from `time` on, until the next level.
struct Level {
  double time = 0.0;
  double memory = 0.0;
  friend bool operator==(const Level&, const Level&) = default;
};

struct Row {
  std::string name;             // "rank 3"
  std::vector<StageId> stages;  // Rising; a bar's shade is its stage's place among them.
  std::vector<Lane> lanes;      // Every row has as many.
  std::vector<Level> memory;    // Empty: not known.
};

struct Timeline {
  std::string title;
  std::vector<std::string> notes;  // Phrases: "makespan 33", "bubble 27.3%".
  std::string unit;                // "us"; "" for the unit of the costs.
  double end = 0.0;                // End of the last bar.
  std::vector<Row> rows;
  std::vector<BarPlace> critical_path = {};  // What `end` is made of, in time; empty: not known.
};

}  // namespace penstock::render
