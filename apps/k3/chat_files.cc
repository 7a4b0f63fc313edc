#include "chat_files.h"

#include <fmt/format.h>

#include "base/limits.h"
#include "sys/file.h"
#include "terminal/terminal.h"
#include "text/chat_json.h"

namespace k3::cli {
namespace {

Result<JsonValue> LoadJson(const std::string& path, std::string_view where) {
  const bool is_stdin = path == "-";
  K3_TRY(const std::string text, ReadTextArgument(is_stdin ? path : "", is_stdin ? "" : path));
  return ParseJson(text, where);
}

}  // namespace

Result<ChatRequest> LoadChatRequest(const std::string& path) {
  const std::string where = path == "-" ? "standard input" : path;
  K3_TRY(JsonValue json, LoadJson(path, where));
  if (json.items() != nullptr) {
    json = JsonValue(JsonValue::Members{{"messages", std::move(json)}});
  }
  return ParseChatRequest(json, where);
}

Result<ChatRequest> LoadConversation(const std::string& path) {
  if (path == "-") {
    return InvalidArgument("expected a file's name, found -: standard input is for messages");
  }
  return LoadChatRequest(path);
}

Result<JsonValue> LoadTools(const std::string& path) {
  K3_TRY(const JsonValue json, LoadJson(path, path));
  const JsonValue* tools = json.Find("tools");
  const JsonValue& found = tools == nullptr ? json : *tools;
  K3_RETURN_IF_ERROR(CheckTools(found, path));
  return found;
}

Status SaveChatRequest(const ChatRequest& request, const std::string& path, bool replace) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  if (!replace && files->Exists(path)) {
    return InvalidArgument(
        fmt::format("{}: there is a file of this name; choose another name", path));
  }
  // A message a line, for those who read or edit it.
  const JsonValue json = ChatRequestJson(request);
  std::string text = "{";
  for (const auto& [name, value] : *json.members()) {
    text += fmt::format("{}\n{}: ", text.size() == 1 ? "" : ",", DumpJson(JsonValue(name)));
    if (name != "messages") {
      text += DumpJson(value);
      continue;
    }
    std::string messages;
    for (const JsonValue& message : *value.items()) {
      messages += fmt::format("{}\n  {}", messages.empty() ? "" : ",", DumpJson(message));
    }
    text += fmt::format("[{}]", messages);
  }
  return WriteFileAtomically(*files, path, text + "\n}\n");
}

}  // namespace k3::cli
