#include "penstock/launch/hosts/host_agent.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"
#include "penstock/launch/hosts/byte_stream.h"
#include "penstock/launch/hosts/frame.h"
#include "penstock/launch/hosts/host_run.h"
#include "penstock/launch/hosts/route.h"
#include "penstock/launch/rank_processes.h"
#include "penstock/launch/signals.h"

namespace penstock::hosts {
namespace {

// Time in which a launcher that connected must say what to do.
constexpr std::int64_t kUnstartedMs = 120'000;
constexpr std::size_t kWaitingBytesMax = std::size_t{1} << 20;
// Taken where no port can be tried: MASTER_ADDR is a name.
constexpr std::uint16_t kUsualPort = 29500;

class HostAgent {
 public:
  HostAgent(int input, int output) : input_(input), output_(output) {
    make_nonblocking(input);
    make_nonblocking(output);
  }

  int run() {
    waiting_ = str(kGreeting, kVersion, " ", address_of_this_end(), "\n");
    while (!is_over()) {
      wait();
      tick();
      take_frames();
      take_signals();
      if (ranks_) follow_ranks();
      if (is_leaving_) end_ranks();
      if (!write_available(output_, waiting_)) leave();
    }
    return exit_code_;
  }

 private:
  bool has_ranks() const { return ranks_ && ranks_->alive_count() > 0; }

  bool is_over() const {
    if (has_ranks()) return false;
    if (is_leaving_) return waiting_.empty() || now_ms() - leaving_ms_ > kBeatMs;
    return (ranks_ || has_failed_) && waiting_.empty();
  }

  std::int64_t now_ms() const {
    const auto since_start = std::chrono::steady_clock::now() - start_;
    return std::chrono::duration_cast<std::chrono::milliseconds>(since_start).count();
  }

  void wait() {
    std::vector<pollfd> wanted{{signals_.fd(), POLLIN, 0}};
    if (!is_leaving_) wanted.push_back({input_, POLLIN, 0});
    if (!waiting_.empty()) wanted.push_back({output_, POLLOUT, 0});
    if (!ranks_) {
      ::poll(wanted.data(), wanted.size(), kTickMs);
      return;
    }
    const bool has_room = waiting_.size() < kWaitingBytesMax;
    for (std::size_t rank = 0; has_room && rank < seen_.ranks.size(); ++rank) {
      const launch::Streams& streams = ranks_->streams(rank);
      if (streams.output) wanted.push_back({streams.output.get(), POLLIN, 0});
      if (streams.errors) wanted.push_back({streams.errors.get(), POLLIN, 0});
    }
    ranks_->wait(std::move(wanted));
  }

  void tick() {
    seen_.now_ms = now_ms();
    if (seen_.now_ms - beat_ms_ >= kBeatMs) {
      beat_ms_ = seen_.now_ms;
      send(Verb::Alive);
      tell_states();
    }
    const std::int64_t limit_ms =
        run_ ? static_cast<std::int64_t>(run_->heartbeat_seconds * 1000) : kUnstartedMs;
    if (seen_.now_ms - heard_ms_ > limit_ms) leave();
  }

  void send(Verb verb, std::size_t rank = 0, std::string body = {}) {
    if (is_leaving_ && verb != Verb::Failed) return;
    waiting_ += encode(Frame{verb, static_cast<int>(rank), std::move(body)});
  }

  void tell_states() {
    if (!has_ranks()) return;
    for (std::size_t rank = 0; rank < seen_.ranks.size(); ++rank) {
      if (!ranks_->alive(rank)) continue;
      const char state = launch::process_state(seen_.ranks[rank].pid);
      if (states_[rank] == state) continue;
      states_[rank] = state;
      send(Verb::State, rank, std::string(1, state));
    }
  }

  // --- From the launcher ------------------------------------------------------------------------

  void take_frames() {
    if (is_leaving_) return;
    std::string bytes;
    const bool is_open = read_available(input_, bytes);
    if (!bytes.empty()) heard_ms_ = seen_.now_ms;
    reader_.add(bytes);
    while (const auto frame = reader_.next()) take(*frame);
    if (!is_open || reader_.is_broken()) leave();
  }

  void take(const Frame& frame) {
    if (frame.verb == Verb::Start && !run_) {
      start(frame.body);
    } else if (frame.verb == Verb::End) {
      leave();
    } else if (ranks_ && static_cast<std::size_t>(frame.rank) < seen_.ranks.size()) {
      const auto rank = static_cast<std::size_t>(frame.rank);
      if (frame.verb == Verb::Message) {
        if (const auto message = launch::parse_launcher_message(frame.body)) {
          ranks_->send(rank, *message);
        }
      } else if (frame.verb == Verb::Signal) {
        const auto number = parse_integer(frame.body);
        if (number && *number > 0 && *number < NSIG) {
          ranks_->signal(rank, static_cast<int>(*number));
        }
      }
    }
  }

