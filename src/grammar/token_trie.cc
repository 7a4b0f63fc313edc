#include "grammar/token_trie.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "text/utf8.h"

namespace k3 {
namespace {

void SetBit(int32_t id, std::span<uint32_t> mask) {
  mask[static_cast<size_t>(id / 32)] |= uint32_t{1} << (id % 32);
}

bool IsPlainAscii(uint8_t byte) {
  return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\';
}

/// The code points of a token that is whole characters and, in JSON, nothing that has a meaning
/// there; -1 for any other.
int64_t FreeSize(std::string_view token, bool is_raw) {
  if (token.empty() || FindInvalidUtf8(token) >= 0) return -1;
  int64_t size = 0;
  for (const char c : token) {
    const auto byte = static_cast<uint8_t>(c);
    if (!is_raw && byte < 0x80 && !IsPlainAscii(byte) && byte != 0x7F) return -1;
    if ((byte & 0xC0) != 0x80) ++size;
  }
  return size;
}

}  // namespace

ByteTrie::ByteTrie(std::span<const std::string_view> tokens, std::vector<int32_t> ids) {
  const auto text = [&](int32_t id) { return tokens[static_cast<size_t>(id)]; };
  std::ranges::sort(ids, {}, text);
  nodes_.emplace_back();
  std::vector<uint32_t> path = {0};  // nodes of the last string, from the root
  std::string_view last;
  for (const int32_t id : ids) {
    const std::string_view bytes = text(id);
    const auto shared = static_cast<size_t>(std::ranges::mismatch(bytes, last).in1 - bytes.begin());
    if (shared == bytes.size()) continue;  // empty, or there already
    while (path.size() > shared + 1) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
    for (size_t i = shared; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(
          {.first = static_cast<uint32_t>(tokens_.size()), .byte = static_cast<uint8_t>(bytes[i])});
    }
    nodes_.back().token = id;
    tokens_.push_back(id);
    last = bytes;
  }
  for (const uint32_t node : path) nodes_[node].end = static_cast<uint32_t>(nodes_.size());
  MarkPlain();
}

void ByteTrie::MarkPlain() {
  for (size_t i = nodes_.size(); i-- > 0;) {
    Node& node = nodes_[i];
    node.is_plain_below = true;
    for (uint32_t child = static_cast<uint32_t>(i) + 1; child < node.end;
         child = nodes_[child].end) {
      if (!IsPlainAscii(nodes_[child].byte) || !nodes_[child].is_plain_below) {
        node.is_plain_below = false;
      }
    }
  }
}

std::span<const int32_t> ByteTrie::TokensBelow(uint32_t node) const {
  const uint32_t end = nodes_[node].end;
  const size_t last = end < nodes_.size() ? nodes_[end].first : tokens_.size();
  return tokens().subspan(nodes_[node].first, last - nodes_[node].first);
}

TokenTrie::FreeTokens TokenTrie::Sort(std::span<const std::string_view> tokens, bool is_raw) {
  FreeTokens free;
  free.mask.resize((tokens.size() + 31) / 32);
  std::vector<int64_t> sizes(tokens.size());
  std::vector<int32_t> others;
  int64_t size_max = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    sizes[i] = FreeSize(tokens[i], is_raw);
    size_max = std::max(size_max, sizes[i]);
    if (sizes[i] < 0) {
      others.push_back(id);
      continue;
    }
    free.by_size.push_back(id);
    SetBit(id, free.mask);
  }
  const auto size_of = [&](int32_t id) { return sizes[static_cast<size_t>(id)]; };
  std::ranges::sort(free.by_size, {}, [&](int32_t id) { return std::pair(size_of(id), id); });
  for (int64_t size = 0; size <= size_max; ++size) {
    const auto end = std::ranges::upper_bound(free.by_size, size, {}, size_of);
    free.size_ends.push_back(static_cast<size_t>(end - free.by_size.begin()));
  }
  free.others = ByteTrie(tokens, std::move(others));
  return free;
}

TokenTrie::TokenTrie(std::span<const std::string_view> tokens) {
  std::vector<int32_t> ids;
  all_mask_.resize((tokens.size() + 31) / 32);
  for (size_t i = 0; i < tokens.size(); ++i) {
    longest_ = std::max(longest_, static_cast<int64_t>(tokens[i].size()));
    if (tokens[i].empty()) continue;
    ids.push_back(static_cast<int32_t>(i));
    SetBit(ids.back(), all_mask_);
  }
  all_ = ByteTrie(tokens, std::move(ids));
  json_ = Sort(tokens, false);
  raw_ = Sort(tokens, true);
}

void TokenTrie::AddAll(std::span<uint32_t> mask) const {
  K3_CHECK(mask.size() >= all_mask_.size(), "a mask has a bit for each token");
  for (size_t i = 0; i < all_mask_.size(); ++i) mask[i] |= all_mask_[i];
}

void TokenTrie::AddFree(const FreeTokens& free, int64_t room, std::span<uint32_t> mask) const {
  if (room >= std::ssize(free.size_ends) - 1) {
    for (size_t i = 0; i < free.mask.size(); ++i) mask[i] |= free.mask[i];
    return;
  }
  if (room <= 0) return;
  const size_t end = free.size_ends[static_cast<size_t>(room)];
  for (size_t i = 0; i < end; ++i) SetBit(free.by_size[i], mask);
}

void TokenTrie::AddAllowed(const JsonState& state, Scratch& scratch,
                           std::span<uint32_t> mask) const {
  K3_CHECK(mask.size() >= all_mask_.size(), "a mask has a bit for each token");
  for (const JsonThread& thread : state.threads()) {
    const bool is_text = thread.place == JsonThread::Place::kText ||
                         thread.place == JsonThread::Place::kRawText ||
                         thread.place == JsonThread::Place::kFreeKey;
    if (!is_text || !thread.text.is_between_characters()) {
      Walk(all_, state, thread, scratch, mask);
      continue;
    }
    const FreeTokens& free = thread.place == JsonThread::Place::kRawText ? raw_ : json_;
    AddFree(free, FreeTextRoom(state.grammar(), thread), mask);
    Walk(free.others, state, thread, scratch, mask);
  }
}

void TokenTrie::Walk(const ByteTrie& trie, const JsonState& state, const JsonThread& thread,
                     Scratch& scratch, std::span<uint32_t> mask) const {
  const std::span<const ByteTrie::Node> nodes = trie.nodes();
  std::vector<JsonState::Threads>& levels = scratch.levels;
  std::vector<uint32_t>& ends = scratch.ends;
  if (levels.empty()) levels.resize(8);
  levels[0].assign(1, thread);
  ends.assign(1, static_cast<uint32_t>(nodes.size()));
  for (uint32_t at = 1; at < nodes.size();) {
    const ByteTrie::Node& node = nodes[at];
    while (ends.back() <= at) ends.pop_back();
    const size_t depth = ends.size();
    if (depth >= levels.size()) levels.resize(depth * 2);
    if (!StepThreads(state.grammar(), state.base_depth(), levels[depth - 1], node.byte,
                     levels[depth])) {
      at = node.end;
      continue;
    }
    if (node.token >= 0) SetBit(node.token, mask);
    const bool is_free =
        node.is_plain_below && std::ranges::any_of(levels[depth], [&](const JsonThread& t) {
          return FreeTextRoom(state.grammar(), t) >= longest_;
        });
    if (is_free) {
      for (const int32_t id : trie.TokensBelow(at)) SetBit(id, mask);
      at = node.end;
      continue;
    }
    ends.push_back(node.end);
    ++at;
  }
}

}  // namespace k3
