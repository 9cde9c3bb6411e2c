#include "penstock/launch/hosts/host_run.h"

#include "penstock/core/text.h"
#include "penstock/launch/hosts/frame.h"

namespace penstock::hosts {
namespace {

// Takes the texts one after the other; failed() once one is not as it must be.
class Taker {
 public:
  explicit Taker(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  std::string text() {
    if (next_ < texts_.size()) return texts_[next_++];
    failed_ = true;
    return "";
  }
  std::int64_t number(std::int64_t low, std::int64_t high) {
    const auto found = parse_integer(text());
    failed_ |= !found || *found < low || *found > high;
    return found.value_or(low);
  }
  double seconds() {
    const double value = parse_number(text()).value_or(0.0);
    failed_ |= !(value > 0) || value > launch::kSecondsMax;
    return value;
  }
  std::vector<std::string> list() {
    std::vector<std::string> found;
    for (std::int64_t left = number(0, 1 << 20); left > 0 && !failed_; --left) {
      found.push_back(text());
    }
    return found;
  }
  bool failed() const { return failed_ || next_ != texts_.size(); }

 private:
  std::vector<std::string> texts_;
  std::size_t next_ = 0;
  bool failed_ = false;
};

constexpr std::int64_t kWorldSizeMax = 1 << 20;

void append(std::vector<std::string>& texts, const std::vector<std::string>& list) {
  texts.push_back(std::to_string(list.size()));
  texts.insert(texts.end(), list.begin(), list.end());
}

}  // namespace

std::string encode(const HostRun& run) {
  std::vector<std::string> texts = {run.folder,
                                    run.job_id,
                                    run.log_dir,
                                    std::to_string(run.first_rank),
                                    std::to_string(run.nproc),
                                    std::to_string(run.world_size),
                                    std::to_string(run.host),
                                    std::to_string(run.hosts),
                                    run.peer,
                                    run.master_addr,
                                    std::to_string(run.master_port),
                                    shortest(run.heartbeat_seconds),
                                    shortest(run.grace_seconds)};
  append(texts, run.program);
  const auto word = run.local_rank_word;
  texts.push_back(word ? std::to_string(*word) : "-1");
  std::vector<std::string> variables;
  for (const auto& [name, value] : run.variables) {
    variables.push_back(name);
    variables.push_back(value);
  }
  append(texts, variables);
  return encode_texts(texts);
}

std::optional<HostRun> parse_host_run(std::string_view encoded) {
  if (!encoded.ends_with('\0')) return std::nullopt;
  Taker taker(decode_texts(encoded));
  HostRun run;
  run.folder = taker.text();
  run.job_id = taker.text();
  run.log_dir = taker.text();
  run.first_rank = static_cast<int>(taker.number(0, kWorldSizeMax));
  run.nproc = static_cast<int>(taker.number(1, launch::kRanksMax));
  run.world_size = static_cast<int>(taker.number(1, kWorldSizeMax));
  run.host = static_cast<int>(taker.number(0, kWorldSizeMax));
  run.hosts = static_cast<int>(taker.number(1, kWorldSizeMax));
  run.peer = taker.text();
  run.master_addr = taker.text();
  run.master_port = static_cast<std::uint16_t>(taker.number(0, 65535));
  run.heartbeat_seconds = taker.seconds();
  run.grace_seconds = taker.seconds();
  run.program = taker.list();
  const auto words = static_cast<std::int64_t>(run.program.size());
  const std::int64_t word = taker.number(-1, words);
  if (word >= 0) run.local_rank_word = static_cast<std::size_t>(word);
  const std::vector<std::string> variables = taker.list();
  if (taker.failed() || run.program.empty() || variables.size() % 2 != 0) return std::nullopt;
  for (std::size_t i = 0; i < variables.size(); i += 2) {
    run.variables.emplace_back(variables[i], variables[i + 1]);
  }
  return run;
}

launch::LaunchOptions launch_options(const HostRun& run) {
  launch::LaunchOptions options{.nproc = run.nproc,
                                .program = run.program,
                                .local_rank_word = run.local_rank_word,
                                .first_rank = run.first_rank,
                                .world_size = run.world_size,
                                .job_id = run.job_id,
                                .streams = launch::RankStreams::Piped,
                                .environment = run.variables,
                                .log_dir = run.log_dir,
                                .heartbeat_seconds = run.heartbeat_seconds,
                                .grace_seconds = run.grace_seconds,
                                .host = run.master_addr,
                                .master_port = run.master_port};
  options.environment.emplace_back("LOCAL_SIZE", std::to_string(run.nproc));
  options.environment.emplace_back("CROSS_RANK", std::to_string(run.host));
  options.environment.emplace_back("CROSS_SIZE", std::to_string(run.hosts));
  return options;
}

}  // namespace penstock::hosts
