#pragma once
// The limit of everything that input can make grow. A file or request beyond one of these is
// refused with a message that names the limit; nothing is allocated first.

#include <cstdint>

namespace k3::limits {

inline constexpr int64_t kConfigFileBytesMax = 16 << 20;
inline constexpr int64_t kIndexFileBytesMax = int64_t{1} << 30;
inline constexpr int64_t kShardHeaderBytesMax = int64_t{1} << 30;
inline constexpr int64_t kShardsCountMax = 100'000;
inline constexpr int64_t kTensorsCountMax = 16'000'000;
inline constexpr int64_t kTensorNameBytesMax = 1024;
inline constexpr int64_t kTensorRankMax = 5;
inline constexpr int64_t kTokenizerFileBytesMax = 256 << 20;
inline constexpr int64_t kTokenBytesMax = 64 << 10;
inline constexpr int64_t kPromptBytesMax = int64_t{1} << 30;
inline constexpr int64_t kLineBytesMax = 16 << 20;
inline constexpr int64_t kJsonDepthMax = 64;

inline constexpr int64_t kVocabularyMax = 16'777'216;
inline constexpr int64_t kHiddenSizeMax = 1 << 20;
inline constexpr int64_t kLayersCountMax = 4096;
inline constexpr int64_t kHeadsCountMax = 65'536;
inline constexpr int64_t kHeadDimMax = 65'536;
inline constexpr int64_t kExpertsCountMax = 65'536;
inline constexpr int64_t kContextTokensMax = int64_t{1} << 24;
inline constexpr int64_t kThreadsCountMax = 1024;

inline constexpr int64_t kTrainingTokensMax = 1 << 24;  // of one step
inline constexpr int64_t kTrainingStepsMax = int64_t{1} << 40;
inline constexpr int64_t kPrimerStepsMax = 100'000;
inline constexpr int64_t kTrainingTasksMax = 100'000'000;
inline constexpr int64_t kTaskTurnsMax = 1000;  // of one synthetic conversation
inline constexpr int64_t kTaskDistractorsMax = 1'000'000;
inline constexpr int64_t kTaskWordsMax = 1000;  // of an answer

}  // namespace k3::limits
