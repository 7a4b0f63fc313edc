#pragma once
// What the XTML tests share: a tokenizer that has the markers, markup in short, and answers as a
// line of text.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "text/xtml_parser_test_util.h"

namespace k3 {

using Ids = std::vector<int32_t>;

/// `dir` is the model's directory; its vocabulary has 2048 ids.
inline Tokenizer ReadKjvTokenizer(const std::string& dir) {
  const auto read = [&](const char* name) {
    std::ifstream file(dir + "/" + name, std::ios::binary);
    EXPECT_TRUE(file.good()) << name;
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string model = read("tiktoken.model");
  const std::string config = read("tokenizer_config.json");
  Result<Tokenizer> tokenizer =
      Tokenizer::Create({.model = model, .config = config, .vocab_size = 2048});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return std::move(tokenizer).value();
}

/// "think(a) response(b) f{"x": 1} cut:g{"y": ": what is empty is left out, and a call that is not
/// complete is called cut.
inline std::string ShowAnswer(const ParsedAnswer& answer) {
  std::string out;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : " ") + part; };
  if (!answer.reasoning.empty()) add("think(" + answer.reasoning + ")");
  if (!answer.content.empty()) add("response(" + answer.content + ")");
  for (const ParsedToolCall& call : answer.tool_calls) {
    add((call.complete ? "" : "cut:") + call.name + call.arguments);
  }
  return out;
}

/// The tokenizer of models/kjv and markup in short.
class XtmlTest : public testing::Test {
 protected:
  explicit XtmlTest(const std::string& dir) : tokenizer(ReadKjvTokenizer(dir)) {}

  /// Ids of markup in short: `<think>` and `</think>` stand for whole tags, `<|open|>` for the
  /// marker alone, `<0>` to `<2>` for the bytes of U+4E16 (世) one by one, counted from 0.
  Ids Markup(std::string_view text) const {
    Ids ids;
    while (!text.empty()) {
      const size_t end = text.front() == '<' ? text.find('>') + 1 : text.find('<');
      const std::string_view part = text.substr(0, end);
      text.remove_prefix(part.size());
      if (part.starts_with("<|") || part.starts_with("<[")) {
        ids.push_back(*tokenizer.SpecialId(part.starts_with("<|") ? part : part.substr(1, 5)));
      } else if (part.size() == 3 && part[1] >= '0' && part[1] <= '2') {
        ids.push_back(std::string_view("\xE4\xB8\x96")[static_cast<size_t>(part[1] - '0')] & 0xFF);
      } else if (part.front() == '<') {
        const bool closes = part[1] == '/';
        ids.push_back(closes ? markers.close : markers.open);
        Add(part.substr(closes ? 2 : 1, part.size() - (closes ? 3 : 2)), ids);
        ids.push_back(markers.sep);
      } else {
        Add(part, ids);
      }
    }
    return ids;
  }

  void Add(std::string_view text, Ids& ids) const {
    const Ids more = *tokenizer.Encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  }

  ParsedAnswer Parse(const Ids& ids, const XtmlParserOptions& options = {}) const {
    // Everywhere, unless that would take long.
    const size_t step = 1 + ids.size() * ids.size() / 1'000'000;
    std::vector<size_t> cuts;
    for (size_t cut = 0; cut <= ids.size(); cut += step) cuts.push_back(cut);
    EXPECT_EQ(FindXtmlParserFault({tokenizer, markers, options}, ids, cuts), "");
    return ParseXtml(tokenizer, markers, options, ids);
  }

  std::string Show(std::string_view markup, const XtmlParserOptions& options = {}) const {
    return ShowAnswer(Parse(Markup(markup), options));
  }
  std::string ShowFromResponse(std::string_view markup) const {
    return Show(markup, {.start = XtmlChannel::kResponse});
  }
  /// Of the markup inside one call of f.
  std::string ShowCall(std::string_view markup, const JsonValue* tools = nullptr) const {
    return Show(fmt::format("<tools><call tool=\"f\" index=\"1\">{}</call></tools>", markup),
                {.tools = tools});
  }

  const Tokenizer tokenizer;
  const XtmlMarkers markers = *XtmlMarkers::Find(tokenizer);
};

}  // namespace k3
