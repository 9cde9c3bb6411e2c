// Runs a function as if torch's autograd engine had called it: as a node of a graph of its own.
//
// Stage runs the backward of layers with Python code in it: there, hooks queue callbacks for the
// end of a backward, compiled graphs ask whether theirs is kept, and checkpoints which backward
// they recompute for.  Knows no layers.  Cost: some 10 us.
#pragma once
#include <functional>

namespace penstock::stage {

// Returns when the function, and the callbacks that it queued, are over.
// Throws: what they throw.
void in_engine(const std::function<void()>& function);

}  // namespace penstock::stage
