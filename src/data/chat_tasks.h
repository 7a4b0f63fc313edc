#pragma once
// TaskGenerator: small conversations with one right answer, to train on and to be asked later.
//
//   TaskGenerator generator(seed, TaskSplit::kTraining);
//   const ChatTask task = generator.Make(n);
//   file << TaskLine(task);                             // a line for AddChatFile
//   JsonValue prompt = TaskPrompt(task, TaskTurn::kAnswer);   // what to ask: task.answer is right
//
// The kinds: sums and differences of numbers from 0 to 999, worked out digit by digit in the
// reasoning; copying, reversing and sorting 3 to 8 words; finding the number of one of 2 to 32
// names; calling one of four declared tools with 1 to 3 typed arguments and telling its result.
// Copying and finding can be made longer with distractors, sentences of the same words that say
// nothing: they stand among the pairs, or between the words and the wish to have them again.
//
// To train on, MakeConversation puts several tasks behind each other: more answers to learn from in
// as many tokens.
//
// Nothing held out occurs in training, whatever the seeds: a hash of what a task is about decides
// to which split it belongs, about one in ten being held out. It is about the same whoever is
// first of two operands, whether they are added or subtracted, and in whatever order and to what
// end words are given; of a look-up every pair of name and number in the list is in the split; of
// a tool it is the tool and its arguments.
//
// Task n depends on (seed, split, options, n) alone, and is the same with any number of
// distractors. Plain values; any thread. Nothing fails.

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/json.h"
#include "text/chat_request.h"

namespace k3 {

enum class TaskKind { kSum, kDifference, kCopy, kReverse, kSort, kLookUp, kToolCall };
inline constexpr TaskKind kTaskKinds[] = {
    TaskKind::kSum,  TaskKind::kDifference, TaskKind::kCopy,    TaskKind::kReverse,
    TaskKind::kSort, TaskKind::kLookUp,     TaskKind::kToolCall};
inline constexpr int64_t kLookUpPairsMax = 32;

/// sum, difference, copy, reverse, sort, look-up or tool-call.
std::string_view TaskKindName(TaskKind kind);
/// All of them, with commas.
std::string TaskKindNames();
std::optional<TaskKind> ParseTaskKind(std::string_view name);

/// Copying and look-up.
bool TakesDistractors(TaskKind kind);

enum class TaskSplit { kTraining, kHeldOut };

struct ChatTask {
  TaskKind kind = TaskKind::kSum;
  /// What it is about, in the one form whose hash decides the split.
  std::string subject;
  /// A request with all its messages, the assistant's included; the last is the assistant's answer.
  JsonValue request;
  /// The content of the last message: what an exact match compares with.
  std::string answer;
  /// With kToolCall: the call that the assistant's first message makes.
  std::optional<ToolCall> call;
};

/// Where a model is asked to go on.
enum class TaskTurn {
  kFirst,   // at the assistant's first message: the call of kToolCall, of others the answer
  kAnswer,  // at the last message: the answer
};

/// The request up to that turn.
JsonValue TaskPrompt(const ChatTask& task, TaskTurn turn);

/// The request as one line of JSON, its end included, with the members `task` and `answer` added,
/// which shape no prompt.
std::string TaskLine(const ChatTask& task);

/// The split of a subject.
TaskSplit SplitOfSubject(std::string_view subject);

/// Several tasks behind each other: look-ups in one list, calls with one declaration of tools, or
/// the other kinds mixed.
struct TaskConversation {
  JsonValue request;
  std::vector<std::string> subjects;  // of its tasks, in order
};

/// As one line of a chat file.
std::string TaskLine(const TaskConversation& conversation);

struct TaskOptions {
  /// Each place in this list is equally likely; a kind may stand in it several times.
  std::vector<TaskKind> kinds{std::begin(kTaskKinds), std::end(kTaskKinds)};
  int64_t pairs_min = 2;  // of a look-up, at most kLookUpPairsMax
};

struct ConversationShape {
  int64_t turns_max = 1;        // 1 to so many tasks, each number equally likely
  int64_t distractors_max = 0;  // in the first turn of half the conversations, 0 to so many
  /// If more than 8: half of the copying is of words to be said 2 to 9 times, up to so many words
  /// in all, and half of the look-ups ask for 1 to 6 names. Long answers teach more than short
  /// ones.
  int64_t words_max = 8;
  /// Half of the copying that is not of words said several times is of names as places have,
  /// "Zantenflear": to spell what was never met has to be learned from what is met once.
  bool makes_up_names = false;

  bool operator==(const ConversationShape&) const = default;
};

class TaskGenerator {
 public:
  TaskGenerator(uint64_t seed, TaskSplit split, TaskOptions options = {});

  /// Task number n, at least 0. Kinds that take no distractors have none.
  ChatTask Make(int64_t n, int64_t distractors_count = 0) const;

  TaskConversation MakeConversation(int64_t n, const ConversationShape& shape) const;

  /// Text to begin a training with, dense in what can be learned from it. A third of it is
  /// repetition: 3 to 16 words said again and again in one order, or 2 to 16 pairs of a name and
  /// its number again and again in other orders. The rest are tasks as plain lines, a question and
  /// what it leads to, without the frame of a conversation; no calls.
  std::string MakePrimer(int64_t n, const ConversationShape& shape) const;

 private:
  uint64_t seed_;
  TaskSplit split_;
  TaskOptions options_;
};

}  // namespace k3
