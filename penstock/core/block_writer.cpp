#include "penstock/core/block_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "penstock/core/new_file.h"

namespace penstock {

void BlockWriter::Free::operator()(char* block) const { std::free(block); }

std::unique_ptr<BlockWriter> BlockWriter::make(int file, std::string named,
                                               std::function<void()> advanced) {
  const int flags = ::fcntl(file, F_GETFL);
  if (flags < 0 || ::fcntl(file, F_SETFL, flags | O_DIRECT) != 0) return nullptr;
  std::unique_ptr<BlockWriter> made(new BlockWriter(file, std::move(named), std::move(advanced)));
  if (made->filled_ != nullptr && made->written_ != nullptr) return made;
  made->leave_the_disk();
  return nullptr;
}

BlockWriter::BlockWriter(int file, std::string named, std::function<void()> advanced)
    : file_(file), named_(std::move(named)), advanced_(std::move(advanced)) {
  for (Block* block : {&filled_, &written_}) {
    block->reset(static_cast<char*>(std::aligned_alloc(kAlignment, kBlockBytes)));
  }
}

BlockWriter::~BlockWriter() {
  if (writing_.valid()) writing_.wait();
}

void BlockWriter::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kBlockBytes - size_);
    std::memcpy(filled_.get() + size_, bytes.data(), count);
    size_ += count;
    bytes.remove_prefix(count);
    if (size_ == kBlockBytes) begin_block();
  }
}

void BlockWriter::begin_block() {
  end_block();
  std::swap(filled_, written_);
  size_ = 0;
  try {
    writing_ = std::async(std::launch::async, [this] { write_block(); });
  } catch (const std::system_error&) {  // There are no more threads.
    write_block();
  }
}

// What is not written whole goes on through the page cache, which says why, or has no such wishes.
void BlockWriter::write_block() {
  const std::string_view block(written_.get(), kBlockBytes);
  const ssize_t written = ::write(file_, block.data(), block.size());
  if (written == static_cast<ssize_t>(block.size())) return;
  leave_the_disk();
  write_all(file_, block.substr(written < 0 ? 0 : static_cast<std::size_t>(written)), named_);
}

void BlockWriter::end_block() {
  if (!writing_.valid()) return;
  writing_.get();
  if (advanced_) advanced_();
}

void BlockWriter::finish() {
  end_block();
  leave_the_disk();
  write_all(file_, {filled_.get(), size_}, named_, advanced_);
  size_ = 0;
}

// What is left is no multiple of what the disk wants.
void BlockWriter::leave_the_disk() { ::fcntl(file_, F_SETFL, ::fcntl(file_, F_GETFL) & ~O_DIRECT); }

}  // namespace penstock
