#include "data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "data/fnv1a.h"

namespace k3 {
namespace {

/// Appends the ids [begin, end) of `from`, all of one document, as a document of `to`.
void CopyDocument(const Corpus& from, int64_t begin, int64_t end, Corpus& to) {
  std::vector<uint8_t> supervised;
  bool all = true;
  for (int64_t place = begin; place < end; ++place) {
    supervised.push_back(from.IsSupervised(place) ? 1 : 0);
    all = all && supervised.back() != 0;
  }
  const auto ids = from.ids().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  if (all) {
    to.AddDocument(ids);
  } else {
    to.AddDocument(ids, supervised);
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

Result<CorpusSplit> SplitCorpus(const Corpus& corpus, double fraction, SplitAt at) {
  if (!(fraction > 0 && fraction < 1)) {
    return InvalidArgument(
        fmt::format("validation fraction: expected a number between 0 and 1, found {}", fraction));
  }
  const int64_t total = corpus.tokens_count();
  // The millionth undoes the rounding of the product: 0.29 of 100 tokens are 29, not 28.
  const auto validation_count =
      static_cast<int64_t>(std::floor(fraction * static_cast<double>(total) + 1e-6));
  const int64_t border = total - validation_count;
  CorpusSplit split;
  for (int64_t i = 0; i < corpus.documents_count(); ++i) {
    const int64_t begin = corpus.DocumentStart(i);
    const int64_t end = corpus.DocumentStart(i + 1);
    const bool whole = at == SplitAt::kDocument && begin < border;
    const int64_t cut = whole ? end : std::clamp(border, begin, end);
    CopyDocument(corpus, begin, cut, split.training);
    CopyDocument(corpus, cut, end, split.validation);
  }
  if (split.training.tokens_count() == 0 || split.validation.tokens_count() == 0) {
    return InvalidArgument(fmt::format(
        "validation fraction: {} of {} tokens in {} documents leaves {} without any; give another "
        "fraction or validation files of their own",
        fraction, total, corpus.documents_count(),
        split.training.tokens_count() == 0 ? "training" : "validation"));
  }
  return split;
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
