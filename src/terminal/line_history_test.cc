#include "terminal/line_history.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace k3::cli {
namespace {

class LineHistoryTest : public testing::Test {
 protected:
  LineHistoryTest() {
    folder_ = testing::TempDir() + "k3_line_history_" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    file_ = folder_ + "/new/history";
  }
  ~LineHistoryTest() override { std::filesystem::remove_all(folder_); }

  static std::vector<std::string> Entries(const LineHistory& history) {
    std::vector<std::string> entries;
    entries.reserve(static_cast<size_t>(history.size()));
    for (int64_t i = 0; i < history.size(); ++i) entries.push_back(history.entry(i));
    return entries;
  }
  std::string Content() const {
    std::ifstream stream(file_);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void Write(std::string_view content) const {
    std::filesystem::create_directories(folder_ + "/new");
    std::ofstream(file_) << content;
  }
  /// What goes to standard error while `what` runs.
  template <typename What>
  static std::string Notices(What what) {
    testing::internal::CaptureStderr();
    what();
    return testing::internal::GetCapturedStderr();
  }

  std::string folder_;
  std::string file_;
};

using Strings = std::vector<std::string>;

TEST_F(LineHistoryTest, IsThereInTheNextRun) {
  const Strings texts = {"one", "two\nlines\n", "back\\slash\\n", "\r", " 한글 🌍", "one"};
  {
    LineHistory history(file_);
    for (const std::string& text : texts) history.Add(text);
  }
  EXPECT_EQ(Entries(LineHistory(file_)), texts);
  EXPECT_EQ(Content(), "one\ntwo\\nlines\\n\nback\\\\slash\\\\n\n\\r\n 한글 🌍\none\n");
  struct stat info{};
  ASSERT_EQ(stat(file_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(LineHistoryTest, LeavesOutBlanksRepeatsAndWhatIsTooLong) {
  LineHistory history(file_);
  history.Add("");
  history.Add(" \t\n");
  history.Add("a");
  history.Add("a");
  history.Add(std::string(LineHistory::kEntryBytesMax + 1, 'x'));
  history.Add("b");
  history.Add("a");
  EXPECT_EQ(Entries(history), (Strings{"a", "b", "a"}));
  EXPECT_EQ(Content(), "a\nb\na\n");
}

TEST_F(LineHistoryTest, KeepsTheNewest) {
  {
    LineHistory history(file_);
    for (int i = 0; i < 2500; ++i) history.Add(std::to_string(i));
    EXPECT_EQ(history.size(), LineHistory::kEntriesMax);
    EXPECT_EQ(history.entry(0), "1500");
  }
  LineHistory history(file_);
  EXPECT_EQ(history.size(), LineHistory::kEntriesMax);
  EXPECT_EQ(history.entry(999), "2499");
  const std::string content = Content();
  EXPECT_EQ(std::count(content.begin(), content.end(), '\n'), LineHistory::kEntriesMax);
  struct stat info{};
  ASSERT_EQ(stat(file_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(LineHistoryTest, ReadsWhatSomeoneElseWrote) {
  Write("plain \\d\\\nlast");
  LineHistory history(file_);
  EXPECT_EQ(Entries(history), (Strings{"plain \\d\\", "last"}));
  history.Add("more");
  EXPECT_EQ(Content(), "plain \\d\\\nlast\nmore\n");
}

TEST_F(LineHistoryTest, TwoProgramsShareAFile) {
  LineHistory one(file_);
  LineHistory two(file_);
  one.Add("1");
  two.Add("2");
  one.Add("3");
  EXPECT_EQ(Entries(LineHistory(file_)), (Strings{"1", "2", "3"}));
}

TEST_F(LineHistoryTest, ABrokenFileIsOneNoticeAndStaysAsItIs) {
  for (const std::string& broken : {std::string("a\n\xFF\n"), std::string("a\0b\n", 4)}) {
    Write(broken);
    const std::string said = Notices([&] {
      LineHistory history(file_);
      history.Add("one");
      history.Add("two");
      EXPECT_EQ(Entries(history), (Strings{"one", "two"}));
    });
    EXPECT_NE(said.find(file_), std::string::npos) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_EQ(Content(), broken);
  }
}

TEST_F(LineHistoryTest, AFileThatCannotBeWrittenIsOneNotice) {
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& bad : {folder_, fifo, file_ + "/" + std::string(300, 'n')}) {
    const std::string said = Notices([&] {
      LineHistory history(bad);
      history.Add("one");
      history.Add("two");
      EXPECT_EQ(history.size(), 2) << bad;
    });
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }
}

TEST_F(LineHistoryTest, WithoutAFileItIsForThisRun) {
  LineHistory history("");
  history.Add("one");
  EXPECT_EQ(Entries(history), Strings{"one"});
}

}  // namespace
}  // namespace k3::cli
