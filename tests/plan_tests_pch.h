// What most tests above the torch line include: precompiled once.
// Only a matter of time: a test includes what it uses, too.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>
