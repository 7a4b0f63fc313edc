#include "grammar/answer_constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace k3 {

std::unique_ptr<TokenConstraint> MakeConstraint(AnswerGrammarPtr grammar) {
  // AnswerRules is the only grammar there is.
  return std::make_unique<AnswerConstraint>(
      std::static_pointer_cast<const AnswerRules>(std::move(grammar)));
}

AnswerConstraint::AnswerConstraint(AnswerRulesPtr rules)
    : rules_(std::move(rules)), mask_(MaskWordsCount(rules_->vocabulary->vocab_size())) {
  const bool in_think = rules_->start == XtmlChannel::kThink;
  in_response_ = !in_think;
  if (!rules_->is_strict) {
    Enter(Stage::kUnmasked);
  } else if (in_think) {
    Enter(Stage::kThink);
  } else {
    EnterContent();
  }
}

void AnswerConstraint::Enter(Stage stage) {
  stage_ = stage;
  mask_is_current_ = false;
}

void AnswerConstraint::EnterTags(std::vector<Tag> tags) {
  tags_ = std::move(tags);
  tag_at_ = 0;
  Enter(Stage::kTag);
}

std::span<const uint32_t> AnswerConstraint::Allowed() {
  const bool is_unmasked = stage_ == Stage::kUnmasked || stage_ == Stage::kUnmaskedClose;
  if (is_unmasked || stage_ == Stage::kDone || stage_ == Stage::kBroken) return {};
  if (!mask_is_current_) FillMask();
  mask_is_current_ = true;
  return mask_;
}

void AnswerConstraint::FillMask() {
  std::ranges::fill(mask_, 0);
  const TokenVocabulary& vocabulary = *rules_->vocabulary;
  switch (stage_) {
    case Stage::kThink:
    case Stage::kFreeContent:
    case Stage::kFreeValue:
      vocabulary.trie().AddAll(mask_);
      Allow(markers().close);
      return;
    case Stage::kJsonContent:
    case Stage::kValue: {
      vocabulary.trie().AddAllowed(*json_, scratch_, mask_);
      const bool may_be_empty =
          stage_ == Stage::kJsonContent && content_is_empty_ && rules_->calls_max > 0;
      if (may_be_empty || json_->CanEnd()) Allow(markers().close);
      return;
    }
    case Stage::kFreeKey:
      vocabulary.AddNames(mask_);
      if (IsNewKey()) Allow(rules_->free_argument.openings.front().tag.front());
      return;
    case Stage::kTag:
      for (const Tag& tag : tags_) Allow(tag.ids[tag_at_]);
      return;
    case Stage::kUnmasked:
    case Stage::kUnmaskedClose:
    case Stage::kDone:
    case Stage::kBroken:
      return;
  }
}

void AnswerConstraint::Accept(int32_t id) {
  switch (stage_) {
    case Stage::kUnmasked:
      AcceptUnmasked(id);
      return;
    case Stage::kUnmaskedClose:
      AcceptUnmaskedClose(id);
      return;
    case Stage::kThink:
    case Stage::kFreeContent:
    case Stage::kFreeValue:
      AcceptText(id);
      return;
    case Stage::kJsonContent:
    case Stage::kValue:
      AcceptJson(id);
      return;
    case Stage::kFreeKey:
      AcceptFreeKey(id);
      return;
    case Stage::kTag:
      AcceptTag(id);
      return;
    case Stage::kBroken:
      if (id == markers().end_of_message) Enter(Stage::kDone);
      return;
    case Stage::kDone:
      return;
  }
}

/// What a tag opens is known only when it is whole, so it is masked from its marker on.
void AnswerConstraint::AcceptUnmasked(int32_t id) {
  if (id == markers().end_of_message) {
    Enter(Stage::kDone);
  } else if (id == markers().close) {
    close_tag_.clear();
    Enter(Stage::kUnmaskedClose);
  } else if (id == markers().open) {
    std::vector<Tag> tags = {{rules_->open_response, Then::kContent}};
    if (rules_->calls_max > 0) tags.push_back({rules_->open_tools, Then::kCallNext});
    EnterTags(std::move(tags));
    AcceptTag(id);
  }
}

