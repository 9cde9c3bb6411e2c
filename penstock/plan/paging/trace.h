// The order in which a step uses its pages, and where the next step stands in it.
//
// A page is what is brought here, and dropped again, as a whole: in parameters/, a bucket of
// parameters. The pager tells every use; policy.h decides by the trace.  Knows no bytes and no
// time.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::paging {

using PageId = std::int32_t;  // A number in [0, pages).

// The uses of a step, one after the other; a page that is used again at once counts once.
class Trace {
 public:
  Trace() = default;
  explicit Trace(std::int32_t pages) : positions_(static_cast<std::size_t>(pages)) {}

  void add(PageId page);

  std::size_t size() const { return uses_.size(); }
  PageId operator[](std::size_t position) const { return uses_[position]; }
  // The first use of `page` at `position` or behind it.  Cost: logarithmic.
  std::optional<std::size_t> next_use(PageId page, std::size_t position) const;

  friend bool operator==(const Trace& a, const Trace& b) { return a.uses_ == b.uses_; }

 private:
  std::vector<PageId> uses_;
  std::vector<std::vector<std::size_t>> positions_;  // Positions by page, rising.
};

// Compares each step's uses with the trace of an earlier one, and records them: the trace that is
// followed is always that of the last whole step.
// Once a step has left the trace, it is lost to its end: nothing is known of what comes.
class Follower {
 public:
  explicit Follower(std::int32_t pages) : pages_(pages), known_(pages), recorded_(pages) {}

  void begin_step();
  // The next use.
  void use(PageId page);
  // Makes the trace what this step used.
  void end_step();

  // What is followed, up to position(); null while nothing is known.
  const Trace* trace() const { return is_lost_ || known_.size() == 0 ? nullptr : &known_; }
  // Position in the step of the use that comes next.
  std::size_t position() const { return recorded_.size(); }
  bool is_lost() const { return is_lost_; }
  // Hash of this step's uses so far: different uses, most probably another number.
  std::uint64_t hash() const { return hash_; }

 private:
  std::int32_t pages_;
  Trace known_;
  Trace recorded_;
  bool is_lost_ = false;
  std::uint64_t hash_ = 0;
};

}  // namespace penstock::paging
