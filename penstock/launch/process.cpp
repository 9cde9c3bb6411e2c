#include "penstock/launch/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>

#include "penstock/core/blocked_signals.h"
#include "penstock/core/error.h"
#include "penstock/core/pipe.h"
#include "penstock/core/process_stat.h"
#include "penstock/core/standard_streams.h"
#include "penstock/core/text.h"
#include "penstock/launch/program.h"

namespace penstock::launch {
namespace {

std::vector<char*> c_strings(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// All that the child needs, prepared before the fork: another thread may hold the allocator's lock.
struct ChildPlan {
  const char* path;
  char* const* arguments;
  char* const* environment;
  const std::vector<int>& inherited;
  int output;
  int errors;
  int input;
  int nowhere;     // Stands for an output that this process does not have.
  int error_pipe;  // Takes errno when exec fails; closes when it succeeds.
  pid_t parent;
};

// A handler of ours must not run in the child; an ignored signal stays ignored, as under nohup.
void reset_signal_handlers() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action{};
    if (::sigaction(signal, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_IGN || action.sa_handler == SIG_DFL) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal, &action, nullptr);
  }
}

// Async-signal-safe calls only.
[[noreturn]] void run_child(const ChildPlan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(127);  // The parent died before the line above.
  reset_signal_handlers();
  ::dup2(plan.input, STDIN_FILENO);
  if (plan.output >= 0) {
    ::dup2(plan.output, STDOUT_FILENO);
    ::dup2(plan.output, STDERR_FILENO);
  }
  if (plan.errors >= 0) ::dup2(plan.errors, STDERR_FILENO);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    if (!can_be_written(stream)) ::dup2(plan.nowhere, stream);
  }
  for (const int fd : plan.inherited) ::fcntl(fd, F_SETFD, 0);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(plan.path, plan.arguments, plan.environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(plan.error_pipe, &error, sizeof error);
  ::_exit(127);
}

// fork() with all signals blocked, so that none is handled in the child before run_child.
pid_t fork_quietly(const ChildPlan& plan) {
  const BlockedSignals blocked;
  const pid_t pid = ::fork();
  if (pid == 0) run_child(plan);
  return pid;
}

int read_error(int pipe) {
  int error = 0;
  ssize_t size = 0;
  do {
    size = ::read(pipe, &error, sizeof error);
  } while (size < 0 && errno == EINTR);
  return size == sizeof error ? error : 0;
}

[[noreturn]] void throw_cannot_start(const char* what) {
  throw ConfigError(str("cannot start a process: ", what, ": ", std::strerror(errno)),
                    {"the limits of this shell: ulimit -u (processes), ulimit -n (files)"});
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The files in which this process's cgroup counts kills: "0::/path" is version 2, "4:memory:/path"
// version 1.
std::vector<std::string> oom_counters() {
  std::vector<std::string> paths;
  for (const std::string& line : split(text_of("/proc/self/cgroup"), '\n')) {
    const std::vector<std::string> parts = split(line, ':');
    if (parts.size() != 3) continue;
    if (parts[1].empty()) paths.push_back("/sys/fs/cgroup" + parts[2] + "/memory.events");
    if (parts[1] == "memory") {
      paths.push_back("/sys/fs/cgroup/memory" + parts[2] + "/memory.oom_control");
    }
  }
  paths.push_back("/sys/fs/cgroup/memory.events");
  paths.push_back("/sys/fs/cgroup/memory/memory.oom_control");
  paths.push_back("/proc/vmstat");
  return paths;
}

}  // namespace

Process start_process(const ProcessOptions& options) {
  Pipe failure = make_pipe("start a process");
  const FileDescriptor null_input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const FileDescriptor nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const std::vector<char*> arguments = c_strings(options.arguments);
  const std::vector<char*> environment = c_strings(options.environment);
  const pid_t pid = fork_quietly({.path = options.path.c_str(),
                                  .arguments = arguments.data(),
                                  .environment = environment.data(),
                                  .inherited = options.inherited,
                                  .output = options.output,
                                  .errors = options.errors,
                                  .input = options.input < 0 ? null_input.get() : options.input,
                                  .nowhere = nowhere.get(),
                                  .error_pipe = failure.writing.get(),
                                  .parent = ::getpid()});
  if (pid < 0) throw_cannot_start("fork");
  ::setpgid(pid, pid);  // Called in the child, too: whoever comes first.
  failure.writing.reset();
  if (const int error = read_error(failure.reading.get()); error != 0) {
    reap(pid);
    throw exec_error(options.path, error);
  }
  // glibc 2.36 declares pidfd_open without extern "C".
  return {pid, FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))};
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? str("signal ", signal) : str("SIG", name);
}

std::string to_string(const Ending& ending) {
  return ending.kind == Ending::Kind::Exited ? str("exited ", ending.value)
                                             : signal_name(ending.value);
}

bool has_ended(pid_t pid) {
  siginfo_t info{};
  const int result = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
  return result == 0 ? info.si_pid == pid : errno == ECHILD;
}

Ending reap(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return {Ending::Kind::Exited, 127};  // Reaped by someone else.
  }
  if (WIFSIGNALED(status)) return {Ending::Kind::Signalled, WTERMSIG(status)};
  return {Ending::Kind::Exited, WEXITSTATUS(status)};
}

void signal_group(pid_t pid, int signal) {
  ::kill(-pid, signal);
  if (::getpgid(pid) != pid) ::kill(pid, signal);  // It has moved to a group of its own choice.
}

char process_state(std::int64_t pid) {
  const auto stat = process_stat(pid);
  return stat ? stat->state : '?';
}

std::string describe_process_state(char state) {
  switch (state) {
    case 'T':
      return "is stopped by SIGSTOP";
    case 't':
      return "is held by a debugger";
    case 'D':
      return "waits in the kernel for a disk or a device";
    case 'R':
      return "is running";
    case 'S':
      return "sleeps";
    case 'Z':
    case 'X':
      return "is ending";
    default:
      return "is in an unknown state";
  }
}

std::optional<std::int64_t> oom_kills() {
  for (const std::string& path : oom_counters()) {
    if (const auto kills = parse_oom_kills(text_of(path))) return kills;
  }
  return std::nullopt;
}

std::optional<std::int64_t> parse_oom_kills(std::string_view text) {
  for (const std::string& line : split(text, '\n')) {
    const std::vector<std::string> words = split(trim(line), ' ');
    if (words.size() == 2 && words[0] == "oom_kill") return parse_integer(words[1]);
  }
  return std::nullopt;
}

}  // namespace penstock::launch