  void start(const std::string& body) {
    try {
      run_ = parse_host_run(body);
      if (!run_) throw Error("the launcher's words about the run cannot be read");
      enter_folder();
      find_master();
      find_interface();
      options_ = launch_options(*run_);
      ranks_ = std::make_unique<launch::RankProcesses>(
          options_, seen_, [this](std::size_t rank, std::string_view line) {
            send(Verb::Said, rank, std::string(line));
          });
      ranks_->start_all();
    } catch (const Error& error) {
      ranks_.reset();
      fail(error);
      return;
    }
    if (run_->first_rank == 0) {
      send(Verb::Port, 0, str(run_->master_addr, " ", ranks_->master_port()));
    }
    states_.assign(seen_.ranks.size(), '?');
    has_told_end_.assign(seen_.ranks.size(), false);
    for (std::size_t rank = 0; rank < seen_.ranks.size(); ++rank) {
      send(Verb::Started, rank, std::to_string(seen_.ranks[rank].pid));
    }
  }

  void enter_folder() const {
    if (::chdir(run_->folder.c_str()) == 0) return;
    throw ConfigError(
        str("cannot enter the folder ", quoted_path(run_->folder), ": ", std::strerror(errno)),
        {"the program runs in the folder of the same name on each host"});
  }

  void find_master() {
    if (run_->master_addr.empty()) {
      run_->master_addr = run_->peer.empty() ? "127.0.0.1" : address_on_the_way_to(run_->peer);
    }
    if (run_->master_port == 0 && !is_ipv4(run_->master_addr)) run_->master_port = kUsualPort;
  }

  // Torch's Gloo else takes the address of the host's name, which may be a loopback one.
  void find_interface() {
    constexpr const char* kName = "GLOO_SOCKET_IFNAME";
    const auto has_name = [](const auto& variable) { return variable.first == kName; };
    if (run_->hosts == 1 || std::getenv(kName) != nullptr ||
        std::ranges::any_of(run_->variables, has_name)) {
      return;
    }
    const std::string name =
        interface_on_the_way_to(run_->first_rank == 0 ? run_->peer : run_->master_addr);
    if (!name.empty()) run_->variables.emplace_back(kName, name);
  }

  void fail(const Error& error) {
    std::vector<std::string> texts = {std::to_string(static_cast<int>(error.exit_code())),
                                      error.message()};
    texts.insert(texts.end(), error.notes().begin(), error.notes().end());
    send(Verb::Failed, 0, encode_texts(texts));
    has_failed_ = true;
    exit_code_ = static_cast<int>(error.exit_code());
  }

  // --- From the ranks ---------------------------------------------------------------------------

  void follow_ranks() {
    ranks_->hear();
    if (waiting_.size() < kWaitingBytesMax) {
      for (std::size_t rank = 0; rank < seen_.ranks.size(); ++rank) pass_on_output(rank);
    }
    ranks_->bury();
    for (std::size_t rank = 0; rank < seen_.ranks.size(); ++rank) {
      if (!seen_.ranks[rank].ending || has_told_end_[rank]) continue;
      has_told_end_[rank] = true;
      pass_on_output(rank);  // What a child that goes on may still write is nobody's.
      send(Verb::Ended, rank, encode_ending(*seen_.ranks[rank].ending));
    }
  }

  void pass_on_output(std::size_t rank) {
    launch::Streams& streams = ranks_->streams(rank);
    pass_on(streams.output, Verb::Output, rank);
    pass_on(streams.errors, Verb::Errors, rank);
  }

  void pass_on(FileDescriptor& stream, Verb verb, std::size_t rank) {
    if (!stream) return;
    std::string bytes;
    if (!read_available(stream.get(), bytes)) stream.reset();
    if (!bytes.empty()) send(verb, rank, std::move(bytes));
  }

  // --- The end ----------------------------------------------------------------------------------

  void take_signals() {
    while (const auto signal = signals_.take()) {
      fail(CommError(str("the launcher on this host was ended by ", launch::signal_name(*signal))));
      leave();
    }
  }

  // The launcher is gone, or wants no more.
  void leave() {
    if (is_leaving_) return;
    is_leaving_ = true;
    leaving_ms_ = seen_.now_ms;
    if (has_ranks()) exit_code_ = static_cast<int>(ExitCode::PeerLost);
    for (std::size_t rank = 0; rank < seen_.ranks.size() && ranks_; ++rank) {
      ranks_->signal(rank, SIGTERM);
      ranks_->signal(rank, SIGCONT);
    }
  }

  void end_ranks() {
    if (!has_ranks()) return;
    if (seen_.now_ms - leaving_ms_ < static_cast<std::int64_t>(run_->grace_seconds * 1000)) return;
    ranks_->signal_all(SIGKILL, seen_.ranks.size());
  }

  const int input_;
  const int output_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  launch::SignalPipe signals_;
  std::string waiting_;  // Bytes to be written.
  FrameReader reader_;
  std::optional<HostRun> run_;
  launch::LaunchOptions options_;
  launch::Observation seen_;
  std::unique_ptr<launch::RankProcesses> ranks_;
  std::vector<char> states_;        // States by rank, as they were told.
  std::vector<bool> has_told_end_;  // Ranks whose end was told.
  std::int64_t heard_ms_ = 0;
  std::int64_t beat_ms_ = 0;
  std::int64_t leaving_ms_ = 0;
  bool is_leaving_ = false;
  bool has_failed_ = false;
  int exit_code_ = 0;
};

}  // namespace

int serve_host(int input, int output) { return HostAgent(input, output).run(); }

}  // namespace penstock::hosts
