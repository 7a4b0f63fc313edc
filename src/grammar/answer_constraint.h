#pragma once
// AnswerConstraint: where an answer stands in what its AnswerRules allow. Masks are kept until they
// change: text within a channel or a string costs nothing after its first token.
//
// A stage is either text, which goes on until its closing marker, or tags, of which one is written
// id by id. One sequence, one thread at a time; it shares the rules.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "grammar/answer_rules.h"
#include "grammar/json_state.h"
#include "grammar/token_trie.h"
#include "sample/token_constraint.h"

namespace k3 {

class AnswerConstraint : public TokenConstraint {
 public:
  explicit AnswerConstraint(AnswerRulesPtr rules);

  std::span<const uint32_t> Allowed() override;
  void Accept(int32_t id) override;
  bool done() const override { return stage_ == Stage::kDone; }

 private:
  enum class Stage {
    kUnmasked,       // anything, in think or response
    kUnmaskedClose,  // anything, in a closing tag
    kThink,
    kFreeContent,
    kJsonContent,
    kFreeValue,  // a string argument of any text
    kValue,      // an argument by its schema
    kFreeKey,    // the name of an argument that is not declared
    kTag,        // one of tags_
    kDone,
    kBroken,  // an id came that was not allowed
  };
  /// What a whole tag leads to.
  enum class Then {
    kResponseNext,
    kContent,
    kAfterResponse,
    kCallNext,
    kCall,
    kArgumentNext,
    kValue,
    kFreeKey,
    kAfterTools,
    kEnd,
  };
  struct Tag {
    std::vector<int32_t> ids;
    Then then = Then::kEnd;
    size_t index = 0;  // the tool, or the argument
    JsonType type = JsonType::kNull;
  };

  const XtmlMarkers& markers() const { return rules_->vocabulary->markers(); }
  void FillMask();
  void Allow(int32_t id) { mask_[static_cast<size_t>(id / 32)] |= uint32_t{1} << (id % 32); }

  bool IsNewKey() const;
  void AcceptUnmasked(int32_t id);
  void AcceptUnmaskedClose(int32_t id);
  void AcceptText(int32_t id);
  void AcceptJson(int32_t id);
  void AcceptFreeKey(int32_t id);
  void AcceptTag(int32_t id);
  void CloseText();
  void Enter(Stage stage);
  void EnterTags(std::vector<Tag> tags);
  void Follow(const Tag& tag);
  void EnterContent();
  void EnterAfterResponse();
  void EnterCallNext();
  void EnterArgumentNext();
  void EnterValue(const Tag& tag);

  AnswerRulesPtr rules_;
  Stage stage_ = Stage::kUnmasked;
  bool mask_is_current_ = false;
  std::vector<uint32_t> mask_;  // [ceil(V / 32)]
  TokenTrie::Scratch scratch_;

  bool in_response_ = false;       // kUnmasked
  std::string close_tag_;          // kUnmaskedClose
  bool content_is_empty_ = true;   // of the response so far
  std::optional<JsonState> json_;  // kJsonContent, kValue

  std::vector<Tag> tags_;  // kTag: those that begin with what came
  size_t tag_at_ = 0;

  int64_t calls_count_ = 0;
  size_t tool_ = 0;         // of the open call
  std::vector<bool> used_;  // its arguments so far
  std::string free_key_;    // kFreeKey
  std::vector<std::string> free_keys_;
};

}  // namespace k3
