#include "penstock/launch/hosts/remote_ranks.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"

namespace penstock::hosts {
namespace {

using launch::Ending;
using launch::Verdict;

// Time from the end of a connection's output to its exit code.
constexpr std::int64_t kExitMs = 2000;
constexpr std::chrono::seconds kFarewell{5};  // Hosts end their ranks meanwhile.

Verdict verdict_of(const std::string& cause, ExitCode code, std::vector<std::string> notes = {}) {
  return {.root_cause = cause, .notes = std::move(notes), .exit_code = static_cast<int>(code)};
}

std::string behind_colon(const std::string& words) { return words.empty() ? "" : ": " + words; }

std::string seconds_text(double seconds) { return str(shortest(seconds), " s"); }

}  // namespace

RemoteRanks::RemoteRanks(const std::vector<RemoteHost>& hosts, const RemoteOptions& options,
                         launch::Observation& seen, Output& output, Output& errors)
    : hosts_(hosts),
      places_(hosts),
      options_(options),
      seen_(seen),
      output_(output, static_cast<std::size_t>(hosts[0].run.world_size)),
      errors_(errors, static_cast<std::size_t>(hosts[0].run.world_size)),
      links_(hosts.size()) {}

RemoteRanks::~RemoteRanks() {
  for (Link& link : links_) {
    if (!link.connection) continue;
    link.connection->send({.verb = Verb::End});
    link.connection->pump();
    link.connection->close_input();
  }
  const auto end = std::chrono::steady_clock::now() + kFarewell;
  const auto goes_on = [](Link& link) { return link.connection && !link.connection->ending(); };
  while (std::ranges::any_of(links_, goes_on) && std::chrono::steady_clock::now() < end) {
    wait({});
    for (Link& link : links_) {
      if (link.connection) link.connection->pump();
    }
  }
}

void RemoteRanks::start_all() {
  seen_.ranks.resize(static_cast<std::size_t>(hosts_[0].run.world_size));
  for (launch::RankRecord& rank : seen_.ranks) rank.was_started = false;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    links_[host].connection = std::make_unique<Connection>(hosts_[host].command);
  }
}

std::size_t RemoteRanks::alive_count() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(seen_.ranks, [](const auto& rank) { return !rank.ending; }));
}

void RemoteRanks::wait(std::vector<pollfd> others) const {
  for (const Link& link : links_) {
    if (link.connection) link.connection->add_to(others);
  }
  ::poll(others.data(), others.size(), kTickMs);
}

void RemoteRanks::hear() {
  const bool is_beat = seen_.now_ms - beat_ms_ >= kBeatMs;
  if (is_beat) beat_ms_ = seen_.now_ms;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    if (is_beat && links_[host].is_told) links_[host].connection->send({.verb = Verb::Alive});
    serve(host);
    if (!links_[host].is_lost) check(host);
  }
  if (!loss_) begin_when_all_are_there();
}

void RemoteRanks::serve(std::size_t host) {
  Link& link = links_[host];
  link.connection->pump();
  if (link.connection->has_heard()) link.heard_ms = seen_.now_ms;
  while (const auto frame = link.connection->next()) take(host, *frame);
  if (!link.ended_ms && link.connection->ending()) link.ended_ms = seen_.now_ms;
  // What it leaves behind may hold its output open.
  const bool has_left = link.ended_ms && seen_.now_ms - *link.ended_ms > kExitMs;
  if ((has_left || link.connection->is_over()) && !link.over_ms) link.over_ms = seen_.now_ms;
}

// Whether it is gone, silent, or another version's.
void RemoteRanks::check(std::size_t host) {
  Link& link = links_[host];
  if (!has_alive(host)) return;
  const std::string where = str("host ", hosts_[host].name);
  if (link.over_ms) {
    const auto ending = link.connection->ending();
    if (!ending && seen_.now_ms - *link.over_ms < kExitMs) return;
    const std::string how = str(hosts_[host].command[0], " ", ending ? to_string(*ending) : "hangs",
                                behind_colon(link.connection->last_words()));
    if (!link.is_told) {
      const bool has_greeted = link.connection->greeting().has_value();
      return lose(
          host, verdict_of(str("cannot start penstock on ", where, ": ", how), ExitCode::Usage,
                           has_greeted ? std::vector<std::string>{}
                                       : std::vector<std::string>{
                                             str("this must work, and ask nothing: ", options_.job,
                                                 hosts_[host].name, " true")}));
    }
    return lose(host, verdict_of(str("the connection to ", where, ", with ", places_.text(host),
                                     ", ended: ", how),
                                 ExitCode::PeerLost));
  }
  if (!link.connection->greeting()) {
    if (static_cast<double>(seen_.now_ms) < options_.connect_seconds * 1000) return;
    return lose(host, verdict_of(str(where, " has not answered within ",
                                     seconds_text(options_.connect_seconds),
                                     behind_colon(link.connection->last_words())),
                                 ExitCode::Usage));
  }
  check_greeting(host);
  if (static_cast<double>(seen_.now_ms - link.heard_ms) < options_.heartbeat_seconds * 1000) return;
  lose(host, verdict_of(str(where, ", with ", places_.text(host), ", stopped answering for ",
                            seconds_text(options_.heartbeat_seconds)),
                        ExitCode::Hang));
}

void RemoteRanks::check_greeting(std::size_t host) {
  const std::vector<std::string>& words = *links_[host].connection->greeting();
  if (links_[host].is_told || (words.size() == 2 && words[0] == kVersion)) return;
  lose(host, verdict_of(str("host ", hosts_[host].name, " has penstock ", words[0],
                            ", and this host has ", kVersion),
                        ExitCode::Usage, {"--penstock PATH names the program on all hosts"}));
}

