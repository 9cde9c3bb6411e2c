#include "bindings/errors.h"

#include "bindings/planning/init.h"

namespace penstock::bindings {

void init_errors(pybind11::module_&) { translate_errors(); }

}  // namespace penstock::bindings
