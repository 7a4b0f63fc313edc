#include "data/chat_tasks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "base/fnv1a.h"
#include "data/task_json.h"
#include "text/xtml_renderer.h"

namespace k3 {
namespace {

const JsonValue& Message(const ChatTask& task, size_t index) {
  return (*task.request.Find("messages")->items())[index];
}
std::string StringOf(const JsonValue& object, std::string_view name) {
  const JsonValue* value = object.Find(name);
  return value == nullptr ? "" : *value->string();
}
std::string Question(const ChatTask& task) { return StringOf(Message(task, 0), "content"); }

std::vector<std::string> SplitText(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}
std::string JoinText(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : " ") + part;
  return joined;
}
std::vector<int64_t> NumbersIn(const std::string& text) {
  std::vector<int64_t> numbers;
  bool before = false;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (digit && !before) numbers.push_back(0);
    if (digit) numbers.back() = numbers.back() * 10 + (c - '0');
    before = digit;
  }
  return numbers;
}
std::vector<std::string> WordsAsked(const ChatTask& task) {
  const std::string question = Question(task);
  const size_t begin = question.find(": ") + 2;
  return SplitText(question.substr(begin, question.find('\n') - begin), ' ');
}

/// The operands of "Take 5 away from 7" stand the other way round.
std::array<int64_t, 2> Operands(const ChatTask& task) {
  std::vector<int64_t> numbers = NumbersIn(Question(task));
  EXPECT_EQ(numbers.size(), 2) << Question(task);
  if (Question(task).starts_with("Take")) std::swap(numbers[0], numbers[1]);
  return {numbers[0], numbers[1]};
}

/// Every "a + b - c = d" of the reasoning holds, and the last digits of the results, the last of
/// them whole, are the result without its sign.
void CheckReasoning(const ChatTask& task, int64_t result) {
  std::string reasoning = StringOf(Message(task, 1), "reasoning_content");
  const std::string end = fmt::format(". So {}.", result);
  ASSERT_TRUE(reasoning.ends_with(end)) << reasoning;
  reasoning.resize(reasoning.size() - end.size());
  if (const size_t turned = reasoning.find(": "); turned != std::string::npos) {
    EXPECT_LT(result, 0);
    reasoning = reasoning.substr(turned + 2);
  }
  int64_t assembled = 0;
  int64_t place = 1;
  for (const std::string& step : SplitText(reasoning, ',')) {
    static const std::regex kStep(" ?(\\d+)([+-])(\\d)([+-]1)?=(\\d+)");
    std::smatch parts;
    ASSERT_TRUE(std::regex_match(step, parts, kStep)) << step;
    int64_t value = std::stoll(parts[1]) + (parts[2] == "+" ? 1 : -1) * std::stoll(parts[3]);
    if (parts[4].matched) value += std::stoll(parts[4]);
    EXPECT_EQ(value, std::stoll(parts[5])) << step;
    assembled = assembled % place + value * place;
    place *= 10;
  }
  EXPECT_EQ(assembled, std::abs(result)) << reasoning;
}

/// The pairs of name and number of a look-up.
std::map<std::string, std::string> Pairs(const ChatTask& task) {
  const std::string question = Question(task);
  EXPECT_TRUE(question.starts_with("Numbers: ")) << question;
  std::map<std::string, std::string> pairs;
  for (const std::string& part : SplitText(question.substr(9, question.find('\n') - 9), ' ')) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) continue;  // of a distractor
    EXPECT_TRUE(pairs.emplace(part.substr(0, equals), part.substr(equals + 1)).second) << part;
  }
  return pairs;
}