void AnswerConstraint::AcceptUnmaskedClose(int32_t id) {
  const TokenVocabulary& vocabulary = *rules_->vocabulary;
  if (id >= 0 && id < vocabulary.tokenizer().ranks_count()) {
    close_tag_ += vocabulary.tokenizer().TokenBytes(id);
    return;
  }
  if (id == markers().end_of_message) {
    Enter(Stage::kDone);
    return;
  }
  const bool has_sep = id == markers().sep;
  if (!has_sep && id != markers().open && id != markers().close) return;
  const bool is_unnamed = close_tag_.empty() && has_sep && in_response_;
  if (close_tag_ == "response" || is_unnamed) {
    EnterAfterResponse();
  } else {
    Enter(Stage::kUnmasked);
  }
  // A tag without <|sep|> ends at the next marker, which then counts too.
  if (!has_sep) Accept(id);
}

void AnswerConstraint::AcceptText(int32_t id) {
  if (id == markers().close) {
    CloseText();
    return;
  }
  const bool is_text = id >= 0 && id < rules_->vocabulary->tokenizer().ranks_count();
  if (!is_text) Enter(Stage::kBroken);
}

void AnswerConstraint::AcceptJson(int32_t id) {
  if (id == markers().close) {
    CloseText();
    return;
  }
  const Tokenizer& tokenizer = rules_->vocabulary->tokenizer();
  if (id < 0 || id >= tokenizer.ranks_count()) {
    Enter(Stage::kBroken);
    return;
  }
  content_is_empty_ = false;
  const JsonState before = *json_;
  if (!json_->FeedToken(tokenizer.TokenBytes(id))) {
    Enter(Stage::kBroken);
    return;
  }
  if (!HaveSameFuture(before, *json_)) mask_is_current_ = false;
}

/// <|close|> came: the tag that it begins is known.
void AnswerConstraint::CloseText() {
  Tag tag;
  if (stage_ == Stage::kThink) {
    tag = {rules_->close_think, Then::kResponseNext};
  } else if (stage_ == Stage::kFreeContent || stage_ == Stage::kJsonContent) {
    tag = {rules_->close_response, Then::kAfterResponse};
  } else {
    tag = {rules_->close_argument, Then::kArgumentNext};
  }
  EnterTags({std::move(tag)});
  AcceptTag(markers().close);
}

void AnswerConstraint::AcceptTag(int32_t id) {
  mask_is_current_ = false;
  std::erase_if(tags_, [&](const Tag& tag) { return tag.ids[tag_at_] != id; });
  if (tags_.empty()) {
    Enter(Stage::kBroken);
    return;
  }
  ++tag_at_;
  // No tag begins another, so the first that is whole is the only one that is left.
  if (tags_.front().ids.size() == tag_at_) Follow(Tag(std::move(tags_.front())));
}

void AnswerConstraint::Follow(const Tag& tag) {
  switch (tag.then) {
    case Then::kResponseNext:
      EnterTags({{rules_->open_response, Then::kContent}});
      return;
    case Then::kContent:
      EnterContent();
      return;
    case Then::kAfterResponse:
      EnterAfterResponse();
      return;
    case Then::kCallNext:
      EnterCallNext();
      return;
    case Then::kCall:
      ++calls_count_;
      tool_ = tag.index;
      used_.assign(rules_->tools[tool_].arguments.size(), false);
      free_keys_.clear();
      EnterArgumentNext();
      return;
    case Then::kArgumentNext:
      EnterArgumentNext();
      return;
    case Then::kValue:
      EnterValue(tag);
      return;
    case Then::kFreeKey:
      free_key_.clear();
      Enter(Stage::kFreeKey);
      return;
    case Then::kAfterTools:
      EnterTags({{rules_->end_message, Then::kEnd}});
      return;
    case Then::kEnd:
      Enter(Stage::kDone);
      return;
  }
}

void AnswerConstraint::EnterContent() {
  in_response_ = true;
  if (rules_->content.has_value()) {
    json_.emplace(*rules_->content);
    Enter(Stage::kJsonContent);
  } else {
    Enter(rules_->is_strict ? Stage::kFreeContent : Stage::kUnmasked);
  }
}

