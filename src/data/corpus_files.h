#pragma once
// From files to a Corpus: plain text and conversations.
//
//   TextFileOptions options{.separator = "", .eos_id = tokenizer.eos_id()};
//   K3_RETURN_IF_ERROR(AddTextFile(*files, tokenizer, "stories.txt", options, corpus));
//   K3_RETURN_IF_ERROR(AddChatFile(*files, tokenizer, "chats.jsonl", corpus));
//
// Text files are UTF-8 and every token of them is supervised. Chat files hold one OpenAI-style
// request a line (docs/formats.md, "Chat requests"), each of which becomes a document, rendered as
// for a prompt but without an open answer; supervised is what an assistant wrote
// (XtmlSegment::is_answer) and nothing else. Blank lines are skipped.
//
// Memory: the file, and the ids of one document beside those of the corpus. A failure leaves in the
// corpus what was read before. Failures name the file and the line: InvalidArgument for bytes that
// are not UTF-8, a line that is no request or beyond limits::kLineBytesMax, a conversation in which
// no assistant says anything, a file beyond limits::kPromptBytesMax or without a document; NotFound
// for a missing file or a tokenizer without the markers; IoError. One thread; nothing is kept.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "data/corpus.h"
#include "sys/file.h"
#include "text/tokenizer.h"

namespace k3 {

struct TextFileOptions {
  /// The line, without its end, that stands between two documents; empty for a blank line. Nothing:
  /// the file is one document. The line itself is dropped, every other byte belongs to a document,
  /// and a document without bytes is none.
  std::optional<std::string> separator;
  /// Ids that stand before and behind every document.
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
};

/// InvalidArgument with file, line and offset for bytes that are not UTF-8.
Status CheckUtf8(std::string_view text, const std::string& path);

/// A text as a text file's content; `where` is what messages call it.
Status AddText(const Tokenizer& tokenizer, std::string_view text, const std::string& where,
               const TextFileOptions& options, Corpus& corpus);
Status AddTextFile(FileSystem& files, const Tokenizer& tokenizer, const std::string& path,
                   const TextFileOptions& options, Corpus& corpus);

Status AddChatFile(FileSystem& files, const Tokenizer& tokenizer, const std::string& path,
                   Corpus& corpus);

/// One request, without a line's end. `where` is what messages call it.
Status AddChat(const Tokenizer& tokenizer, std::string_view json, std::string_view where,
               Corpus& corpus);

}  // namespace k3
