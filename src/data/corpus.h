#pragma once
// Corpus: what a training run reads, as token ids; its split into training and validation; and the
// fixed windows on which validation is measured.
//
//   Corpus corpus;
//   K3_RETURN_IF_ERROR(AddTextFile(files, tokenizer, "book.txt", {}, corpus));  // corpus_files.h
//   SplitDocuments(corpus, 0.03, training, validation);
//   for (const TokenWindow& window : ValidationWindows(validation, 257)) ...
//
// A corpus is an ordered list of documents, each at least one id [T]. A document may say for every
// id whether it is supervised, which is whether a model learns to predict it; without a mask all
// are. All ids lie in one array, so that 100 million of them take 400 MB (500 MB with masks) and no
// more than twice that while it grows. A corpus owns its ids; spans of it live until it changes.
// One thread changes it, then any may read it. Calls of ours that break a contract abort; what
// comes from users is a Status.

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace k3 {

class Corpus {
 public:
  /// Appends a document of which every id is supervised. No ids: no document.
  void AddDocument(std::span<const int32_t> ids);
  /// `supervised` [ids.size()], 0 or 1.
  void AddDocument(std::span<const int32_t> ids, std::span<const uint8_t> supervised);

  int64_t documents_count() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t tokens_count() const { return starts_.back(); }
  /// Where a document's ids begin among all ids; documents_count() gives the end of the last.
  int64_t DocumentStart(int64_t document) const { return starts_[static_cast<size_t>(document)]; }
  std::span<const int32_t> Document(int64_t document) const;

  /// All ids, document after document.
  std::span<const int32_t> ids() const { return ids_; }
  /// Of an id by its place among all ids.
  bool IsSupervised(int64_t place) const {
    return supervised_.empty() || supervised_[static_cast<size_t>(place)] != 0;
  }

  /// How many ids a model can learn to predict: supervised, and not the first of their document,
  /// which nothing stands before.
  int64_t CountSupervisedTargets() const;

  /// A number that other documents, other masks or another order of them change, so that a run is
  /// not resumed with other data by mistake: FNV-1a of 64 bits over lengths, ids and masks.
  uint64_t Fingerprint() const;

 private:
  std::vector<int32_t> ids_;
  std::vector<int64_t> starts_ = {0};  // [documents + 1]
  std::vector<uint8_t> supervised_;    // [ids], or empty while no document has a mask
};

/// Appends the documents of `corpus` to `training`, and to `validation` those that begin in its
/// last `fraction` (0 to below 1) of tokens.
void SplitDocuments(const Corpus& corpus, double fraction, Corpus& training, Corpus& validation);

/// The ids [begin, end) among all ids of a corpus, all of one document.
struct TokenWindow {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const TokenWindow&) const = default;
};

/// Every document cut on its own into consecutive windows of `context` ids, at least 2. Every id of
/// a window but the first is predicted from those before it in the window. A document's last window
/// may be shorter and counts from two ids on. Windows without a supervised prediction are left out.
///
/// A text file that is one document without added ids is so cut exactly as `k3 eval --text FILE
/// --context N` cuts it (eval/perplexity.h), and has the same loss.
std::vector<TokenWindow> ValidationWindows(const Corpus& corpus, int64_t context);

}  // namespace k3