/// A response by a format stands alone unless calls are required; an empty one needs calls.
void AnswerConstraint::EnterAfterResponse() {
  const bool has_format = rules_->content.has_value();
  const bool needs_calls = rules_->calls_min > 0 || (has_format && content_is_empty_);
  const bool may_call = rules_->calls_max > 0 && (needs_calls || !has_format);
  std::vector<Tag> tags;
  if (!needs_calls) tags.push_back({rules_->end_message, Then::kEnd});
  if (may_call) tags.push_back({rules_->open_tools, Then::kCallNext});
  EnterTags(std::move(tags));
}

void AnswerConstraint::EnterCallNext() {
  std::vector<Tag> tags;
  if (calls_count_ < rules_->calls_max) {
    const std::vector<int32_t> number =
        rules_->vocabulary->Encode(fmt::format("{}", calls_count_ + 1));
    for (size_t i = 0; i < rules_->tools.size(); ++i) {
      Tag tag = {rules_->tools[i].call_start, Then::kCall, i};
      tag.ids.insert(tag.ids.end(), number.begin(), number.end());
      tag.ids.insert(tag.ids.end(), rules_->call_end.begin(), rules_->call_end.end());
      tags.push_back(std::move(tag));
    }
  }
  if (calls_count_ > 0) tags.push_back({rules_->close_tools, Then::kAfterTools});
  EnterTags(std::move(tags));
}

void AnswerConstraint::EnterArgumentNext() {
  const ToolRules& tool = rules_->tools[tool_];
  std::vector<Tag> tags;
  bool may_close = true;
  for (size_t i = 0; i < tool.arguments.size(); ++i) {
    if (used_[i]) continue;
    if (tool.arguments[i].is_required) may_close = false;
    for (const ToolArgument::Opening& opening : tool.arguments[i].openings) {
      tags.push_back({opening.tag, Then::kValue, i, opening.type});
    }
  }
  if (tool.free_node >= 0) tags.push_back({rules_->free_start, Then::kFreeKey});
  if (may_close) tags.push_back({rules_->close_call, Then::kCallNext});
  EnterTags(std::move(tags));
}

void AnswerConstraint::EnterValue(const Tag& tag) {
  const ToolRules& tool = rules_->tools[tool_];
  const bool is_declared = tag.index < tool.arguments.size();
  const int32_t node = is_declared ? tool.arguments[tag.index].node : tool.free_node;
  if (is_declared) used_[tag.index] = true;
  if (tag.type != JsonType::kString) {
    json_.emplace(tool.grammar, node, tag.type, kArgumentDepth);
    Enter(Stage::kValue);
    return;
  }
  const bool is_free = std::ranges::any_of(tool.grammar.node(node).forms, [&](int32_t at) {
    const JsonForm& form = tool.grammar.form(at);
    return form.kind == JsonForm::Kind::kString && form.count_min == 0 &&
           form.count_max == INT64_MAX;
  });
  if (!is_free) json_ = JsonState::Raw(tool.grammar, node);
  Enter(is_free ? Stage::kFreeValue : Stage::kValue);
}

bool AnswerConstraint::IsNewKey() const {
  return !free_key_.empty() && std::ranges::find(free_keys_, free_key_) == free_keys_.end();
}

/// The quotation mark begins what all openings have in common.
void AnswerConstraint::AcceptFreeKey(int32_t id) {
  const ToolRules& tool = rules_->tools[tool_];
  const Tokenizer& tokenizer = rules_->vocabulary->tokenizer();
  if (id == rules_->free_argument.openings.front().tag.front() && IsNewKey()) {
    free_keys_.push_back(free_key_);
    std::vector<Tag> tags;
    for (const ToolArgument::Opening& opening : rules_->free_argument.openings) {
      if (!tool.grammar.HasType(tool.free_node, opening.type, kArgumentDepth)) continue;
      tags.push_back({opening.tag, Then::kValue, tool.arguments.size(), opening.type});
    }
    EnterTags(std::move(tags));
    AcceptTag(id);
    return;
  }
  if (!rules_->vocabulary->IsName(id)) {
    Enter(Stage::kBroken);
    return;
  }
  free_key_ += tokenizer.TokenBytes(id);
  mask_is_current_ = false;
}

}  // namespace k3
