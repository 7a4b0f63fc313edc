#include "data/corpus_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/limits.h"
#include "config/json.h"
#include "text/chat_request.h"
#include "text/utf8.h"
#include "text/xtml_renderer.h"

namespace k3 {
namespace {

/// Takes the next line off `text`, without its end, and says how many bytes it had with it.
std::string_view TakeLine(std::string_view& text, size_t* bytes_count) {
  const size_t newline = text.find('\n');
  *bytes_count = newline == std::string_view::npos ? text.size() : newline + 1;
  std::string_view line = text.substr(0, newline);
  if (line.ends_with('\r')) line.remove_suffix(1);
  text.remove_prefix(*bytes_count);
  return line;
}

Status AddTextDocument(const Tokenizer& tokenizer, std::string_view text,
                       const TextFileOptions& options, Corpus& corpus) {
  if (text.empty()) return OkStatus();
  K3_TRY(std::vector<int32_t> ids, tokenizer.Encode(text));
  if (options.bos_id.has_value()) ids.insert(ids.begin(), *options.bos_id);
  if (options.eos_id.has_value()) ids.push_back(*options.eos_id);
  corpus.AddDocument(ids);
  return OkStatus();
}

}  // namespace

Status CheckUtf8(std::string_view text, const std::string& path) {
  const int64_t invalid = FindInvalidUtf8(text);
  if (invalid < 0) return OkStatus();
  const std::string_view before = text.substr(0, static_cast<size_t>(invalid));
  return InvalidArgument(fmt::format(
      "{}:{}: expected UTF-8, found the byte 0x{:02X} at offset {}; convert the file, for example "
      "with iconv",
      path, std::ranges::count(before, '\n') + 1,
      static_cast<unsigned char>(text[static_cast<size_t>(invalid)]), invalid));
}

Status AddText(const Tokenizer& tokenizer, std::string_view text, const std::string& where,
               const TextFileOptions& options, Corpus& corpus) {
  for (const std::optional<int32_t>& id : {options.bos_id, options.eos_id}) {
    K3_CHECK(!id.has_value() || (*id >= 0 && *id < tokenizer.vocab_size()),
             "bos_id and eos_id are ids of the tokenizer");
  }
  K3_RETURN_IF_ERROR(CheckUtf8(text, where));
  const int64_t documents_before = corpus.documents_count();
  if (!options.separator.has_value()) {
    K3_RETURN_IF_ERROR(AddTextDocument(tokenizer, text, options, corpus));
  } else {
    size_t document_begin = 0;
    size_t at = 0;
    for (std::string_view rest = text; !rest.empty();) {
      size_t bytes_count = 0;
      const bool separates = TakeLine(rest, &bytes_count) == *options.separator;
      if (separates) {
        K3_RETURN_IF_ERROR(AddTextDocument(
            tokenizer, text.substr(document_begin, at - document_begin), options, corpus));
        document_begin = at + bytes_count;
      }
      at += bytes_count;
    }
    K3_RETURN_IF_ERROR(AddTextDocument(tokenizer, text.substr(document_begin), options, corpus));
  }
  if (corpus.documents_count() == documents_before) {
    return InvalidArgument(fmt::format("{}: expected text, found {}", where,
                                       text.empty() ? "an empty file" : "separators alone"));
  }
  return OkStatus();
}

Status AddTextFile(FileSystem& files, const Tokenizer& tokenizer, const std::string& path,
                   const TextFileOptions& options, Corpus& corpus) {
  K3_TRY(const std::string content, ReadWholeFile(files, path, limits::kPromptBytesMax));
  return AddText(tokenizer, content, path, options, corpus);
}

Status AddChat(const Tokenizer& tokenizer, std::string_view json, std::string_view where,
               Corpus& corpus) {
  K3_TRY(const JsonValue value, ParseJson(json, where));
  K3_TRY(ChatRequest request, ParseChatRequest(value, where));
  request.add_generation_prompt = false;
  const Result<std::vector<XtmlSegment>> segments = RenderXtml(request);
  if (!segments.ok()) return segments.status().WithContext(where);
  std::vector<int32_t> ids;
  std::vector<uint8_t> supervised;
  bool any = false;
  for (const XtmlSegment& segment : *segments) {
    K3_TRY(const std::vector<int32_t> part, EncodeXtml(tokenizer, std::span(&segment, 1)));
    ids.insert(ids.end(), part.begin(), part.end());
    supervised.resize(ids.size(), segment.is_answer ? 1 : 0);
    any = any || (segment.is_answer && !part.empty());
  }
  if (!any) {
    return InvalidArgument(fmt::format(
        "{}: messages: expected an assistant's message to learn from, found none", where));
  }
  corpus.AddDocument(ids, supervised);
  return OkStatus();
}

Status AddChatFile(FileSystem& files, const Tokenizer& tokenizer, const std::string& path,
                   Corpus& corpus) {
  K3_TRY(const std::string content, ReadWholeFile(files, path, limits::kPromptBytesMax));
  K3_RETURN_IF_ERROR(CheckUtf8(content, path));
  const int64_t documents_before = corpus.documents_count();
  int64_t line_number = 0;
  for (std::string_view rest = content; !rest.empty();) {
    size_t bytes_count = 0;
    const std::string_view line = TakeLine(rest, &bytes_count);
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", path, line_number);
    if (std::ssize(line) > limits::kLineBytesMax) {
      return InvalidArgument(fmt::format("{}: expected a line of at most {} bytes, found {}", where,
                                         limits::kLineBytesMax, line.size()));
    }
    K3_RETURN_IF_ERROR(AddChat(tokenizer, line, where, corpus));
  }
  if (corpus.documents_count() == documents_before) {
    return InvalidArgument(fmt::format("{}: expected a chat request a line, found {}", path,
                                       content.empty() ? "an empty file" : "blank lines alone"));
  }
  return OkStatus();
}

}  // namespace k3
