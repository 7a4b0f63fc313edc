#include "engine/prefix_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/fingerprint.h"

namespace k3 {
namespace {

using cache::kHashBlockTokens;
using cache::kPageTokens;

// A shared beginning of this many tokens that brings nothing is worth a line in the log.
constexpr int64_t kMissWorthTelling = 1024;

cache::PrefixHash StartOf(std::string_view salt) { return cache::NamespaceHash(salt); }

bool AllFinite(const float* values, int64_t count) {
  // A sum would overflow; the maximum of magnitudes passes infinities on, and NaN fails to compare.
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) finite &= std::abs(values[i]) <= 3.0e38f;
  return finite;
}

bool IsFinite(const cache::KdaSnapshot& snapshot) {
  return std::ranges::all_of(snapshot.layers, [](const cache::KdaSnapshot::Layer& layer) {
    return AllFinite(layer.state.data(), layer.state.count()) &&
           AllFinite(layer.conv.data(), layer.conv.count());
  });
}

bool AreRowsFinite(cache::SequenceState& state, int64_t begin, int64_t end) {
  for (cache::MlaLatents* latents : state.MlaLayers()) {
    for (int64_t token = begin; token < end; ++token) {
      if (!AllFinite(latents->Row(token), latents->row_width())) return false;
    }
  }
  return true;
}

}  // namespace

PrefixStore::PrefixStore(Engine& engine, PrefixStoreOptions options,
                         std::unique_ptr<cache::DiskTier> disk)
    : config_(engine.config()),
      options_(std::move(options)),
      // Whole sequences take a quarter where they are kept at all: one budget for everything.
      memory_(engine.config(),
              {.bytes_max = options_.memory_bytes_max -
                            (options_.reuse_decoded ? options_.memory_bytes_max / 4 : 0)}),
      decoded_bytes_max_(options_.reuse_decoded ? options_.memory_bytes_max / 4 : 0),
      disk_(std::move(disk)) {}

Result<std::unique_ptr<PrefixStore>> PrefixStore::Open(Engine& engine, PrefixStoreOptions options) {
  std::unique_ptr<cache::DiskTier> disk;
  if (!options.disk_dir.empty()) {
    K3_TRY(const cache::ModelFingerprintBytes fingerprint, ModelFingerprint(engine));
    const cache::PrefixCache shapes(engine.config(), {});
    K3_TRY(disk, cache::DiskTier::Open(
                     options.disk_dir, fingerprint,
                     {.bytes_max = options.disk_bytes_max,
                      .page_floats_per_token = shapes.mla_layers_count() * shapes.row_width(),
                      .snapshot_floats = cache::KdaSnapshot::FloatsCount(engine.config()),
                      .warn = options.warn}));
  }
  return std::unique_ptr<PrefixStore>(new PrefixStore(engine, std::move(options), std::move(disk)));
}

PrefixFinding PrefixStore::Find(std::string_view salt, std::span<const int32_t> prompt) {
  PrefixFinding found;
  found.start_ = StartOf(salt);
  found.lease_ = memory_.Lookup(found.start_, prompt, std::ssize(prompt) - 1);
  if (disk_ != nullptr) StartFetch(found, prompt);
  if (found.fetch_ == nullptr && found.lease_.length() == 0 &&
      found.lease_.pages_length() >= kMissWorthTelling && options_.warn) {
    options_.warn(fmt::format(
        "a prompt shares its first {} tokens with earlier ones, but no state is kept within them",
        found.lease_.pages_length()));
  }
  return found;
}

int64_t PrefixStore::Peek(std::string_view salt, std::span<const int32_t> prompt) const {
  return memory_.Peek(StartOf(salt), prompt, std::ssize(prompt) - 1);
}

