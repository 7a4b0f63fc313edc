#include "data/chat_tasks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "base/fnv1a.h"
#include "base/random.h"
#include "data/arithmetic.h"
#include "data/task_json.h"
#include "data/tool_tasks.h"

namespace k3 {
namespace {

using tasks::Array;
using tasks::AssistantMessage;
using tasks::DrawBetween;
using tasks::DrawFrom;
using tasks::Object;
using tasks::Shuffle;
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
constexpr int64_t kTimesMax = 9;
constexpr int64_t kRepeatedWordsMax = 32;
constexpr int64_t kRepeatedTextMax = 16;
constexpr int64_t kNamesMax = 6;
constexpr size_t kRepeatedTextLength = 48;
// Tells the distractors of a task from the task, which has to be the same with any number of them.
constexpr uint64_t kDistractorSeed = 0x9E3779B97F4A7C15u;

/// One question and what comes of it, to stand alone or behind others in a conversation.
struct Turn {
  TaskKind kind = TaskKind::kSum;
  std::string subject;
  JsonValue::Items messages;
  std::string answer;
  std::optional<ToolCall> call;
};

Turn OneAnswer(TaskKind kind, std::string subject, std::string_view question,
               std::string_view reasoning, std::string answer) {
  Turn turn{.kind = kind, .subject = std::move(subject)};
  turn.messages = {UserMessage(question), AssistantMessage(reasoning, answer)};
  turn.answer = std::move(answer);
  return turn;
}

Turn MakeArithmetic(Random& random, TaskKind kind) {
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
  return OneAnswer(kind, fmt::format("numbers {} {}", std::min(a, b), std::max(a, b)),
                   fmt::format(fmt::runtime(question), a, b),
                   adds ? tasks::WorkOutSum(a, b) : tasks::WorkOutDifference(a, b),
                   std::to_string(adds ? a + b : a - b));
}

/// "The fox sees the river."
std::string Distractor(Random& random) {
  constexpr std::string_view kVerbs[] = {"sees", "likes", "finds", "wants", "has", "takes"};
  const std::vector<std::string> words = tasks::DrawWords(random, 2);
  return fmt::format("The {} {} the {}.", words[0], DrawFrom<std::string_view>(random, kVerbs),
                     words[1]);
}

std::vector<std::string> Distractors(Random& random, int64_t count) {
  std::vector<std::string> sentences;
  sentences.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) sentences.push_back(Distractor(random));
  return sentences;
}

/// `parts` in their order with the sentences at random places among them.
std::string Interleave(Random& random, const std::vector<std::string>& parts,
                       const std::vector<std::string>& sentences) {
  std::string text;
  size_t part = 0, sentence = 0;
  while (part < parts.size() || sentence < sentences.size()) {
    const size_t left = parts.size() - part;
    const bool takes_part = random.NextBelow(left + sentences.size() - sentence) < left;
    if (!text.empty()) text += " ";
    text += takes_part ? parts[part++] : sentences[sentence++];
  }
  return text;
}

std::string Joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

/// Of words in their sorted form.
std::string WordsSubject(std::vector<std::string> words) {
  std::ranges::sort(words);
  return "words " + Joined(words);
}

/// Names as those of made-up places, none of which the other split asks about.
std::vector<std::string> DrawNames(Random& random, TaskSplit split, int64_t count) {
  std::vector<std::string> drawn;
  while (std::ssize(drawn) < count) {
    const std::string name = tasks::MakeUpName(random);
    const bool is_other = SplitOfSubject(tasks::WeatherSubject(name)) != split;
    if (!is_other && std::ranges::find(drawn, name) == drawn.end()) drawn.push_back(name);
  }
  return drawn;
}

struct TurnShape {
  int64_t number = 1;  // of the turn, from 1
  int64_t words_max = kWordsMax;
  bool is_made_up = false;  // the words to copy
  std::vector<std::string> distractors;
};

Turn MakeCopy(Random& random, TaskSplit split, const TurnShape& shape) {
  constexpr std::string_view kQuestions[] = {"Repeat these words: {}", "Say again: {}"};
  constexpr std::string_view kLater[] = {"Now repeat the words.", "Say the words again."};
  const int64_t words_count = DrawBetween(random, kWordsMin, kWordsMax);
  const std::vector<std::string> words = shape.is_made_up ? DrawNames(random, split, words_count)
                                                          : tasks::DrawWords(random, words_count);
  const std::string list = Joined(words);
  const std::string question =
      shape.distractors.empty()
          ? fmt::format(fmt::runtime(DrawFrom<std::string_view>(random, kQuestions)), list)
          : fmt::format("Remember these words: {}\n{}\n{}", list, fmt::join(shape.distractors, " "),
                        DrawFrom<std::string_view>(random, kLater));
  return OneAnswer(TaskKind::kCopy, WordsSubject(words), question, "", list);
}

/// The same words several times, at most `words_max` in all.
Turn MakeRepetition(Random& random, int64_t words_max) {
  const int64_t times = DrawBetween(random, 2, kTimesMax);
  const std::vector<std::string> words = tasks::DrawWords(
      random,
      DrawBetween(random, kWordsMin, std::clamp(words_max / times, kWordsMin, kRepeatedWordsMax)));
  const std::string list = Joined(words);
  const std::vector<std::string> repeated(static_cast<size_t>(times), list);
  return OneAnswer(TaskKind::kCopy, WordsSubject(words),
                   fmt::format("Repeat these words {} times: {}", times, list), "",
                   Joined(repeated));
}

Turn MakeReordering(Random& random, TaskKind kind) {
  constexpr std::string_view kReversals[] = {"Reverse the order of these words: {}",
                                             "Say these words from last to first: {}"};
  constexpr std::string_view kSorts[] = {"Sort these words: {}",
                                         "Put these words in alphabetical order: {}"};
  const std::vector<std::string> words =
      tasks::DrawWords(random, DrawBetween(random, kWordsMin, kWordsMax));
  std::vector<std::string> result = words;
  if (kind == TaskKind::kReverse) {
    std::ranges::reverse(result);
  } else {
    std::ranges::sort(result);
  }
  const std::string_view question = kind == TaskKind::kReverse
                                        ? DrawFrom<std::string_view>(random, kReversals)
                                        : DrawFrom<std::string_view>(random, kSorts);
  return OneAnswer(kind, WordsSubject(words), fmt::format(fmt::runtime(question), Joined(words)),
                   "", Joined(result));
}

struct NamedNumber {
  std::string name;
  int64_t number = 0;

