// A folder of the system's temporary ones, for files of one command.
//
// The self-test has its runs in one, and ranks of one command meet in one.  It goes with all that
// is in it, unless somebody keeps it.  Knows nothing of what its files hold.
#pragma once
#include <string>
#include <string_view>

namespace penstock {

class WorkFolder {
 public:
  // "penstock-PURPOSE-" and six letters, in TMPDIR or /tmp.
  // Throws: Error where none can be made.
  explicit WorkFolder(std::string_view purpose);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const;
  // It stays when this object goes.
  void keep() { is_kept_ = true; }

 private:
  std::string path_;
  bool is_kept_ = false;
};

}  // namespace penstock
