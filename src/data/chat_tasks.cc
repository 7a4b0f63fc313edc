#include "data/chat_tasks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/fnv1a.h"
#include "base/random.h"
#include "data/task_json.h"
#include "data/tool_tasks.h"

namespace k3 {
namespace {

using tasks::Array;
using tasks::AssistantMessage;
using tasks::DrawBetween;
using tasks::DrawFrom;
using tasks::Object;
using tasks::Text;
using tasks::UserMessage;

constexpr std::pair<TaskKind, std::string_view> kKindNames[] = {
    {TaskKind::kSum, "sum"},           {TaskKind::kDifference, "difference"},
    {TaskKind::kCopy, "copy"},         {TaskKind::kReverse, "reverse"},
    {TaskKind::kSort, "sort"},         {TaskKind::kLookUp, "look-up"},
    {TaskKind::kToolCall, "tool-call"}};

constexpr uint64_t kHeldOutOneIn = 10;
constexpr int64_t kOperandMax = 999;
constexpr int64_t kWordsMin = 3;
constexpr int64_t kWordsMax = 8;
constexpr int64_t kPairsMin = 2;
constexpr int64_t kPairsMax = 32;

JsonValue OneTurn(std::string_view question, std::string_view reasoning, std::string_view answer) {
  return Object({{"messages", Array({UserMessage(question), AssistantMessage(reasoning, answer)})},
                 {"reasoning_effort", Text("low")}});
}

/// "7 + 5 = 12, 4 + 8 + 1 = 13, 3 + 0 + 1 = 4. So 432." for 347 + 85.
std::string WorkOutSum(int64_t a, int64_t b) {
  std::string out;
  int64_t carry = 0;
  for (int64_t x = a, y = b; out.empty() || x > 0 || y > 0; x /= 10, y /= 10) {
    const int64_t sum = x % 10 + y % 10 + carry;
    out += fmt::format("{}{} + {}{} = {}", out.empty() ? "" : ", ", x % 10, y % 10,
                       carry > 0 ? " + 1" : "", sum);
    carry = sum / 10;
  }
  return fmt::format("{}. So {}.", out, a + b);
}

/// "7 - 5 = 2, 14 - 8 = 6, 3 - 0 - 1 = 2. So 262." for 347 - 85; the other way round it starts with
/// "347 - 85 turned round: " and ends with -262.
std::string WorkOutDifference(int64_t a, int64_t b) {
  const int64_t larger = std::max(a, b);
  const int64_t smaller = std::min(a, b);
  std::string out;
  int64_t borrow = 0;
  for (int64_t x = larger, y = smaller; out.empty() || x > 0; x /= 10, y /= 10) {
    const int64_t from = x % 10 - y % 10 - borrow < 0 ? x % 10 + 10 : x % 10;
    out += fmt::format("{}{} - {}{} = {}", out.empty() ? "" : ", ", from, y % 10,
                       borrow > 0 ? " - 1" : "", from - y % 10 - borrow);
    borrow = from >= 10 ? 1 : 0;
  }
  const std::string turned =
      a < b ? fmt::format("{} - {} turned round: ", larger, smaller) : std::string();
  return fmt::format("{}{}. So {}.", turned, out, a - b);
}

ChatTask MakeArithmetic(Random& random, TaskKind kind) {
  constexpr std::string_view kSums[] = {"What is {} + {}?", "{} + {} = ?", "Add {} and {}.",
                                        "How much is {} plus {}?"};
  constexpr std::string_view kDifferences[] = {
      "What is {} - {}?", "{} - {} = ?", "How much is {} minus {}?", "Take {1} away from {0}."};
  // Small numbers too, which a uniform draw to 999 would hardly give.
  const auto draw = [&] {
    constexpr int64_t kLimits[] = {9, 99, kOperandMax};
    return DrawBetween(random, 0, DrawFrom<int64_t>(random, kLimits));
  };
  const int64_t a = draw();
  const int64_t b = draw();
  const bool adds = kind == TaskKind::kSum;
  const std::string_view question = adds ? DrawFrom<std::string_view>(random, kSums)
                                         : DrawFrom<std::string_view>(random, kDifferences);
  ChatTask task{.kind = kind};
  task.subject = fmt::format("numbers {} {}", std::min(a, b), std::max(a, b));
  task.answer = std::to_string(adds ? a + b : a - b);
  task.request = OneTurn(fmt::format(fmt::runtime(question), a, b),
                         adds ? WorkOutSum(a, b) : WorkOutDifference(a, b), task.answer);
  return task;
}

ChatTask MakeWords(Random& random, TaskKind kind) {
  constexpr std::string_view kCopies[] = {"Repeat these words: {}", "Say again: {}"};
  constexpr std::string_view kReversals[] = {"Reverse the order of these words: {}",
                                             "Say these words from last to first: {}"};
  constexpr std::string_view kSorts[] = {"Sort these words: {}",
                                         "Put these words in alphabetical order: {}"};
  const std::vector<std::string> words =
      tasks::DrawWords(random, DrawBetween(random, kWordsMin, kWordsMax));
  std::vector<std::string> sorted = words;
  std::ranges::sort(sorted);
  std::vector<std::string> result = words;
  std::string_view question = DrawFrom<std::string_view>(random, kCopies);
  if (kind == TaskKind::kReverse) {
    question = DrawFrom<std::string_view>(random, kReversals);
    std::ranges::reverse(result);
  } else if (kind == TaskKind::kSort) {
    question = DrawFrom<std::string_view>(random, kSorts);
    result = sorted;
  }
  ChatTask task{.kind = kind};
  task.subject = fmt::format("words {}", fmt::join(sorted, " "));
  task.answer = fmt::format("{}", fmt::join(result, " "));
  task.request =
      OneTurn(fmt::format(fmt::runtime(question), fmt::join(words, " ")), "", task.answer);
  return task;
}

ChatTask MakeLookUp(Random& random, TaskSplit split) {
  constexpr std::string_view kQuestions[] = {"What is the number of {}?",
                                             "Which number does {} have?", "Look up {}."};
  const std::vector<std::string> names =
      tasks::DrawWords(random, DrawBetween(random, kPairsMin, kPairsMax));
  std::vector<std::string> pairs;
  std::vector<int64_t> numbers;
  for (const std::string& name : names) {
    // Not the asked pair alone is of this split, so that no list tells of what the other asks.
    do {
      if (numbers.size() > pairs.size()) numbers.pop_back();
      numbers.push_back(DrawBetween(random, 0, kOperandMax));
    } while (SplitOfSubject(fmt::format("pair {} {}", name, numbers.back())) != split);
    pairs.push_back(fmt::format("{}: {}", name, numbers.back()));
  }
  const size_t asked = random.NextBelow(names.size());
  ChatTask task{.kind = TaskKind::kLookUp};
  task.subject = fmt::format("pair {} {}", names[asked], numbers[asked]);
  task.answer = std::to_string(numbers[asked]);
  const std::string question =
      fmt::format(fmt::runtime(DrawFrom<std::string_view>(random, kQuestions)), names[asked]);
  task.request =
      OneTurn(fmt::format("{}\n\n{}", fmt::join(pairs, "\n"), question), "", task.answer);
  return task;
}

ChatTask MakeToolCall(Random& random) {
  const tasks::ToolTask drawn = tasks::DrawToolTask(random);
  ChatTask task{.kind = TaskKind::kToolCall};
  task.subject = drawn.subject;
  task.request = tasks::ToolTaskRequest(drawn, random);
  task.answer = drawn.answer;
  task.call = drawn.call;
  return task;
}

ChatTask MakeAny(Random& random, TaskKind kind, TaskSplit split) {
  switch (kind) {
    case TaskKind::kSum:
    case TaskKind::kDifference:
      return MakeArithmetic(random, kind);
    case TaskKind::kCopy:
    case TaskKind::kReverse:
    case TaskKind::kSort:
      return MakeWords(random, kind);
    case TaskKind::kLookUp:
      return MakeLookUp(random, split);
    case TaskKind::kToolCall:
      break;
  }
  return MakeToolCall(random);
}

}  // namespace

std::string_view TaskKindName(TaskKind kind) {
  return std::ranges::find(kKindNames, kind, [](const auto& one) { return one.first; })->second;
}

std::optional<TaskKind> ParseTaskKind(std::string_view name) {
  for (const auto& [kind, kind_name] : kKindNames) {
    if (kind_name == name) return kind;
  }
  return std::nullopt;
}

TaskSplit SplitOfSubject(std::string_view subject) {
  Fnv1a fnv;
  fnv.AddText(subject);
  // The low bits of FNV depend on the low bits of the characters alone: mixed as in SplitMix64.
  uint64_t hash = fnv.hash();
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBu;
  hash ^= hash >> 31;
  return hash % kHeldOutOneIn == 0 ? TaskSplit::kHeldOut : TaskSplit::kTraining;
}

JsonValue TaskPrompt(const ChatTask& task, TaskTurn turn) {
  JsonValue::Members members = *task.request.members();
  for (auto& [name, value] : members) {
    if (name != "messages") continue;
    JsonValue::Items& messages = *value.items();
    size_t end = messages.size() - 1;
    if (turn == TaskTurn::kFirst) {
      end = 0;
      while (*messages[end].Find("role")->string() != "assistant") ++end;
    }
    messages.resize(end);
  }
  return JsonValue(std::move(members));
}

std::string TaskLine(const ChatTask& task) {
  JsonValue::Members members = *task.request.members();
  members.emplace_back("task", Text(TaskKindName(task.kind)));
  members.emplace_back("answer", Text(task.answer));
  return DumpJson(JsonValue(std::move(members))) + "\n";
}

TaskGenerator::TaskGenerator(uint64_t seed, TaskSplit split, std::span<const TaskKind> kinds)
    : seed_(seed), split_(split), kinds_(kinds.begin(), kinds.end()) {
  K3_CHECK(!kinds_.empty(), "expected at least one kind of task");
}

ChatTask TaskGenerator::Make(int64_t n) const {
  Random random(seed_, static_cast<uint64_t>(n));
  const TaskKind kind = kinds_[random.NextBelow(kinds_.size())];
  ChatTask task = MakeAny(random, kind, split_);
  while (SplitOfSubject(task.subject) != split_) task = MakeAny(random, kind, split_);
  return task;
}

}  // namespace k3
