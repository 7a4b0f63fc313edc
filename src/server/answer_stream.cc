#include "server/answer_stream.h"

#include <algorithm>

namespace k3::server {
namespace {

/// Of valid UTF-8: every byte that goes on from no other begins one.
int64_t CountCharacters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

std::string_view AnswerStream::FinishName(FinishReason reason) const {
  switch (reason) {
    case FinishReason::kStop:
      return std::ranges::any_of(answer_.tool_calls, &ParsedToolCall::complete) ? "tool_calls"
                                                                                : "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

TokenChance AnswerStream::ChanceOf(int32_t id, float log_prob) const {
  TokenChance chance{.log_prob = log_prob};
  if (id >= 0 && id < tokenizer_.vocab_size()) chance.bytes = tokenizer_.TokenBytes(id);
  return chance;
}

void AnswerStream::Hold(const SampledToken& token, int64_t begin, int64_t text_offset) {
  HeldToken& held = held_.emplace_back();
  held.begin = begin;
  held.token.chosen = ChanceOf(token.id, token.log_prob);
  held.token.text_offset = text_offset;
  for (const TokenLogProb& top : token.top) {
    held.token.top.push_back(ChanceOf(top.id, top.log_prob));
  }
}

void AnswerStream::Give(size_t first, int64_t sent, AnswerDelta& delta) {
  for (size_t i = first; i < delta.events.size(); ++i) AddXtmlEvent(delta.events[i], answer_);
  const auto end =
      std::ranges::find_if(held_, [&](const HeldToken& held) { return held.begin >= sent; });
  for (auto held = held_.begin(); held != end; ++held) {
    tokens_.push_back(held->token);
    delta.tokens.push_back(std::move(held->token));
  }
  held_.erase(held_.begin(), end);
}

ChatAnswerStream::ChatAnswerStream(const Tokenizer& tokenizer, const XtmlMarkers& markers,
                                   const ChatRequest& chat, StopMatcher matcher)
    : AnswerStream(tokenizer),
      reader_(tokenizer, markers, chat, std::move(matcher)),
      markers_(markers) {}

bool ChatAnswerStream::Feed(const SampledToken& token, AnswerDelta& delta) {
  ++completion_tokens_;
  const size_t first = delta.events.size();
  const int64_t content_before = reader_.content_bytes();
  const bool goes_on = reader_.Feed(token.id, delta.events);
  if (token.id >= 0 && token.id < tokenizer_.ranks_count()) waiting_.push_back(token);
  const bool is_marker = token.id == markers_.open || token.id == markers_.close ||
                         token.id == markers_.sep || token.id == markers_.end_of_message;
  Sort(std::span(delta.events).subspan(first), content_before, is_marker);
  Give(first, sent_bytes_, delta);
  return goes_on;
}

void ChatAnswerStream::Finish(AnswerDelta& delta) {
  const size_t first = delta.events.size();
  const int64_t content_before = reader_.content_bytes();
  reader_.Finish(delta.events);
  Sort(std::span(delta.events).subspan(first), content_before, true);
  Give(first, sent_bytes_, delta);
}

/// Finds out what the waiting tokens belong to, from what came out behind the last of them.
void ChatAnswerStream::Sort(std::span<const XtmlEvent> events, int64_t content_before,
                            bool is_marker) {
  bool has_reasoning = false;
  for (const XtmlEvent& event : events) {
    has_reasoning |= event.kind == XtmlEvent::Kind::kReasoning;
    if (event.kind != XtmlEvent::Kind::kContent) continue;
    sent_bytes_ += static_cast<int64_t>(event.text.size());
  }
  if (reader_.content_bytes() > content_before) {
    for (const SampledToken& token : waiting_) Hold(token, content_before, 0);
    waiting_.clear();
  } else if (has_reasoning) {
    reasoning_tokens_ += std::ssize(waiting_);
    waiting_.clear();
  }
  // What is left now was the inside of a tag, or text that belongs nowhere.
  if (is_marker || !events.empty()) waiting_.clear();
}

TextAnswerStream::TextAnswerStream(const Tokenizer& tokenizer, StopMatcher matcher)
    : AnswerStream(tokenizer), matcher_(std::move(matcher)) {}

bool TextAnswerStream::Feed(const SampledToken& token, AnswerDelta& delta) {
  ++completion_tokens_;
  if (matcher_.matched().has_value()) return false;
  const bool has_text = token.id >= 0 && token.id < tokenizer_.vocab_size() &&
                        !(token.id >= tokenizer_.ranks_count() && tokenizer_.IsSpecial(token.id));
  if (!has_text) return true;
  const std::string_view bytes = tokenizer_.TokenBytes(token.id);
  Hold(token, read_bytes_, characters_count_);
  read_bytes_ += std::ssize(bytes);
  characters_count_ += CountCharacters(characters_.Feed(bytes));
  const std::string released = matcher_.Feed(bytes);
  released_bytes_ += std::ssize(released);
  std::string text = text_.Feed(released);
  if (matcher_.matched().has_value()) text += text_.Finish();
  Emit(std::move(text), delta);
  return !matcher_.matched().has_value();
}

void TextAnswerStream::Finish(AnswerDelta& delta) {
  const std::string released = matcher_.Finish();
  released_bytes_ += std::ssize(released);
  std::string text = text_.Feed(released);
  text += text_.Finish();
  Emit(std::move(text), delta);
}

void TextAnswerStream::Emit(std::string text, AnswerDelta& delta) {
  const size_t first = delta.events.size();
  if (!text.empty()) {
    delta.events.push_back({.kind = XtmlEvent::Kind::kContent, .text = std::move(text)});
  }
  Give(first, released_bytes_ - text_.pending_bytes(), delta);
}

}  // namespace k3::server
