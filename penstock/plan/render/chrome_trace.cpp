#include "penstock/plan/render/chrome_trace.h"

#include <set>
#include <sstream>
#include <string_view>

#include "penstock/core/check.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/number.h"

namespace penstock::render {
namespace {

const std::string& thread_name(const Trace& trace, int thread) {
  const auto index = static_cast<std::size_t>(thread);
  PENSTOCK_CHECK(index < trace.threads.size(), "thread ", thread, " has no name");
  return trace.threads[index];
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

void add_names(Rows& rows, const Trace& trace) {
  std::set<std::pair<int, int>> threads;
  std::set<int> named;
  for (const TraceEvent& event : trace.events) threads.insert({event.process, event.thread});
  for (const auto& [process, thread] : threads) {
    if (named.insert(process).second) {
      const std::string name = json_quote("rank " + std::to_string(process));
      rows.add(metadata("process_name", process, 0, "\"name\":" + name));
      rows.add(
          metadata("process_sort_index", process, 0, "\"sort_index\":" + std::to_string(process)));
    }
    const std::string name = json_quote(thread_name(trace, thread));
    rows.add(metadata("thread_name", process, thread, "\"name\":" + name));
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

std::string row(const TraceCounter& counter) {
  return "{\"name\":" + json_quote(counter.name) +
         ",\"ph\":\"C\",\"pid\":" + std::to_string(counter.process) +
         ",\"ts\":" + fixed(counter.time_us, 3) + ",\"args\":{" + json_quote(counter.name) + ':' +
         shortest(counter.value) + "}}";
}

}  // namespace

void write_chrome_trace(std::ostream& out, const Trace& trace) {
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  Rows rows(out);
  add_names(rows, trace);
  for (const TraceEvent& event : trace.events) rows.add(row(event));
  for (const TraceCounter& counter : trace.counters) rows.add(row(counter));
  out << "\n]}\n";
}

std::string chrome_trace(const Trace& trace) {
  std::ostringstream out;
  write_chrome_trace(out, trace);
  return std::move(out).str();
}

}  // namespace penstock::render
