// The layouts of a model on so many ranks, the fastest first, as far as their memory fits.
//
// `penstock plan` asks it.  A layout's time is that of a simulated step (step_time.h), its memory
// what `penstock memory` would tell of it (memory/pipe_memory.h).  Layouts are taken in the order
// of what is known of their times.  First that is a bound of any schedule, then one of the layout's
// own (time_bound.h), and at last the time.  With each step a bound of its memory is looked at, too
// (memory_bound.h), and before the simulation the memory.  So the list is the true one for stages
// of balanced work, and most layouts cost next to nothing.  The stages of those that were found are
// then cut for their schedules (stages.h), and they are sorted by that.
// Thread safety: none.  Units: seconds, bytes.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/plan/choose/asked_layout.h"
#include "penstock/plan/choose/layer_times.h"
#include "penstock/plan/choose/layout.h"
#include "penstock/plan/choose/network.h"
#include "penstock/plan/choose/step_time.h"
#include "penstock/plan/memory/layers_file.h"
#include "penstock/plan/memory/pipe_memory.h"

namespace penstock::choose {

struct Request {
  config::Config config;  // The model, its types, optimizer and buckets; its layout is not read.
  const memory::LayersFile& layers;
  // Gives sizes that are not in `layers`; null: all are.
  std::function<memory::MeasuredSize(const Layout& layout)> make_size = {};
  std::string family = {};      // The model's, if no run can have its layers yet.
  Choices choices;              // Sizes are ones that `layers` has.
  std::int64_t memory_max = 0;  // Limit on each rank's bytes.
  Network network;
  // Gives the layers' times, but for exchanges.
  std::function<std::vector<LayerTimes>(const memory::MeasuredSize& size)> times_of;
  double memory_bandwidth = 0.0;                     // Bytes a second of the device; 0: not known.
  std::optional<devices::DeviceModel> kernels = {};  // The device that prices layers' kernels.
  double file_bandwidth = 0.0;   // Bytes a second of files, reading and writing, for each rank.
  std::string file_folder = {};  // Folder of files, for configurations that are written.
  std::int32_t top = 10;         // Candidates to find, those that are equal as one.
  // Hears what is done next, for who waits.
  std::function<void(const std::string& what)> at = [](const std::string&) {};
};

struct Candidate {
  Layout layout;
  partition::Partition partition;
  StepTime time;
  std::vector<std::int64_t> peak_bytes;  // Bytes by pipeline rank.
  std::vector<std::string> peak_at;      // The instruction, or "update", by pipeline rank.
  std::vector<Layout> equals;            // Layouts as fast that take as much: see is_equal().

  std::int64_t peak() const;
  std::size_t fullest_rank() const;
};

// Whether nothing tells them apart but their names: steps as long, but for rounding, and the same
// peak on every pipeline rank.
bool is_equal(const Candidate& a, const Candidate& b);

// A layout whose memory does not fit.
struct TooLarge {
  Layout layout;
  double time = 0.0;       // Seconds that its step takes at least.
  std::int64_t bytes = 0;  // Bytes that its fullest rank needs at least.
};

struct Plans {
  std::vector<Candidate> candidates;  // Layouts that fit, the fastest first; at most Request::top.
  std::vector<TooLarge> too_large;    // Layouts found too large on the way, in that order.
  std::int64_t layouts = 0;           // Number of layouts whose sizes fit.
  std::int64_t simulated = 0;
};

// Throws: ConfigError for a configuration that no layout can have; what partition() throws.
Plans plan(const Request& request);

// A layout with where each pipeline rank's time and bytes go.
struct Priced {
  // What becomes of it when all tokens go to the experts of one rank.
  struct Worst {
    double load = 1.0;       // How many times as many as on the average.
    std::int64_t bytes = 0;  // Peak of the fullest rank.
  };

  Candidate candidate;
  std::vector<RankTime> times;
  std::vector<memory::Bytes> peaks;  // What is there when a rank has most.
  std::optional<Worst> worst = {};   // Added by who has the other layers that it takes.
};

// Prices one layout; its memory need not fit.
// REQUIRES: asked_layout() gave it; `request.layers` has its size.
// Throws: as plan(); ConfigError where stages cannot be even.
Priced price(const Request& request, const AskedLayout& asked);
// The same, of a candidate.
Priced price(const Request& request, const Candidate& candidate);

// The program of a layout, and what its steps are simulated with.
struct Prepared {
  verify::VerifiedSchedule schedule;
  simulate::Costs costs;
};
Prepared prepare(const Request& request, const Candidate& candidate);

// The least memory per rank with which some layout fits, and that layout; for a request whose plans
// are empty, though sizes of some layouts fit.  Of the `count` layouts with the smallest bounds.
TooLarge least_memory(const Request& request, std::size_t count = 50);

// The configuration with the candidate's layout, as `penstock train` takes it.
config::Config configuration_of(const Request& request, const Candidate& candidate);

}  // namespace penstock::choose