  std::string Subject() const { return fmt::format("pair {} {}", name, number); }
  std::string Text() const { return fmt::format("{}={}", name, number); }
};

/// Every pair is of this split, so that no list tells of what the other asks.
std::vector<NamedNumber> DrawPairs(Random& random, TaskSplit split, int64_t count) {
  std::vector<NamedNumber> pairs;
  for (const std::string& name : tasks::DrawWords(random, count)) {
    NamedNumber pair{.name = name};
    do {
      pair.number = DrawBetween(random, 0, kOperandMax);
    } while (SplitOfSubject(pair.Subject()) != split);
    pairs.push_back(pair);
  }
  return pairs;
}

std::vector<std::string> Texts(const std::vector<NamedNumber>& pairs) {
  std::vector<std::string> texts;
  for (const NamedNumber& pair : pairs) texts.push_back(pair.Text());
  return texts;
}

/// A list of names with their numbers, and questions about it.
class LookUpList {
 public:
  LookUpList(Random& random, TaskSplit split, int64_t pairs_min)
      : pairs_(DrawPairs(random, split, DrawBetween(random, pairs_min, kLookUpPairsMax))) {}

  /// One name is asked for.
  Turn Ask(Random& random) const {
    constexpr std::string_view kQuestions[] = {"What is the number of {}?",
                                               "Which number does {} have?", "Look up {}."};
    const NamedNumber& asked = pairs_[random.NextBelow(pairs_.size())];
    return OneAnswer(
        TaskKind::kLookUp, asked.Subject(),
        fmt::format(fmt::runtime(DrawFrom<std::string_view>(random, kQuestions)), asked.name),
        fmt::format("The list has {}.", asked.Text()), std::to_string(asked.number));
  }

  /// Several are, which gives more to find in as many tokens.
  Turn AskSeveral(Random& random) const {
    std::vector<NamedNumber> asked = pairs_;
    Shuffle(random, asked);
    asked.resize(static_cast<size_t>(
        DrawBetween(random, 1, std::min<int64_t>(kNamesMax, std::ssize(pairs_)))));
    std::vector<std::string> names;
    std::vector<int64_t> numbers;
    for (const NamedNumber& pair : asked) {
      names.push_back(pair.name);
      numbers.push_back(pair.number);
    }
    return OneAnswer(TaskKind::kLookUp, asked[0].Subject(),
                     fmt::format("Look up {}.", fmt::join(names, ", ")),
                     fmt::format("The list has {}.", Joined(Texts(asked))),
                     fmt::format("{}", fmt::join(numbers, ", ")));
  }

