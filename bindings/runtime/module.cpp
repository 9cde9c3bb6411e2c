#include <torch/csrc/utils/pybind.h>

#include "bindings/errors.h"
#include "bindings/runtime/init.h"

PYBIND11_MODULE(_runtime, m) {
  m.doc() = "The running half of penstock, in C++.  Use penstock.pipelining, penstock.initialize.";
  // Types that signatures name.
  pybind11::module_::import("torch");
  pybind11::module_::import("penstock._planning");
  penstock::bindings::translate_errors();
  penstock::bindings::init_communicator(m);
  penstock::bindings::init_checkpoint(m);
  penstock::bindings::init_agreement(m);
  penstock::bindings::init_module_slots(m);
  penstock::bindings::init_update(m);
  penstock::bindings::init_replica(m);
  penstock::bindings::init_pipeline(m);
  penstock::bindings::init_trainer(m);
  penstock::bindings::init_emulate(m);
}
