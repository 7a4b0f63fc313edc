#pragma once
// AnswerGrammar: what an answer in chat form may be by its request: JSON by response_format, calls
// by tool_choice and the tools' parameters. Compiled once for a request, then one constraint for
// each of its answers.
//
//   K3_TRY(AnswerGrammarPtr grammar,
//          AnswerGrammar::Compile(vocabulary, request, {.parallel_tool_calls = false}));
//   std::unique_ptr<TokenConstraint> constraint = MakeConstraint(grammar);
//
// The constraint starts behind the prompt, inside the channel that it opened. Where it masks, it
// allows the markup that XtmlRenderer writes, in the ids that EncodeXtml gives, so that XtmlParser
// reads back a whole answer; text inside a channel or a string argument is any ordinary id.
// What it does, by request:
//   response_format         the response is one JSON value by the schema; where tools may be called
//                           too, it may be empty and calls follow
//   tool_choice required    the message cannot end before a complete call
//   tool_choice named       the same, of that tool alone
//   tool_choice auto        anything until the tools section opens or the response closes; then
//                           calls of declared tools alone
//   tool_choice none        no tools section; the same where the request declares no tools
// Calls are numbered from 1; their arguments are those that the tool's parameters declare, each at
// most once, with a value by its schema, and all required ones.
//
// Reasoning is free: closing the channel is allowed at any time. A grammar and its constraints
// borrow the vocabulary; a constraint shares the grammar. A grammar is immutable, any thread.
// Failures are InvalidArgument and name the path of what is not supported in a schema:
// "response_format.json_schema.schema.properties.age.minimum: not supported ...".

#include <memory>
#include <string>

#include "base/status.h"
#include "grammar/token_vocabulary.h"
#include "sample/token_constraint.h"
#include "text/chat_request.h"

namespace k3 {

struct AnswerGrammarOptions {
  bool parallel_tool_calls = true;  // false: at most one call
  /// What messages call the request's response schema and tools.
  std::string schema_path = "response_format.json_schema.schema";
  std::string tools_path = "tools";
};

class AnswerGrammar;
/// Shared by the constraints of all answers to one request, whichever ends last.
using AnswerGrammarPtr = std::shared_ptr<const AnswerGrammar>;

class AnswerGrammar {
 public:
  virtual ~AnswerGrammar() = default;

  /// `vocabulary` must outlive what is made of it.
  static Result<AnswerGrammarPtr> Compile(const TokenVocabulary& vocabulary,
                                          const ChatRequest& request,
                                          const AnswerGrammarOptions& options);

 protected:
  AnswerGrammar() = default;
};

/// The constraint of one answer, at its start.
std::unique_ptr<TokenConstraint> MakeConstraint(AnswerGrammarPtr grammar);

}  // namespace k3
