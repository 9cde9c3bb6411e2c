#include "penstock/launch/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/process_stat.h"
#include "penstock/core/text.h"

namespace penstock::launch {
namespace {

namespace fs = std::filesystem;

constexpr int kBacklog = 1024;  // Every rank connects at once.
constexpr int kLooks = 5;       // Tables that change while they are read may lack a line.

sockaddr_in address_of(const std::string& host, std::uint16_t port) {
  check_single_address(host);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    throw ConfigError(str("host \"", host, "\": must be an IPv4 address, like 127.0.0.1"));
  }
  return address;
}

[[noreturn]] void throw_taken(const std::string& host, std::uint16_t port) {
  const auto holder = holder_of_port(port);
  const std::string who =
      holder ? str("process ", holder->pid, " (", holder->name, ")") : "another process";
  throw ConfigError(str("master port ", port, " on ", host, " is taken by ", who),
                    {"choose another port, or none: a free one is picked then"});
}

[[noreturn]] void throw_refused(const std::string& host, std::uint16_t port, int error) {
  if (error == EADDRINUSE && port != 0) throw_taken(host, port);
  std::vector<std::string> notes;
  if (error == EACCES) notes.push_back("ports below 1024 need privileges; use 1024 to 65535");
  if (error == EADDRNOTAVAIL) notes.push_back("no interface of this machine has that address");
  throw ConfigError(str("cannot bind master port ", port, " on ", host, ": ", std::strerror(error)),
                    std::move(notes));
}

// The inodes of the sockets that listen on `port`, from a table like /proc/net/tcp.
void add_listening_inodes(const char* table, std::uint16_t port, std::vector<std::string>& inodes) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // Column names.
  while (std::getline(file, line)) {
    std::istringstream columns(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    columns >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
        timeout >> inode;
    const std::size_t colon = local.rfind(':');
    if (state != "0A" || colon == std::string::npos || inode.empty()) continue;
    if (std::strtoul(local.c_str() + colon + 1, nullptr, 16) == port) inodes.push_back(inode);
  }
}

bool holds_one(const fs::path& process, const std::vector<std::string>& inodes) {
  std::error_code error;
  for (const auto& fd : fs::directory_iterator(process / "fd", error)) {
    const std::string target = fs::read_symlink(fd.path(), error).string();
    const auto is_target = [&](const std::string& inode) {
      return target == str("socket:[", inode, "]");
    };
    if (std::any_of(inodes.begin(), inodes.end(), is_target)) return true;
  }
  return false;
}

std::optional<PortHolder> look_for_holder(std::uint16_t port) {
  std::vector<std::string> inodes;
  add_listening_inodes("/proc/net/tcp", port, inodes);
  add_listening_inodes("/proc/net/tcp6", port, inodes);
  if (inodes.empty()) return std::nullopt;
  std::error_code error;
  std::optional<PortHolder> oldest;
  std::int64_t began = 0;
  for (const auto& process : fs::directory_iterator("/proc", error)) {
    const auto pid = parse_integer(process.path().filename().string());
    if (!pid || !holds_one(process.path(), inodes)) continue;
    const std::optional<ProcessStat> stat = process_stat(*pid);
    const std::int64_t begins = stat ? parse_integer(stat->start).value_or(0) : 0;
    if (!stat || (oldest && began <= begins)) continue;
    oldest = PortHolder{*pid, ""};
    began = begins;
    std::ifstream comm(process.path() / "comm");
    std::getline(comm, oldest->name);
  }
  return oldest;
}

}  // namespace

void check_single_address(const std::string& host) {
  if (host != "0.0.0.0" && host != "::" && host != "*") return;
  throw ConfigError(
      str("host ", in_quotes(host),
          " stands for every address of this machine: ranks need one at which they "
          "reach each other"),
      {"`hostname -I` prints the addresses that it has; 127.0.0.1 is for this machine "
       "alone"});
}

Port reserve_port(const std::string& host, std::uint16_t port) {
  const sockaddr_in wanted = address_of(host, port);
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;  // Connections of an earlier run in TIME_WAIT do not count as taken.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&wanted), sizeof wanted) != 0) {
    throw_refused(host, port, errno);
  }
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  return {ntohs(bound.sin_port), std::move(socket)};
}

Port listen_on(const std::string& host, std::uint16_t port) {
  Port reserved = reserve_port(host, port);
  if (::listen(reserved.socket.get(), kBacklog) != 0) {
    throw_refused(host, reserved.number, errno);
  }
  return reserved;
}

std::optional<PortHolder> holder_of_port(std::uint16_t port) {
  for (int look = 0; look < kLooks; ++look) {
    if (auto holder = look_for_holder(port)) return holder;
  }
  return std::nullopt;
}

}  // namespace penstock::launch
