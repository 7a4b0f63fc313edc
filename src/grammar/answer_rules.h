#pragma once
// AnswerRules: an AnswerGrammar as AnswerConstraint reads it: which parts an answer has, and the
// ids of its markup. Immutable once it is compiled.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/answer_grammar.h"
#include "grammar/json_grammar.h"
#include "text/xtml_parser.h"

namespace k3 {

/// A value stands in the object of all arguments.
inline constexpr int32_t kArgumentDepth = 1;

/// An argument that a tool declares.
struct ToolArgument {
  int32_t node = 0;
  bool is_required = false;
  /// Each type that its value may have, and the tag that opens such a value.
  struct Opening {
    JsonType type = JsonType::kNull;
    std::vector<int32_t> tag;
  };
  std::vector<Opening> openings;
};

struct ToolRules {
  std::string name;
  JsonGrammar grammar;              // of the parameters
  std::vector<int32_t> call_start;  // <|open|>call tool="NAME" index="
  std::vector<ToolArgument> arguments;
  /// The node of arguments with any name, when the tool declares no names; -1: there are none.
  int32_t free_node = -1;
};

struct AnswerRules : AnswerGrammar {
  const TokenVocabulary* vocabulary = nullptr;
  XtmlChannel start = XtmlChannel::kThink;
  /// Masks from the start. Otherwise anything goes until the tools open or the response closes.
  bool is_strict = false;
  std::optional<JsonGrammar> content;  // of the response; none: free text
  int64_t calls_min = 0;
  int64_t calls_max = 0;
  std::vector<ToolRules> tools;

  std::vector<int32_t> close_think;
  std::vector<int32_t> open_response;
  std::vector<int32_t> close_response;
  std::vector<int32_t> open_tools;
  std::vector<int32_t> close_tools;
  std::vector<int32_t> close_call;
  std::vector<int32_t> close_argument;
  std::vector<int32_t> end_message;  // its closing tag and <|end_of_msg|>
  std::vector<int32_t> call_end;     // "<|sep|>
  std::vector<int32_t> free_start;   // <|open|>argument key="
  ToolArgument free_argument;        // openings without their start: " type="T"<|sep|>
};

/// Shared as AnswerGrammarPtr is.
using AnswerRulesPtr = std::shared_ptr<const AnswerRules>;

}  // namespace k3
