#pragma once
// What the tests of answers share: the kjv tokenizer, random ids of answers, and the frames of a
// stream put together as a client does it.

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "server/answer_stream.h"
#include "server/api_response.h"
#include "text/xtml_test_util.h"

namespace k3::server {

/// A token with made-up log-probabilities, which tell where it came from.
inline SampledToken MakeToken(int32_t id, size_t place) {
  const float log_prob = -0.25f * static_cast<float>(place + 1);
  return {.id = id, .log_prob = log_prob, .top = {{.id = id, .log_prob = log_prob}}};
}

/// The data of each frame. Fails the test on a frame that is none.
inline std::vector<nlohmann::json> ReadFrames(std::string_view frames) {
  std::vector<nlohmann::json> chunks;
  while (!frames.empty()) {
    const size_t end = frames.find("\n\n");
    if (!frames.starts_with("data: ") || end == std::string_view::npos) {
      ADD_FAILURE() << "no frame: " << frames;
      break;
    }
    chunks.push_back(nlohmann::json::parse(frames.substr(6, end - 6)));
    frames.remove_prefix(end + 2);
  }
  return chunks;
}

/// A chat's choice as a client makes it from chunks: strings of a delta are appended, all else is
/// set. Fails the test on an empty field.
inline nlohmann::json JoinChunks(const std::vector<nlohmann::json>& chunks) {
  nlohmann::json choice = {{"message", {{"content", nullptr}, {"refusal", nullptr}}},
                           {"logprobs", nullptr}};
  nlohmann::json& message = choice["message"];
  const auto append = [](nlohmann::json& to, const nlohmann::json& piece) {
    to = (to.is_null() ? "" : to.get<std::string>()) + piece.get<std::string>();
  };
  for (const nlohmann::json& chunk : chunks) {
    const nlohmann::json& part = chunk["choices"].at(0);
    for (const auto& [name, value] : part["delta"].items()) {
      EXPECT_FALSE(value.empty() || value == "") << chunk;
      if (name == "role") message["role"] = value;
      if (name == "content" || name == "reasoning_content") append(message[name], value);
      if (name != "tool_calls") continue;
      for (const nlohmann::json& piece : value) {
        nlohmann::json& call = message["tool_calls"][piece["index"].get<size_t>()];
        for (const auto& [field, inner] : piece.items()) {
          if (field == "function") {
            if (inner.contains("name")) call["function"]["name"] = inner["name"];
            append(call["function"]["arguments"], inner["arguments"]);
          } else if (field != "index") {
            EXPECT_FALSE(call.contains(field)) << chunk;
            call[field] = inner;
          }
        }
      }
    }
    if (part.contains("logprobs") && !part["logprobs"].is_null()) {
      nlohmann::json& content = choice["logprobs"]["content"];
      choice["logprobs"]["refusal"] = nullptr;
      for (const nlohmann::json& entry : part["logprobs"]["content"]) content.push_back(entry);
    }
    choice["finish_reason"] = part["finish_reason"];
  }
  return choice;
}

/// Ids of an answer: well-formed, or anything.
class AnswerIds {
 public:
  AnswerIds(const Tokenizer& tokenizer, const XtmlMarkers& markers)
      : tokenizer_(tokenizer), markers_(markers) {}

  Ids Make(Random& random) const {
    Ids ids;
    for (uint64_t left = random.NextBelow(60); left > 0; --left) Append(random, ids);
    return ids;
  }

 private:
  void Append(Random& random, Ids& ids) const {
    constexpr std::string_view kPieces[] = {"think",
                                            "response",
                                            "tools",
                                            "call tool=\"f\"",
                                            "argument key=\"a\" type=\"string\"",
                                            "argument key=\"b\" type=\"number\"",
                                            "json",
                                            "stop",
                                            " 12",
                                            "\xE4\xB8\x96",
                                            "{\"a\": 1}"};
    constexpr std::string_view kTags[] = {"think", "response", "tools", "call", "argument"};
    const uint64_t kind = random.NextBelow(12);
    if (kind < 2) {
      const int32_t markers[] = {markers_.open, markers_.close, markers_.sep,
                                 markers_.end_of_message};
      // The end of the message is rare, since nothing counts behind it.
      ids.push_back(markers[random.NextBelow(random.NextBelow(8) == 0 ? 4 : 3)]);
    } else if (kind < 5) {
      const bool opens = random.NextBelow(2) == 0;
      ids.push_back(opens ? markers_.open : markers_.close);
      Add(opens ? kPieces[random.NextBelow(7)] : kTags[random.NextBelow(5)], ids);
      ids.push_back(markers_.sep);
    } else if (kind < 8) {
      Add(kPieces[random.NextBelow(std::size(kPieces))], ids);
    } else if (kind == 8) {
      ids.push_back(128 + static_cast<int32_t>(random.NextBelow(128)));
    } else if (kind == 9) {
      const auto bound = static_cast<uint64_t>(tokenizer_.vocab_size());
      ids.push_back(static_cast<int32_t>(random.NextBelow(bound + 9)) - 4);
    } else {
      const auto bound = static_cast<uint64_t>(tokenizer_.ranks_count());
      ids.push_back(static_cast<int32_t>(random.NextBelow(bound)));
    }
  }

  void Add(std::string_view text, Ids& ids) const {
    const Ids more = *tokenizer_.Encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  }

  const Tokenizer& tokenizer_;
  const XtmlMarkers& markers_;
};

}  // namespace k3::server
