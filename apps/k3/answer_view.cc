#include "answer_view.h"

#include <fmt/format.h>

#include "base/clock.h"

namespace k3::cli {
namespace {

constexpr std::string_view kDim = "\033[2m";
constexpr std::string_view kPlain = "\033[0m";
constexpr std::string_view kClearLine = "\r\033[K";
constexpr int64_t kRedrawNs = 100'000'000;

}  // namespace

std::string ChatStatsLine(const ChatAnswer& answer) {
  const auto rate = [](int64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  const int64_t run = answer.prompt_tokens - answer.cached_tokens;
  return fmt::format(
      "prompt: {} tokens, {} reused, {} in {:.2f} s ({:.2f} tokens/s); generated: {} tokens in "
      "{:.2f} s ({:.2f} tokens/s); finished: {}",
      answer.prompt_tokens, answer.cached_tokens, run, answer.prefill_seconds,
      rate(run, answer.prefill_seconds), answer.generated_tokens, answer.decode_seconds,
      rate(answer.decode_passes, answer.decode_seconds), answer.FinishName());
}

bool AnswerView::OnPrefillProgress(int64_t done, int64_t total) {
  bar_.Update(done, total);
  return !WasInterrupted();
}

bool AnswerView::OnToken(const SampledToken& /*token*/) {
  if (section_ == Section::kThinking) ++thinking_tokens_;
  return status_.ok() && !WasInterrupted();
}

bool AnswerView::OnEvent(const XtmlEvent& event) {
  switch (event.kind) {
    case XtmlEvent::Kind::kReasoning:
      Enter(Section::kThinking);
      ShowThinking(event.text);
      break;
    case XtmlEvent::Kind::kContent:
      Enter(Section::kContent);
      Print(event.text);
      break;
    case XtmlEvent::Kind::kToolCallStart:
      Enter(Section::kCall);
      if (!at_line_start_) Print("\n");
      Print(event.text + "(");
      break;
    case XtmlEvent::Kind::kToolCallArguments:
      Print(event.text);
      break;
    case XtmlEvent::Kind::kToolCallEnd:
      Print(")\n");
      break;
  }
  return status_.ok() && !WasInterrupted();
}

Status AnswerView::Finish(const ChatAnswer& answer) {
  bar_.Clear();
  Enter(Section::kNone);
  if (!at_line_start_) Print("\n");
  const bool is_empty = answer.parsed.content.empty() && answer.parsed.tool_calls.empty();
  if (thinking_ == ThinkingView::kHide && is_empty && !answer.parsed.reasoning.empty()) {
    Note("[only thinking came, which is hidden: --thinking show shows it, --effort none skips it]");
  }
  if (answer.finish_reason == FinishReason::kCancelled) Note("[stopped]");
  if (answer.finish_reason == FinishReason::kLength) {
    Note(fmt::format("[cut after {} tokens: --max-tokens, or the end of the context]",
                     answer.generated_tokens));
  }
  return status_;
}

void AnswerView::Enter(Section section) {
  if (section == section_) return;
  if (section_ == Section::kThinking && thinking_ == ThinkingView::kFold) EndFold();
  if (section_ == Section::kThinking && thinking_ == ThinkingView::kShow) {
    if (!at_line_start_) Print("\n");
    if (styled_ && status_.ok()) status_ = WriteOutput(kPlain);
    if (section != Section::kNone) Print("\n");
  }
  section_ = section;
  if (section != Section::kThinking) return;
  thinking_start_ns_ = MonotonicNanoseconds();
  if (styled_ && thinking_ == ThinkingView::kShow && status_.ok()) status_ = WriteOutput(kDim);
}

void AnswerView::ShowThinking(std::string_view text) {
  if (thinking_ == ThinkingView::kShow) Print(text);
  if (thinking_ != ThinkingView::kFold || !styled_) return;
  const int64_t now_ns = MonotonicNanoseconds();
  if (now_ns < next_redraw_ns_ || !status_.ok()) return;
  next_redraw_ns_ = now_ns + kRedrawNs;
  status_ = WriteOutput(
      fmt::format("{}{}thinking, {} tokens{}", kClearLine, kDim, thinking_tokens_, kPlain));
}

void AnswerView::EndFold() {
  if (!styled_ || !status_.ok()) return;
  const double seconds = SecondsBetween(thinking_start_ns_, MonotonicNanoseconds());
  status_ = WriteOutput(fmt::format("{}{}thought for {:.1f} s, {} tokens; /thinking shows it{}\n",
                                    kClearLine, kDim, seconds, thinking_tokens_, kPlain));
}

/// What is not part of the answer goes where it does not mix with it.
void AnswerView::Note(std::string_view text) {
  if (!styled_) return PrintNotice(text);
  if (status_.ok()) status_ = WriteOutput(fmt::format("{}{}{}\n", kDim, text, kPlain));
}

void AnswerView::Print(std::string_view text) {
  const std::string clean = is_terminal_ ? clean_.Feed(text) : std::string(text);
  if (!status_.ok() || clean.empty()) return;
  at_line_start_ = clean.ends_with('\n');
  status_ = WriteOutput(clean);
}

}  // namespace k3::cli
