#pragma once
// The prompt of a conversation in XTML, K3's chat markup, as the release's encoder writes it.
//
//   K3_TRY(const std::vector<XtmlSegment> segments, RenderXtml(request));
//   K3_TRY(const std::vector<int32_t> ids, EncodeXtml(tokenizer, segments));
//
// A prompt is a list of segments, each a marker or plain text, and each is tokenised on its own:
// joining them first would merge across their borders and give other ids, and it would let a user's
// text forge markers. Text never yields a control token, whatever it spells.
//
// Pure functions; the caller owns everything. Source: technical report, appendix F;
// docs/formats.md.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat_request.h"
#include "text/tokenizer.h"
#include "text/xtml_markers.h"

namespace k3 {

struct XtmlSegment {
  std::string text;  // of a marker: its name
  bool is_marker = false;
  /// Belongs to what an assistant wrote: what supervised training learns from. An assistant's turn
  /// from the opening of its first channel to <|end_of_msg|>, without arguments that are no JSON.
  bool is_answer = false;

  bool operator==(const XtmlSegment&) const = default;
};

/// InvalidArgument when a tool's result names no tool and answers no call.
Result<std::vector<XtmlSegment>> RenderXtml(const ChatRequest& request);

/// What a person reads: the segments joined. Its ids are not those of the segments.
std::string JoinXtml(std::span<const XtmlSegment> segments);

/// Token ids [T]. NotFound when the tokenizer lacks a marker, InvalidArgument for text that is not
/// UTF-8.
Result<std::vector<int32_t>> EncodeXtml(const Tokenizer& tokenizer,
                                        std::span<const XtmlSegment> segments);

}  // namespace k3
