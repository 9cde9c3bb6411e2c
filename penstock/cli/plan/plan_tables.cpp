#include "penstock/cli/plan/plan_tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "penstock/cli/plan/plan_axes.h"
#include "penstock/cli/plan/plan_parts.h"
#include "penstock/cli/text_table.h"
#include "penstock/core/byte_size.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/breakdown_svg.h"
#include "penstock/plan/render/frontier_svg.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/render/simulated_timeline.h"
#include "penstock/plan/render/timeline_page.h"
#include "penstock/simulate/simulate.h"

namespace penstock::cli {
namespace {

using choose::Candidate;
using choose::Layout;
using choose::Plans;
using choose::StepTime;
using render::percent;
using render::significant;

// Differences of sums have rounding errors, far below a nanosecond.
std::string milliseconds(double seconds) {
  return std::abs(seconds) < 1e-12 ? "0" : significant(seconds * 1000.0);
}

std::string size(std::int64_t bytes) { return mebibytes(static_cast<std::uint64_t>(bytes)); }

// The largest part beside the compute, where it is worth a word.
std::string bound_by(const StepTime& time) {
  constexpr double kWorthAWord = 0.05;  // Share of the step.
  const Part* largest = &kParts[1];
  for (const Part& part : kParts) {
    if (part.time == &StepTime::compute) continue;
    if (time.*part.time > time.*largest->time) largest = &part;
  }
  return time.*largest->time < kWorthAWord * time.step() ? "compute" : largest->name;
}

double samples_per_second(const Candidate& candidate) {
  const Layout& layout = candidate.layout;
  return static_cast<double>(layout.samples()) / candidate.time.step();
}

// Columns of the tables.
std::vector<mesh::Axis> axes_of(const Plans& plans) {
  std::vector<mesh::Shape> shapes;
  for (const Candidate& each : plans.candidates) shapes.push_back(each.layout.mesh);
  return mesh::told(shapes);
}

// Columns of axes that are no axes of the mesh.
bool has_experts(const Plans& plans) {
  return std::ranges::any_of(plans.candidates,
                             [](const Candidate& each) { return each.layout.experts > 1; });
}
bool has_shards(const Plans& plans) {
  return std::ranges::any_of(plans.candidates,
                             [](const Candidate& each) { return each.layout.shards > 0; });
}
bool has_not_yet(const PlanQuestion& question, const Plans& plans) {
  return std::ranges::any_of(plans.candidates, [&](const Candidate& each) {
    return !not_yet(question.request, each.layout).empty();
  });
}
std::string shards_text(const Layout& layout) {
  return layout.shards > 0 ? str(layout.shards) : "all";
}

bool tries_files(const PlanQuestion& question) {
  return question.request.choices.offloads.size() > 1;
}

std::vector<std::string> cells(const PlanQuestion& question, const Plans& plans,
                               std::size_t number) {
  const Candidate& candidate = plans.candidates[number - 1];
  const Layout& layout = candidate.layout;
  const double samples = samples_per_second(candidate);
  std::vector<std::string> row = {str(number)};
  for (const mesh::Axis axis : axes_of(plans)) row.push_back(str(layout.mesh[axis]));
  if (has_experts(plans)) row.push_back(str(layout.experts));
  row.push_back(str(number_of(layout.zero)));
  if (has_shards(plans)) row.push_back(shards_text(layout));
  row.insert(
      row.end(),
      {layout.schedule, str(layout.stages_per_rank), str(layout.microbatches),
       str(layout.microbatch),
       layout.recompute_interval > 0 ? "yes"
       : layout.is_selective         ? "selective"
                                     : "no",
       milliseconds(candidate.time.step()), significant(samples),
       significant(samples * static_cast<double>(question.positions())),
       percent(candidate.time.bubble / candidate.time.step()), size(candidate.peak()),
       str("rank ", candidate.fullest_rank(), " at ", candidate.peak_at[candidate.fullest_rank()]),
       bound_by(candidate.time)});
  if (tries_files(question)) row.emplace_back(choose::in_files(layout.offload));
  if (has_not_yet(question, plans)) {
    const std::vector<std::string> names = not_yet(question.request, layout);
    row.push_back(names.empty() ? "yes" : str("not yet: ", join(names, ", ")));
  }
  return row;
}

std::vector<std::string> columns(const PlanQuestion& question, const Plans& plans) {
  std::vector<std::string> names = {"#"};
  for (const mesh::Axis axis : axes_of(plans)) names.emplace_back(mesh::row_of(axis).name);
  if (has_experts(plans)) names.emplace_back("expert");
  names.emplace_back("ZeRO");
  if (has_shards(plans)) names.emplace_back("among");
  names.insert(names.end(),
               {"schedule", "per rank", "microbatches", "samples", "recomputed", "step ms",
                "samples/s", "tokens/s", "bubble", "peak memory", "where", "bound by"});
  if (tries_files(question)) names.emplace_back("in files");
  if (has_not_yet(question, plans)) names.emplace_back("runs");
  return names;
}

std::string too_large_text(const Plans& plans) {
  constexpr double kAsFast = 1.0 - 1e-6;
  const double slowest = kAsFast * plans.candidates.back().time.step();
  const auto may_be_faster = [&](const choose::TooLarge& each) { return each.time < slowest; };
  const auto first = std::ranges::find_if(plans.too_large, may_be_faster);
  if (first == plans.too_large.end()) return "";
  const auto count = std::ranges::count_if(plans.too_large, may_be_faster);
  return str("\ntoo large: ", count, count == 1 ? " layout" : " layouts",
             " that may be faster than the last of these; the first takes at least ",
             milliseconds(first->time), " ms and ", size(first->bytes), ": ",
             to_string(first->layout), "\n");
}

// True of candidates that nothing both faster and smaller beats.
std::vector<bool> on_frontier(const Plans& plans) {
  std::vector<bool> is_on;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Candidate& each : plans.candidates) {  // Sorted: the fastest first.
    is_on.push_back(each.peak() < least);
    least = std::min(least, each.peak());
  }
  return is_on;
}

std::vector<render::FrontierPoint> points_of(const Plans& plans) {
  const std::vector<bool> is_best = on_frontier(plans);
  std::vector<render::FrontierPoint> points;
  for (std::size_t i = 0; i < plans.candidates.size(); ++i) {
    const Candidate& each = plans.candidates[i];
    points.push_back({.label = str(i + 1, ": ", to_string(each.layout)),
                      .milliseconds = each.time.step() * 1000.0,
                      .bytes = static_cast<double>(each.peak()),
                      .is_best = is_best[i]});
  }
  return points;
}

std::vector<std::string> equals_of(const Candidate& candidate) {
  std::vector<std::string> names;
  for (const Layout& each : candidate.equals) names.push_back(to_string(each));
  return names;
}

// A line for each candidate that others equal.
std::string equals_text(const Plans& plans) {
  constexpr std::size_t kNamed = 3;
  std::string text;
  for (std::size_t i = 0; i < plans.candidates.size(); ++i) {
    std::vector<std::string> names = equals_of(plans.candidates[i]);
    if (names.empty()) continue;
    const std::size_t more = names.size() - std::min(names.size(), kNamed);
    names.resize(names.size() - more);
    text += str("\nas fast and as large as ", i + 1, ": ", join(names, "; "),
                more > 0 ? str("; and ", more, " more") : "");
  }
  return text.empty() ? "" : str(text, "\n");
}

enum class Frontier : bool { No, Yes };

// `more`: members after the others.
std::string json_of(const PlanQuestion& question, const Candidate& candidate, Frontier frontier,
                    const std::string& more = "") {
  const Layout& layout = candidate.layout;
  std::vector<std::string> parts;
  for (const Part& part : kParts) {
    parts.push_back(str("\"", part.name, "\": ", shortest(candidate.time.*part.time)));
  }
  std::vector<std::string> equals, peak_at, not_there;
  for (const std::string& name : not_yet(question.request, layout)) {
    not_there.push_back(json_quote(name));
  }
  for (const std::string& name : equals_of(candidate)) equals.push_back(json_quote(name));
  for (const std::string& place : candidate.peak_at) peak_at.push_back(json_quote(place));
  const double samples = samples_per_second(candidate);
  return str(
      "    {", mesh::json_members(layout.mesh), ", \"expert\": ", layout.experts,
      ", \"zero\": ", number_of(layout.zero), ", \"shard\": ", layout.zero_ranks(),
      ", \"not_yet\": [", join(not_there, ", "), "]",
      ", \"schedule\": ", json_quote(layout.schedule),
      ", \"stages_per_rank\": ", layout.stages_per_rank,
      ", \"microbatches\": ", layout.microbatches, ", \"microbatch\": ", layout.microbatch,
      ", \"recompute_interval\": ", layout.recompute_interval,
      ", \"recompute\": ", json_quote(choose::recomputed(layout)),
      ", \"in_files\": ", json_quote(choose::in_files(layout.offload)), ",\n     \"bounds\": [",
      join(candidate.partition.bounds, ", "),
      "],\n     \"step\": ", shortest(candidate.time.step()), ", \"parts\": {", join(parts, ", "),
      "},\n     \"samples_per_second\": ", shortest(samples),
      ", \"tokens_per_second\": ", shortest(samples * static_cast<double>(question.positions())),
      ",\n     \"peak\": [", join(candidate.peak_bytes, ", "), "], \"peak_at\": [",
      join(peak_at, ", "), "],\n     \"bound_by\": ", json_quote(bound_by(candidate.time)),
      ", \"on_frontier\": ", frontier == Frontier::Yes ? "true" : "false", ",\n     \"equals\": [",
      join(equals, ", "), "]", more, "}");
}

std::string json_of(const choose::TooLarge& each) {
  return str("    {\"layout\": ", json_quote(to_string(each.layout)),
             ", \"step\": ", shortest(each.time), ", \"peak\": ", each.bytes, "}");
}

// Milliseconds, to a microsecond.
std::string in_ms(double seconds) { return render::rounded(seconds * 1000.0, 3); }

std::string in_mib(std::int64_t bytes) {
  return render::fixed(static_cast<double>(bytes) / (1 << 20), 1);
}

std::string ranks_json(const choose::Priced& priced) {
  std::vector<std::string> ranks;
  for (std::size_t rank = 0; rank < priced.times.size(); ++rank) {
    std::vector<std::string> times, bytes;
    for (const auto& [name, seconds] : times_of(priced.times[rank])) {
      times.push_back(str(json_quote(name), ": ", shortest(seconds)));
    }
    for (const auto& [name, count] : bytes_of(priced.peaks[rank])) {
      bytes.push_back(str(json_quote(name), ": ", count));
    }
    ranks.push_back(str("{\"times\": {", join(times, ", "), "},\n       \"bytes\": {",
                        join(bytes, ", "),
                        "},\n       \"exchanges\": ", axes_json(priced.times[rank]), "}"));
  }
  return str(",\n     \"ranks\": [\n      ", join(ranks, ",\n      "), "]");
}

// Says where each rank's milliseconds and bytes go.
std::string priced_text(const PlanQuestion& question, const choose::Priced& priced) {
  const Candidate& candidate = priced.candidate;
  const double samples = samples_per_second(candidate);
  std::string text = str(
      to_string(candidate.layout), "\nstep ", milliseconds(candidate.time.step()), " ms, ",
      significant(samples), " samples/s, ",
      significant(samples * static_cast<double>(question.positions())), " tokens/s; peak ",
      size(candidate.peak()), " on pipeline rank ", candidate.fullest_rank(), " at ",
      candidate.peak_at[candidate.fullest_rank()], "; bound by ", bound_by(candidate.time), "\n");
  if (const auto names = not_yet(question.request, candidate.layout); !names.empty()) {
    text += str("no run can have this yet: ", join(names, ", "), "\n");
  }
  text += worst_text(priced);
  if (candidate.peak() > question.request.memory_max) {
    text += str("it does not fit: a rank may take ", size(question.request.memory_max), "\n");
  }
  std::vector<TextRow> times, bytes;
  for (std::size_t rank = 0; rank < priced.times.size(); ++rank) {
    const auto of_time = times_of(priced.times[rank]);
    const auto of_bytes = bytes_of(priced.peaks[rank]);
    if (rank == 0) {
      times.push_back({"ms of rank"});
      bytes.push_back({"MiB of rank"});
      for (const auto& [name, seconds] : of_time) times.back().push_back(name);
      for (const auto& [name, count] : of_bytes) bytes.back().push_back(name);
      bytes.back().push_back("at");
    }
    times.push_back({str(rank)});
    bytes.push_back({str(rank)});
    for (const auto& [name, seconds] : of_time) times.back().push_back(in_ms(seconds));
    for (const auto& [name, count] : of_bytes) bytes.back().push_back(in_mib(count));
    bytes.back().push_back(candidate.peak_at[rank]);
  }
  return str(text, "\n", text_table(times), "\n", axes_text(priced), text_table(bytes));
}

// A row for each part of the busiest rank's time, and of the fullest rank's bytes.
std::string comparison_text(const choose::Priced& a, const choose::Priced& b) {
  const auto fullest = [](const choose::Priced& priced) {
    return bytes_of(priced.peaks[priced.candidate.fullest_rank()]);
  };
  const auto of_a = times_of_busiest(a), of_b = times_of_busiest(b);
  const auto bytes_a = fullest(a), bytes_b = fullest(b);
  std::vector<TextRow> rows = {{"", "the first", "the second", "difference"}};
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    const double more = of_b[i].second - of_a[i].second;
    rows.push_back({str(of_a[i].first, " ms"), in_ms(of_a[i].second), in_ms(of_b[i].second),
                    str(more < 0 ? "" : "+", in_ms(more))});
  }
  for (std::size_t i = 0; i < bytes_a.size(); ++i) {
    const std::int64_t more = bytes_b[i].second - bytes_a[i].second;
    rows.push_back({str(bytes_a[i].first, " MiB"), in_mib(bytes_a[i].second),
                    in_mib(bytes_b[i].second), str(more < 0 ? "" : "+", in_mib(more))});
  }
  return str("busiest and fullest ranks\n", text_table(rows));
}

