#include "penstock/core/work_folder.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock {

namespace fs = std::filesystem;

WorkFolder::WorkFolder(std::string_view purpose)
    : path_((fs::temp_directory_path() / str("penstock-", purpose, "-XXXXXX")).string()) {
  if (::mkdtemp(path_.data()) == nullptr) {
    throw Error(str("cannot make a folder in ", in_quotes(fs::temp_directory_path().string())),
                {"set TMPDIR to one that can be written to"});
  }
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!is_kept_) fs::remove_all(path_, ignored);
}

std::string WorkFolder::file(std::string_view name) const { return str(path_, "/", name); }

}  // namespace penstock
