// Writes a large file past the page cache, a block at a time, while the next block is filled.
//
// NewFile has one for many bytes.  Through the page cache, the kernel's copies and its bookkeeping
// take longer than a fast disk, on a core that something else could use.
#pragma once
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>

namespace penstock {

class BlockWriter {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{8} << 20;
  // What the disk wants addresses, lengths and places to be multiples of.
  static constexpr std::size_t kAlignment = 4096;

  // Makes a writer for a file at whose beginning nothing is written yet.  `file` stays the
  // caller's.
  // Returns: null where the file system cannot do that, or there is no memory for two blocks.
  static std::unique_ptr<BlockWriter> make(int file, std::string named,
                                           std::function<void()> advanced);
  // Waits for a block that is being written.
  ~BlockWriter();
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  // Throws: Error with the path and the system's reason, of these bytes or earlier ones.
  void write(std::string_view bytes);
  // Writes what is left.  Throws: likewise.
  void finish();

 private:
  struct Free {
    void operator()(char* block) const;
  };
  using Block = std::unique_ptr<char, Free>;

  BlockWriter(int file, std::string named, std::function<void()> advanced);
  void begin_block();
  void write_block();
  void end_block();
  void leave_the_disk();  // Goes on through the page cache.

  int file_;
  std::string named_;
  std::function<void()> advanced_;
  Block filled_, written_;  // The one that is filled; the one that is written.
  std::size_t size_ = 0;    // Bytes in the first.
  std::future<void> writing_;
};

}  // namespace penstock