void PrefixStore::StartFetch(PrefixFinding& found, std::span<const int32_t> prompt) {
  const int64_t length_max = std::ssize(prompt) - 1;
  std::vector<cache::PrefixHash> ends = cache::ChainHashes(found.start_, prompt);
  // Pages that are only matched are not pinned; should they go, the disk's part is of no use.
  const int64_t in_memory = found.lease_.pages_length() / kPageTokens * kPageTokens;
  if (disk_->Match(ends, length_max, in_memory) <= found.lease_.length()) return;
  // Shared with the disk's thread, which may answer after the request is gone.
  found.fetch_ = std::make_shared<PrefixFinding::Fetch>();
  disk_->Fetch({.ends = std::move(ends),
                .tokens = {prompt.begin(), prompt.end()},
                .length_min = found.lease_.length(),
                .length_max = length_max,
                .memory_pages_length = in_memory,
                .done = [fetch = found.fetch_](cache::DiskHit hit) {
                  fetch->hit = std::move(hit);
                  fetch->done.store(true, std::memory_order_release);
                }});
}

bool PrefixStore::Import(const cache::DiskHit& hit, const cache::PrefixHash& start,
                         std::span<const int32_t> prompt) {
  const std::span<const int32_t> tokens = prompt.first(static_cast<size_t>(hit.length));
  std::vector<cache::PageRows> pages;
  for (const cache::FetchedPage& page : hit.pages) pages.push_back(ImportPage(page, hit.length));
  if (memory_.AddLoadedPages(start, tokens, pages) < hit.length) return false;
  // Shared as every snapshot is.
  auto snapshot = std::make_shared<const cache::KdaSnapshot>(
      cache::KdaSnapshot::PartOf(config_, hit.snapshot.block, hit.snapshot.values.data()));
  return memory_.AddSnapshot(start, tokens, std::move(snapshot), cache::SnapshotKind::kTurn);
}

/// A full page is used where it was read to; one that is not, or whose rows are only in part of
/// this text, is copied.
cache::PageRows PrefixStore::ImportPage(const cache::FetchedPage& page, int64_t length) const {
  const int64_t width = memory_.row_width(), floats = kPageTokens * width;
  const int64_t count = std::min(page.tokens, length - page.begin) * width;
  cache::PageRows rows{.begin = page.begin};
  for (int64_t layer = 0; layer < memory_.mla_layers_count(); ++layer) {
    float* from = page.payload.values.data() + layer * page.tokens * width;
    cache::FloatArray array;
    if (count == floats) {
      array = cache::FloatArray::PartOf(page.payload.block, from, floats);
    } else {
      array = cache::FloatArray(floats);
      std::copy(from, from + count, array.data());
    }
    // Shared as every cached page is.
    rows.layers.push_back(std::make_shared<const cache::FloatArray>(std::move(array)));
  }
  return rows;
}

int64_t PrefixStore::Restore(PrefixFinding& found, std::span<const int32_t> prompt,
                             cache::SequenceState& state) {
  K3_CHECK(found.ready(), "a prefix is restored once the disk has answered");
  if (found.fetch_ != nullptr) {
    const cache::DiskHit hit = std::move(found.fetch_->hit);
    found.fetch_.reset();
    if (hit.length > found.lease_.length() && Import(hit, found.start_, prompt)) {
      found.lease_ = memory_.Lookup(found.start_, prompt, hit.length);
      found.from_disk_ = true;
      ++disk_hits_;
    }
  }
  if (const auto decoded = FindDecoded(found.start_, prompt);
      decoded != decoded_.end() && std::ssize(decoded->tokens) > found.lease_.length()) {
    decoded_.splice(decoded_.begin(), decoded_, decoded);
    found.decoded_tokens_ = std::ssize(decoded->tokens) - decoded->prefilled;
    ++decoded_hits_;
    state = decoded->state.Clone();
    found.lease_.Release();
    return state.length();
  }
  if (found.lease_.length() > 0) memory_.Restore(found.lease_, state);
  found.lease_.Release();
  return state.length();
}

void PrefixStore::Keep(std::string_view salt, std::span<const int32_t> tokens, int64_t known,
                       cache::SnapshotKind kind, cache::SharedSnapshot snapshot,
                       cache::SequenceState& state) {
  const int64_t length = std::ssize(tokens);
  K3_CHECK(state.length() >= length && length % kHashBlockTokens == 0,
           "a prefix is kept where it ends on the grid");
  if (length == 0 || options_.memory_bytes_max == 0) return;
  if (!IsFinite(*snapshot) || !AreRowsFinite(state, known, length)) return;
  const cache::PrefixHash start = StartOf(salt);
  memory_.AddPages(start, tokens, state);
  const bool is_there = memory_.AddSnapshot(start, tokens, std::move(snapshot), kind);
  if (is_there && disk_ != nullptr && kind != cache::SnapshotKind::kPeriodic) {
    StoreOnDisk(start, tokens);
  }
}