std::string head_text(const PlanQuestion& question) {
  std::vector<TextRow> head = {
      {"times", question.costs}, {"memory", question.memory}, {"links", question.links}};
  if (const auto cores = question.request.network.cores_per_node; cores > 0) {
    head.push_back({"cores", str(cores, " of a node, which its ranks share")});
  }
  return text_table(head);
}

std::string difference_text(double part) {
  return str(part < 0 ? "-" : "+", milliseconds(std::abs(part)), " ms");
}

}  // namespace

std::string plan_text(const PlanQuestion& question, const Plans& plans) {
  const choose::Request& request = question.request;
  std::vector<TextRow> rows = {columns(question, plans)};
  for (std::size_t i = 0; i < plans.candidates.size(); ++i) {
    rows.push_back(cells(question, plans, i + 1));
  }
  return str("plan(world=", request.choices.world, ", samples=", request.choices.samples,
             ", memory=", size(request.memory_max), ")\n\n", head_text(question), "\n",
             plans.layouts, " layouts have these sizes; ", plans.simulated, " were simulated, ",
             plans.too_large.size(), " of those looked at are too large\n\n", text_table(rows),
             equals_text(plans), too_large_text(plans));
}

std::string plan_csv(const PlanQuestion& question, const Plans& plans) {
  std::vector<std::string> axes;
  for (const mesh::Axis axis : axes_of(plans)) axes.emplace_back(mesh::row_of(axis).name);
  std::string text =
      "number," + join(axes, ",") +
      ",zero,schedule,stages_per_rank,microbatches,microbatch,recompute_interval,"
      "in_files,step_seconds,samples_per_second,tokens_per_second,bubble_seconds,peak_bytes,"
      "fullest_rank,bound_by,equals\n";
  for (std::size_t i = 0; i < plans.candidates.size(); ++i) {
    const Candidate& each = plans.candidates[i];
    const Layout& layout = each.layout;
    const double samples = samples_per_second(each);
    std::vector<std::int32_t> sizes;
    for (const mesh::Axis axis : axes_of(plans)) sizes.push_back(layout.mesh[axis]);
    text += str(i + 1, ",", join(sizes, ","), ",", number_of(layout.zero), ",", layout.schedule,
                ",", layout.stages_per_rank, ",", layout.microbatches, ",", layout.microbatch, ",",
                layout.recompute_interval, ",", choose::in_files(layout.offload), ",",
                shortest(each.time.step()), ",", shortest(samples), ",",
                shortest(samples * static_cast<double>(question.positions())), ",",
                shortest(each.time.bubble), ",", each.peak(), ",", each.fullest_rank(), ",",
                bound_by(each.time), ",", each.equals.size(), "\n");
  }
  return text;
}

