#include "ops/gradients.h"

#include <algorithm>

#include "base/arithmetic.h"
#include "base/check.h"

namespace k3::ops {
namespace {

// One piece of work: this many columns of an output by up to kPieceRows rows. A strip of the second
// factor, kDepth terms deep, is copied together and stays in the cache for all of the piece's rows.
constexpr int64_t kPieceCols = 64;
constexpr int64_t kPieceRows = 384;
constexpr int64_t kDepth = 256;

/// Copies rows [0, depth) of b, `cols` of its columns, together: strip [depth, kPieceCols].
void CopyStrip(const float* b, int64_t ld, int64_t depth, int64_t cols, float* strip) {
  for (int64_t k = 0; k < depth; ++k) std::copy_n(b + k * ld, cols, strip + k * kPieceCols);
}

struct Piece {
  int64_t task;
  int64_t row;  // of the output
  int64_t col;
};

/// Cuts outputs of the given sizes into pieces and runs them on all threads.
template <typename SizeOf, typename RunPiece>
void RunPieces(const ExecContext& ctx, int64_t tasks_count, const SizeOf& size_of,
               const RunPiece& run) {
  ArenaScope scope(*ctx.arena);
  int64_t count = 0;
  for (int64_t i = 0; i < tasks_count; ++i) {
    const auto [rows, cols] = size_of(i);
    count += CeilDivide(rows, kPieceRows) * CeilDivide(cols, kPieceCols);
  }
  Piece* pieces = ctx.arena->Allocate<Piece>(count);
  int64_t at = 0;
  for (int64_t i = 0; i < tasks_count; ++i) {
    const auto [rows, cols] = size_of(i);
    for (int64_t row = 0; row < rows; row += kPieceRows) {
      for (int64_t col = 0; col < cols; col += kPieceCols) pieces[at++] = {i, row, col};
    }
  }
  float* strips = ctx.arena->Allocate<float>(kDepth * kPieceCols * ctx.pool->threads_count());
  ctx.pool->ParallelFor(count, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) run(pieces[i], strips + worker * kDepth * kPieceCols);
  });
}

struct Size {
  int64_t rows, cols;
};

}  // namespace

void LinearInputGradient(const ExecContext& ctx, std::span<const InputGradientTask> tasks) {
  const auto task_of = [&](int64_t i) -> const InputGradientTask& {
    return tasks[static_cast<size_t>(i)];
  };
  for (const InputGradientTask& task : tasks) {
    K3_CHECK(!task.terms.empty(), "input gradient: no term");
    for (const InputGradientTerm& term : task.terms) {
      K3_CHECK(term.w.format == WeightFormat::kF32, "input gradient: weights are not float32");
      K3_CHECK(term.w.cols == task.terms[0].w.cols, "input gradient: widths differ");
    }
  }
  RunPieces(
      ctx, std::ssize(tasks),
      [&](int64_t i) { return Size{task_of(i).count, task_of(i).terms[0].w.cols}; },
      [&](const Piece& piece, float* strip) {
        const InputGradientTask& task = task_of(piece.task);
        const int64_t rows = std::min(kPieceRows, task.count - piece.row);
        const int64_t cols = std::min(kPieceCols, task.terms[0].w.cols - piece.col);
        float* out = task.dx + piece.row * task.ld + piece.col;
        bool accumulate = task.accumulate;
        for (const InputGradientTerm& term : task.terms) {
          const float* w = static_cast<const float*>(term.w.data) + piece.col;
          const float* dy = term.dy + piece.row * term.ld;
          for (int64_t k = 0; k < term.w.rows; k += kDepth) {
            const int64_t depth = std::min(kDepth, term.w.rows - k);
            CopyStrip(w + k * term.w.cols, term.w.cols, depth, cols, strip);
            ctx.kernels->matmul.f32(dy + k, term.ld, strip, kPieceCols, rows, depth, cols,
                                    accumulate, out, task.ld);
            accumulate = true;
          }
        }
      });
}

void LinearWeightGradient(const ExecContext& ctx, std::span<const WeightGradientTask> tasks) {
  const auto task_of = [&](int64_t i) -> const WeightGradientTask& {
    return tasks[static_cast<size_t>(i)];
  };
  RunPieces(
      ctx, std::ssize(tasks),
      [&](int64_t i) { return Size{task_of(i).dw.rows, task_of(i).dw.cols}; },
      [&](const Piece& piece, float* strip) {
        const WeightGradientTask& task = task_of(piece.task);
        const int64_t rows = std::min(kPieceRows, task.dw.rows - piece.row);
        const int64_t cols = std::min(kPieceCols, task.dw.cols - piece.col);
        float* out = task.dw.data + piece.row * task.dw.cols + piece.col;
        for (int64_t t = 0; t < task.count; t += kDepth) {
          const int64_t depth = std::min(kDepth, task.count - t);
          CopyStrip(task.x + t * task.x_ld + piece.col, task.x_ld, depth, cols, strip);
          ctx.kernels->matmul.f32_tn(task.dy + t * task.dy_ld + piece.row, task.dy_ld, strip,
                                     kPieceCols, rows, depth, cols, true, out, task.dw.cols);
        }
      });
}

}  // namespace k3::ops