  /// The list before a question, with sentences among its pairs.
  void Show(Random& places, const std::vector<std::string>& distractors, Turn& turn) const {
    JsonValue& question = turn.messages[0];
    const std::string list = Interleave(places, Texts(pairs_), distractors);
    question =
        UserMessage(fmt::format("Numbers: {}\n{}", list, *question.Find("content")->string()));
  }

 private:
  std::vector<NamedNumber> pairs_;
};

Turn MakeToolCall(Random& random, int64_t number) {
  const tasks::ToolTask drawn = tasks::DrawToolTask(random, number);
  return {.kind = TaskKind::kToolCall,
          .subject = drawn.subject,
          .messages = tasks::ToolTaskMessages(drawn),
          .answer = drawn.answer,
          .call = drawn.call};
}

Turn DrawTurn(Random& random, TaskKind kind, TaskSplit split, const TurnShape& shape) {
  switch (kind) {
    case TaskKind::kSum:
    case TaskKind::kDifference:
      return MakeArithmetic(random, kind);
    case TaskKind::kCopy:
      // Long lists are said again and again: there is much to copy then.
      return shape.words_max > kWordsMax ? MakeRepetition(random, shape.words_max)
                                         : MakeCopy(random, split, shape);
    case TaskKind::kReverse:
    case TaskKind::kSort:
      return MakeReordering(random, kind);
    case TaskKind::kToolCall:
      return MakeToolCall(random, shape.number);
    case TaskKind::kLookUp:
      break;
  }
  K3_CHECK(false, "a look-up is asked of its list");
}

/// A turn of the split, which need know nothing of those before it.
Turn MakeTurn(Random& random, TaskKind kind, TaskSplit split, const TurnShape& shape) {
  for (;;) {
    Turn turn = DrawTurn(random, kind, split, shape);
    if (SplitOfSubject(turn.subject) == split) return turn;
  }
}

JsonValue Request(Random& random, TaskKind kind, JsonValue::Items messages) {
  JsonValue::Members members = {{"messages", Array(std::move(messages))}};
  if (kind == TaskKind::kToolCall) members.emplace_back("tools", tasks::DrawTools(random));
  return Object(std::move(members));
}

/// Whether a conversation may go on from one of these kinds to another of them.
bool StandsAlone(TaskKind kind) { return kind == TaskKind::kLookUp || kind == TaskKind::kToolCall; }

struct TurnsPlan {
  TaskSplit split;
  const TaskOptions& options;
  const ConversationShape& shape;
};

/// The turns of a conversation that begins with a task of kind `first`.
std::vector<Turn> DrawTurns(Random& random, Random& filler, const TurnsPlan& plan, TaskKind first) {
  const ConversationShape& shape = plan.shape;
  const int64_t turns_count = DrawBetween(random, 1, shape.turns_max);
  // Half of the conversations have none: short ones teach more a token.
  const int64_t distractors_count =
      random.NextBelow(2) == 0 ? 0 : DrawBetween(random, 0, shape.distractors_max);
  std::optional<LookUpList> list;
  if (first == TaskKind::kLookUp) list.emplace(random, plan.split, plan.options.pairs_min);
  std::vector<Turn> turns;
  TaskKind kind = first;
  for (int64_t i = 0; i < turns_count; ++i) {
    TurnShape turn_shape{.number = i + 1};
    turn_shape.distractors =
        Distractors(filler, i == 0 && TakesDistractors(kind) ? distractors_count : 0);
    const bool is_long = shape.words_max > kWordsMax && random.NextBelow(2) == 0;
    if (is_long && kind == TaskKind::kCopy && turn_shape.distractors.empty()) {
      turn_shape.words_max = shape.words_max;
    }
    turn_shape.is_made_up = shape.makes_up_names && random.NextBelow(2) == 0;
    if (list.has_value()) {
      turns.push_back(is_long ? list->AskSeveral(random) : list->Ask(random));
      if (i == 0) list->Show(filler, turn_shape.distractors, turns.back());
    } else {
      turns.push_back(MakeTurn(random, kind, plan.split, turn_shape));
    }
    if (StandsAlone(first)) continue;
    do {
      kind = DrawFrom<TaskKind>(random, plan.options.kinds);
    } while (StandsAlone(kind));
  }
  return turns;
}

/// Words again and again in one order, or pairs again and again in other orders.
std::string MakeRepetitions(Random& random, TaskSplit split) {
  std::vector<std::string> parts;
  if (random.NextBelow(2) == 0) {
    do {
      parts = tasks::DrawWords(random, DrawBetween(random, kWordsMin, kRepeatedTextMax));
    } while (SplitOfSubject(WordsSubject(parts)) != split);
    const size_t times = std::max<size_t>(2, kRepeatedTextLength / parts.size());
    const std::vector<std::string> repeated(times, Joined(parts));
    return " " + Joined(repeated) + "\n";
  }
  parts = Texts(DrawPairs(random, split, DrawBetween(random, 2, kRepeatedTextMax)));
  std::string text;
  for (size_t length = 0; length < kRepeatedTextLength; length += parts.size()) {
    text += " " + Joined(parts);
    Shuffle(random, parts);
  }
  return text + "\n";
}

}  // namespace

