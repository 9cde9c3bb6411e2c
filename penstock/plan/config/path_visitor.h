// What visitors of the table of keys (fields.h) have in common: the path of the key that they are
// at, and that they visit all keys that apply.
//
// Knows no values.
#pragma once
#include <string>
#include <string_view>

#include "penstock/plan/config/classes.h"
#include "penstock/plan/config/condition.h"
#include "penstock/plan/config/fields.h"
#include "penstock/plan/config/wording.h"

namespace penstock::config {

class PathVisitor {
 public:
  template <class Body>
  void section(std::string_view key, Body&& body) {
    const std::string outer = section_;
    section_ = join_path(section_, key);
    body();
    section_ = outer;
  }

  template <class Body>
  void when(bool applies, const Selector&, Body&& body) {
    if (applies) body();
  }

  template <class Body>
  void effective(const Condition&, Body&& body) {
    body();
  }

  template <class Conditions>
  void arguments(std::string_view, const ClassName&, const Arguments&, const Conditions&) {}

 protected:
  std::string path_of(std::string_view key) const { return join_path(section_, key); }

 private:
  std::string section_;
};

}  // namespace penstock::config
