#include "penstock/launch/control_message.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "penstock/core/text.h"

namespace penstock::launch {
namespace {

using Fields = std::vector<std::string>;

// At most kTextBytesMax bytes, never cutting a UTF-8 sequence in half.
std::string cut(std::string_view text) {
  if (text.size() <= kTextBytesMax) return std::string(text);
  std::size_t end = kTextBytesMax - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : cut(text)) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::optional<std::string> unescape(std::string_view field) {
  std::string out;
  for (std::size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\n') return std::nullopt;
    if (field[i] != '\\') {
      out += field[i];
      continue;
    }
    if (++i == field.size()) return std::nullopt;
    if (field[i] == '\\') {
      out += '\\';
    } else if (field[i] == 't') {
      out += '\t';
    } else if (field[i] == 'n') {
      out += '\n';
    } else {
      return std::nullopt;
    }
  }
  if (out.size() > kTextBytesMax) return std::nullopt;
  return out;
}

std::string line(const Fields& fields) { return join(fields, "\t"); }

// "-" stands for absent; a negative number has no meaning in any field.
std::string optional_number(std::optional<std::int64_t> number) {
  return number && *number >= 0 ? std::to_string(*number) : "-";
}

constexpr const char* kHelloBySignals = "hello, stopped by signals";

std::string encode_one(const Hello& hello) { return hello.takes_stop ? "hello" : kHelloBySignals; }
std::string encode_one(const Done&) { return "done"; }
std::string encode_one(const Bye&) { return "bye"; }
std::string encode_one(const Gone&) { return "gone"; }
std::string encode_one(const Abort& abort) { return line({"abort", escape(abort.root_cause)}); }

std::string encode_one(const Stop& stop) {
  return line({"stop", stop.exit_code == ExitCode::Preempted ? "preempted" : "interrupted"});
}

std::string encode_one(const ProgressReport& report) {
  std::optional<std::int64_t> peer;
  if (report.waiting_for) peer = report.waiting_for->value;
  return line({"progress", std::to_string(report.counter), optional_number(report.step),
               escape(report.phase), escape(report.doing), report.waiting ? "waiting" : "working",
               optional_number(peer), std::to_string(std::max<std::int64_t>(0, report.waiting_ms)),
               report.uses_files ? "files" : "-"});
}

std::string encode_one(const ErrorReport& report) {
  const int code = std::clamp(static_cast<int>(report.exit_code), 1, 255);  // An error is not 0.
  return line({"error", optional_number(report.step), escape(report.instruction),
               escape(report.message), std::to_string(code)});
}

// Reads the fields of one line in order.  After the first bad field every answer is empty and
// finished() is false, so a parser reads all it expects and asks once.
class FieldReader {
 public:
  explicit FieldReader(Fields fields) : fields_(std::move(fields)) {}

  std::string text() {
    const auto field = next();
    if (!field) return {};
    auto decoded = unescape(*field);
    good_ = good_ && decoded.has_value();
    return decoded.value_or("");
  }

  std::int64_t number(std::int64_t low, std::int64_t high) {
    const auto field = next();
    const auto parsed = field ? parse_integer(*field) : std::nullopt;
    good_ =
        good_ && parsed && *parsed >= low && *parsed <= high && std::to_string(*parsed) == *field;
    return good_ ? *parsed : 0;
  }

  std::optional<std::int64_t> optional_number(std::int64_t high) {
    if (at_ < fields_.size() && fields_[at_] == "-") {
      ++at_;
      return std::nullopt;
    }
    return number(0, high);
  }

  bool choice(std::string_view if_true, std::string_view if_false) {
    const auto field = next();
    good_ = good_ && field && (*field == if_true || *field == if_false);
    return good_ && *field == if_true;
  }

  bool finished() const { return good_ && at_ == fields_.size(); }

 private:
  std::optional<std::string> next() {
    good_ = good_ && at_ < fields_.size();
    if (!good_) return std::nullopt;
    return fields_[at_++];
  }

  Fields fields_;
  std::size_t at_ = 1;  // Place behind the verb.
  bool good_ = true;
};

constexpr std::int64_t kNumberMax = std::numeric_limits<std::int64_t>::max();

RankMessage parse_progress(FieldReader& fields) {
  ProgressReport report;
  report.counter = static_cast<std::uint64_t>(fields.number(0, kNumberMax));
  report.step = fields.optional_number(kNumberMax);
  report.phase = fields.text();
  report.doing = fields.text();
  report.waiting = fields.choice("waiting", "working");
  const auto peer = fields.optional_number(std::numeric_limits<std::int32_t>::max());
  if (peer) report.waiting_for = Rank(static_cast<std::int32_t>(*peer));
  report.waiting_ms = fields.number(0, kNumberMax / 2);
  report.uses_files = fields.choice("files", "-");
  return report;
}

RankMessage parse_error(FieldReader& fields) {
  ErrorReport report;
  report.step = fields.optional_number(kNumberMax);
  report.instruction = fields.text();
  report.message = fields.text();
  report.exit_code = static_cast<ExitCode>(fields.number(1, 255));
  return report;
}

Fields fields_of(std::string_view line) {
  if (line.size() > kMessageBytesMax) return {""};
  return split(line, '\t');
}

}  // namespace

std::string encode(const RankMessage& message) {
  return std::visit([](const auto& one) { return encode_one(one); }, message);
}

std::string encode(const LauncherMessage& message) {
  return std::visit([](const auto& one) { return encode_one(one); }, message);
}

std::optional<RankMessage> parse_rank_message(std::string_view line) {
  const Fields all = fields_of(line);
  FieldReader fields(all);
  std::optional<RankMessage> message;
  if (all[0] == "hello") message = Hello{};
  if (all[0] == kHelloBySignals) message = Hello{.takes_stop = false};
  if (all[0] == "done") message = Done{};
  if (all[0] == "bye") message = Bye{};
  if (all[0] == "gone") message = Gone{};
  if (all[0] == "progress") message = parse_progress(fields);
  if (all[0] == "error") message = parse_error(fields);
  return fields.finished() ? message : std::nullopt;
}

std::optional<LauncherMessage> parse_launcher_message(std::string_view line) {
  const Fields all = fields_of(line);
  FieldReader fields(all);
  std::optional<LauncherMessage> message;
  if (all[0] == "abort") message = Abort{fields.text()};
  if (all[0] == "stop") {
    const bool preempted = fields.choice("preempted", "interrupted");
    message = Stop{preempted ? ExitCode::Preempted : ExitCode::Interrupted};
  }
  return fields.finished() ? message : std::nullopt;
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) c = '?';
  }
  return out;
}

}  // namespace penstock::launch