std::string_view TaskKindName(TaskKind kind) {
  return std::ranges::find(kKindNames, kind, [](const auto& one) { return one.first; })->second;
}

std::string TaskKindNames() {
  return fmt::format("{}", fmt::join(kTaskKinds | std::views::transform(TaskKindName), ", "));
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

std::string TaskLine(const TaskConversation& conversation) {
  return DumpJson(conversation.request) + "\n";
}

bool TakesDistractors(TaskKind kind) {
  return kind == TaskKind::kCopy || kind == TaskKind::kLookUp;
}

TaskGenerator::TaskGenerator(uint64_t seed, TaskSplit split, TaskOptions options)
    : seed_(seed), split_(split), options_(std::move(options)) {
  K3_CHECK(!options_.kinds.empty(), "expected at least one kind of task");
  K3_CHECK(options_.pairs_min >= 1 && options_.pairs_min <= kLookUpPairsMax,
           "a look-up has a pair and at most 32");
}

ChatTask TaskGenerator::Make(int64_t n, int64_t distractors_count) const {
  Random random(seed_, static_cast<uint64_t>(n));
  Random filler(seed_ ^ kDistractorSeed, static_cast<uint64_t>(n));
  const TaskKind kind = DrawFrom<TaskKind>(random, options_.kinds);
  const std::vector<std::string> distractors = Distractors(filler, distractors_count);
  Turn turn;
  if (kind == TaskKind::kLookUp) {
    const LookUpList list(random, split_, options_.pairs_min);
    turn = list.Ask(random);
    list.Show(filler, distractors, turn);
  } else {
    turn = MakeTurn(random, kind, split_, {.distractors = distractors});
  }
  return {.kind = kind,
          .subject = std::move(turn.subject),
          .request = Request(random, kind, std::move(turn.messages)),
          .answer = std::move(turn.answer),
          .call = std::move(turn.call)};
}

TaskConversation TaskGenerator::MakeConversation(int64_t n, const ConversationShape& shape) const {
  Random random(seed_, static_cast<uint64_t>(n));
  Random filler(seed_ ^ kDistractorSeed, static_cast<uint64_t>(n));
  const TaskKind first = DrawFrom<TaskKind>(random, options_.kinds);
  TaskConversation conversation;
  JsonValue::Items messages;
  for (Turn& turn : DrawTurns(random, filler, {split_, options_, shape}, first)) {
    std::ranges::move(turn.messages, std::back_inserter(messages));
    conversation.subjects.push_back(std::move(turn.subject));
  }
  conversation.request = Request(random, first, std::move(messages));
  // The others are asked with the effort that a request has by default.
  constexpr std::string_view kEfforts[] = {"low", "high"};
  if (random.NextBelow(4) == 0) {
    conversation.request.members()->emplace_back(
        "reasoning_effort", Text(DrawFrom<std::string_view>(random, kEfforts)));
  }
  return conversation;
}

std::string TaskGenerator::MakePrimer(int64_t n, const ConversationShape& shape) const {
  Random random(seed_, static_cast<uint64_t>(n));
  Random filler(seed_ ^ kDistractorSeed, static_cast<uint64_t>(n));
  const TaskKind first = DrawFrom<TaskKind>(random, options_.kinds);
  if (first == TaskKind::kToolCall || random.NextBelow(3) == 0) {
    return MakeRepetitions(random, split_);
  }
  std::string text;
  for (const Turn& turn : DrawTurns(random, filler, {split_, options_, shape}, first)) {
    const JsonValue* reasoning = turn.messages[1].Find("reasoning_content");
    // Reasoning ends with the answer.
    text += fmt::format("{}\n{}\n", *turn.messages[0].Find("content")->string(),
                        reasoning == nullptr ? turn.answer : *reasoning->string());
  }
  return text;
}

}  // namespace k3
