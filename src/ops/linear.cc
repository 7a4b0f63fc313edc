#include "ops/linear.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "base/arithmetic.h"
#include "base/check.h"
#include "ops/make_rows.h"

namespace k3::ops {
namespace {

using kernels::kSplitBlock;
using kernels::kTileCols;
using kernels::kTileRows;

// Bytes of weights that one piece of work reads when few rows use them: long enough to stream,
// short enough to balance.
constexpr int64_t kStreamBytes = 128 << 10;
// Float32 panel bytes of weights, and of activations, that stay in the second-level cache.
constexpr int64_t kWeightPanelBytes = 256 << 10;
constexpr int64_t kRowPanelBytes = 384 << 10;

struct Piece {
  const LinearTask* task;
  int64_t begin;  // weight rows
  int64_t end;
};

// Up to so many rows, weights in the checkpoint's own formats are multiplied as they are stored,
// strip by strip, each with all the activations: widening them first costs more than reading a
// strip a few times from the caches.
constexpr int64_t kDirectRowsMax = 24;
// What of the first-level cache the activations may fill, six rows or all of them, and the bytes of
// a strip of weights that stays in the second-level cache meanwhile.
constexpr int64_t kFirstCacheBytes = 40 << 10;
constexpr int64_t kStripBytes = 64 << 10;
constexpr int64_t kNarrowStripRows = 8;

bool UsesPanels(const LinearTask& task) {
  const bool is_common =
      task.w.format == WeightFormat::kBf16 || task.w.format == WeightFormat::kMxfp4;
  return task.x->count > (is_common ? kDirectRowsMax : kTileRows);
}

/// Weight rows in one piece of work of a task.
int64_t PieceRows(const LinearTask& task) {
  if (UsesPanels(task)) {
    const int64_t group_bytes = kTileCols * task.x->k_padded() * 4;
    return kTileCols * std::clamp<int64_t>(kWeightPanelBytes / group_bytes, 1, 16);
  }
  const int64_t row_bytes = std::max<int64_t>(task.w.ElementBytes(task.w.cols), 1);
  // With many rows arithmetic decides, and what one thread has more to do than another.
  const int64_t piece_bytes = task.x->count > kTileRows ? kStripBytes : kStreamBytes;
  return std::max<int64_t>(RoundUp(piece_bytes / row_bytes, 8), 8);
}

/// Weight rows that are multiplied with all activations before the next ones are. Either side may
/// be the one that stays in the first cache: six activation rows, while a long strip is read from
/// the second for each six of them; or a few weight rows, where all activations fit beside them or
/// six of them do not.
int64_t StripRows(const LinearTask& task, int64_t piece_rows) {
  if (task.x->count <= kTileRows) return piece_rows;
  const int64_t row_bytes = task.x->k_padded() * 4;
  const bool all_fit = task.x->count * row_bytes <= kFirstCacheBytes;
  const bool six_fit = kTileRows * row_bytes <= kFirstCacheBytes;
  if (all_fit || !six_fit) return kNarrowStripRows;
  const int64_t weight_bytes = std::max<int64_t>(task.w.ElementBytes(task.w.cols), 1);
  return std::max(RoundUp(kStripBytes / weight_bytes, kNarrowStripRows), kNarrowStripRows);
}

void RunDirect(const ExecContext& ctx, const Piece& piece) {
  const LinearTask& task = *piece.task;
  const int64_t count = task.x->count;
  const int64_t strip = StripRows(task, piece.end - piece.begin);
  for (int64_t r = piece.begin; r < piece.end; r += strip) {
    const WeightMatrix rows = task.w.Rows(r, std::min(r + strip, piece.end));
    for (int64_t t = 0; t < count; t += kTileRows) {
      ctx.kernels->linear.direct(task.x->rows + t, std::min(kTileRows, count - t), rows,
                                 task.y + t * task.ldy + r, task.ldy);
    }
  }
}

/// Converts the piece's weight rows once and multiplies them with every tile of activations, in
/// blocks of activations that stay in the cache.
void RunPanels(const ExecContext& ctx, const Piece& piece, float* weight_panels) {
  const LinearTask& task = *piece.task;
  const auto& kernel = ctx.kernels->linear;
  const int64_t k = task.x->k_padded(), steps = k / 16, rows = task.x->count;
  for (int64_t r = piece.begin; r < piece.end; r += kTileCols) {
    kernel.pack_weights(task.w, r, weight_panels + (r - piece.begin) * k);
  }
  const int64_t block = kTileRows * std::max<int64_t>(kRowPanelBytes / (kTileRows * k * 4), 1);
  for (int64_t t0 = 0; t0 < rows; t0 += block) {
    const int64_t t_end = std::min(t0 + block, rows);
    for (int64_t r = piece.begin; r < piece.end; r += kTileCols) {
      const int64_t cols = std::min(kTileCols, piece.end - r);
      for (int64_t t = t0; t < t_end; t += kTileRows) {
        kernel.tile(task.x->panels + t * k, weight_panels + (r - piece.begin) * k, steps,
                    std::min(kTileRows, rows - t), cols, task.y + t * task.ldy + r, task.ldy, 1);
      }
    }
  }
}

/// The pieces that one thread starts with.
struct alignas(64) Stream {
  std::atomic<int64_t> next;
  int64_t end;
};

/// Runs all pieces. Every thread goes through a run of neighbours, since memory is read fastest in
/// long streams, and then helps with what the others have left.
template <typename RunPiece>
void RunInStreams(const ExecContext& ctx, int64_t pieces_count, const RunPiece& run) {
  const int64_t streams_count = ctx.pool->threads_count();
  Stream* streams = ctx.arena->Allocate<Stream>(streams_count);
  for (int64_t s = 0; s < streams_count; ++s) {
    new (&streams[s]) Stream{.next = pieces_count * s / streams_count,
                             .end = pieces_count * (s + 1) / streams_count};
  }
  ctx.pool->ParallelFor(streams_count, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t first = begin; first < end; ++first) {
      for (int64_t s = 0; s < streams_count; ++s) {
        Stream& stream = streams[(first + s) % streams_count];
        for (int64_t i = stream.next++; i < stream.end; i = stream.next++) run(i, worker);
      }
    }
  });
}

}  // namespace