std::string plan_json(const PlanQuestion& question, const Plans& plans) {
  std::vector<std::string> candidates;
  const std::vector<bool> is_best = on_frontier(plans);
  for (std::size_t i = 0; i < plans.candidates.size(); ++i) {
    candidates.push_back(
        json_of(question, plans.candidates[i], is_best[i] ? Frontier::Yes : Frontier::No));
  }
  std::vector<std::string> too_large;
  for (const choose::TooLarge& each : plans.too_large) too_large.push_back(json_of(each));
  const choose::Request& request = question.request;
  return str(
      "{\n  \"world\": ", request.choices.world, ",\n  \"samples\": ", request.choices.samples,
      ",\n  \"memory\": ", request.memory_max, ",\n  \"times\": ", json_quote(question.costs),
      ",\n  \"links\": ", json_quote(question.links), ",\n  \"layouts\": ", plans.layouts,
      ",\n  \"simulated\": ", plans.simulated, ",\n  \"candidates\": [\n", join(candidates, ",\n"),
      "\n  ],\n  \"too_large\": [\n", join(too_large, ",\n"), "\n  ]\n}\n");
}

std::string priced_text(const PlanQuestion& question, const std::vector<choose::Priced>& priced) {
  std::string text = str(head_text(question), "\n");
  for (const choose::Priced& each : priced) text += str(priced_text(question, each), "\n");
  return priced.size() == 2 ? text + comparison_text(priced[0], priced[1]) : text;
}

