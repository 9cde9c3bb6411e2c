// Keys of another program's file that its reader passes over, and why each may be.
//
// A reader of foreign files has a table of the keys that change nothing for it.  Whatever else the
// file sets is told, so that no value that changes results is passed over in silence.  Readers of
// models, adapters, indices and corpus notes use it.  Knows no key.
#pragma once
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/json/tree.h"

namespace penstock::json {

// A row of a reader's table.
struct PassedOver {
  std::string_view key;  // The key; one that ends in '*' stands for all that begin so.
  // The reason, for who reads the table, and for the error where a value is refused.
  std::string_view why;
  // Values that change nothing, as JSON, with '|' between: "1|1.0"; "*": all.
  std::string_view values = "*";
};

// Keys that a reader has asked for.
using ReadKeys = std::set<std::string, std::less<>>;

struct UnreadMember {
  const Member* member;
  std::string why;  // "penstock does not know this key, and it may change results".
};

// The members that are set, that were not read, and that no row passes over.  Of a key in no row,
// null, false, and texts, lists and objects that are empty are no set values: programs write down
// what they do not use so.
std::vector<UnreadMember> unread_members(const Value::Object& object, const ReadKeys& read,
                                         std::span<const PassedOver> table);

}  // namespace penstock::json
