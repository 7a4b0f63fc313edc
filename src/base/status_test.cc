#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace k3 {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgument("odd");
  return n / 2;
}

Result<int> Quarter(int n) {
  K3_TRY(const int half, Half(n));
  K3_TRY(const int quarter, Half(half));
  return quarter;
}

Status CheckEven(int n) {
  K3_RETURN_IF_ERROR(Half(n));
  return OkStatus();
}

TEST(StatusTest, TryBindsOrReturns) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckEven(4).ok());
  EXPECT_EQ(CheckEven(5).message(), "odd");
}

TEST(StatusTest, ContextReadsFromOutsideIn) {
  const Status status = Corruption("bad length").WithContext("header").WithContext("a.safetensors");
  EXPECT_EQ(status.ToString(), "Corruption: a.safetensors: header: bad length");
  EXPECT_TRUE(OkStatus().WithContext("anything").ok());
}

TEST(StatusTest, ResultMovesItsValue) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 7);
}

TEST(StatusDeathTest, ReadingAFailureAborts) {
  Result<int> failed = NotFound("nothing here");
  EXPECT_DEATH(failed.value(), "nothing here");
}

}  // namespace
}  // namespace k3
