#include "penstock/core/growing_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "penstock/core/read_file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

using testing_support::message_of;
using testing_support::TemporaryFolder;

std::string text_of(const std::string& path) { return read_file("test", path, 1 << 20); }

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(GrowingFile, LinesFollowThoseThatAreThere) {
  const TemporaryFolder folder;
  write(folder.file("x"), "one\n");
  GrowingFile file(folder.file("x"));
  file.append("two\n");
  EXPECT_EQ(text_of(folder.file("x")), "one\ntwo\n") << "each line is there at once";
  file.append("three\n");
  EXPECT_EQ(text_of(folder.file("x")), "one\ntwo\nthree\n");
  EXPECT_EQ(file.failure(), "");
}

// A pipe that nobody reads was waited for without end.
TEST(GrowingFile, APipeWithoutAReaderIsRefused) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("x").c_str(), 0600), 0);
  GrowingFile file(folder.file("x"));
  EXPECT_NE(message_of([&] { file.begin(); }).find("cannot write"), std::string::npos);
}

TEST(GrowingFile, ALastLineThatWasCutShortGoes) {
  const TemporaryFolder folder;
  for (const std::string& kept :
       {std::string(), std::string("one\n"), std::string(9000, 'x') + "\n"}) {
    for (const std::size_t cut : {0, 1, 4096, 9000}) {
      write(folder.file("x"), kept + std::string(cut, 'c'));
      GrowingFile(folder.file("x")).append("new\n");
      EXPECT_EQ(text_of(folder.file("x")), kept + "new\n") << kept.size() << " and " << cut;
    }
  }
}

TEST(GrowingFile, BeginsAnewWithTheLinesThatItIsGiven) {
  const TemporaryFolder folder;
  write(folder.file("x"), "old\n");
  {
    GrowingFile file(folder.file("x"));
    file.begin("kept\n");
    file.append("new\n");
  }
  EXPECT_EQ(text_of(folder.file("x")), "kept\nnew\n");
  GrowingFile(folder.file("x")).begin();
  EXPECT_EQ(text_of(folder.file("x")), "");
  EXPECT_EQ(message_of([&] { GrowingFile(folder.path()).begin(); }),
            "cannot write \"" + folder.path() + "\": Is a directory");
}

TEST(GrowingFile, LinesWaitUntilTheFileCanBeWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.file("missing/x");
  GrowingFile file(path);
  file.append("one\n");
  file.append("two\n");
  EXPECT_EQ(file.failure(), "No such file or directory");
  std::filesystem::create_directory(folder.file("missing"));
  file.try_again();
  EXPECT_EQ(file.failure(), "");
  EXPECT_EQ(text_of(path), "one\ntwo\n");
}

TEST(GrowingFile, LinesBeyondWhatMayWaitAreCounted) {
  GrowingFile file("/dev/full");
  const std::string line(GrowingFile::kWaitingBytesMax / 2, 'x');
  for (int i = 0; i < 4; ++i) file.append(line);
  EXPECT_EQ(file.failure(), "No space left on device");
  EXPECT_EQ(file.lost(), 2);
}

}  // namespace
}  // namespace penstock