void PrefixStore::StoreOnDisk(const cache::PrefixHash& start, std::span<const int32_t> tokens) {
  const std::vector<cache::PrefixHash> ends = cache::ChainHashes(start, tokens);
  const int64_t length = std::ssize(tokens), width = memory_.row_width();
  for (cache::PageRows& page :
       memory_.ExportPages(start, tokens, disk_->StoredLength(ends) / kPageTokens)) {
    // Shared with the disk's thread: what keeps the rows alive until they are written.
    const auto rows = std::make_shared<std::vector<cache::SharedRows>>(std::move(page.layers));
    cache::RecordToStore record{.parent = page.before, .begin = page.begin, .keeper = rows};
    for (const cache::SharedRows& layer : *rows) {
      record.payload.emplace_back(layer->data(),
                                  static_cast<size_t>(std::ssize(page.tokens) * width));
    }
    record.tokens = std::move(page.tokens);
    disk_->StorePage(std::move(record));
  }
  const cache::SharedSnapshot snapshot = memory_.ExportSnapshot(start, tokens);
  const int64_t begin = (length - 1) / kPageTokens * kPageTokens;
  cache::RecordToStore record{.parent = ends[static_cast<size_t>(begin / kHashBlockTokens)],
                              .begin = begin,
                              .tokens = {tokens.begin() + begin, tokens.end()},
                              .keeper = snapshot};
  for (const cache::KdaSnapshot::Layer& layer : snapshot->layers) {
    for (const cache::FloatArray* array : {&layer.state, &layer.conv}) {
      record.payload.emplace_back(array->data(), static_cast<size_t>(array->count()));
    }
  }
  disk_->StoreSnapshot(std::move(record));
}

void PrefixStore::DropTransient(std::string_view salt, std::span<const int32_t> tokens) {
  memory_.DropTransient(StartOf(salt), tokens);
}

PrefixStore::DecodedSequences::iterator PrefixStore::FindDecoded(const cache::PrefixHash& start,
                                                                 std::span<const int32_t> prompt) {
  auto best = decoded_.end();
  for (auto it = decoded_.begin(); it != decoded_.end(); ++it) {
    const size_t count = it->tokens.size();
    if (it->start != start || count >= prompt.size()) continue;
    if (best != decoded_.end() && count <= best->tokens.size()) continue;
    if (std::equal(it->tokens.begin(), it->tokens.end(), prompt.begin())) best = it;
  }
  return best;
}

void PrefixStore::KeepDecoded(std::string_view salt, std::vector<int32_t> tokens, int64_t prefilled,
                              cache::SequenceState state) {
  const int64_t bytes = state.bytes();
  if (bytes > decoded_bytes_max_) return;
  while (decoded_bytes_ + bytes > decoded_bytes_max_) {
    decoded_bytes_ -= decoded_.back().state.bytes();
    decoded_.pop_back();
  }
  decoded_bytes_ += bytes;
  decoded_.push_front({StartOf(salt), std::move(tokens), prefilled, std::move(state)});
}

PrefixStoreStats PrefixStore::stats() const {
  PrefixStoreStats stats{
      .memory = memory_.stats(), .disk_hits = disk_hits_, .decoded_hits = decoded_hits_};
  stats.memory.bytes += decoded_bytes_;
  stats.memory.bytes_max += decoded_bytes_max_;
  if (disk_ != nullptr) stats.disk = disk_->stats();
  return stats;
}

void PrefixStore::Flush() {
  if (disk_ != nullptr) disk_->Flush();
}

void PrefixStore::Clear() {
  memory_.Clear();
  decoded_.clear();
  decoded_bytes_ = 0;
}

}  // namespace k3