std::string AnswerOfTool(const std::string& name, const JsonValue& arguments,
                         const JsonValue& result, const std::string& question) {
  const auto integer = [](const JsonValue& object, std::string_view key) {
    return *object.Find(key)->integer();
  };
  if (name == "get_weather") {
    return fmt::format("In {} it is {} and {} degrees.", StringOf(arguments, "city"),
                       StringOf(result, "sky"), integer(result, "degrees"));
  }
  if (name == "multiply") {
    const int64_t a = integer(arguments, "a");
    const int64_t b = integer(arguments, "b");
    EXPECT_EQ(integer(result, "product"), a * b);
    EXPECT_EQ(NumbersIn(question), (std::vector<int64_t>{a, b}));
    return fmt::format("{} times {} is {}.", a, b, a * b);
  }
  if (name == "set_alarm") {
    EXPECT_EQ(NumbersIn(question),
              (std::vector<int64_t>{integer(arguments, "hour"), integer(arguments, "minute")}));
    const bool every_day = question.ends_with(" every day.");
    EXPECT_EQ(*arguments.Find("every_day")->boolean(), every_day);
    return fmt::format("Alarm {} is set for {:02}:{:02}{}.", integer(result, "alarm"),
                       integer(arguments, "hour"), integer(arguments, "minute"),
                       every_day ? " every day" : "");
  }
  EXPECT_EQ(name, "to_metres");
  const std::map<std::string, std::pair<std::string, double>> units = {
      {"inch", {"inches", 0.0254}},
      {"foot", {"feet", 0.3048}},
      {"yard", {"yards", 0.9144}},
      {"kilometre", {"kilometres", 1000}},
      {"mile", {"miles", 1609.344}}};
  const auto& [many, metres] = units.at(StringOf(arguments, "unit"));
  const double value = *arguments.Find("value")->fraction();
  // The product here has two roundings, the task's one.
  EXPECT_NEAR(*result.Find("metres")->number(), value * metres, 1e-9 * value * metres);
  const std::string length = fmt::format("{} {}", value, many);
  EXPECT_NE(question.find(length), std::string::npos) << question;
  return fmt::format("{} are {} metres.", length, DumpJson(*result.Find("metres")));
}

void CheckToolCall(const ChatTask& task) {
  const ToolCall& call = *task.call;
  ASSERT_EQ(task.request.Find("messages")->items()->size(), 4);
  EXPECT_TRUE(call.arguments.size() >= 1 && call.arguments.size() <= 3);
  EXPECT_EQ(StringOf(Message(task, 2), "tool_call_id"), *call.id);
  // The call is declared, with these arguments of these types and no others.
  const std::map<std::string, std::string> types = {{"string", "\""}, {"boolean", "tf"}};
  bool declared = false;
  ASSERT_EQ(task.request.Find("tools")->items()->size(), 4);
  for (const JsonValue& tool : *task.request.Find("tools")->items()) {
    const JsonValue& function = *tool.Find("function");
    if (StringOf(function, "name") != call.name) continue;
    declared = true;
    const JsonValue::Members& properties =
        *function.Find("parameters")->Find("properties")->members();
    ASSERT_EQ(properties.size(), call.arguments.size());
    for (size_t i = 0; i < properties.size(); ++i) {
      EXPECT_EQ(properties[i].first, call.arguments[i].first);
      const std::string type = StringOf(properties[i].second, "type");
      const JsonValue& value = call.arguments[i].second;
      EXPECT_TRUE(type == "string"    ? value.string() != nullptr
                  : type == "boolean" ? value.boolean() != nullptr
                  : type == "integer" ? value.integer() != nullptr
                                      : type == "number" && value.fraction() != nullptr)
          << type << " " << value.Describe();
    }
  }
  EXPECT_TRUE(declared);
  const Result<JsonValue> result = ParseJson(StringOf(Message(task, 2), "content"), "result");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(task.answer,
            AnswerOfTool(call.name, JsonValue(call.arguments), *result, Question(task)));
}

