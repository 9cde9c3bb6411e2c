// The header penstock/rank/rank_process.h by its earlier name, for one version.
//
// Programs that were written before include it; nothing of penstock does.
#pragma once
#include "penstock/rank/rank_process.h"

namespace penstock::run {

using rank::connect_process;
using rank::ProcessOptions;

}  // namespace penstock::run
