#include "train/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "train/lane_sum.h"

namespace k3::train {
namespace {

// Newton-Schulz: a X + b X X^T X + c (X X^T)^2 X lifts singular values from near 0 steeply and
// leaves them around 1.
constexpr float kA = 3.4445f;
constexpr float kB = -4.7750f;
constexpr float kC = 2.0315f;
constexpr double kNormEpsilon = 1e-7;

// Work is cut by these alone, never by the number of threads; none of them changes a bit.
constexpr int64_t kRowGrain = 8;
constexpr int64_t kTile = 64;       // a square of a symmetric product; columns of any product
constexpr int64_t kTallTile = 192;  // rows of a product that is not symmetric
constexpr int64_t kDepth = 256;     // terms of a sum between two visits to the output

/// One block of rows: where it lies and its two orientations, "wide" [s, l] and "tall" [l, s] with
/// s <= l. One of them is the block as the matrix has it.
struct Block {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t s = 0;
  int64_t l = 0;
  bool is_tall = false;       // how the matrix has it
  float factor = 0;           // to a norm of 1
  int64_t offset = 0;         // of its elements in every [rows, cols] buffer
  int64_t square_offset = 0;  // of its [s, s] squares
};

/// A rectangle of one block's output.
struct Tile {
  size_t block = 0;
  int64_t row = 0;
  int64_t rows = 0;
  int64_t col = 0;
  int64_t cols = 0;
};

struct Product {
  const float* a = nullptr;  // [., k] at stride k
  const float* b = nullptr;  // [k, n] at stride n
  int64_t k = 0;
  int64_t n = 0;
};

/// The tile's elements of a b into c [., n]. Each is one chain of fused multiply-adds in ascending
/// k, so that X X^T is symmetric to the bit. Strips of b are copied together first: at b's own
/// stride every row may be another page.
void MultiplyTile(const kernels::MatMulKernels& matmul, const Product& p, const Tile& tile,
                  float* c) {
  alignas(64) std::array<float, kDepth * kTile> strip;
  for (int64_t k = 0; k < p.k; k += kDepth) {
    const int64_t depth = std::min(kDepth, p.k - k);
    for (int64_t i = 0; i < depth; ++i) {
      std::copy_n(p.b + (k + i) * p.n + tile.col, tile.cols, strip.data() + i * kTile);
    }
    matmul.f32(p.a + tile.row * p.k + k, p.k, strip.data(), kTile, tile.rows, depth, tile.cols,
               k > 0, c + tile.row * p.n + tile.col, p.n);
  }
}

void TransposeTile(const float* from, int64_t ld_from, const Tile& tile, float* to, int64_t ld_to) {
  constexpr int64_t kSide = 16;
  for (int64_t r = tile.row; r < tile.row + tile.rows; r += kSide) {
    const int64_t r_end = std::min(r + kSide, tile.row + tile.rows);
    for (int64_t j = tile.col; j < tile.col + tile.cols; ++j) {
      for (int64_t i = r; i < r_end; ++i) to[j * ld_to + i] = from[i * ld_from + j];
    }
  }
}

/// Tiles of [rows, cols] of one block, appended; with `upper` only those on or above the diagonal.
void CutTiles(size_t block, int64_t rows, int64_t cols, int64_t tile_rows, bool upper,
              std::vector<Tile>* tiles) {
  for (int64_t row = 0; row < rows; row += tile_rows) {
    for (int64_t col = upper ? row : 0; col < cols; col += kTile) {
      tiles->push_back(
          {block, row, std::min(tile_rows, rows - row), col, std::min(kTile, cols - col)});
    }
  }
}

double SumOfSquares(const float* x, int64_t n) {
  return LaneSum(0, n, [x](int64_t i) { return double{x[i]}; });
}

float* Grown(std::vector<float>* buffer, int64_t n) {
  if (std::ssize(*buffer) < n) buffer->resize(static_cast<size_t>(n));
  return buffer->data();
}

}  // namespace

/// The blocks of one matrix, their tiles and the scratch.
struct Muon::Work {
  kernels::MatMulKernels matmul;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<Block> blocks;
  std::vector<size_t> block_of_row;  // [rows]
  std::vector<Tile> upper_tiles;     // of [s, s], on or above the diagonal
  std::vector<Tile> wide_tiles;      // of [s, l]
  std::vector<double> squares;       // [rows]
  std::array<std::vector<float>, 5> buffers;
  float* wide = nullptr;        // X of each block
  float* tall = nullptr;        // X^T of each block
  float* next = nullptr;        // at first U as the matrix has it, then the next X
  float* gram = nullptr;        // A of each block
  float* polynomial = nullptr;  // a I + b A + c A A

