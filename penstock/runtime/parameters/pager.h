// Brings a page when an operator reads one of its parameters: ZeRO 3 by demand.
//
// A thread-local observer of torch's operators (at::RecordFunction) sees the inputs of each before
// it runs.  Between begin_compute() and end_compute() a page that is away is gathered then, as
// paging/ decides, and others are dropped; so nothing has to say beforehand which parameters a
// layer uses, in a forward, a backward or a recomputation.  Elsewhere such a read is an error, and
// never a collective: the reader gets NaN, and check() says whose values it wanted.
// Ranks tell each other which page they want and what they have used so far (words.h), and compare
// that before anything is gathered: ranks that run different operators end in one error that names
// both.  A rank also says when its computation is over, and waits for nobody then.  So a rank that
// wants a page learns that another rank does not want it, whatever that rank waits for next.
//
// Of a training loop's body without a Trainer:
//
//   pager.begin_run("train");
//   pager.begin_compute();    // forward and backward of the modules
//   pager.end_compute();
//   pager.end_run();          // then the sums of gradients, the optimizer,
//   ParameterShards::gather()
//
// Thread safety: made, used and destroyed by one thread; only its operators are seen.
// Source: decided like an operating system's demand paging; the observer is the profiler's.
#pragma once
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "penstock/plan/paging/policy.h"
#include "penstock/plan/paging/trace.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/parameters/page.h"
#include "penstock/runtime/parameters/words.h"

namespace penstock::parameters {

// What one run of a program did on this rank.
struct PagerReport {
  std::int64_t uses = 0;
  std::int64_t faults = 0;      // Uses of a page that was away.
  std::int64_t prefetches = 0;  // Pages fetched ahead of their use.
  std::int64_t drops = 0;
  std::int64_t peak_bytes = 0;  // Largest sum of pages that are here at one time.
  bool followed_trace = false;  // The trace was followed to its end.
};

class Pager {
 public:
  // `pages` are in the same order on every rank of `group`.  Those that stay whole take nothing of
  // the limits, and nobody asks who reads them; they have sums of gradients like others.
  // `progress`, which outlives it, hears which page is waited for; null: nobody does.
  Pager(comm::ShardGroup& group, std::vector<std::shared_ptr<Page>> pages, paging::Limits limits,
        execute::Progress* progress = nullptr);
  ~Pager();
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // A run of a program begins; runs of one name follow one trace.  Collective, like end_run(),
  // which drops all pages but pinned ones.
  void begin_run(const std::string& name);
  void end_run();
  // The run has failed: no operator brings a page any more.  Where the ranks begin anew after it,
  // the next run begins as the first one did.
  void abandon_run();

  // Operators in between may bring pages.  REQUIRES: a run; the same ones on every rank.
  void begin_compute();
  // Throws: what went wrong in between, which an observer cannot.
  void end_compute();
  bool is_computing() const { return is_computing_; }

  // What all ranks do next with this page's parameters, or with all: compared, too, but not waited
  // for.
  void say(Word::Kind what, const Page& page);
  void say_update();

  // Whether the tensor is one of the parameters, or a view of some.
  bool has(const at::Tensor& tensor) const;

  // Throws: Error, once, for a parameter that was read outside of a run.
  void check();

  const PagerReport& report() const { return report_; }

  // Keeps an error as if check() had found it.
  void note(std::exception_ptr error) { error_ = std::move(error); }

  struct Read {
    paging::PageId page = 0;
    std::int64_t element = 0;  // The first of the page's that may be read.
  };
  // Tells that an operator reads pages, in this order; the observer calls it.  `outermost` numbers
  // the operator that it runs in, whose pages all stay until it is over.  Never throws.
  void use(const std::vector<Read>& reads, std::int64_t outermost) noexcept;

 private:
  void use_one(paging::PageId page);
  void bring(const std::vector<paging::PageId>& pages, paging::PageId used);
  void carry_out(const paging::Decision& decision, paging::PageId used);
  void fetch(const std::vector<paging::PageId>& pages, paging::PageId used);
  // Reads ahead the page that is away and comes first in the trace after a position.
  void read_next(const paging::Trace& trace, std::size_t position) const;
  void say(Word word);
  void agree(Word word);
  WordPlace here() const;
  void keep_up_with_group();

  comm::ShardGroup& group_;
  std::int64_t age_;  // The group's age in which what is known of other ranks was learnt.
  std::vector<std::shared_ptr<Page>> pages_;
  std::vector<std::int64_t> bytes_;  // Bytes of each page, if it may go; else 0.
  std::unordered_map<const Page*, paging::PageId> number_;
  paging::Limits limits_;
  Words words_;
  std::string run_;  // Its name; empty: there is none.
  std::map<std::string, paging::Follower> followers_;
  paging::Follower* follower_ = nullptr;  // Follower of the run's trace.
  paging::Residents residents_;           // Pinned: by the outermost operator.
  std::int64_t outermost_ = -1;
  bool is_computing_ = false;
  std::exception_ptr error_;
  PagerReport report_;
  execute::Progress own_progress_;
  execute::Progress& progress_;
};

// While it lives, this thread's operators are not searched: they read nothing of parameters, as
// those that only give a view.
class Unobserved {
 public:
  Unobserved();
  ~Unobserved();
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;

 private:
  bool before_;
};

}  // namespace penstock::parameters
