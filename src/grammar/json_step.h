#pragma once
// JsonStep: one byte for one thread of a JsonState. It borrows everything for the length of a call
// and appends what the thread becomes; one thread of the machine.

#include "grammar/json_state.h"

namespace k3 {

class JsonStep {
 public:
  using Place = JsonThread::Place;

  JsonStep(const JsonGrammar& grammar, int32_t base_depth, JsonState::Threads& out)
      : grammar_(grammar), base_depth_(base_depth), out_(out) {}

  void Take(const JsonThread& thread, uint8_t byte);

  /// The thread once its value is complete.
  void Complete(JsonThread thread);

  /// Whether the container on top may be closed.
  bool CanClose(const JsonThread& thread) const;

  static bool NumberCanEnd(uint8_t phase);

 private:
  using Frame = JsonThread::Frame;

  const JsonForm& FormOf(const Frame& frame) const { return grammar_.form(frame.form); }
  int32_t DepthOf(const JsonThread& thread) const {
    return thread.top == nullptr ? base_depth_ : thread.top->depth;
  }
  bool Fits(const JsonThread& thread, int32_t height) const;
  bool FitsNode(const JsonThread& thread, int32_t node) const;
  bool CanContinue(const JsonThread& thread) const;
  bool MayAddFreeKey(const JsonThread& thread) const;
  int32_t NextItem(const Frame& frame) const;
  bool TakeBlank(JsonThread thread, uint8_t byte, bool may_break);

  void StartValue(const JsonThread& thread, uint8_t byte);
  void StartForm(const JsonThread& thread, int32_t index, uint8_t byte);
  void Push(const JsonThread& thread, int32_t form);
  void TakeOpened(const JsonThread& thread, uint8_t byte);
  void TakeNext(const JsonThread& thread, uint8_t byte);
  void TakeAfter(const JsonThread& thread, uint8_t byte);
  void Close(const JsonThread& thread);
  void StartKey(const JsonThread& thread);
  void TakeKey(JsonThread thread, uint8_t byte);
  void TakeFreeKey(JsonThread thread, uint8_t byte);
  void EndFreeKey(JsonThread thread);
  void UseMember(JsonThread thread, int32_t member);
  void TakeText(JsonThread thread, uint8_t byte);
  void TakeLiteral(JsonThread thread, uint8_t byte);
  void TakeNumber(JsonThread thread, uint8_t byte);

  const JsonGrammar& grammar_;
  int32_t base_depth_;
  JsonState::Threads& out_;
};

}  // namespace k3