  void Cut(const MuonShape& shape);
  /// Makes X and X^T of a tile from U.
  void BuildTile(const Tile& tile);
  void GramTile(const Tile& tile);
  void PolynomialTile(const Tile& tile);
  /// The next X, and its transpose already in place: nothing reads the old one any more.
  void NextTile(const Tile& tile);
  /// A row of the result, as the matrix has it.
  const float* ResultRow(int64_t row) const;
};

void Muon::Work::Cut(const MuonShape& shape) {
  K3_CHECK(shape.rows >= 1 && shape.cols >= 1, "a matrix has elements");
  rows = shape.rows;
  cols = shape.cols;
  blocks.clear();
  block_of_row.clear();
  upper_tiles.clear();
  wide_tiles.clear();
  const std::vector<int64_t> whole = {rows};
  const std::vector<int64_t>& pattern = shape.block_rows.empty() ? whole : shape.block_rows;
  int64_t squares_size = 0;
  int64_t first_row = 0;
  for (size_t i = 0; first_row < rows || i % pattern.size() != 0; ++i) {
    const int64_t height = pattern[i % pattern.size()];
    K3_CHECK(height >= 1 && height <= rows - first_row, "the blocks' pattern ends with the matrix");
    const int64_t s = std::min(height, cols);
    const int64_t l = std::max(height, cols);
    blocks.push_back({.first_row = first_row,
                      .rows = height,
                      .s = s,
                      .l = l,
                      .is_tall = height > cols,
                      .offset = first_row * cols,
                      .square_offset = squares_size});
    block_of_row.insert(block_of_row.end(), static_cast<size_t>(height), i);
    CutTiles(i, s, s, kTile, true, &upper_tiles);
    CutTiles(i, s, l, kTallTile, false, &wide_tiles);
    squares_size += s * s;
    first_row += height;
  }
  squares.resize(static_cast<size_t>(rows));
  wide = Grown(&buffers[0], rows * cols);
  tall = Grown(&buffers[1], rows * cols);
  next = Grown(&buffers[2], rows * cols);
  gram = Grown(&buffers[3], squares_size);
  polynomial = Grown(&buffers[4], squares_size);
}

void Muon::Work::BuildTile(const Tile& tile) {
  const Block& b = blocks[tile.block];
  const Tile own = b.is_tall ? Tile{tile.block, tile.col, tile.cols, tile.row, tile.rows} : tile;
  float* same = (b.is_tall ? tall : wide) + b.offset;
  float* turned = (b.is_tall ? wide : tall) + b.offset;
  for (int64_t i = own.row; i < own.row + own.rows; ++i) {
    const int64_t at = i * cols + own.col;
    for (int64_t j = 0; j < own.cols; ++j) same[at + j] = b.factor * next[b.offset + at + j];
  }
  TransposeTile(same, cols, own, turned, b.rows);
}

void Muon::Work::GramTile(const Tile& tile) {
  const Block& b = blocks[tile.block];
  float* out = gram + b.square_offset;
  MultiplyTile(matmul, {wide + b.offset, tall + b.offset, b.l, b.s}, tile, out);
  if (tile.row != tile.col) TransposeTile(out, b.s, tile, out, b.s);
}

void Muon::Work::PolynomialTile(const Tile& tile) {
  const Block& b = blocks[tile.block];
  const float* a = gram + b.square_offset;
  float* out = polynomial + b.square_offset;
  MultiplyTile(matmul, {a, a, b.s, b.s}, tile, out);
  for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
    for (int64_t j = tile.col; j < tile.col + tile.cols; ++j) {
      out[i * b.s + j] = kB * a[i * b.s + j] + kC * out[i * b.s + j];
      if (i == j) out[i * b.s + j] += kA;
    }
  }
  if (tile.row != tile.col) TransposeTile(out, b.s, tile, out, b.s);
}

