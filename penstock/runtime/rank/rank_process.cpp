#include "penstock/rank/rank_process.h"

#include <cstdint>
#include <filesystem>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/port.h"
#include "penstock/launch/rank_environment.h"
#include "penstock/runtime/comm/connect.h"
#include "penstock/runtime/comm/own_address.h"
#include "penstock/runtime/rank/process_presence.h"

namespace penstock::rank {
namespace {

using launch::LauncherKind;

// Tells starts apart: a restarted or requeued job keeps its id.  What the last start left in a
// store or a rendezvous file is not for this one.
std::string restart_count() { return launch::restart_count(launch::process_variable); }

// The socket of rank 0's store; -1: c10d makes its own.  That one listens on every address of this
// host, so it is taken only where others may know this host by any of them.
int store_socket(const std::string& address, std::uint16_t port) {
  if (const auto socket = launch::process_variable("PENSTOCK_STORE_FD")) {
    return static_cast<int>(parse_integer(*socket).value_or(-1));
  }
  const bool is_ipv4 = !address.empty() && address.find(':') == std::string::npos;
  return is_ipv4 ? launch::listen_on(address, port).socket.release() : -1;
}

// The file where ranks meet without a store.
std::string meeting_file(const launch::LauncherEnvironment& self, const std::string& folder) {
  if (!folder.empty()) return str(folder, "/rendezvous-", self.job_id, "-", restart_count());
  if (self.world_size == 1) {
    return std::filesystem::temp_directory_path() / str("rendezvous-", launch::make_job_id());
  }
  throw ConfigError(str("rank ", self.rank, " of ", self.world_size, ", started by ",
                        name_of(self.kind), ": nothing says where the ranks meet"),
                    {"set MASTER_ADDR and MASTER_PORT, or give ProcessOptions::folder"});
}

// Time to wait for the store's first word.  Under our own launcher, and with torchrun's store, the
// port is open before rank 0 runs.
std::chrono::milliseconds patience_for_first_word(const launch::LauncherEnvironment& self) {
  const bool is_open_before = self.kind == LauncherKind::Own || self.agent_store;
  return is_open_before ? std::chrono::seconds(0) : std::chrono::seconds(15);
}

comm::Rendezvous rendezvous_of(const launch::LauncherEnvironment& self,
                               const ProcessOptions& options) {
  launch::check_single_address(options.host);
  comm::Rendezvous rendezvous{.kind = comm::Rendezvous::Kind::Client,
                              .host = self.master_addr,
                              .port = self.master_port.value_or(0),
                              .prefix = str(self.job_id, " ", restart_count()),
                              .rank = self.rank,
                              .world_size = self.world_size,
                              .listen = options.host,
                              .transport = options.transport,
                              .device = options.device};
  if (self.kind == LauncherKind::Nobody || !self.master_port) {
    rendezvous.kind = comm::Rendezvous::Kind::File;
    rendezvous.path = meeting_file(self, options.folder);
  } else if (self.rank.value == 0 && !self.agent_store) {
    rendezvous.kind = comm::Rendezvous::Kind::Server;
    rendezvous.socket = store_socket(
        options.host.empty() ? comm::own_address_named(self.master_addr) : options.host,
        rendezvous.port);
  }
  return rendezvous;
}

}  // namespace

std::unique_ptr<comm::Communicator> connect_process(const ProcessOptions& options,
                                                    std::chrono::milliseconds deadline) {
  return connect_process(launch::from_process_environment(), options, deadline);
}

std::unique_ptr<comm::Communicator> connect_process(const launch::LauncherEnvironment& self,
                                                    const ProcessOptions& options,
                                                    std::chrono::milliseconds deadline) {
  Presence::begin(Program::OfUser).set_phase("meeting the other ranks");
  return comm::connect(rendezvous_of(self, options), deadline, patience_for_first_word(self));
}

}  // namespace penstock::rank
