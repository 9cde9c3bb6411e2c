// Stands in for Gloo's header of this name; see gloo/context.h beside it.
// Holds nothing of its own.
#pragma once
#include <gloo/context.h>