void Muon::Work::NextTile(const Tile& tile) {
  const Block& b = blocks[tile.block];
  float* out = next + b.offset;
  MultiplyTile(matmul, {polynomial + b.square_offset, wide + b.offset, b.s, b.l}, tile, out);
  TransposeTile(out, b.l, tile, tall + b.offset, b.s);
}

const float* Muon::Work::ResultRow(int64_t row) const {
  const Block& b = blocks[block_of_row[static_cast<size_t>(row)]];
  return (b.is_tall ? tall : wide) + row * cols;
}

Muon::Muon(ThreadPool* pool, const kernels::KernelTable* kernels, const MuonOptions& options)
    : pool_(pool), options_(options), work_(std::make_unique<Work>()) {
  K3_CHECK(options.iterations >= 1, "there are Newton-Schulz steps");
  work_->matmul = kernels->matmul;
}

Muon::~Muon() = default;

template <typename Fn>
void Muon::EachRow(const Fn& fn) {
  pool_->ParallelFor(work_->rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) fn(row);
  });
}

void Muon::NewtonSchulz() {
  Work& w = *work_;
  EachRow([&](int64_t row) {
    w.squares[static_cast<size_t>(row)] = SumOfSquares(w.next + row * w.cols, w.cols);
  });
  for (Block& block : w.blocks) {
    const auto first = w.squares.begin() + block.first_row;
    const double sum = std::accumulate(first, first + block.rows, 0.0);
    block.factor = static_cast<float>(1 / (std::sqrt(sum) + kNormEpsilon));
  }
  const auto each_tile = [&](const std::vector<Tile>& tiles, void (Work::*stage)(const Tile&)) {
    pool_->ParallelFor(std::ssize(tiles), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) (w.*stage)(tiles[static_cast<size_t>(i)]);
    });
  };
  each_tile(w.wide_tiles, &Work::BuildTile);
  for (int i = 0; i < options_.iterations; ++i) {
    each_tile(w.upper_tiles, &Work::GramTile);
    each_tile(w.upper_tiles, &Work::PolynomialTile);
    each_tile(w.wide_tiles, &Work::NextTile);
    std::swap(w.wide, w.next);
  }
}

void Muon::Orthogonalise(const MuonShape& shape, std::span<const float> matrix,
                         std::span<float> out) {
  K3_CHECK(std::ssize(matrix) == shape.rows * shape.cols && matrix.size() == out.size(),
           "arrays of the matrix's size");
  Work& w = *work_;
  w.Cut(shape);
  std::ranges::copy(matrix, w.next);
  NewtonSchulz();
  EachRow([&](int64_t row) { std::copy_n(w.ResultRow(row), w.cols, out.data() + row * w.cols); });
}

void Muon::Step(const MuonShape& shape, std::span<const float> gradient, float lr,
                std::span<float> momentum, std::span<float> weights) {
  K3_CHECK(std::ssize(gradient) == shape.rows * shape.cols && gradient.size() == momentum.size() &&
               gradient.size() == weights.size(),
           "arrays of the matrix's size");
  Work& w = *work_;
  w.Cut(shape);
  const float mu = options_.momentum;
  EachRow([&](int64_t row) {
    const float* g = gradient.data() + row * w.cols;
    float* m = momentum.data() + row * w.cols;
    float* u = w.next + row * w.cols;
    for (int64_t j = 0; j < w.cols; ++j) {
      m[j] = mu * m[j] + g[j];
      u[j] = options_.nesterov ? g[j] + mu * m[j] : m[j];
    }
  });
  NewtonSchulz();
  EachRow([&](int64_t row) {
    const Block& block = w.blocks[w.block_of_row[static_cast<size_t>(row)]];
    const float scale = options_.update_rms * std::sqrt(static_cast<float>(block.l));
    const float* o = w.ResultRow(row);
    float* weight = weights.data() + row * w.cols;
    for (int64_t j = 0; j < w.cols; ++j) {
      weight[j] -= lr * (scale * o[j] + options_.weight_decay * weight[j]);
    }
  });
}

}  // namespace k3::train
