#include "penstock/core/stand_in.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(StandIn, OfWhatWasNotFetchedIsSaid) {
  EXPECT_NE(stand_in("version https://git-lfs.github.com/spec/v1\noid sha256:4d").find("Git LFS"),
            std::string_view::npos);
  for (const char* const page :
       {"<!DOCTYPE html>", "\n <html>", "<?xml version=\"1.0\"?><Error>"}) {
    EXPECT_NE(stand_in(page).find("HTML"), std::string_view::npos) << page;
  }
  for (const char* const other : {"", "{\"version\": 1}", "version 3", "<s>", "\x08\x01"}) {
    EXPECT_EQ(stand_in(other), "") << other;
  }
}

}  // namespace
}  // namespace penstock
