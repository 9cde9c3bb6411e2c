#include <vector>

#include "penstock/core/check.h"
#include "penstock/launch/hosts/frame.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {
namespace {

using hosts::Frame;

struct Read {
  std::vector<Frame> frames{};
  bool is_broken = false;
  bool operator==(const Read&) const = default;
};

Read read(const std::vector<std::string_view>& pieces) {
  hosts::FrameReader reader;
  Read read;
  for (const std::string_view piece : pieces) {
    reader.add(piece);
    while (auto frame = reader.next()) read.frames.push_back(*std::move(frame));
  }
  read.is_broken = reader.is_broken();
  return read;
}

void check_body(const Frame& frame) {
  if (frame.verb == hosts::Verb::Ended) {
    const auto ending = hosts::parse_ending(frame.body);
    if (ending) PENSTOCK_CHECK(hosts::encode_ending(*ending) == frame.body, frame.body);
  }
  const auto texts = hosts::decode_texts(frame.body);
  PENSTOCK_CHECK(frame.body.starts_with(hosts::encode_texts(texts)), frame.body);
}

}  // namespace

Outcome frame(std::string_view input) {
  const Read whole = read({input});
  std::string written;
  for (const Frame& each : whole.frames) {
    written += hosts::encode(each);
    check_body(each);
  }
  PENSTOCK_CHECK(input.starts_with(written), written);
  const std::size_t middle = input.size() / 2;
  PENSTOCK_CHECK(read({input.substr(0, middle), input.substr(middle)}) == whole, "in two pieces");
  return whole.is_broken || whole.frames.empty() ? Outcome::Refused : Outcome::Accepted;
}

}  // namespace penstock::fuzz
