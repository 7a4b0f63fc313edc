#include "train/exported_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "train/run_directory.h"
#include "train/state_test_util.h"

namespace k3::train {
namespace {

TEST(WithQuantizationTest, ComesAndGoesWithTheExperts) {
  const std::string with = FullConfigJson(true), without = FullConfigJson(false);
  EXPECT_EQ(*WithQuantization(with, true), with);
  EXPECT_EQ(*WithQuantization(without, false), without);
  const std::string added = *WithQuantization(without, true);
  EXPECT_TRUE(ParsedConfig(added).quantized_experts);
  const std::string removed = *WithQuantization(with, false);
  EXPECT_FALSE(ParsedConfig(removed).quantized_experts);
  EXPECT_EQ(nlohmann::ordered_json::parse(removed), nlohmann::ordered_json::parse(without));
  // The released configuration has it inside text_config.
  nlohmann::ordered_json nested = nlohmann::ordered_json::parse(without);
  nested["text_config"]["quantization_config"] =
      nlohmann::ordered_json::parse(with)["quantization_config"];
  ASSERT_TRUE(ParsedConfig(nested.dump()).quantized_experts);
  EXPECT_FALSE(ParsedConfig(*WithQuantization(nested.dump(), false)).quantized_experts);
  EXPECT_EQ(*WithQuantization(nested.dump(), true), nested.dump());
  EXPECT_EQ(WithQuantization("{", true).status().code(), StatusCode::kInvalidArgument);
}

TEST(WithTokenizerIdsTest, NamesTheIdsOfTheTokenizer) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const std::string dir = std::string(K3_SOURCE_DIR) + "/models/kjv";
  const Tokenizer tokenizer = *OpenTrainingTokenizer(*files, dir, 2048);
  const std::string own = *ReadWholeFile(*files, dir + "/config.json", 1 << 20);
  EXPECT_EQ(*WithTokenizerIds(own, tokenizer), own);

  nlohmann::ordered_json other = nlohmann::ordered_json::parse(own);
  other["eos_token_id"] = 7;
  other["text_config"]["eos_token_id"] = {7, 8};
  other["text_config"]["bos_token_id"] = 9;
  const std::string mended = *WithTokenizerIds(other.dump(), tokenizer);
  EXPECT_EQ(nlohmann::ordered_json::parse(mended), nlohmann::ordered_json::parse(own));
  // A list that has the id beside others is right.
  other = nlohmann::ordered_json::parse(own);
  other["eos_token_id"] = {7, 1954};
  EXPECT_EQ(*WithTokenizerIds(other.dump(), tokenizer), other.dump());
}

}  // namespace
}  // namespace k3::train
