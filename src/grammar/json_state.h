#pragma once
// JsonState: a place in a JSON text that a JsonGrammar allows, moved on byte by byte.
//
//   JsonState state(grammar);
//   if (!state.Feed('{')) ...             // false: no text goes on like this
//   if (state.CanEnd()) ...               // what was fed is a whole value
//
// Whatever was accepted can be completed to a value, and that value is read by ParseJson: strings
// are UTF-8, no key comes twice, nesting stays within limits::kJsonDepthMax. Blanks are bounded, so
// that nobody writes them for ever: one space behind `:`, and elsewhere between tokens either one
// space or a line break and up to four spaces a level; none around the value or before `,` and `:`.
//
// Where several branches of a schema fit what was fed, the state is several threads, one for each;
// at most kThreadsMax of them are followed, the first ones, which narrows what may come but never
// ends it. Open containers are shared between copies and never change, so a copy is cheap. A state
// borrows its grammar; a value, one thread at a time.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "grammar/json_grammar.h"
#include "grammar/json_text.h"

namespace k3 {

/// One reading of what was fed.
struct JsonThread {
  enum class Place : uint8_t {
    kValue,       // a value comes, of `node`
    kForm,        // a value comes, of `form`
    kOpened,      // behind { or [
    kNext,        // behind , in a container
    kAfter,       // behind a value in a container
    kColon,       // behind a key
    kKey,         // in one of the names of the schema: `low` to `high` begin like this
    kFreeKey,     // in any name, so far `key`
    kText,        // in a string
    kRawText,     // in a string without quotes
    kLiteral,     // in a fixed value: `low` to `high` begin like this
    kRawLiteral,  // the same without quotes
    kNumber,
    kDone,
  };

  /// A name that was used beside those of the schema.
  struct UsedKey {
    std::string name;
    // Lists share their tails, as states are copied.
    std::shared_ptr<const UsedKey> next;
  };

  /// A container that is open.
  struct Frame {
    // Copies of a state share what is open around them.
    std::shared_ptr<const Frame> parent;
    int32_t form = 0;
    int32_t depth = 1;                    // this container's own level
    int64_t count = 0;                    // of an array: items; of an object: `keys`
    std::vector<uint64_t> used;           // of an object: bits of the members so far
    std::shared_ptr<const UsedKey> keys;  // shared with the frame it was copied from
  };

  std::shared_ptr<const Frame> top;  // null outside of all containers
  Place place = Place::kValue;
  uint8_t phase = 0;  // kNumber
  uint16_t gap = 0;   // blanks since the last token: 1 a space, 2 + n a line break and n spaces
  int32_t node = 0;   // kValue, kColon
  int32_t form = 0;   // from the first byte of a scalar value on
  int32_t low = 0;    // kKey, kLiteral, kRawLiteral
  int32_t high = 0;
  int32_t at = 0;     // bytes of the fixed text so far
  int64_t count = 0;  // kText, kRawText: code points; kNumber: digits of this part
  JsonText text;      // kText, kRawText, kFreeKey
  std::string key;    // kFreeKey, decoded
};

class JsonState {
 public:
  using Threads = std::vector<JsonThread>;
  static constexpr size_t kThreadsMax = 32;

  /// At the start of a value of the grammar's root.
  explicit JsonState(const JsonGrammar& grammar);

  /// At the start of a value of `node` that is of `type`, inside `depth` containers.
  JsonState(const JsonGrammar& grammar, int32_t node, JsonType type, int32_t depth);

  /// At the start of a string of `node` that is written as it is, without quotes and escapes.
  static JsonState Raw(const JsonGrammar& grammar, int32_t node);

  /// Takes the next byte. False: no value goes on like this, and the state is of no more use.
  bool Feed(uint8_t byte);
  /// The same for bytes that one token adds. What AllowedTokens allows is accepted.
  bool FeedToken(std::string_view bytes);
  bool CanEnd() const;
  /// A whole value was fed, and nothing can follow.
  bool is_done() const;

  std::span<const JsonThread> threads() const { return threads_; }
  const JsonGrammar& grammar() const { return *grammar_; }
  int32_t base_depth() const { return base_depth_; }
  /// Of one thread of this state.
  bool CanEnd(const JsonThread& thread) const;

 private:
  const JsonGrammar* grammar_;
  int32_t base_depth_ = 0;
  Threads threads_;
};

/// The threads that `from` becomes with one more byte, in `to`; at most kThreadsMax. False when
/// there are none.
bool StepThreads(const JsonGrammar& grammar, int32_t base_depth, std::span<const JsonThread> from,
                 uint8_t byte, JsonState::Threads& to);

/// How many more code points a thread may take as ordinary text; none unless it is in a string or
/// a free name, between two characters.
int64_t FreeTextRoom(const JsonGrammar& grammar, const JsonThread& thread);

/// Whether the two may surely go on in the same ways. Quick, and often false where they may: it
/// knows strings without a length in the same place.
bool HaveSameFuture(const JsonState& a, const JsonState& b);

}  // namespace k3
