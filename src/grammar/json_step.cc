#include "grammar/json_step.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"

namespace k3 {
namespace {

using Kind = JsonForm::Kind;
using Place = JsonThread::Place;

bool IsUsed(const JsonThread::Frame& frame, int32_t member) {
  return (frame.used[static_cast<size_t>(member / 64)] >> (member % 64) & 1) != 0;
}

/// A frame that can be changed, since no state knows it yet; then threads share it as it is.
std::shared_ptr<JsonThread::Frame> CopyFrame(const JsonThread::Frame& frame) {
  return std::make_shared<JsonThread::Frame>(frame);  // shared as the others are
}

bool IsDigit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

/// The part of [low, high) of ascending `texts`, all the same up to `at`, that goes on with `byte`.
template <typename TextOf>
std::pair<int32_t, int32_t> Narrow(int32_t low, int32_t high, int32_t at, uint8_t byte,
                                   const TextOf& text_of) {
  const auto byte_of = [&](int32_t i) {
    const std::string& text = text_of(i);
    return static_cast<size_t>(at) < text.size()
               ? static_cast<int32_t>(static_cast<uint8_t>(text[static_cast<size_t>(at)]))
               : -1;
  };
  const auto find = [&](int32_t least) {
    int32_t begin = low, end = high;
    while (begin < end) {
      const int32_t middle = begin + (end - begin) / 2;
      if (byte_of(middle) < least) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  };
  return {find(byte), find(byte + 1)};
}

// Phases of a number.
enum Phase : uint8_t { kSign, kZero, kInteger, kPoint, kFraction, kE, kExponentSign, kExponent };

}  // namespace

bool JsonStep::NumberCanEnd(uint8_t phase) {
  return phase == kZero || phase == kInteger || phase == kFraction || phase == kExponent;
}

bool JsonStep::Fits(const JsonThread& thread, int32_t height) const {
  return DepthOf(thread) + height <= limits::kJsonDepthMax;
}

bool JsonStep::FitsNode(const JsonThread& thread, int32_t node) const {
  return node >= 0 && Fits(thread, grammar_.node(node).height);
}

void JsonStep::Take(const JsonThread& thread, uint8_t byte) {
  switch (thread.place) {
    case Place::kValue:
      // Only behind a colon; elsewhere a value starts in kOpened and kNext, or is the root.
      if (thread.top != nullptr && TakeBlank(thread, byte, false)) return;
      StartValue(thread, byte);
      return;
    case Place::kForm:
      StartForm(thread, thread.form, byte);
      return;
    case Place::kOpened:
      TakeOpened(thread, byte);
      return;
    case Place::kNext:
      TakeNext(thread, byte);
      return;
    case Place::kAfter:
      TakeAfter(thread, byte);
      return;
    case Place::kColon:
      if (byte != ':') return;
      out_.push_back(thread);
      out_.back().place = Place::kValue;
      out_.back().gap = 0;
      return;
    case Place::kKey:
      TakeKey(thread, byte);
      return;
    case Place::kFreeKey:
      TakeFreeKey(thread, byte);
      return;
    case Place::kText:
    case Place::kRawText:
      TakeText(thread, byte);
      return;
    case Place::kLiteral:
    case Place::kRawLiteral:
      TakeLiteral(thread, byte);
      return;
    case Place::kNumber:
      TakeNumber(thread, byte);
      return;
    case Place::kDone:
      return;
  }
}

void JsonStep::Complete(JsonThread thread) {
  thread.gap = 0;
  thread.key.clear();
  if (thread.top == nullptr) {
    thread.place = Place::kDone;
  } else {
    thread.place = Place::kAfter;
    if (FormOf(*thread.top).kind == Kind::kArray) {
      auto frame = CopyFrame(*thread.top);
      ++frame->count;
      thread.top = std::move(frame);
    }
  }
  out_.push_back(std::move(thread));
}

bool JsonStep::CanClose(const JsonThread& thread) const {
  const Frame& frame = *thread.top;
  const JsonForm& form = FormOf(frame);
  if (form.kind == Kind::kArray) return frame.count >= form.count_min;
  for (int32_t i = 0; i < std::ssize(form.members); ++i) {
    if (form.members[static_cast<size_t>(i)].is_required && !IsUsed(frame, i)) return false;
  }
  return true;
}

/// Whether one more member or item may come into the container on top.
bool JsonStep::CanContinue(const JsonThread& thread) const {
  const Frame& frame = *thread.top;
  const JsonForm& form = FormOf(frame);
  if (form.kind == Kind::kArray) {
    return frame.count < form.count_max && FitsNode(thread, NextItem(frame));
  }
  if (MayAddFreeKey(thread)) return true;
  for (int32_t i = 0; i < std::ssize(form.members); ++i) {
    if (!IsUsed(frame, i) && FitsNode(thread, form.members[static_cast<size_t>(i)].node)) {
      return true;
    }
  }
  return false;
}

bool JsonStep::MayAddFreeKey(const JsonThread& thread) const {
  return thread.top->count < limits::kJsonFreeKeysMax && FitsNode(thread, FormOf(*thread.top).rest);
}

int32_t JsonStep::NextItem(const Frame& frame) const {
  const JsonForm& form = FormOf(frame);
  const auto count = static_cast<size_t>(frame.count);
  return count < form.prefix.size() ? form.prefix[count] : form.rest;
}

/// One more blank, if it may come: a space or, with `may_break`, a line break and its indent.
bool JsonStep::TakeBlank(JsonThread thread, uint8_t byte, bool may_break) {
  const int32_t indent_max = 4 * DepthOf(thread);
  if (byte == ' ' && thread.gap == 0) {
    thread.gap = 1;
  } else if (byte == ' ' && thread.gap >= 2 && thread.gap - 2 < indent_max) {
    ++thread.gap;
  } else if (byte == '\n' && may_break && thread.gap == 0) {
    thread.gap = 2;
  } else {
    return false;
  }
  out_.push_back(std::move(thread));
  return true;
}

void JsonStep::StartValue(const JsonThread& thread, uint8_t byte) {
  for (const int32_t form : grammar_.node(thread.node).forms) StartForm(thread, form, byte);
}

void JsonStep::StartForm(const JsonThread& thread, int32_t index, uint8_t byte) {
  const JsonForm& form = grammar_.form(index);
  if (!Fits(thread, form.height)) return;
  JsonThread next = {.top = thread.top, .node = thread.node, .form = index};
  switch (form.kind) {
    case Kind::kLiterals:
      next.place = Place::kLiteral;
      next.high = static_cast<int32_t>(form.literals.size());
      TakeLiteral(std::move(next), byte);
      return;
    case Kind::kString:
      if (byte != '"') return;
      next.place = Place::kText;
      out_.push_back(std::move(next));
      return;
    case Kind::kNumber:
    case Kind::kInteger:
      next.place = Place::kNumber;
      if (byte == '-') {
        next.phase = kSign;
        out_.push_back(std::move(next));
      } else {
        next.phase = kSign;
        if (IsDigit(byte)) TakeNumber(std::move(next), byte);
      }
      return;
    case Kind::kObject:
      if (byte == '{') Push(thread, index);
      return;
    case Kind::kArray:
      if (byte == '[') Push(thread, index);
      return;
  }
}

void JsonStep::Push(const JsonThread& thread, int32_t form) {
  // Shared by all threads inside it.
  auto frame = std::make_shared<Frame>();
  frame->parent = thread.top;
  frame->form = form;
  frame->depth = DepthOf(thread) + 1;
  frame->used.resize((grammar_.form(form).members.size() + 63) / 64);
  out_.push_back({.top = std::move(frame), .place = Place::kOpened});
}

void JsonStep::TakeOpened(const JsonThread& thread, uint8_t byte) {
  const bool is_array = FormOf(*thread.top).kind == Kind::kArray;
  if (byte == (is_array ? ']' : '}')) {
    if (CanClose(thread)) Close(thread);
    return;
  }
  if (TakeBlank(thread, byte, true)) return;
  if (CanContinue(thread)) TakeNext(thread, byte);
}

void JsonStep::TakeNext(const JsonThread& thread, uint8_t byte) {
  if (TakeBlank(thread, byte, true)) return;
  if (FormOf(*thread.top).kind == Kind::kObject) {
    if (byte == '"') StartKey(thread);
    return;
  }
  JsonThread item = thread;
  item.node = NextItem(*thread.top);
  StartValue(item, byte);
}

/// A blank here is for the closing bracket, so it may come only if the bracket may.
void JsonStep::TakeAfter(const JsonThread& thread, uint8_t byte) {
  const bool is_array = FormOf(*thread.top).kind == Kind::kArray;
  if (byte == ',') {
    if (thread.gap > 0 || !CanContinue(thread)) return;
    out_.push_back(thread);
    out_.back().place = Place::kNext;
    return;
  }
  if (byte != ' ' && byte != '\n' && byte != (is_array ? ']' : '}')) return;
  if (!CanClose(thread)) return;
  if (TakeBlank(thread, byte, true)) return;
  if (byte == (is_array ? ']' : '}')) Close(thread);
}

void JsonStep::Close(const JsonThread& thread) { Complete({.top = thread.top->parent}); }

void JsonStep::StartKey(const JsonThread& thread) {
  const JsonForm& form = FormOf(*thread.top);
  JsonThread next = {.top = thread.top};
  if (MayAddFreeKey(thread)) {
    next.place = Place::kFreeKey;
  } else {
    next.place = Place::kKey;
    next.high = static_cast<int32_t>(form.members.size());
    next.at = 1;
  }
  out_.push_back(std::move(next));
}

void JsonStep::TakeKey(JsonThread thread, uint8_t byte) {
  const std::vector<JsonMember>& members = FormOf(*thread.top).members;
  const auto member = [&](int32_t i) -> const JsonMember& {
    return members[static_cast<size_t>(i)];
  };
  std::tie(thread.low, thread.high) =
      Narrow(thread.low, thread.high, thread.at, byte,
             [&](int32_t i) -> const std::string& { return member(i).text; });
  ++thread.at;
  for (int32_t i = thread.low; i < thread.high; ++i) {
    if (IsUsed(*thread.top, i) || !FitsNode(thread, member(i).node)) continue;
    if (static_cast<size_t>(thread.at) == member(i).text.size()) {
      UseMember(std::move(thread), i);
    } else {
      out_.push_back(std::move(thread));
    }
    return;
  }
}

void JsonStep::UseMember(JsonThread thread, int32_t member) {
  thread.node = FormOf(*thread.top).members[static_cast<size_t>(member)].node;
  auto frame = CopyFrame(*thread.top);
  frame->used[static_cast<size_t>(member / 64)] |= uint64_t{1} << (member % 64);
  thread.top = std::move(frame);
  thread.place = Place::kColon;
  thread.key.clear();
  out_.push_back(std::move(thread));
}

void JsonStep::TakeFreeKey(JsonThread thread, uint8_t byte) {
  const JsonText::Step step = thread.text.Feed(byte, &thread.key);
  if (step == JsonText::Step::kBad) return;
  if (step == JsonText::Step::kQuote) {
    EndFreeKey(std::move(thread));
  } else {
    out_.push_back(std::move(thread));
  }
}

/// A name that was used goes no further, so that the quotation mark is not allowed behind it.
void JsonStep::EndFreeKey(JsonThread thread) {
  const JsonForm& form = FormOf(*thread.top);
  const auto name_of = [&](int32_t i) -> const std::string& {
    return form.members[static_cast<size_t>(i)].name;
  };
  const auto found = std::ranges::lower_bound(form.by_name, thread.key, {}, name_of);
  if (found != form.by_name.end() && name_of(*found) == thread.key) {
    const JsonMember& member = form.members[static_cast<size_t>(*found)];
    if (IsUsed(*thread.top, *found) || !FitsNode(thread, member.node)) return;
    UseMember(std::move(thread), *found);
    return;
  }
  for (const JsonThread::UsedKey* key = thread.top->keys.get(); key != nullptr;
       key = key->next.get()) {
    if (key->name == thread.key) return;
  }
  auto frame = CopyFrame(*thread.top);
  ++frame->count;
  // Frames that go on differently share the names before.
  frame->keys = std::make_shared<const JsonThread::UsedKey>(
      JsonThread::UsedKey{std::move(thread.key), frame->keys});
  out_.push_back({.top = std::move(frame), .place = Place::kColon, .node = form.rest});
}

void JsonStep::TakeText(JsonThread thread, uint8_t byte) {
  const JsonForm& form = grammar_.form(thread.form);
  const bool is_raw = thread.place == Place::kRawText;
  const bool starts = thread.text.is_between_characters();
  const JsonText::Step step = is_raw ? thread.text.FeedRaw(byte) : thread.text.Feed(byte, nullptr);
  if (step == JsonText::Step::kBad) return;
  if (step == JsonText::Step::kQuote) {
    if (thread.count >= form.count_min) Complete({.top = std::move(thread.top)});
    return;
  }
  if (starts && thread.count >= form.count_max) return;
  if (step == JsonText::Step::kCharacter) ++thread.count;
  out_.push_back(std::move(thread));
}

void JsonStep::TakeLiteral(JsonThread thread, uint8_t byte) {
  const JsonForm& form = grammar_.form(thread.form);
  const bool is_raw = thread.place == Place::kRawLiteral;
  const std::vector<std::string>& texts = is_raw ? form.raw_literals : form.literals;
  const auto text_of = [&](int32_t i) -> const std::string& {
    return texts[static_cast<size_t>(i)];
  };
  const auto is_whole = [&] {
    return thread.at > 0 && text_of(thread.low).size() == static_cast<size_t>(thread.at);
  };
  const auto [low, high] = Narrow(thread.low, thread.high, thread.at, byte, text_of);
  if (low == high) {
    // A number that is the start of another one ends only at what follows it.
    if (is_raw || !is_whole()) return;
    const size_t size = out_.size();
    Complete({.top = std::move(thread.top)});
    const JsonThread done = std::move(out_.back());
    out_.resize(size);
    Take(done, byte);
    return;
  }
  thread.low = low;
  thread.high = high;
  ++thread.at;
  if (!is_raw && high - low == 1 && is_whole()) {
    Complete({.top = std::move(thread.top)});
  } else {
    out_.push_back(std::move(thread));
  }
}

void JsonStep::TakeNumber(JsonThread thread, uint8_t byte) {
  const bool has_fraction = grammar_.form(thread.form).kind == Kind::kNumber;
  const auto move_to = [&](uint8_t phase) {
    thread.count = thread.phase == phase ? thread.count + 1 : 1;
    thread.phase = phase;
    out_.push_back(std::move(thread));
  };
  const uint8_t phase = thread.phase;
  if (IsDigit(byte)) {
    const auto add_digit = [&](uint8_t to, int64_t digits_max) {
      if (phase != to || thread.count < digits_max) move_to(to);
    };
    if (phase == kSign) {
      move_to(byte == '0' ? kZero : kInteger);
    } else if (phase == kInteger) {
      add_digit(kInteger, limits::kJsonIntegerDigitsMax);
    } else if (phase == kPoint || phase == kFraction) {
      add_digit(kFraction, limits::kJsonFractionDigitsMax);
    } else if (phase == kE || phase == kExponentSign || phase == kExponent) {
      add_digit(kExponent, limits::kJsonExponentDigitsMax);
    }
    return;
  }
  const bool is_whole = phase == kZero || phase == kInteger;
  if (byte == '.') {
    if (has_fraction && is_whole) move_to(kPoint);
  } else if (byte == 'e' || byte == 'E') {
    if (has_fraction && (is_whole || phase == kFraction)) move_to(kE);
  } else if (byte == '+' || byte == '-') {
    if (phase == kE) move_to(kExponentSign);
  } else if (NumberCanEnd(phase) && thread.top != nullptr) {
    const size_t size = out_.size();
    Complete({.top = std::move(thread.top)});
    const JsonThread done = std::move(out_.back());
    out_.resize(size);
    Take(done, byte);
  }
}

}  // namespace k3
