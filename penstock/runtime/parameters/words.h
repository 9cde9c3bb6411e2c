// The words that the ranks of a group tell each other before they do something together: what comes
// next.
//
// A pager has one.  Ranks whose words differ are about to wait for each other for ever; so each
// that hears it throws, and names both.  Who says a word waits for nobody; agree() waits for all.
// Knows no pages: it is given their names.
// Thread safety: as the group's.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "penstock/plan/paging/trace.h"
#include "penstock/runtime/comm/shard_group.h"

namespace penstock::parameters {

// What comes next on a rank.
struct Word {
  enum class Kind : std::int32_t {
    Use,       // An operator reads parameters of `page`.
    Sum,       // The gradients of the parameters of `page` are summed.
    Gather,    // `page` becomes whole, and perhaps others, until they are released.
    Changes,   // The values of `page` become those of one rank.
    Computed,  // Nothing more of a forward or backward.
    End,       // Nothing more of a run.
    Update,    // The optimizer's step.
  };
  Kind kind = Kind::Use;
  paging::PageId page = 0;

  friend bool operator==(const Word&, const Word&) = default;
};

// The place of a rank when it says a word.
struct WordPlace {
  std::string run;         // Its name, of which 8 letters count; empty: in none.
  std::uint64_t hash = 0;  // Hash of the pages that it has used.
};

class Words {
 public:
  // The same on all ranks of `group`, which outlives it.
  Words(comm::ShardGroup& group, std::function<std::string(paging::PageId)> name_of);

  // Throws: CommError, where another rank has said something else before.
  void say(Word word, const WordPlace& where);
  // The same, once all have said what they say next.
  // Throws: CommError, where that is something else, or a rank has said nothing by the deadline.
  void agree(Word word, const WordPlace& where);
  // What has been said is heard no more.
  void forget() { said_.clear(); }

 private:
  struct Said {
    Word mine;
    at::Tensor all;  // The word, the run, the hash and the call, a row a rank.
    std::unique_ptr<comm::Transfer> transfer;
  };

  void hear();
  void wait_for(const Said& said) const;
  std::string calls_in(const std::int64_t* rows) const;
  std::string meaning(const std::int64_t* row) const;
  std::string meaning(Word word) const;

  comm::ShardGroup& group_;
  std::function<std::string(paging::PageId)> name_of_;
  std::int32_t tag_ = 0;
  std::deque<Said> said_;  // Words that not all ranks have been heard to say.
};

}  // namespace penstock::parameters
