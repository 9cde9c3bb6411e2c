#include "penstock/runtime/parameters/pager.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/kept_text.h"
#include "penstock/core/text.h"

namespace penstock::parameters {
namespace {

// What this thread's operators are searched for.
struct Watched {
  struct Owner {
    Pager* pager = nullptr;
    paging::PageId page = 0;
  };
  std::unordered_map<const c10::StorageImpl*, Owner> pages;
  at::CallbackHandle callback = 0;
  bool is_busy = false;        // A pager's own operators are not searched.
  std::int64_t depth = 0;      // Operators that run, one in another.
  std::int64_t outermost = 0;  // Their number so far.
};

thread_local Watched watched;

using Busy = Unobserved;  // A pager at work.

// The pages among an operator's inputs.
class Reads {
 public:
  void see(const c10::IValue& value) {
    if (value.isTensor()) {
      see(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) see(tensor);
    } else if (value.isList()) {
      for (const c10::IValue& each : value.toListRef()) {
        if (each.isTensor()) see(each.toTensor());
      }
    }
  }

  void tell() {
    if (pager_ != nullptr) pager_->use(reads_, watched.outermost);
  }

 private:
  void see(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto found = watched.pages.find(tensor.storage().unsafeGetStorageImpl());
    if (found == watched.pages.end()) return;
    pager_ = found->second.pager;
    reads_.push_back({found->second.page, tensor.storage_offset()});
  }

  Pager* pager_ = nullptr;  // An operator on parameters of two models reads them of the last.
  std::vector<Pager::Read> reads_;
};

std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction& function) {
  if (watched.is_busy) return nullptr;
  if (watched.depth++ == 0) ++watched.outermost;
  const Busy busy;
  Reads reads;
  for (const c10::IValue& value : function.inputs()) reads.see(value);
  reads.tell();
  return nullptr;
}

void after_operator(const at::RecordFunction&, at::ObserverContext*) {
  if (!watched.is_busy) --watched.depth;
}

std::size_t index(paging::PageId page) { return static_cast<std::size_t>(page); }

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace

Unobserved::Unobserved() : before_(std::exchange(watched.is_busy, true)) {}
Unobserved::~Unobserved() { watched.is_busy = before_; }

Pager::Pager(comm::ShardGroup& group, std::vector<std::shared_ptr<Page>> pages,
             paging::Limits limits, execute::Progress* progress)
    : group_(group),
      age_(group.age()),
      pages_(std::move(pages)),
      limits_(limits),
      words_(group, [this](paging::PageId page) { return pages_[index(page)]->held().name(); }),
      residents_(pages_.size()),
      progress_(progress == nullptr ? own_progress_ : *progress) {
  if (watched.pages.empty()) {
    watched.callback =
        at::addThreadLocalCallback(at::RecordFunctionCallback(before_operator, after_operator)
                                       .needsInputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
  }
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    const auto number = static_cast<paging::PageId>(i);
    number_[pages_[i].get()] = number;
    bytes_.push_back(pages_[i]->may_go() ? pages_[i]->bytes() : 0);
    if (pages_[i]->may_go()) watched.pages[storage_of(pages_[i]->flat())] = {this, number};
  }
}

Pager::~Pager() {
  std::erase_if(watched.pages, [this](const auto& each) { return each.second.pager == this; });
  if (watched.pages.empty()) at::removeCallback(watched.callback);
}

// Ranks may have stopped at different places of a run.
void Pager::keep_up_with_group() {
  if (age_ == group_.age()) return;
  age_ = group_.age();
  error_ = nullptr;
  words_.forget();
  followers_.clear();
  for (const auto& page : pages_) page->give_up();
}

void Pager::begin_run(const std::string& name) {
  keep_up_with_group();
  check();
  const auto pages = static_cast<std::int32_t>(pages_.size());
  follower_ = &followers_.try_emplace(name, pages).first->second;
  follower_->begin_step();
  run_ = name;
  std::ranges::fill(residents_.last_use, -1);
  report_ = {};
}

void Pager::end_run() {
  const Busy busy;
  agree({.kind = Word::Kind::End});
  report_.followed_trace =
      follower_->trace() != nullptr && follower_->position() == follower_->trace()->size();
  follower_->end_step();
  follower_ = nullptr;
  run_.clear();
  for (const auto& page : pages_) {
    if (!page->is_pinned()) page->drop();
  }
  check();
}

void Pager::abandon_run() {
  is_computing_ = false;
  follower_ = nullptr;
  run_.clear();
}

void Pager::begin_compute() {
  PENSTOCK_CHECK(follower_ != nullptr, "no run");
  is_computing_ = true;
}

void Pager::end_compute() {
  is_computing_ = false;
  check();
  // Where all pages are here, no rank can wait for another's word.
  if (!std::ranges::all_of(pages_, [](const auto& page) { return page->is_here(); })) {
    say({.kind = Word::Kind::Computed});
  }
}

bool Pager::has(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const auto found = watched.pages.find(storage_of(tensor));
  return found != watched.pages.end() && found->second.pager == this;
}

void Pager::check() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Pager::say(Word::Kind what, const Page& page) {
  say({.kind = what, .page = number_.at(&page)});
}

void Pager::say_update() { say({.kind = Word::Kind::Update}); }

void Pager::use(const std::vector<Read>& reads, std::int64_t outermost) noexcept {
  try {
    if (std::exchange(outermost_, outermost) != outermost) {
      residents_.is_pinned.assign(pages_.size(), false);
    }
    if (!error_ && is_computing_) {
      // All pages of the operator are pinned before any is brought, so that none drops another.
      for (const Read& read : reads) residents_.is_pinned[index(read.page)] = true;
      for (const Read& read : reads) use_one(read.page);
    }
    for (const Read& read : reads) {
      Page& page = *pages_[index(read.page)];
      if (page.is_here()) continue;
      page.poison();
      if (error_) continue;
      throw Error(str("parameter ", in_quotes(page.held().name_at(read.element)),
                      " was read while it is spread over the ranks: only a step's own operators "
                      "bring it"),
                  {"gather it first, on all ranks together: RankModel::whole_parameters()"});
    }
  } catch (...) {
    error_ = std::current_exception();
    for (const Read& read : reads) pages_[index(read.page)]->poison();
  }
}

void Pager::use_one(paging::PageId page) {
  const std::size_t position = follower_->position();
  const paging::Trace* trace = follower_->trace();
  follower_->use(page);
  // Unmoved, so no new use; but a RESHARD may have dropped the page.
  if (follower_->position() == position) {
    if (!pages_[index(page)]->is_here()) carry_out({.fetch = {page}}, page);
    return;
  }
  ++report_.uses;
  for (std::size_t i = 0; i < pages_.size(); ++i) residents_.is_here[i] = pages_[i]->is_here();
  const std::vector<bool> of_operator = residents_.is_pinned;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (pages_[i]->is_pinned()) residents_.is_pinned[i] = true;
  }
  const bool is_known = trace != nullptr && !follower_->is_lost();
  const paging::Decision decision =
      is_known ? paging::decide(bytes_, *trace, position, residents_, limits_)
               : paging::decide_blindly(bytes_, page, residents_, limits_);
  carry_out(decision, page);
  if (is_known && !decision.fetch.empty()) read_next(*trace, position);
  residents_.is_pinned = of_operator;
  residents_.last_use[index(page)] = static_cast<std::int64_t>(position);
}

