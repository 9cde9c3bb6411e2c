// The ranks of a run on several hosts, for launch::watch(): a connection to each host, and what is
// heard over it entered as if the ranks were this process's own.
//
// run_on_hosts.h makes one.  Starts ranks once every host has answered; host 0 chooses the port at
// which ranks meet.  A host that does not answer, is silent or is gone is a loss(), which names it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/output.h"
#include "penstock/launch/hosts/connection.h"
#include "penstock/launch/hosts/rank_places.h"
#include "penstock/launch/hosts/whole_lines.h"
#include "penstock/launch/ranks.h"

namespace penstock::hosts {

struct RemoteOptions {
  double connect_seconds = 60;
  double heartbeat_seconds = 30;
  std::string job;  // What is asked for where a host cannot be reached: "ssh worker-1".
};

class RemoteRanks : public launch::Ranks {
 public:
  // `hosts` in the order of their ranks.  All must outlive this.
  RemoteRanks(const std::vector<RemoteHost>& hosts, const RemoteOptions& options,
              launch::Observation& seen, Output& output, Output& errors);
  ~RemoteRanks() override;  // Has all hosts end, and waits for it, but not for long.

  void start_all() override;
  std::size_t alive_count() const override;
  bool alive(std::size_t rank) const override { return !seen_.ranks[rank].ending; }
  void wait(std::vector<pollfd> others) const override;
  void hear() override;
  void bury() override {}  // Endings come as messages.
  void send(std::size_t rank, const launch::LauncherMessage& message) override;
  void signal(std::size_t rank, int number) override;
  std::vector<std::string> abandon() override;
  std::optional<launch::Verdict> loss() const override { return loss_; }
  std::string host_of(std::size_t rank) const override {
    return hosts_[places_.host_of(rank)].name;
  }
  std::int64_t settle_ms() const override { return 1000; }

 private:
  struct Link {
    std::unique_ptr<Connection> connection;
    bool is_told = false;  // What to run.
    bool is_lost = false;
    std::int64_t heard_ms = 0;
    std::optional<std::int64_t> ended_ms{};  // Time at which its process ended.
    std::optional<std::int64_t> over_ms{};   // Time at which its output ended.
  };

  void serve(std::size_t host);
  void check(std::size_t host);
  void check_greeting(std::size_t host);
  void begin_when_all_are_there();
  void tell(std::size_t host);
  void take(std::size_t host, const Frame& frame);
  void take_rank_frame(std::size_t rank, const Frame& frame);
  void take_port(const std::string& body);
  void lose(std::size_t host, launch::Verdict verdict);
  void end_rank(std::size_t rank, const launch::Ending& ending);
  bool has_alive(std::size_t host) const;

  const std::vector<RemoteHost>& hosts_;
  const RankPlaces places_;
  const RemoteOptions& options_;
  launch::Observation& seen_;
  WholeLines output_;  // Output of the ranks.
  WholeLines errors_;
  std::vector<Link> links_;  // Links by host.
  std::string master_addr_;
  std::uint16_t master_port_ = 0;
  std::int64_t beat_ms_ = 0;
  std::optional<launch::Verdict> loss_;
};

}  // namespace penstock::hosts