std::string priced_json(const PlanQuestion& question, const std::vector<choose::Priced>& priced) {
  std::vector<std::string> layouts;
  for (const choose::Priced& each : priced) {
    const bool fits = each.candidate.peak() <= question.request.memory_max;
    layouts.push_back(
        json_of(question, each.candidate, Frontier::No,
                str(", \"fits\": ", fits ? "true" : "false", worst_json(each), ranks_json(each))));
  }
  const choose::Request& request = question.request;
  return str("{\n  \"world\": ", request.choices.world,
             ",\n  \"samples\": ", request.choices.samples, ",\n  \"memory\": ", request.memory_max,
             ",\n  \"times\": ", json_quote(question.costs),
             ",\n  \"links\": ", json_quote(question.links), ",\n  \"layouts\": [\n",
             join(layouts, ",\n"), "\n  ]\n}\n");
}

std::string plan_svg(const Plans& plans) { return render::frontier_svg(points_of(plans)); }

std::string plan_page(const PlanQuestion& question, const Plans& plans) {
  const choose::Request& request = question.request;
  std::vector<render::Timeline> timelines;
  const std::vector<bool> is_best = on_frontier(plans);
  for (std::size_t i = 0; i < plans.candidates.size(); ++i) {
    const Candidate& each = plans.candidates[i];
    if (!is_best[i]) continue;
    const choose::Prepared prepared = choose::prepare(request, each);
    render::Timeline timeline = render::simulated_timeline(
        prepared.schedule, simulate::simulate(prepared.schedule, prepared.costs));
    timeline.title = str("candidate ", i + 1, ": ", to_string(each.layout));
    timelines.push_back(std::move(timeline));
  }
  render::Table table{
      .title = "Candidates", .note = question.costs, .columns = columns(question, plans)};
  for (std::size_t i = 0; i < plans.candidates.size(); ++i) {
    table.rows.push_back(cells(question, plans, i + 1));
  }
  std::vector<render::Breakdown> times, bytes;
  for (std::size_t i = 0; i < plans.candidates.size(); ++i) {
    const choose::Priced priced = choose::price(request, plans.candidates[i]);
    times.push_back({.label = str("candidate ", i + 1)});
    for (const auto& [name, seconds] : times_of_busiest(priced)) {
      times.back().parts.emplace_back(name, std::max(seconds, 0.0) * 1000.0);
    }
    times.back().parts.pop_back();  // The step, which the others make up.
    bytes.push_back({.label = str("candidate ", i + 1)});
    for (const auto& [name, count] : bytes_of(priced.peaks[priced.candidate.fullest_rank()])) {
      bytes.back().parts.emplace_back(name, static_cast<double>(count) / (1 << 20));
    }
    bytes.back().parts.pop_back();
  }
  const std::array<render::Figure, 3> figures = {{
      {.title = "Time against memory",
       .note =
           "Nothing here is both faster and smaller than a filled point; its timeline is above. "
           "Click a point to see where its time and memory go.",
       .svg = plan_svg(plans)},
      {.title = "Where a step goes",
       .note = "Milliseconds of the rank that computes most.",
       .svg = render::breakdown_svg(times, "Parts of steps", "ms", "time-")},
      {.title = "Where the memory goes",
       .note = "MiB of the fullest rank, when it has most.",
       .svg = render::breakdown_svg(bytes, "Parts of peaks", "MiB", "memory-")},
  }};
  return render::timeline_page(
      str("Layouts of ", question.config, " on ", request.choices.world, " ranks"), timelines,
      {&table, 1}, figures);
}

