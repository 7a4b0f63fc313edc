#include "sys/file_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

namespace k3 {
namespace {

TEST(FileLockTest, OneHolderAtATime) {
  const std::string path = testing::TempDir() + "k3_file_lock_test." + std::to_string(getpid());
  Result<FileLock> first = FileLock::Acquire(path);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(FileLock::Acquire(path).status().code(), StatusCode::kUnavailable);
  {
    const FileLock moved = std::move(*first);
    EXPECT_EQ(FileLock::Acquire(path).status().code(), StatusCode::kUnavailable);
  }
  EXPECT_TRUE(FileLock::Acquire(path).ok());
  unlink(path.c_str());
}

TEST(FileLockTest, EndsWithTheProcess) {
  const std::string path = testing::TempDir() + "k3_file_lock_kill." + std::to_string(getpid());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const Result<FileLock> lock = FileLock::Acquire(path);
    if (write(ready[1], lock.ok() ? "1" : "0", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, '1');
  EXPECT_EQ(FileLock::Acquire(path).status().code(), StatusCode::kUnavailable);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(FileLock::Acquire(path).ok());
  unlink(path.c_str());
  close(ready[0]);
  close(ready[1]);
}

TEST(FileLockTest, NamesWhatCannotBeOpened) {
  const Status status = FileLock::Acquire("/nonexistent/lock").status();
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_NE(status.message().find("/nonexistent/lock"), std::string::npos);
}

}  // namespace
}  // namespace k3
