// What a program tells while it works, for a reader who may be slow, or gone.
//
// Ranks and the launcher write to their standard streams through it.  A pager, Ctrl-S or a full
// pipe stops the thread that writes, and nobody else.  Knows no words.
// Thread safety: any thread.
#pragma once
#include <cstddef>
#include <memory>
#include <ostream>
#include <string_view>

namespace penstock {

class Output {
 public:
  static constexpr std::size_t kWaitingBytesMax = std::size_t{1} << 20;

  explicit Output(int descriptor);  // Borrowed.
  ~Output();                        // finish().
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Writes printable(text).  Never waits for the reader.  What finds kWaitingBytesMax waiting
  // already is left out; how many texts were is said where they would be.
  void write(std::string_view text);
  // The same in place of the line on which a terminal's cursor is.
  void rewrite_line(std::string_view text);
  // The bytes of another program, as it wrote them.
  void relay(std::string_view bytes);

  // Waits until all is written, or the reader takes nothing for kPatienceSeconds.  What is written
  // after it is lost.
  void finish();

  bool is_terminal() const;

  static constexpr double kPatienceSeconds = 10;

 private:
  struct State;
  std::shared_ptr<State> state_;  // Shared with the thread, which may be left behind in a write.
};

// The same for what wants a stream; each flush hands on what came since the last.
class OutputStream : public std::ostream {
 public:
  explicit OutputStream(Output& output);
  ~OutputStream() override;

 private:
  class Buffer;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace penstock
