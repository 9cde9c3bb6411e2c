// How files are written, and folders kept from others, for the package's Python.
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/planning/init.h"
#include "penstock/core/atomic_file.h"
#include "penstock/core/output_lock.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;

// The path where it is, and the one to which it goes.
using Written = std::pair<std::string, std::string>;

PreparedFile prepared(const Written& file) {
  return PreparedFile::of_written(file.first, file.second);
}

void replace_written(const std::vector<Written>& parts, const Written& head) {
  std::vector<PreparedFile> files;
  for (const Written& part : parts) files.push_back(prepared(part));
  PreparedFile last = prepared(head);
  replace_together(files, last);
}

// A lock that lasts until it is let go, or the process ends.
class Lock {
 public:
  explicit Lock(OutputLock lock) : lock_(std::move(lock)) {}
  void let_go() { lock_.reset(); }
  std::string missing() const { return lock_ ? lock_->missing() : std::string(); }

 private:
  std::optional<OutputLock> lock_;
};

}  // namespace

void init_files(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  m.def(
      "write_atomically",
      [](const std::string& path, const std::string& text) { write_atomically(path, {text}); },
      py::arg("path"), py::arg("text"), without_gil);
  m.def("replace_together", replace_written, py::arg("parts"), py::arg("head"), without_gil,
        "Puts written files in place: all, or none.  Each is where it is, and where it goes.");
  py::class_<Lock>(m, "OutputLock", "Keeps others from writing where this process writes.")
      .def_static(
          "of_path",
          [](const std::string& path, const std::string& what) {
            return Lock(OutputLock::of_path(path, what));
          },
          py::arg("path"), py::arg("what"), "Of a file or folder that is to be made.")
      .def_static(
          "of_folder",
          [](const std::string& folder, const std::string& what) {
            return Lock(OutputLock::of_folder(folder, what));
          },
          py::arg("folder"), py::arg("what"), "Of all that is in a folder.")
      .def_static(
          "beside_others",
          [](const std::string& folder, const std::string& what) {
            return Lock(OutputLock::of_folder(folder, what, OutputLock::With::Others));
          },
          py::arg("folder"), py::arg("what"),
          "Of files of one's own in a folder: lets in whoever has it so, too.")
      .def("let_go", &Lock::let_go)
      .def_property_readonly("missing", &Lock::missing,
                             "Why others are not kept out; empty: they are.");
}

}  // namespace penstock::bindings