int64_t RowSet::k_padded() const { return RoundUp(k, kSplitBlock); }

RowSet SplitRows(const ExecContext& ctx, const float* x, int64_t count, int64_t k, int64_t ldx) {
  return MakeRows(ctx, count, k, [&](int64_t t, float* split) {
    ctx.kernels->linear.split_row(x + t * ldx, k, split);
  });
}

RowSet GatherRows(const ExecContext& ctx, const RowSet& from, std::span<const int32_t> index) {
  RowSet set;
  set.count = static_cast<int64_t>(index.size());
  set.k = from.k;
  const float** rows = ctx.arena->Allocate<const float*>(set.count);
  for (size_t i = 0; i < index.size(); ++i) rows[i] = from.rows[index[i]];
  set.rows = rows;
  return set;
}

void PackPanels(const ExecContext& ctx, std::span<RowSet> sets) {
  int64_t tiles_count = 0;
  for (const RowSet& set : sets) {
    if (set.count > kTileRows) tiles_count += CeilDivide(set.count, kTileRows);
  }
  if (tiles_count == 0) return;
  struct Tile {
    const RowSet* set;
    int64_t first;
    float* panel;
  };
  Tile* tiles = ctx.arena->Allocate<Tile>(tiles_count);
  int64_t at = 0;
  for (RowSet& set : sets) {
    if (set.count <= kTileRows) continue;
    float* panels = ctx.arena->Allocate<float>(set.count * set.k_padded());
    for (int64_t t = 0; t < set.count; t += kTileRows) {
      tiles[at++] = {&set, t, panels + t * set.k_padded()};
    }
    set.panels = panels;
  }
  ctx.pool->ParallelFor(tiles_count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Tile& tile = tiles[i];
      ctx.kernels->linear.pack_rows(tile.set->rows + tile.first,
                                    std::min(kTileRows, tile.set->count - tile.first),
                                    tile.set->k_padded(), tile.panel);
    }
  });
}

void Linear(const ExecContext& ctx, std::span<const LinearTask> tasks) {
  ArenaScope scope(*ctx.arena);
  int64_t pieces_count = 0, panel_floats = 0;
  for (const LinearTask& task : tasks) {
    K3_CHECK(task.w.cols == task.x->k, "linear layer: input width differs");
    if (task.x->count == 0) continue;
    const int64_t rows = PieceRows(task);
    pieces_count += CeilDivide(task.w.rows, rows);
    if (UsesPanels(task)) {
      K3_CHECK(task.x->panels != nullptr, "linear layer: rows were not packed");
      panel_floats = std::max(panel_floats, rows * task.x->k_padded());
    }
  }
  Piece* pieces = ctx.arena->Allocate<Piece>(pieces_count);
  int64_t at = 0;
  for (const LinearTask& task : tasks) {
    if (task.x->count == 0) continue;
    const int64_t rows = PieceRows(task);
    for (int64_t r = 0; r < task.w.rows; r += rows) {
      pieces[at++] = {&task, r, std::min(r + rows, task.w.rows)};
    }
  }
  float* scratch = ctx.arena->Allocate<float>(panel_floats * ctx.pool->threads_count());
  RunInStreams(ctx, pieces_count, [&](int64_t i, int worker) {
    if (UsesPanels(*pieces[i].task)) {
      RunPanels(ctx, pieces[i], scratch + worker * panel_floats);
    } else {
      RunDirect(ctx, pieces[i]);
    }
  });
}

}  // namespace k3::ops