/// Works the answer out again from what is asked.
void CheckAnswer(const ChatTask& task) {
  switch (task.kind) {
    case TaskKind::kSum:
    case TaskKind::kDifference: {
      const auto [a, b] = Operands(task);
      EXPECT_TRUE(a >= 0 && a <= 999 && b >= 0 && b <= 999);
      const int64_t result = task.kind == TaskKind::kSum ? a + b : a - b;
      EXPECT_EQ(task.answer, std::to_string(result)) << Question(task);
      CheckReasoning(task, result);
      return;
    }
    case TaskKind::kCopy:
    case TaskKind::kReverse:
    case TaskKind::kSort: {
      std::vector<std::string> words = WordsAsked(task);
      EXPECT_TRUE(words.size() >= 3 && words.size() <= 8) << Question(task);
      if (task.kind == TaskKind::kReverse) std::ranges::reverse(words);
      if (task.kind == TaskKind::kSort) std::ranges::sort(words);
      EXPECT_EQ(task.answer, JoinText(words)) << Question(task);
      return;
    }
    case TaskKind::kLookUp: {
      const std::map<std::string, std::string> pairs = Pairs(task);
      EXPECT_TRUE(pairs.size() >= 2 && pairs.size() <= 32);
      std::string name = Question(task).substr(Question(task).find('\n') + 1);
      static const std::regex kAsked("(?:of|does|up) ([a-z]+)");
      std::smatch match;
      ASSERT_TRUE(std::regex_search(name, match, kAsked)) << name;
      EXPECT_EQ(task.answer, pairs.at(match[1]));
      EXPECT_EQ(StringOf(Message(task, 1), "reasoning_content"),
                fmt::format("The list has {}={}.", match[1].str(), task.answer));
      return;
    }
    case TaskKind::kToolCall:
      CheckToolCall(task);
  }
}

/// The subject in its one form, from what is asked: of both orders of two operands, of every order
/// of words, and of every pair of a look-up.
std::vector<std::string> Subjects(const ChatTask& task) {
  if (task.kind == TaskKind::kLookUp) {
    std::vector<std::string> subjects;
    for (const auto& [name, number] : Pairs(task)) {
      subjects.push_back(fmt::format("pair {} {}", name, number));
    }
    return subjects;
  }
  if (task.kind == TaskKind::kSum || task.kind == TaskKind::kDifference) {
    const auto [a, b] = Operands(task);
    return {fmt::format("numbers {} {}", std::min(a, b), std::max(a, b))};
  }
  if (task.kind == TaskKind::kToolCall) {
    if (task.call->name != "multiply") return {task.subject};
    std::vector<int64_t> numbers = NumbersIn(Question(task));
    std::ranges::sort(numbers);
    return {fmt::format("multiply {} {}", numbers[0], numbers[1])};
  }
  std::vector<std::string> words = WordsAsked(task);
  std::ranges::sort(words);
  return {"words " + JoinText(words)};
}

TEST(ChatTasksTest, TasksParseAndRenderAndAnswersAreRight) {
  for (const TaskSplit split : {TaskSplit::kTraining, TaskSplit::kHeldOut}) {
    const TaskGenerator generator(5, split);
    std::map<TaskKind, int> counts;
    for (int64_t n = 0; n < 3500; ++n) {
      const ChatTask task = generator.Make(n);
      SCOPED_TRACE(TaskLine(task));
      ++counts[task.kind];
      CheckAnswer(task);
      const std::vector<std::string> subjects = Subjects(task);
      EXPECT_NE(std::ranges::find(subjects, task.subject), subjects.end()) << task.subject;
      for (const std::string& subject : subjects) EXPECT_EQ(SplitOfSubject(subject), split);
      const JsonValue::Items& messages = *task.request.Find("messages")->items();
      EXPECT_EQ(StringOf(messages.back(), "role"), "assistant");
      EXPECT_EQ(StringOf(messages.back(), "content"), task.answer);
      const Result<JsonValue> line = ParseJson(TaskLine(task), "line");
      ASSERT_TRUE(line.ok()) << line.status().ToString();
      EXPECT_EQ(StringOf(*line, "answer"), task.answer);
      EXPECT_EQ(StringOf(*line, "task"), TaskKindName(task.kind));
      const Result<ChatRequest> request = ParseChatRequest(*line, "line");
      ASSERT_TRUE(request.ok()) << request.status().ToString();
      EXPECT_TRUE(RenderXtml(*request).ok());
      if (HasFailure()) return;
    }
    // Each kind is drawn with a chance of 1 in 7: 500 of 3500, with a deviation of 21.
    for (const TaskKind kind : kTaskKinds) EXPECT_NEAR(counts[kind], 500, 100);
  }
}

