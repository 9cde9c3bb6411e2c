#include "bindings/planning/init.h"
#include "penstock/core/version.h"

PYBIND11_MODULE(_planning, m) {
  m.doc() = "The planning half of penstock, in C++.  Use penstock.schedule and penstock.pipe.";
  m.attr("__version__") = penstock::kVersion;
  // The torch that penstock._runtime was built with; "": there is none.
  m.attr("TORCH_VERSION") = PENSTOCK_TORCH_VERSION;
  penstock::bindings::init_errors(m);
  penstock::bindings::init_files(m);
  penstock::bindings::init_schedule(m);
  penstock::bindings::init_passes(m);
  penstock::bindings::init_verify(m);
  penstock::bindings::init_simulate(m);
  penstock::bindings::init_search(m);
  penstock::bindings::init_deepspeed(m);
  penstock::bindings::init_learning_rate(m);
  penstock::bindings::init_partition(m);
  penstock::bindings::init_configuration(m);
}
