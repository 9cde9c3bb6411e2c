// A file that grows by whole lines while a program works, also after a time without room.
//
// Rank 0 writes the metrics and the events of a run with it, and the launcher writes its events.
// A line that cannot be written waits for the next one.  Tells nobody: its owner asks for the
// failure.  Knows no formats.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock {

class GrowingFile {
 public:
  static constexpr std::size_t kWaitingBytesMax = std::size_t{16} << 20;

  // Touches no file yet.
  explicit GrowingFile(std::string path);
  ~GrowingFile();
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;

  // Begins the file anew, with these `lines`.  What was there stays until they are on the disk.
  // Throws: ConfigError when it cannot be written.
  void begin(const std::string& lines = {});

  // Adds `line`, which ends with a line feed, behind the lines that are there.  A last line that
  // was cut short is removed first.  Beyond kWaitingBytesMax that cannot be written, the lines
  // that come are lost, and counted.
  void append(std::string_view line);
  // Writes what waits.
  void try_again();
  // Writes what waits, and waits for the disk, which may tell only now that it has no room.
  void flush();

  // Why some of it is not in the file; empty when all of it is.
  const std::string& failure() const { return failure_; }
  std::int64_t lost() const { return lost_; }

 private:
  bool open(int flags);
  void remove_cut_line() const;

  std::string path_;
  int descriptor_ = -1;
  std::string waiting_;  // Bytes that are not in the file yet.
  std::string failure_;
  std::int64_t lost_ = 0;
};

}  // namespace penstock
