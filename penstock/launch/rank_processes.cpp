#include "penstock/launch/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/pipe.h"
#include "penstock/core/text.h"
#include "penstock/launch/port.h"
#include "penstock/launch/program.h"

namespace penstock::launch {
namespace {

constexpr int kTickMs = 100;
constexpr int kTickWithoutPidfdMs = 20;
// Messages of one rank that are read in a tick: none keeps the others from being heard.
constexpr int kMessagesPerTick = 64;

FileDescriptor open_log(const std::string& directory, int rank) {
  if (directory.empty()) return {};
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  const std::string path = str(directory, "/rank-", rank, ".log");
  FileDescriptor log(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!log) throw ConfigError(str("cannot write ", path, ": ", std::strerror(errno)));
  return log;
}

struct Channel {
  FileDescriptor launcher_end;
  FileDescriptor rank_end;
};

Channel make_channel() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw ConfigError(str("cannot start a rank: socketpair: ", std::strerror(errno)),
                      {"the limit of open files: ulimit -n"});
  }
  name_senders(ends[0]);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// The rank has the end for writing.
Pipe make_output() {
  Pipe pipe = make_pipe("start a rank");
  make_nonblocking(pipe.reading.get());
  return pipe;
}

Port make_port(const LaunchOptions& options) {
  const bool has_rank_0 = options.first_rank == 0;
  if (!has_rank_0) return {.number = options.master_port};
  if (options.store_socket == StoreSocket::Launcher) {
    return listen_on(options.host, options.master_port);
  }
  Port port = reserve_port(options.host, options.master_port);
  port.socket.reset();
  return port;
}

}  // namespace

RankProcesses::RankProcesses(const LaunchOptions& options, Observation& seen, Overhear overhear)
    : options_(options),
      seen_(seen),
      overhear_(std::move(overhear)),
      inherited_(process_environment()) {}

RankProcesses::~RankProcesses() {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (alive(rank)) kill_and_reap(rank);
  }
}

void RankProcesses::start_all() {
  const char* path = std::getenv("PATH");
  const std::string program = resolve_program(options_.program[0], path == nullptr ? "" : path);
  const Port port = make_port(options_);
  master_port_ = port.number;
  RankVariables shared{.master_port = port.number,
                       .job_id = options_.job_id.empty() ? make_job_id() : options_.job_id};
  if (port.socket) shared.store_fd = port.socket.get();
  for (int rank = 0; rank < options_.nproc; ++rank) {
    start(program, rank, shared);
    shared.store_fd.reset();  // Rank 0's only.
  }
}

void RankProcesses::start(const std::string& program, int rank, const RankVariables& shared) {
  Channel channel = make_channel();
  const FileDescriptor log = open_log(options_.log_dir, options_.first_rank + rank);
  Pipe output, errors;
  if (options_.streams == RankStreams::Piped && !log) {
    output = make_output();
    errors = make_output();
  }
  RankVariables own = shared;
  own.local_rank = rank;
  own.control_fd = channel.rank_end.get();
  ProcessOptions process{.path = program,
                         .arguments = options_.program,
                         .environment = rank_environment(inherited_, options_, own),
                         .inherited = {own.control_fd},
                         .output = output.writing ? output.writing.get() : log.get(),
                         .errors = errors.writing.get()};
  if (options_.local_rank_word) {
    const auto place = static_cast<std::ptrdiff_t>(*options_.local_rank_word);
    process.arguments.insert(process.arguments.begin() + place, str("--local_rank=", rank));
  }
  if (own.store_fd) process.inherited.push_back(*own.store_fd);
  processes_.push_back(start_process(process));
  guard_.watch(processes_.back().pid);
  channels_.push_back(std::move(channel.launcher_end));
  speakers_.emplace_back();
  streams_.push_back({std::move(output.reading), std::move(errors.reading)});
  seen_.ranks.emplace_back();
  seen_.ranks.back().pid = processes_.back().pid;
  ++alive_count_;
}

void RankProcesses::wait(std::vector<pollfd> others) const {
  std::vector<pollfd> wanted = std::move(others);
  int timeout_ms = kTickMs;
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (channels_[rank]) wanted.push_back({channels_[rank].get(), POLLIN, 0});
    if (speakers_[rank].descriptor() >= 0) {
      wanted.push_back({speakers_[rank].descriptor(), POLLIN, 0});
    }
    if (processes_[rank].pidfd) {
      wanted.push_back({processes_[rank].pidfd.get(), POLLIN, 0});
    } else if (alive(rank)) {
      timeout_ms = kTickWithoutPidfdMs;
    }
  }
  ::poll(wanted.data(), wanted.size(), timeout_ms);
}

void RankProcesses::hear() {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) hear_one(rank);
}

void RankProcesses::hear_one(std::size_t rank) {
  RankRecord& record = seen_.ranks[rank];
  Speaker& speaker = speakers_[rank];
  const bool had_channel = static_cast<bool>(channels_[rank]);
  bool is_all_said = speaker.has_ended();
  for (int i = 0; i < kMessagesPerTick && channels_[rank]; ++i) {
    const auto spoken = receive(channels_[rank].get(), kMessageBytesMax);
    if (!spoken) break;
    if (spoken->line.empty()) {
      channels_[rank].reset();
      is_all_said = true;
      break;
    }
    if (spoken->pid != processes_[rank].pid && spoken->pid > 0) speaker.is(spoken->pid);
    enter(rank, spoken->line);
  }
  if (record.said_bye) speaker.forget();
  if (is_all_said && speaker.has_ended()) {
    speaker.forget();
    enter(rank, encode(RankMessage(Gone{})));
  } else if (had_channel && !channels_[rank] && !record.takes_stop) {
    enter(rank, encode(RankMessage(Bye{})));  // A program of a user's own has become another one.
  }
}

void RankProcesses::enter(std::size_t rank, std::string_view line) {
  if (overhear_) overhear_(rank, line);
  RankRecord& record = seen_.ranks[rank];
  if (const auto message = parse_rank_message(line)) {
    enter_message(record, *message, seen_.now_ms);
  } else {
    ++record.unreadable;
  }
}

void RankProcesses::bury() {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (!alive(rank) || !has_ended(processes_[rank].pid)) continue;
    hear();                    // Whatever was said before this death is older than it.
    speakers_[rank].forget();  // It ends with the rank, if it has not.
    seen_.ranks[rank].ending = kill_and_reap(rank);
    seen_.ranks[rank].ending_ms = seen_.now_ms;
    --alive_count_;
  }
}

// The group first, while its number still cannot be another's.
Ending RankProcesses::kill_and_reap(std::size_t rank) {
  Process& process = processes_[rank];
  signal_group(process.pid, SIGKILL);
  guard_.forget(process.pid);
  process.pidfd.reset();
  return reap(process.pid);
}

void RankProcesses::send(std::size_t rank, const LauncherMessage& message) {
  if (!channels_[rank]) return;
  const std::string line = encode(message);
  ::send(channels_[rank].get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void RankProcesses::signal(std::size_t rank, int number) {
  if (alive(rank)) signal_group(processes_[rank].pid, number);
}

std::vector<std::string> RankProcesses::abandon() {
  std::vector<std::string> notes;
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (!alive(rank)) continue;
    const pid_t pid = processes_[rank].pid;
    notes.push_back(str("rank ", rank, " (process ", pid, ") ",
                        describe_process_state(process_state(pid)),
                        " and does not end by SIGKILL; it is left behind"));
    seen_.ranks[rank].ending = Ending{Ending::Kind::Signalled, SIGKILL};
    --alive_count_;
  }
  return notes;
}

}  // namespace penstock::launch
