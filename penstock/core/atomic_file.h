// Replaces files in one go: readers see the old content or the new, never a part.
//
// The writers of checkpoint/, weights/, run/ and cli/ use it, and Python's.  Knows no formats.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct NewContent {
  std::string path;
  std::vector<std::string_view> pieces;  // One after the other.
};

// Writes each to a temporary file in the same folder and flushes it to disk; once all are there,
// renames them to their paths and flushes the folders.  A file keeps its mode.  A link stays a
// link, and what it leads to, there or not, is replaced; into what is no file (a pipe, a device)
// the pieces are written as they are. Throws: Error with the path and the system's reason; files
// are then as before, unless it is the last step, a rename, that the system refuses.
// `advanced` is called after each 16 MiB and after each call that waits for the disk.
void write_atomically(std::span<const NewContent> files,
                      const std::function<void()>& advanced = {});
void write_atomically(const std::string& path, const std::vector<std::string_view>& pieces,
                      const std::function<void()>& advanced = {});

// Removes what processes that are no more were writing in `folder`, and had not yet put in place.
// REQUIRES: only processes of this host write there.
void remove_unfinished_files(const std::string& folder);

// A file that is written and flushed in the folder of its path, and takes its place there when it
// is told to.  For several files that have to change in an order.
class PreparedFile {
 public:
  // A link stays a link; a file that is replaced leaves its mode.
  // Throws: Error with the path and the system's reason; then nothing has changed.
  PreparedFile(const std::string& path, const std::vector<std::string_view>& pieces,
               const std::function<void()>& advanced = {});
  // Takes what is written and flushed already, at `written` in the same folder.
  static PreparedFile of_written(std::string written, const std::string& path);
  // Removes what was written, unless it has its place.
  ~PreparedFile();
  PreparedFile(PreparedFile&& other) noexcept;
  PreparedFile(const PreparedFile&) = delete;
  PreparedFile& operator=(const PreparedFile&) = delete;

  // Throws: Error, as above.
  void put_in_place();

  // The path that the file replaces.
  const std::string& target() const { return target_; }
  // Whether what is there now has the same bytes.
  bool is_there() const;

 private:
  PreparedFile() = default;

  std::string target_;
  std::function<void()> advanced_;
  std::string path_;  // Empty: it is not there (any more).
};

// Puts files in place that belong together.  `head` is the one without which the others count for
// nothing: while they are of two kinds, it is away.  So a reader finds the old files, the new ones,
// or no head.  One part whose head stays the same, or a head alone, takes one rename.
// Throws: Error with the path and the system's reason; all are then as before.
void replace_together(std::span<PreparedFile> parts, PreparedFile& head);

}  // namespace penstock