// Host 0 first: it has the port.
void RemoteRanks::begin_when_all_are_there() {
  const auto is_there = [](const Link& link) {
    return link.connection->greeting() && !link.is_lost;
  };
  if (links_[0].is_told || !std::ranges::all_of(links_, is_there) || !has_alive(0)) return;
  tell(0);
}

void RemoteRanks::tell(std::size_t host) {
  HostRun run = hosts_[host].run;
  if (host > 0) {
    run.master_addr = master_addr_;
    run.master_port = master_port_;
  } else if (hosts_.size() > 1) {
    const std::string& address = links_[1].connection->greeting()->back();
    run.peer = address == "-" ? hosts_[1].name : address;
  }
  links_[host].connection->send({.verb = Verb::Start, .body = encode(run)});
  links_[host].is_told = true;
}

void RemoteRanks::take(std::size_t host, const Frame& frame) {
  if (frame.verb == Verb::Failed) {
    std::vector<std::string> texts = decode_texts(frame.body);
    const auto code = texts.empty() ? std::nullopt : parse_integer(texts[0]);
    if (!code || *code < 1 || *code > 255 || texts.size() < 2) return;
    const std::string cause = str("host ", hosts_[host].name, ": ", launch::printable(texts[1]));
    texts.erase(texts.begin(), texts.begin() + 2);
    for (std::string& note : texts) note = launch::printable(note);
    lose(host, {.root_cause = cause, .notes = texts, .exit_code = static_cast<int>(*code)});
  } else if (frame.verb == Verb::Port && host == 0 && master_addr_.empty()) {
    take_port(frame.body);
  } else if (frame.rank < hosts_[host].run.nproc) {
    take_rank_frame(places_.first_rank(host) + static_cast<std::size_t>(frame.rank), frame);
  }
}

void RemoteRanks::take_port(const std::string& body) {
  const auto words = split(body, ' ');
  const auto port = words.size() == 2 ? parse_integer(words[1]) : std::nullopt;
  if (!port || *port < 1 || *port > 65535) return;
  master_addr_ = words[0];
  master_port_ = static_cast<std::uint16_t>(*port);
  for (std::size_t host = 1; host < hosts_.size(); ++host) {
    if (!links_[host].is_lost && has_alive(host)) tell(host);
  }
}

void RemoteRanks::take_rank_frame(std::size_t rank, const Frame& frame) {
  launch::RankRecord& record = seen_.ranks[rank];
  if (frame.verb == Verb::Output) {
    output_.write(rank, frame.body);
  } else if (frame.verb == Verb::Errors) {
    errors_.write(rank, frame.body);
  } else if (frame.verb == Verb::Started) {
    record.was_started = true;
    record.pid = parse_integer(frame.body).value_or(0);
    record.state = '?';
  } else if (frame.verb == Verb::State && frame.body.size() == 1) {
    record.state = frame.body[0];
  } else if (frame.verb == Verb::Ended) {
    if (const auto ending = parse_ending(frame.body)) end_rank(rank, *ending);
  } else if (frame.verb == Verb::Said) {
    if (const auto message = launch::parse_rank_message(frame.body)) {
      enter_message(record, *message, seen_.now_ms);
    } else {
      ++record.unreadable;
    }
  }
}

void RemoteRanks::end_rank(std::size_t rank, const Ending& ending) {
  launch::RankRecord& record = seen_.ranks[rank];
  if (record.ending) return;
  output_.end(rank);
  errors_.end(rank);
  record.ending = ending;
  record.ending_ms = seen_.now_ms;
}

void RemoteRanks::lose(std::size_t host, Verdict verdict) {
  Link& link = links_[host];
  if (link.is_lost) return;
  link.is_lost = true;
  link.connection->send({.verb = Verb::End});
  link.connection->pump();
  link.connection->close_input();  // Whatever is left there ends.
  for (std::size_t rank = places_.first_rank(host); rank < places_.end_rank(host); ++rank) {
    end_rank(rank, {Ending::Kind::Signalled, SIGKILL});
  }
  if (!loss_) loss_ = std::move(verdict);
}

void RemoteRanks::send(std::size_t rank, const launch::LauncherMessage& message) {
  const std::size_t host = places_.host_of(rank);
  if (!alive(rank) || !links_[host].is_told) return;
  links_[host].connection->send(
      {.verb = Verb::Message, .rank = places_.local_rank(rank), .body = launch::encode(message)});
}

// A rank that has not been started never is.
void RemoteRanks::signal(std::size_t rank, int number) {
  if (!alive(rank)) return;
  const std::size_t host = places_.host_of(rank);
  if (!links_[host].is_told) {
    if (number != SIGCONT) end_rank(rank, {Ending::Kind::Signalled, number});
    return;
  }
  links_[host].connection->send(
      {.verb = Verb::Signal, .rank = places_.local_rank(rank), .body = std::to_string(number)});
}

std::vector<std::string> RemoteRanks::abandon() {
  std::vector<std::string> notes;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    if (!has_alive(host)) continue;
    notes.push_back(str("host ", hosts_[host].name, " does not say that ", places_.text(host),
                        " ended; the connection is cut, by which they end"));
    lose(host, {});
  }
  return notes;
}

bool RemoteRanks::has_alive(std::size_t host) const {
  for (std::size_t rank = places_.first_rank(host); rank < places_.end_rank(host); ++rank) {
    if (alive(rank)) return true;
  }
  return false;
}

}  // namespace penstock::hosts
