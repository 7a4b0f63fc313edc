#include "grammar/json_state.h"

#include <algorithm>

#include "grammar/json_step.h"

namespace k3 {
namespace {

using Place = JsonThread::Place;

bool KeysEqual(const JsonThread::UsedKey* a, const JsonThread::UsedKey* b) {
  for (; a != b; a = a->next.get(), b = b->next.get()) {
    if (a == nullptr || b == nullptr || a->name != b->name) return false;
  }
  return true;
}

/// Parents are compared by identity: where two threads meet again, they do so one level at a time.
bool FramesEqual(const JsonThread::Frame* a, const JsonThread::Frame* b) {
  if (a == b) return true;
  return a != nullptr && b != nullptr && a->parent == b->parent && a->form == b->form &&
         a->depth == b->depth && a->count == b->count && a->used == b->used &&
         KeysEqual(a->keys.get(), b->keys.get());
}

bool IsSame(const JsonThread& a, const JsonThread& b) {
  return a.place == b.place && a.phase == b.phase && a.gap == b.gap && a.node == b.node &&
         a.form == b.form && a.low == b.low && a.high == b.high && a.at == b.at &&
         a.count == b.count && a.text == b.text && a.key == b.key &&
         FramesEqual(a.top.get(), b.top.get());
}

/// Leaves the first of equal threads, and no more than are followed.
void Thin(JsonState::Threads& threads) {
  size_t kept = 0;
  for (size_t i = 0; i < threads.size() && kept < JsonState::kThreadsMax; ++i) {
    const auto end = threads.begin() + static_cast<std::ptrdiff_t>(kept);
    if (std::any_of(threads.begin(), end,
                    [&](const JsonThread& other) { return IsSame(threads[i], other); })) {
      continue;
    }
    if (kept != i) threads[kept] = std::move(threads[i]);
    ++kept;
  }
  threads.resize(kept);
}

}  // namespace

bool StepThreads(const JsonGrammar& grammar, int32_t base_depth, std::span<const JsonThread> from,
                 uint8_t byte, JsonState::Threads& to) {
  to.clear();
  JsonStep step(grammar, base_depth, to);
  for (const JsonThread& thread : from) step.Take(thread, byte);
  if (to.size() > 1) Thin(to);
  return !to.empty();
}

int64_t FreeTextRoom(const JsonGrammar& grammar, const JsonThread& thread) {
  const bool is_key = thread.place == Place::kFreeKey;
  if (!is_key && thread.place != Place::kText && thread.place != Place::kRawText) return 0;
  if (!thread.text.is_between_characters()) return 0;
  if (is_key) return INT64_MAX;
  const int64_t most = grammar.form(thread.form).count_max;
  return most == INT64_MAX ? INT64_MAX : most - thread.count;
}

JsonState::JsonState(const JsonGrammar& grammar) : grammar_(&grammar) {
  threads_.push_back({.node = grammar.root()});
}

JsonState::JsonState(const JsonGrammar& grammar, int32_t node, JsonType type, int32_t depth)
    : grammar_(&grammar), base_depth_(depth) {
  for (const int32_t form : grammar.node(node).forms) {
    if (grammar.form(form).type != type) continue;
    threads_.push_back({.place = Place::kForm, .form = form});
  }
}

JsonState JsonState::Raw(const JsonGrammar& grammar, int32_t node) {
  JsonState state(grammar, node, JsonType::kString, 0);
  for (JsonThread& thread : state.threads_) {
    const JsonForm& form = grammar.form(thread.form);
    const bool is_fixed = form.kind == JsonForm::Kind::kLiterals;
    thread.place = is_fixed ? Place::kRawLiteral : Place::kRawText;
    thread.high = static_cast<int32_t>(form.raw_literals.size());
  }
  return state;
}

bool JsonState::Feed(uint8_t byte) {
  Threads next;
  const bool is_alive = StepThreads(*grammar_, base_depth_, threads_, byte, next);
  threads_ = std::move(next);
  return is_alive;
}

/// Each thread goes alone, as the masks follow it, so that the bound on threads cannot make a token
/// fail that a mask allowed.
bool JsonState::FeedToken(std::string_view bytes) {
  Threads all;
  Threads now;
  Threads next;
  for (const JsonThread& thread : threads_) {
    now.assign(1, thread);
    bool is_alive = true;
    for (size_t i = 0; i < bytes.size() && is_alive; ++i) {
      is_alive = StepThreads(*grammar_, base_depth_, now, static_cast<uint8_t>(bytes[i]), next);
      std::swap(now, next);
    }
    if (!is_alive) continue;
    std::move(now.begin(), now.end(), std::back_inserter(all));
  }
  Thin(all);
  threads_ = std::move(all);
  return !threads_.empty();
}

bool JsonState::CanEnd(const JsonThread& thread) const {
  if (thread.place == Place::kDone) return true;
  if (thread.top != nullptr) return false;
  const JsonForm& form = grammar_->form(thread.form);
  switch (thread.place) {
    case Place::kNumber:
      return JsonStep::NumberCanEnd(thread.phase);
    case Place::kRawText:
      return thread.text.is_between_characters() && thread.count >= form.count_min;
    case Place::kRawLiteral:
      return form.raw_literals[static_cast<size_t>(thread.low)].size() ==
             static_cast<size_t>(thread.at);
    case Place::kLiteral:
      return form.literals[static_cast<size_t>(thread.low)].size() ==
             static_cast<size_t>(thread.at);
    default:
      return false;
  }
}

bool JsonState::CanEnd() const {
  return std::ranges::any_of(threads_, [&](const JsonThread& thread) { return CanEnd(thread); });
}

bool JsonState::is_done() const {
  return std::ranges::all_of(threads_, [](const JsonThread& t) { return t.place == Place::kDone; });
}

bool HaveSameFuture(const JsonState& a, const JsonState& b) {
  if (a.threads().size() != 1 || b.threads().size() != 1) return false;
  const JsonThread& x = a.threads().front();
  const JsonThread& y = b.threads().front();
  if (x.place != Place::kText || y.place != Place::kText) return false;
  if (x.top != y.top || x.form != y.form || x.text != y.text) return false;
  const JsonForm& form = a.grammar().form(x.form);
  return form.count_max == INT64_MAX && std::min(x.count, y.count) >= form.count_min;
}

}  // namespace k3
