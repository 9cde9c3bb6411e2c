// Gloo: links of two ranks each, where a run asks for them.
//
// World makes them, over any c10d store.  Each is a process group of its own, so that sockets exist
// only between ranks that talk.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "penstock/runtime/comm/links.h"

namespace penstock::comm {

using Backend = c10::intrusive_ptr<c10d::Backend>;

// Makes process groups of this rank.
class GlooConnector {
 public:
  // `listen`: the name or address of this host that its sockets listen on.
  GlooConnector(c10::intrusive_ptr<c10d::Store> store, Rank rank, const std::string& listen);
  ~GlooConnector();

  // Meets the other members, who call it with the same name and size, each with an index of its
  // own. Throws: CommError, naming `peers`, after the rules' deadline.
  Backend connect(const std::string& name, int index, int size, const std::string& peers,
                  const WaitRules& rules);
  // A link to `peer`, who calls it too.
  std::unique_ptr<Link> link(Rank peer, WaitRules& rules);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Starts `post` and wraps its work, which is about `tensor`.  `operation` outlives the transfer.
// Throws: CommError.
std::unique_ptr<Transfer> start_gloo(const Operation& operation, const at::Tensor& tensor,
                                     std::optional<std::int32_t> tag, WaitRules& rules,
                                     const std::function<c10::intrusive_ptr<c10d::Work>()>& post);

// The first line of what c10d or Gloo threw, without backtrace, place in their source or advice.
std::string reason(const std::exception& error);

}  // namespace penstock::comm
