// A file that is new, and on the disk once it is finished.
//
// atomic_file.h replaces files by way of it; checkpoint/ writes shards with it.  Knows no formats.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "penstock/core/file_descriptor.h"

namespace penstock {

class NewFile {
 public:
  // `named` is the path that errors say; `advanced` is called after each 16 MiB and after each call
  // that waits for the disk.
  // Throws: Error with the path and the system's reason, also where something is there already; so
  // does all that follows.
  NewFile(std::string path, std::string named, std::function<void()> advanced = {});
  // Takes a file that has been made.
  NewFile(FileDescriptor file, std::string path, std::string named,
          std::function<void()> advanced = {});
  // Removes the file, unless it is finished.
  ~NewFile();
  NewFile(NewFile&& other) noexcept;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void set_mode(mode_t mode);
  // Announces, before the first write, about how many bytes will come.  Many of them go to the disk
  // past the page cache, where the file system can do that.  It takes a tenth of the processor's
  // time, and what is made meanwhile is written meanwhile.
  void expect(std::uint64_t bytes);
  void write(std::string_view bytes);
  // Flushes it to the disk, and closes it.
  void finish();

 private:
  std::string path_;
  std::string named_;
  std::function<void()> advanced_;
  FileDescriptor file_;
  std::unique_ptr<class BlockWriter> blocks_;  // Null unless many bytes are expected.
  std::uint64_t written_ = 0;
  std::uint64_t begun_ = 0;   // Number of these bytes that are on their way to the disk.
  bool is_finished_ = false;  // True, too, of a file that is not this one's to remove.
};

// Writes all of `bytes` to an open file, as NewFile does.
void write_all(int descriptor, std::string_view bytes, const std::string& named,
               const std::function<void()>& advanced = {});

// The next write of any new file in this process fails as if the system had said `error`, ENOSPC
// for example: a failure that a user asks for.  Thread safety: from any thread.
void fail_next_write(int error);

// Whether a folder that exists cannot be opened for want of descriptors or memory, or because the
// disk fails: it may be one that can be flushed and locked all the same.
bool fails_for_any_folder(int error);

// Flushes what has become of the names in a folder to the disk.  Nothing on file systems that do
// not let a folder be opened, and for folders that this user may not open.
// Throws: Error with the path and the system's reason.
void flush_folder(const std::string& folder);

}  // namespace penstock