std::string plan_explanation(const Plans& plans, std::size_t number) {
  const Candidate& first = plans.candidates.front();
  const Candidate& each = plans.candidates[number - 1];
  const double more = each.time.step() - first.time.step();
  std::string text = str("\ncandidate ", number, ": ", to_string(each.layout), "\n");
  if (number == 1) {
    text += str("takes ", milliseconds(each.time.step()), " ms, and is the first; of these are\n");
  } else {
    text += str("takes ", milliseconds(each.time.step()), " ms, ", milliseconds(more), " ms (",
                percent(more / first.time.step()), ") more than candidate 1, ",
                to_string(first.layout), "; of these are\n");
  }
  std::vector<TextRow> rows;
  for (const Part& part : kParts) {
    if (part.time == &StepTime::cores && std::max(each.time.cores, first.time.cores) == 0.0) {
      continue;  // Ranks share none.
    }
    const double part_more = each.time.*part.time - first.time.*part.time;
    rows.push_back({part.name, str(milliseconds(each.time.*part.time), " ms"),
                    number == 1 ? "" : difference_text(part_more), part.meaning});
  }
  text += text_table(rows);
  text += str("most memory: ", size(each.peak()), " on pipeline rank ", each.fullest_rank(), " at ",
              each.peak_at[each.fullest_rank()]);
  if (number > 1) text += str("; candidate 1 has ", size(first.peak()));
  return text + "\n";
}

}  // namespace penstock::cli
