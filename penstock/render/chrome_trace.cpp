#include "penstock/render/chrome_trace.h"

#include <set>
#include <sstream>
#include <string_view>

#include "penstock/core/text.h"
#include "penstock/render/number.h"

namespace penstock::render {
namespace {

std::string thread_name(int thread) {
  if (thread == kComputeThread) return "compute";
  if (thread == kCommunicationThread) return "communication";
  return "thread " + std::to_string(thread);
}

// Puts a comma and a new line between rows, whatever they are.
class Rows {
 public:
  explicit Rows(std::ostream& out) : out_(out) {}

  void add(const std::string& row) {
    out_ << (is_first_ ? "\n" : ",\n") << row;
    is_first_ = false;
  }

 private:
  std::ostream& out_;
  bool is_first_ = true;
};

std::string place(int process, int thread) {
  return "\"pid\":" + std::to_string(process) + ",\"tid\":" + std::to_string(thread);
}

std::string metadata(std::string_view kind, int process, int thread, const std::string& args) {
  return "{\"name\":" + json_quote(kind) + ",\"ph\":\"M\"," + place(process, thread) +
         ",\"args\":{" + args + "}}";
}

void add_names(Rows& rows, std::span<const TraceEvent> events) {
  std::set<std::pair<int, int>> threads;
  std::set<int> named;
  for (const TraceEvent& event : events) threads.insert({event.process, event.thread});
  for (const auto& [process, thread] : threads) {
    if (named.insert(process).second) {
      const std::string name = json_quote("rank " + std::to_string(process));
      rows.add(metadata("process_name", process, 0, "\"name\":" + name));
      rows.add(
          metadata("process_sort_index", process, 0, "\"sort_index\":" + std::to_string(process)));
    }
    rows.add(
        metadata("thread_name", process, thread, "\"name\":" + json_quote(thread_name(thread))));
    rows.add(
        metadata("thread_sort_index", process, thread, "\"sort_index\":" + std::to_string(thread)));
  }
}

std::string row(const TraceEvent& event) {
  std::string text = "{\"name\":" + json_quote(event.name) +
                     ",\"cat\":" + json_quote(event.category) + ",\"ph\":\"X\"," +
                     place(event.process, event.thread) + ",\"ts\":" + fixed(event.start_us, 3) +
                     ",\"dur\":" + fixed(event.duration_us, 3);
  if (event.args.empty()) return text + '}';
  std::vector<std::string> args;
  args.reserve(event.args.size());
  for (const auto& [key, value] : event.args)
    args.push_back(json_quote(key) + ':' + json_quote(value));
  return text + ",\"args\":{" + join(args, ",") + "}}";
}

}  // namespace

void write_chrome_trace(std::ostream& out, std::span<const TraceEvent> events) {
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  Rows rows(out);
  add_names(rows, events);
  for (const TraceEvent& event : events) rows.add(row(event));
  out << "\n]}\n";
}

std::string chrome_trace(std::span<const TraceEvent> events) {
  std::ostringstream out;
  write_chrome_trace(out, events);
  return std::move(out).str();
}

}  // namespace penstock::render