void Pager::carry_out(const paging::Decision& decision, paging::PageId used) {
  // Pages go before others come, so that no more than the budget is here at any time.
  for (const paging::PageId page : decision.drop) {
    pages_[index(page)]->drop();
    ++report_.drops;
  }
  bring(decision.fetch, used);
  std::int64_t here = 0;
  for (std::size_t i = 0; i < pages_.size(); ++i) here += pages_[i]->is_here() ? bytes_[i] : 0;
  report_.peak_bytes = std::max(report_.peak_bytes, here);
}

// Brings pages, and awaits the one that is used: others see by its name where this rank stands.
void Pager::bring(const std::vector<paging::PageId>& pages, paging::PageId used) {
  Page& page = *pages_[index(used)];
  if (pages.empty() && !page.is_coming()) return;
  const char* const name =
      kept_text(str("the gather of ", in_quotes(page.held().name()), " from all replicas"));
  const execute::Holding<const char*> under_way(progress_.exchange, name);
  const execute::Waiting waiting(progress_);
  const execute::Leaving leaving(progress_);
  if (!pages.empty()) fetch(pages, used);
  page.await();
  progress_.advance();
}

// What is in a file is read while the other ranks are waited for, and the next page while one is
// copied.
void Pager::fetch(const std::vector<paging::PageId>& pages, paging::PageId used) {
  pages_[index(pages.front())]->read_ahead();
  agree({.kind = Word::Kind::Use, .page = used});
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (i + 1 < pages.size()) pages_[index(pages[i + 1])]->read_ahead();
    pages_[index(pages[i])]->fetch();
    ++(pages[i] == used ? report_.faults : report_.prefetches);
  }
}

void Pager::read_next(const paging::Trace& trace, std::size_t position) const {
  for (std::size_t i = position + 1; i < trace.size(); ++i) {
    const Page& page = *pages_[index(trace[i])];
    if (!page.is_here()) return page.read_ahead();
  }
}

WordPlace Pager::here() const {
  return {.run = run_, .hash = follower_ == nullptr ? 0 : follower_->hash()};
}

void Pager::say(Word word) {
  const Busy busy;
  words_.say(word, here());
}

void Pager::agree(Word word) {
  const Busy busy;
  words_.agree(word, here());
}

}  // namespace penstock::parameters