/// What must not stand in both splits, read from the conversation alone.
std::set<std::string> Contents(const ChatTask& task) {
  switch (task.kind) {
    case TaskKind::kSum:
    case TaskKind::kDifference: {
      const auto [a, b] = Operands(task);
      return {fmt::format("{} {}", std::min(a, b), std::max(a, b))};
    }
    case TaskKind::kCopy:
    case TaskKind::kReverse:
    case TaskKind::kSort: {
      std::vector<std::string> words = WordsAsked(task);
      std::ranges::sort(words);
      return {JoinText(words)};
    }
    case TaskKind::kLookUp: {
      std::set<std::string> contents;
      for (const auto& [name, number] : Pairs(task)) contents.insert(name + " = " + number);
      return contents;
    }
    case TaskKind::kToolCall:
      break;
  }
  std::vector<std::string> arguments;
  for (const auto& [key, value] : task.call->arguments) arguments.push_back(DumpJson(value));
  if (task.call->name == "multiply") std::ranges::sort(arguments);
  return {task.call->name + " " + JoinText(arguments)};
}

TEST(ChatTasksTest, NothingHeldOutOccursInTraining) {
  // 100,000 tasks, of two seeds a split; a seed shared by both must not matter.
  std::set<std::string> contents[2];
  for (const bool held_out : {false, true}) {
    for (const uint64_t seed : {uint64_t{7}, uint64_t{8} + (held_out ? 1 : 0)}) {
      const TaskGenerator generator(seed, held_out ? TaskSplit::kHeldOut : TaskSplit::kTraining);
      for (int64_t n = 0; n < 25'000; ++n) contents[held_out].merge(Contents(generator.Make(n)));
    }
  }
  EXPECT_GT(contents[0].size(), 40'000);
  EXPECT_GT(contents[1].size(), 10'000);
  for (const std::string& one : contents[1]) {
    ASSERT_FALSE(contents[0].contains(one)) << one << " is in both splits";
  }
}

TEST(ChatTasksTest, OneInTenIsHeldOut) {
  int64_t held_out = 0;
  int64_t even = 0;  // of those: that the sum of the operands' digits is even
  for (int64_t a = 0; a < 400; ++a) {
    for (int64_t b = a; b < 400; ++b) {
      if (SplitOfSubject(fmt::format("numbers {} {}", a, b)) != TaskSplit::kHeldOut) continue;
      ++held_out;
      even += (a / 100 + a / 10 + a + b / 100 + b / 10 + b) % 2 == 0 ? 1 : 0;
    }
  }
  // 80,200 subjects: the deviation of a fair draw is 85 and, for the half of them, 45.
  EXPECT_NEAR(static_cast<double>(held_out), 8020, 400);
  EXPECT_NEAR(static_cast<double>(even), static_cast<double>(held_out) / 2, 200);
}

TEST(ChatTasksTest, DependsOnSeedSplitKindsAndNumberAlone) {
  const TaskGenerator generator(1, TaskSplit::kTraining);
  EXPECT_EQ(TaskLine(generator.Make(3)), TaskLine(generator.Make(3)));
  EXPECT_NE(TaskLine(generator.Make(3)), TaskLine(generator.Make(4)));
  EXPECT_NE(TaskLine(generator.Make(3)), TaskLine(TaskGenerator(2, TaskSplit::kTraining).Make(3)));
  Fnv1a hash;
  const ConversationShape shape{.turns_max = 8, .distractors_max = 30, .words_max = 48};
  for (int64_t n = 0; n < 100; ++n) {
    hash.AddText(TaskLine(generator.Make(n)));
    hash.AddText(TaskLine(generator.MakeConversation(n, shape)));
    hash.AddText(generator.MakePrimer(n, shape));
  }
  // What a recorded experiment was trained on must stay.
  EXPECT_EQ(hash.hash(), 17754850535826297977u);
}

TEST(ChatTasksTest, KindsCanBeChosen) {
  for (const TaskKind kind : kTaskKinds) {
    for (const TaskSplit split : {TaskSplit::kTraining, TaskSplit::kHeldOut}) {
      const TaskGenerator generator(1, split, {.kinds = {kind}});
      for (int64_t n = 0; n < 20; ++n) EXPECT_EQ(generator.Make(n).kind, kind);
    }
    EXPECT_EQ(ParseTaskKind(TaskKindName(kind)), kind);
  }
  EXPECT_EQ(ParseTaskKind("sums"), std::nullopt);
}

TEST(ChatTasksTest, PromptsEndBeforeTheAssistant) {
  const auto make = [](TaskKind kind) {
    return TaskGenerator(1, TaskSplit::kTraining, {.kinds = {kind}}).Make(0);
  };
  const ChatTask call = make(TaskKind::kToolCall);
  const ChatTask sum = make(TaskKind::kSum);
  const auto roles = [](const JsonValue& request) {
    std::string names;
    const Result<ChatRequest> parsed = ParseChatRequest(request, "prompt");
    EXPECT_TRUE(parsed.ok() && parsed->add_generation_prompt);
    for (const JsonValue& message : *request.Find("messages")->items()) {
      names += StringOf(message, "role") + " ";
    }
    return names;
  };
  EXPECT_EQ(roles(TaskPrompt(call, TaskTurn::kFirst)), "user ");
  EXPECT_EQ(roles(TaskPrompt(call, TaskTurn::kAnswer)), "user assistant tool ");
  EXPECT_NE(TaskPrompt(call, TaskTurn::kFirst).Find("tools"), nullptr);
  EXPECT_EQ(roles(TaskPrompt(sum, TaskTurn::kFirst)), "user ");
  EXPECT_EQ(roles(TaskPrompt(sum, TaskTurn::kAnswer)), "user ");
}

TEST(ChatTasksTest, WordsAndCitiesAreAllDifferent) {
  for (const auto list : {tasks::Words(), tasks::Cities()}) {
    EXPECT_EQ(std::set(list.begin(), list.end()).size(), list.size());
  }
  EXPECT_GE(tasks::Words().size(), 32) << "a look-up draws so many different ones";
}

TEST(ChatTasksTest, DistractorsLeaveTheTaskAsItIs) {
  for (const TaskKind kind : kTaskKinds) {
    const TaskGenerator generator(3, TaskSplit::kHeldOut, {.kinds = {kind}});
    for (int64_t n = 0; n < 50; ++n) {
      const ChatTask bare = generator.Make(n);
      const ChatTask longer = generator.Make(n, 7);
      EXPECT_EQ(longer.answer, bare.answer);
      EXPECT_EQ(longer.subject, bare.subject);
      if (!TakesDistractors(kind)) {
        EXPECT_EQ(TaskLine(longer), TaskLine(bare));
        continue;
      }
      CheckAnswer(longer);
      static const std::regex kSentence("The [a-z]+ [a-z]+ the [a-z]+\\.");
      const std::string question = Question(longer);
      EXPECT_EQ(std::distance(std::sregex_iterator(question.begin(), question.end(), kSentence),
                              std::sregex_iterator()),
                7)
          << question;
      if (kind == TaskKind::kLookUp) {
        EXPECT_EQ(Pairs(longer), Pairs(bare));
      }
      EXPECT_EQ(TaskLine(generator.Make(n, 7)), TaskLine(longer));
    }
  }
}

TEST(ChatTasksTest, LookUpsHaveAtLeastThePairsAskedFor) {
  const TaskGenerator generator(1, TaskSplit::kHeldOut,
                                {.kinds = {TaskKind::kLookUp}, .pairs_min = kLookUpPairsMax});
  for (int64_t n = 0; n < 20; ++n) EXPECT_EQ(Pairs(generator.Make(n)).size(), 32);
}

TaskKind KindOfQuestion(const std::string& question, bool has_tools) {
  if (has_tools) return TaskKind::kToolCall;
  const auto begins = [&](std::initializer_list<std::string_view> starts) {
    return std::ranges::any_of(starts, [&](auto start) { return question.starts_with(start); });
  };
  if (begins({"Numbers: "})) return TaskKind::kLookUp;
  if (begins({"Repeat", "Say again", "Remember"})) return TaskKind::kCopy;
  if (begins({"Reverse", "Say these"})) return TaskKind::kReverse;
  if (begins({"Sort", "Put"})) return TaskKind::kSort;
  const bool adds = begins({"Add"}) || question.find(" + ") != std::string::npos ||
                    question.find(" plus ") != std::string::npos;
  return adds ? TaskKind::kSum : TaskKind::kDifference;
}

/// The turns of a conversation, each as a task of its own.
std::vector<ChatTask> TurnsOf(const TaskConversation& conversation) {
  std::vector<ChatTask> turns;
  const JsonValue* tools = conversation.request.Find("tools");
  std::string list;  // of look-ups: the line that later questions are about
  for (const JsonValue& message : *conversation.request.Find("messages")->items()) {
    if (StringOf(message, "role") == "user") {
      JsonValue user = message;
      std::string question = StringOf(message, "content");
      if (question.starts_with("Numbers: ")) {
        list = question.substr(0, question.find('\n') + 1);
      } else if (!list.empty()) {
        question = list + question;
        user = tasks::UserMessage(question);
      }
      ChatTask task{.kind = KindOfQuestion(question, tools != nullptr)};
      task.request = tasks::Object({{"messages", tasks::Array({std::move(user)})}});
      if (tools != nullptr) task.request.members()->emplace_back("tools", *tools);
      turns.push_back(std::move(task));
      continue;
    }
    ChatTask& task = turns.back();
    // The first member is messages.
    (*task.request.members())[0].second.items()->push_back(message);
    task.answer = StringOf(message, "content");
    if (const JsonValue* calls = message.Find("tool_calls"); calls != nullptr) {
      const JsonValue& call = (*calls->items())[0];
      task.call.emplace();
      task.call->id = StringOf(call, "id");
      task.call->name = StringOf(*call.Find("function"), "name");
      const Result<JsonValue> arguments =
          ParseJson(StringOf(*call.Find("function"), "arguments"), "arguments");
      EXPECT_TRUE(arguments.ok());
      if (arguments.ok()) task.call->arguments = *arguments->members();
    }
  }
  return turns;
}

TEST(ChatTasksTest, EveryTurnOfAConversationIsRightAndOfItsSplit) {
  for (const TaskSplit split : {TaskSplit::kTraining, TaskSplit::kHeldOut}) {
    const TaskGenerator generator(5, split);
    std::map<size_t, int> lengths;
    std::map<TaskKind, int> kinds;
    for (int64_t n = 0; n < 2000; ++n) {
      const TaskConversation conversation =
          generator.MakeConversation(n, {.turns_max = 5, .distractors_max = 6});
      SCOPED_TRACE(TaskLine(conversation));
      std::vector<ChatTask> turns = TurnsOf(conversation);
      ++lengths[turns.size()];
      ASSERT_EQ(turns.size(), conversation.subjects.size());
      std::set<std::string> ids;
      for (size_t i = 0; i < turns.size(); ++i) {
        ++kinds[turns[i].kind];
        turns[i].subject = conversation.subjects[i];
        CheckAnswer(turns[i]);
        EXPECT_EQ(SplitOfSubject(conversation.subjects[i]), split);
        for (const std::string& subject : Subjects(turns[i])) {
          EXPECT_EQ(SplitOfSubject(subject), split) << subject;
        }
        if (turns[i].call.has_value()) {
          EXPECT_TRUE(ids.insert(*turns[i].call->id).second);
        }
      }
      const Result<ChatRequest> request = ParseChatRequest(conversation.request, "conversation");
      ASSERT_TRUE(request.ok()) << request.status().ToString();
      EXPECT_TRUE(RenderXtml(*request).ok());
      if (HasFailure()) return;
    }
    EXPECT_EQ(lengths.size(), 5);
    for (const auto& [length, count] : lengths) {
      EXPECT_TRUE(length >= 1 && length <= 5);
      EXPECT_NEAR(count, 400, 90);  // the deviation is 18
    }
    // 2000 conversations of 3 turns on average.
    for (const TaskKind kind : kTaskKinds) EXPECT_NEAR(kinds[kind], 6000 / 7, 200);
  }
}

TEST(ChatTasksTest, WordsAreSaidAgainAndAgain) {
  const TaskGenerator generator(1, TaskSplit::kTraining, {.kinds = {TaskKind::kCopy}});
  int64_t repetitions = 0;
  std::set<std::string> all_times;
  for (int64_t n = 0; n < 1000; ++n) {
    const ChatTask turn = TurnsOf(generator.MakeConversation(n, {.words_max = 60}))[0];
    static const std::regex kTimes("Repeat these words (\\d) times: .*");
    const std::string question = Question(turn);
    std::smatch match;
    if (!std::regex_match(question, match, kTimes)) {
      CheckAnswer(turn);
      continue;
    }
    ++repetitions;
    all_times.insert(match[1]);
    std::vector<std::string> said;
    for (int i = 0; i < std::stoi(match[1]); ++i) {
      for (const std::string& word : WordsAsked(turn)) said.push_back(word);
    }
    EXPECT_EQ(turn.answer, JoinText(said)) << question;
    EXPECT_LE(said.size(), 60);
    EXPECT_EQ(SplitOfSubject(Subjects(turn)[0]), TaskSplit::kTraining);
  }
  EXPECT_NEAR(repetitions, 500, 80);  // the deviation is 16
  EXPECT_EQ(all_times.size(), 8);
}

TEST(ChatTasksTest, MadeUpNamesAreCopiedAndAreOfTheSplit) {
  for (const TaskSplit split : {TaskSplit::kTraining, TaskSplit::kHeldOut}) {
    const TaskGenerator generator(1, split, {.kinds = {TaskKind::kCopy}});
    int64_t made_up = 0;
    for (int64_t n = 0; n < 1000; ++n) {
      const ChatTask turn = TurnsOf(generator.MakeConversation(n, {.makes_up_names = true}))[0];
      CheckAnswer(turn);
      EXPECT_EQ(SplitOfSubject(Subjects(turn)[0]), split);
      const std::vector<std::string> words = WordsAsked(turn);
      if (std::ranges::find(tasks::Words(), words[0]) != tasks::Words().end()) continue;
      ++made_up;
      EXPECT_TRUE(words.size() >= 3 && words.size() <= 8);
      for (const std::string& word : words) {
        EXPECT_TRUE(word[0] >= 'A' && word[0] <= 'Z') << word;
        // A call about a place of that name is of the same split.
        EXPECT_EQ(SplitOfSubject("get_weather " + word), split) << word;
      }
    }
    EXPECT_NEAR(made_up, 500, 80);  // the deviation is 16
  }
  // Nothing is made up that was not asked for, not in what is said several times either.
  const TaskGenerator generator(1, TaskSplit::kTraining, {.kinds = {TaskKind::kCopy}});
  for (int64_t n = 0; n < 200; ++n) {
    const ConversationShape shape{.words_max = 60, .makes_up_names = true};
    for (const ConversationShape& one : {ConversationShape{.words_max = 60}, shape}) {
      const ChatTask turn = TurnsOf(generator.MakeConversation(n, one))[0];
      if (one.makes_up_names && Question(turn).find(" times: ") == std::string::npos) continue;
      for (const std::string& word : WordsAsked(turn)) {
        EXPECT_TRUE(word[0] >= 'a' && word[0] <= 'z') << word;
      }
    }
  }
}

TEST(ChatTasksTest, SeveralNamesAreLookedUp) {
  const TaskGenerator generator(1, TaskSplit::kTraining, {.kinds = {TaskKind::kLookUp}});
  int64_t several = 0;
  for (int64_t n = 0; n < 500; ++n) {
    const ChatTask turn = TurnsOf(generator.MakeConversation(n, {.words_max = 60}))[0];
    const std::string question = Question(turn).substr(Question(turn).find('\n') + 1);
    if (question.find(',') == std::string::npos) {
      CheckAnswer(turn);
      continue;
    }
    ++several;
    ASSERT_TRUE(question.starts_with("Look up ") && question.ends_with('.')) << question;
    const std::map<std::string, std::string> pairs = Pairs(turn);
    std::vector<std::string> answers, found;
    std::string reasoning = "The list has";
    for (std::string name : SplitText(question.substr(8, question.size() - 9), ' ')) {
      if (name.ends_with(',')) name.pop_back();
      answers.push_back(pairs.at(name));
      reasoning += " " + name + "=" + pairs.at(name);
    }
    EXPECT_LE(answers.size(), 6);
    for (const std::string& answer : SplitText(turn.answer, ' ')) {
      found.push_back(answer.ends_with(',') ? answer.substr(0, answer.size() - 1) : answer);
    }
    EXPECT_EQ(found, answers) << question;
    EXPECT_EQ(StringOf(Message(turn, 1), "reasoning_content"), reasoning + ".");
  }
  // Half of 500, of which one in six is of one name, and more where the list is short.
  EXPECT_NEAR(several, 205, 45);
}

void CheckRepetition(const std::string& text) {
  ASSERT_TRUE(text.starts_with(' ') && text.ends_with('\n')) << text;
  const std::vector<std::string> all = SplitText(text.substr(1, text.size() - 2), ' ');
  const std::set<std::string> parts(all.begin(), all.end());
  EXPECT_TRUE(parts.size() >= 2 && parts.size() <= 16) << text;
  EXPECT_GE(all.size(), 2 * parts.size());
  EXPECT_EQ(all.size() % parts.size(), 0);
  const bool is_pairs = all[0].find('=') != std::string::npos;
  for (size_t i = 0; i < all.size(); i += parts.size()) {
    const std::set<std::string> round(all.begin() + static_cast<int64_t>(i),
                                      all.begin() + static_cast<int64_t>(i + parts.size()));
    EXPECT_EQ(round, parts) << text;
  }
  for (size_t i = parts.size(); !is_pairs && i < all.size(); ++i) {
    EXPECT_EQ(all[i], all[i - parts.size()]) << text;
  }
  if (!is_pairs) {
    EXPECT_EQ(SplitOfSubject("words " + JoinText({parts.begin(), parts.end()})),
              TaskSplit::kTraining);
    return;
  }
  for (const std::string& pair : parts) {
    const size_t equals = pair.find('=');
    EXPECT_EQ(
        SplitOfSubject(fmt::format("pair {} {}", pair.substr(0, equals), pair.substr(equals + 1))),
        TaskSplit::kTraining)
        << pair;
  }
}

/// The tasks of a primer's lines, questions and what follows them in turn.
std::vector<ChatTask> TasksOfLines(const std::string& text) {
  std::vector<ChatTask> turns;
  std::string list;
  const std::vector<std::string> lines = SplitText(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string question = lines[i];
    if (question.starts_with("Numbers: ")) {
      list = question + "\n";
      question = list + lines[++i];
    } else if (question.starts_with("Remember")) {
      question += "\n" + lines[i + 1] + "\n" + lines[i + 2];
      i += 2;
    } else if (!list.empty()) {
      question = list + question;
    }
    const std::string answer = lines.at(++i);
    ChatTask task{.kind = KindOfQuestion(question, false)};
    const bool has_reasoning = task.kind == TaskKind::kSum || task.kind == TaskKind::kDifference ||
                               task.kind == TaskKind::kLookUp;
    task.answer = has_reasoning ? answer.substr(answer.find_last_of(" =") + 1) : answer;
    if (has_reasoning) task.answer.pop_back();  // the full stop
    task.request = tasks::Object(
        {{"messages",
          tasks::Array({tasks::UserMessage(question),
                        tasks::AssistantMessage(has_reasoning ? answer : "", task.answer)})}});
    turns.push_back(std::move(task));
  }
  return turns;
}

TEST(ChatTasksTest, ThePrimerIsRightAndOfItsSplit) {
  const TaskGenerator generator(1, TaskSplit::kTraining);
  const ConversationShape shape{.turns_max = 4, .distractors_max = 5};
  EXPECT_NE(generator.MakePrimer(0, shape), generator.MakePrimer(1, shape));
  int64_t repetitions = 0;
  std::set<TaskKind> kinds;
  for (int64_t n = 0; n < 600; ++n) {
    const std::string text = generator.MakePrimer(n, shape);
    SCOPED_TRACE(text);
    if (text.starts_with(' ')) {
      ++repetitions;
      CheckRepetition(text);
      continue;
    }
    for (const ChatTask& task : TasksOfLines(text)) {
      kinds.insert(task.kind);
      CheckAnswer(task);
      for (const std::string& subject : Subjects(task)) {
        EXPECT_EQ(SplitOfSubject(subject), TaskSplit::kTraining) << subject;
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_EQ(kinds.size(), 6);
  // One in seven for the calls, and a third of the others; the deviation is 12.
  EXPECT_NEAR(repetitions, 600.0 / 7 + 600.0 * 6 / 7 / 3, 50);
}

}  // namespace
}  // namespace k3
