// Two network namespaces whose only way to each other takes a while: a small proxy holds every
// packet back.
//
// For two ranks on one machine as if on two.  Packets may be as large as a message, so that one
// delay is all that TCP adds.  Needs the right to make namespaces and network devices (root).
#pragma once
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

namespace penstock::bench {

class DelayedNetwork {
 public:
  // Throws: std::runtime_error where the machine does not let it.
  explicit DelayedNetwork(std::chrono::microseconds delay) : delay_(delay) {
    const int home = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      check(::unshare(CLONE_NEWNET), "a network namespace");
      spaces_[rank] = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
      devices_[rank] = make_device(address(static_cast<int>(rank)));
    }
    check(::setns(home, CLONE_NEWNET), "the way back");
    ::close(home);
    proxy_ = ::fork();
    if (proxy_ == 0) forward();
  }
  ~DelayedNetwork() {
    ::kill(proxy_, SIGKILL);
    ::waitpid(proxy_, nullptr, 0);
  }
  DelayedNetwork(const DelayedNetwork&) = delete;
  DelayedNetwork& operator=(const DelayedNetwork&) = delete;

  static std::string address(int rank) { return rank == 0 ? "10.77.0.1" : "10.77.0.2"; }

  // Makes the calling thread, and those that it starts, part of a rank's namespace.
  void enter(int rank) const {
    check(::setns(spaces_[static_cast<std::size_t>(rank)], CLONE_NEWNET), "a rank's namespace");
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kLargestPacket = 65535;

  struct Packet {
    Clock::time_point due;
    std::vector<char> bytes;
  };

  static void check(int result, const char* what) {
    if (result < 0) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
  }

  static int make_device(const std::string& address) {
    const int device = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    check(device, "/dev/net/tun");
    ifreq request{};
    std::strcpy(request.ifr_name, "hop");
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    check(::ioctl(device, TUNSETIFF, &request), "a network device");
    const int control = ::socket(AF_INET, SOCK_DGRAM, 0);
    const auto set_address = [&](unsigned long what, const std::string& text) {
      auto* in = reinterpret_cast<sockaddr_in*>(&request.ifr_addr);
      *in = {};
      in->sin_family = AF_INET;
      ::inet_pton(AF_INET, text.c_str(), &in->sin_addr);
      check(::ioctl(control, what, &request), "its address");
    };
    set_address(SIOCSIFADDR, address);
    set_address(SIOCSIFNETMASK, "255.255.255.0");
    request.ifr_mtu = kLargestPacket;
    check(::ioctl(control, SIOCSIFMTU, &request), "its packet size");
    for (const char* name : {"hop", "lo"}) {
      std::strcpy(request.ifr_name, name);
      request.ifr_flags = IFF_UP | IFF_RUNNING;
      check(::ioctl(control, SIOCSIFFLAGS, &request), "its start");
    }
    ::close(control);
    return device;
  }

  // The proxy's process.
  [[noreturn]] void forward() {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::array<std::deque<Packet>, 2> on_the_way;  // Packets from each rank.
    std::vector<char> buffer(kLargestPacket);
    while (true) {
      auto next = Clock::time_point::max();
      for (const auto& packets : on_the_way) {
        if (!packets.empty()) next = std::min(next, packets.front().due);
      }
      const auto left = std::max(next - Clock::now(), Clock::duration::zero());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      const timespec patience{.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
      std::array<pollfd, 2> polled = {pollfd{devices_[0], POLLIN, 0},
                                      pollfd{devices_[1], POLLIN, 0}};
      const bool waits = next == Clock::time_point::max();
      if (::ppoll(polled.data(), 2, waits ? nullptr : &patience, nullptr) < 0) ::_exit(1);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        if ((polled[rank].revents & POLLIN) != 0) {
          const auto size = ::read(devices_[rank], buffer.data(), buffer.size());
          if (size > 0) {
            on_the_way[rank].push_back(
                {Clock::now() + delay_, {buffer.begin(), buffer.begin() + size}});
          }
        }
        auto& packets = on_the_way[rank];
        for (; !packets.empty() && packets.front().due <= Clock::now(); packets.pop_front()) {
          const auto& bytes = packets.front().bytes;
          if (::write(devices_[1 - rank], bytes.data(), bytes.size()) < 0) break;
        }
      }
    }
  }

  std::chrono::microseconds delay_;
  std::array<int, 2> spaces_{};
  std::array<int, 2> devices_{};
  pid_t proxy_ = -1;
};

}  // namespace penstock::bench
