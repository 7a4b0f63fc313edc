#include "data/corpus.h"

#include <algorithm>
#include <cmath>

#include "base/fnv1a.h"

namespace k3 {
namespace {

/// Appends a document of `from` to `to`.
void CopyDocument(const Corpus& from, int64_t document, Corpus& to) {
  std::vector<uint8_t> supervised;
  bool all = true;
  for (int64_t i = from.DocumentStart(document); i < from.DocumentStart(document + 1); ++i) {
    supervised.push_back(from.IsSupervised(i) ? 1 : 0);
    all = all && supervised.back() != 0;
  }
  if (all) {
    to.AddDocument(from.Document(document));
  } else {
    to.AddDocument(from.Document(document), supervised);
  }
}

}  // namespace

void Corpus::AddDocument(std::span<const int32_t> ids) {
  if (ids.empty()) return;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  if (!supervised_.empty()) supervised_.resize(ids_.size(), 1);
  starts_.push_back(std::ssize(ids_));
}

void Corpus::AddDocument(std::span<const int32_t> ids, std::span<const uint8_t> supervised) {
  K3_CHECK(ids.size() == supervised.size(), "a mask has an entry for each id");
  if (ids.empty()) return;
  supervised_.resize(ids_.size(), 1);  // for the documents before the first with a mask
  supervised_.insert(supervised_.end(), supervised.begin(), supervised.end());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  starts_.push_back(std::ssize(ids_));
}

std::span<const int32_t> Corpus::Document(int64_t document) const {
  K3_CHECK(document >= 0 && document < documents_count(), "no such document");
  const int64_t begin = DocumentStart(document);
  return ids().subspan(static_cast<size_t>(begin),
                       static_cast<size_t>(DocumentStart(document + 1) - begin));
}

int64_t Corpus::CountSupervisedTargets() const {
  if (supervised_.empty()) return tokens_count() - documents_count();
  int64_t count = std::ranges::count_if(supervised_, [](uint8_t one) { return one != 0; });
  for (int64_t i = 0; i < documents_count(); ++i) count -= IsSupervised(DocumentStart(i)) ? 1 : 0;
  return count;
}

uint64_t Corpus::Fingerprint() const {
  Fnv1a hash;
  hash.Add(documents_count());
  for (const int64_t start : starts_) hash.Add(start);
  for (const int32_t id : ids_) hash.Add(static_cast<uint32_t>(id));
  // A mask of ones is no other corpus than one without a mask.
  if (std::ranges::find(supervised_, 0) != supervised_.end()) {
    for (const uint8_t one : supervised_) hash.Add(static_cast<uint8_t>(one != 0));
  }
  return hash.hash();
}

void SplitDocuments(const Corpus& corpus, double fraction, Corpus& training, Corpus& validation) {
  K3_CHECK(fraction >= 0 && fraction < 1, "a part to hold back");
  const int64_t total = corpus.tokens_count();
  // The millionth undoes the rounding of the product: 0.29 of 100 tokens are 29, not 28.
  const auto held_back =
      static_cast<int64_t>(std::floor(fraction * static_cast<double>(total) + 1e-6));
  for (int64_t i = 0; i < corpus.documents_count(); ++i) {
    const bool before = corpus.DocumentStart(i) < total - held_back;
    CopyDocument(corpus, i, before ? training : validation);
  }
}

std::vector<TokenWindow> ValidationWindows(const Corpus& corpus, int64_t context) {
  K3_CHECK(context >= 2, "a window has one token to start from and one to predict");
  std::vector<TokenWindow> windows;
  for (int64_t i = 0; i < corpus.documents_count(); ++i) {
    const int64_t document_end = corpus.DocumentStart(i + 1);
    for (int64_t begin = corpus.DocumentStart(i); begin + 1 < document_end; begin += context) {
      const int64_t end = std::min(begin + context, document_end);
      int64_t place = begin + 1;
      while (place < end && !corpus.IsSupervised(place)) ++place;
      if (place < end) windows.push_back({begin, end});
    }
  }
  return windows;
}

}  // namespace k3
