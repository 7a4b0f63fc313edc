#pragma once
// XtmlArguments: the arguments of one tool call as JSON text, `{"city": "Oslo", "days": 2}`, piece
// by piece while the markup comes.
//
//   XtmlArguments arguments;
//   out += arguments.OpenArgument("city", /*is_string=*/true);
//   out += arguments.Append("Oslo");
//   out += arguments.CloseValue();
//   out += arguments.Close();
//
// Every function returns the text that it adds. Strings stream; other values are held until they
// are closed, because only then it shows whether they are JSON. Texts must be valid UTF-8, and so
// is what comes out. Nothing fails: a value that is not JSON becomes a string, and a call whose
// arguments cannot be known is broken(). Memory follows the input. A value; one thread at a time.
// Source: technical report, appendix F (typed arguments, the json block).

#include <set>
#include <string>
#include <string_view>

namespace k3 {

class XtmlArguments {
 public:
  /// Opens the value of `key`; no other may be open. Dropped when the key has come before or a json
  /// block has: the first one counts.
  std::string OpenArgument(const std::string& key, bool is_string);

  /// Opens a json block, which is the whole of the arguments; dropped when something has come.
  void OpenBlock();

  /// The next piece of the open value.
  std::string Append(std::string_view text);

  /// Closes the open value. A json block that is JSON, but no object, breaks the call; one that is
  /// not JSON is kept as it is, so that it can be rendered again, and a blank one means {}.
  std::string CloseValue();

  /// Ends the arguments; no value may be open.
  std::string Close() const;

  /// What was meant is not known, and the call must not be run. A value that is open is dropped.
  void Break();
  bool broken() const { return broken_; }

 private:
  enum class Value { kDropped, kString, kHeld, kBlock };

  std::string CloseBlock();

  Value value_ = Value::kDropped;
  std::string member_;  // the start of the open member: `, "days": `
  std::string held_;
  std::set<std::string>
      keys_;  // ordered, since input chooses the keys and could make hashes collide
  bool has_block_ = false;
  bool broken_ = false;
};

}  // namespace k3
