#include "train/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "train/lane_sum.h"
#include "train/qk_clip.h"

namespace k3::train {
namespace {

constexpr int64_t kRun = 16384;  // elements of one partial sum and of one piece of work

OptimizerGroup GroupByRole(const ExpectedTensor& spec) {
  switch (spec.role) {
    case TensorRole::kEmbedding:
    case TensorRole::kHead:
      return OptimizerGroup::kTable;
    case TensorRole::kExpert:
      return OptimizerGroup::kExpert;
    case TensorRole::kMatrix:
    case TensorRole::kRouter:
      // A row for each head: nothing to make orthogonal.
      if (spec.name.ends_with(".self_attn.b_proj.weight")) return OptimizerGroup::kOther;
      return OptimizerGroup::kMatrix;
    default:
      return OptimizerGroup::kOther;
  }
}

bool Decays(const ExpectedTensor& spec) {
  return spec.role == TensorRole::kHead || spec.role == TensorRole::kExpert ||
         spec.role == TensorRole::kMatrix || spec.role == TensorRole::kRouter;
}

/// The rows of an attention matrix that belong to one head; empty for one that heads do not share.
std::vector<int64_t> HeadBlocks(const ModelConfig& config, const ExpectedTensor& spec) {
  const auto is = [&](std::string_view name) {
    return spec.name.ends_with(fmt::format(".self_attn.{}.weight", name));
  };
  if (spec.layer < 0) return {};
  if (config.is_mla[static_cast<size_t>(spec.layer)]) {
    const MlaConfig& mla = config.mla;
    if (is("q_proj") || is("q_b_proj")) return {mla.qk_nope_dim + mla.qk_rope_dim};
    if (is("kv_b_proj")) return {mla.qk_nope_dim, mla.v_dim};
    if (is("g_proj")) return {mla.v_dim};
    return {};
  }
  for (const std::string_view name :
       {"q_proj", "k_proj", "v_proj", "f_b_proj", "g_proj", "g_b_proj"}) {
    if (is(name)) return {config.kda.head_dim};
  }
  return {};
}

/// Sums the squares of now - before over a run of elements.
double SquaredChanges(const float* now, const float* before, int64_t begin, int64_t end) {
  return LaneSum(begin, end, [=](int64_t i) { return double{now[i]} - before[i]; });
}

/// Multiplications of one Newton-Schulz step on a block.
double BlockWork(int64_t rows, int64_t cols) {
  const auto s = static_cast<double>(std::min(rows, cols));
  const auto l = static_cast<double>(std::max(rows, cols));
  return s * s * (2 * l + s);
}

MuonOptions WithDecay(MuonOptions options, float weight_decay) {
  options.weight_decay = weight_decay;
  return options;
}

}  // namespace

struct Optimizer::Worker {
  Worker(const kernels::KernelTable* kernels, const MuonOptions& options)
      : muon(&alone, kernels, options) {}

  ThreadPool alone{1};
  Muon muon;
  std::vector<float> before;  // of a job
};

Optimizer::Optimizer(ThreadPool* pool, const kernels::KernelTable* kernels,
                     const OptimizerOptions& options, ParameterSet* set)
    : pool_(pool),
      options_(options),
      set_(set),
      muon_(pool, kernels, WithDecay(options.muon, options.weight_decay)) {
  AddUnits();
  for (size_t unit = 0; unit < units_.size(); ++unit) AddJobs(unit);
  // The longest first; among equals the order in which they were added.
  std::ranges::sort(jobs_, {},
                    [](const Job& job) { return std::tuple(-job.work, job.unit, job.begin); });
  for (int i = 0; i < pool->threads_count(); ++i) {
    workers_.push_back(
        std::make_unique<Worker>(kernels, WithDecay(options.muon, options.weight_decay)));
  }
}

Optimizer::~Optimizer() = default;

void Optimizer::AddUnits() {
  std::vector<const TrainedTensor*> by_offset;
  for (const TrainedTensor& tensor : set_->tensors()) {
    if (tensor.spec.role != TensorRole::kCorrectionBias) by_offset.push_back(&tensor);
  }
  std::ranges::sort(by_offset, {}, &TrainedTensor::offset);
  for (const TrainedTensor* tensor : by_offset) AddUnit(*tensor);
  for (Unit& unit : units_) {
    if (unit.shape.rows > 0) {
      unit.momentum.resize(static_cast<size_t>(unit.count));
    } else {
      unit.adamw.emplace(unit.count);
    }
  }
}

void Optimizer::AddJobs(size_t unit_index) {
  const Unit& unit = units_[unit_index];
  const MuonShape& shape = unit.shape;
  std::vector<int64_t> pattern = shape.block_rows;
  if (pattern.empty()) pattern = {shape.rows};
  const bool is_small = std::ranges::all_of(
      pattern, [&](int64_t rows) { return BlockWork(rows, shape.cols) <= options_.job_work_max; });
  if (unit.adamw.has_value() || !is_small) {
    shared_units_.push_back(unit_index);
    before_.resize(std::max(before_.size(), static_cast<size_t>(unit.count)));
    return;
  }
  int64_t row = 0;
  size_t head = unit.heads_begin;
  for (size_t i = 0; row < shape.rows; ++i) {
    const int64_t rows = pattern[i % pattern.size()];
    const size_t first_head = head;
    while (head < unit.heads_end && heads_[head].begin < (row + rows) * shape.cols) ++head;
    jobs_.push_back({.unit = unit_index,
                     .begin = row * shape.cols,
                     .count = rows * shape.cols,
                     .shape = {.rows = rows, .cols = shape.cols, .block_rows = {}},
                     .work = BlockWork(rows, shape.cols),
                     .heads = std::span(heads_).subspan(first_head, head - first_head)});
    row += rows;
  }
}

void Optimizer::AddUnit(const TrainedTensor& tensor) {
  const ExpectedTensor& spec = tensor.spec;
  Unit unit{.group = GroupByRole(spec),
            .offset = tensor.offset,
            .count = tensor.count,
            .decays = Decays(spec)};
  const bool is_muon =
      options_.kind == OptimizerKind::kMuon &&
      (unit.group == OptimizerGroup::kMatrix || unit.group == OptimizerGroup::kExpert);
  std::vector<int64_t> blocks = HeadBlocks(set_->config(), spec);
  if (!blocks.empty()) {
    unit.group = OptimizerGroup::kPerHead;
    AddHeads(spec, blocks, &unit);
  }
  if (is_muon) {
    unit.shape = {.rows = spec.shape[0], .cols = spec.shape[1]};
    if (options_.per_head) unit.shape.block_rows = std::move(blocks);
  }
  if (unit.group == OptimizerGroup::kExpert) {
    if (is_muon) unit.shape.block_rows = {spec.shape[0]};
    // The next expert of the same stack joins the unit of the one before.
    if (spec.expert > 0) {
      Unit& stack = units_.back();
      K3_CHECK(stack.offset + stack.count == tensor.offset,
               "the experts of a stack are neighbours");
      stack.count += tensor.count;
      stack.shape.rows += unit.shape.rows;
      return;
    }
  }
  units_.push_back(std::move(unit));
}

void Optimizer::AddHeads(const ExpectedTensor& spec, const std::vector<int64_t>& block_rows,
                         Unit* unit) {
  const int64_t rows = spec.shape[0], cols = spec.shape[1];
  unit->head_kinds = block_rows.size();
  unit->heads_begin = heads_.size();
  int64_t row = 0;
  while (row < rows) {
    for (const int64_t block : block_rows) {
      heads_.push_back({.begin = row * cols, .count = block * cols});
      row += block;
    }
  }
  unit->heads_end = heads_.size();
  K3_CHECK(row == rows, "the blocks of heads end with the matrix");
}

const Optimizer::Unit* Optimizer::UnitOf(const TrainedTensor& tensor) const {
  if (tensor.spec.role == TensorRole::kCorrectionBias) return nullptr;
  const auto after = std::ranges::upper_bound(units_, tensor.offset, {}, &Unit::offset);
  K3_CHECK(after != units_.begin(), "every trained tensor has its unit");
  return &*(after - 1);
}

void Optimizer::set_steps(int64_t steps) {
  steps_ = steps;
  for (Unit& unit : units_) {
    if (unit.adamw.has_value()) unit.adamw->steps = steps;
  }
}

Optimizer::Moments Optimizer::MomentsOf(const TrainedTensor& tensor) {
  auto* unit = const_cast<Unit*>(UnitOf(tensor));
  if (unit == nullptr) return {};
  const auto part = [&](std::vector<float>& values) {
    return std::span(values).subspan(static_cast<size_t>(tensor.offset - unit->offset),
                                     static_cast<size_t>(tensor.count));
  };
  if (unit->adamw.has_value()) return {part(unit->adamw->m), part(unit->adamw->v)};
  return {part(unit->momentum), {}};
}

template <typename Sum>
double Optimizer::SumOverRuns(int64_t count, const Sum& sum) {
  const int64_t runs = (count + kRun - 1) / kRun;
  partials_.resize(static_cast<size_t>(runs));
  pool_->ParallelFor(runs, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t run = begin; run < end; ++run) {
      partials_[static_cast<size_t>(run)] = sum(run * kRun, std::min((run + 1) * kRun, count));
    }
  });
  return std::accumulate(partials_.begin(), partials_.end(), 0.0);
}

double Optimizer::SumOfSquares(std::span<const float> values) {
  const float* x = values.data();
  return SumOverRuns(std::ssize(values), [x](int64_t begin, int64_t end) {
    return LaneSum(begin, end, [x](int64_t i) { return double{x[i]}; });
  });
}

double Optimizer::SumOfSquaredChanges(const Unit& unit) {
  const float* now = set_->masters().data() + unit.offset;
  const float* before = before_.data();
  const std::span<HeadBlock> heads =
      std::span(heads_).subspan(unit.heads_begin, unit.heads_end - unit.heads_begin);
  if (heads.empty()) {
    return SumOverRuns(unit.count, [=](int64_t begin, int64_t end) {
      return SquaredChanges(now, before, begin, end);
    });
  }
  pool_->ParallelFor(std::ssize(heads), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      HeadBlock& head = heads[static_cast<size_t>(i)];
      head.squares = SquaredChanges(now, before, head.begin, head.begin + head.count);
    }
  });
  double sum = 0;
  for (const HeadBlock& head : heads) sum += head.squares;
  return sum;
}

void Optimizer::ScaleGradients(float factor) {
  float* g = set_->flat_gradients().data();
  pool_->ParallelFor(std::ssize(set_->flat_gradients()), kRun,
                     [g, factor](int64_t begin, int64_t end, int) {
                       for (int64_t i = begin; i < end; ++i) g[i] *= factor;
                     });
}

void Optimizer::StepUnit(Unit& unit, float lr) {
  const auto begin = static_cast<size_t>(unit.offset), count = static_cast<size_t>(unit.count);
  const std::span<const float> gradient = set_->flat_gradients().subspan(begin, count);
  const std::span<float> weights = set_->masters().subspan(begin, count);
  if (unit.adamw.has_value()) {
    AdamWOptions options = options_.adamw;
    options.weight_decay = unit.decays ? options_.weight_decay : 0.0f;
    AdamWStep(pool_, options, lr * options_.adamw_lr_scale, gradient, weights, &*unit.adamw);
  } else {
    muon_.Step(unit.shape, gradient, lr * options_.muon_lr_scale, unit.momentum, weights);
  }
}

void Optimizer::RunJob(Job& job, float lr, Worker& worker) {
  Unit& unit = units_[job.unit];
  const auto begin = static_cast<size_t>(unit.offset + job.begin);
  const auto count = static_cast<size_t>(job.count);
  const std::span<float> weights = set_->masters().subspan(begin, count);
  worker.before.assign(weights.begin(), weights.end());
  worker.muon.Step(
      job.shape, set_->flat_gradients().subspan(begin, count), lr * options_.muon_lr_scale,
      std::span(unit.momentum).subspan(static_cast<size_t>(job.begin), count), weights);
  const float* now = weights.data();
  const float* before = worker.before.data();
  if (job.heads.empty()) {
    job.squares = SquaredChanges(now, before, 0, job.count);
    return;
  }
  job.squares = 0;
  for (HeadBlock& head : job.heads) {
    const int64_t first = head.begin - job.begin;
    head.squares = SquaredChanges(now, before, first, first + head.count);
    job.squares += head.squares;
  }
}

OptimizerReport Optimizer::Step(float lr, std::span<const float> largest_logits) {
  OptimizerReport report;
  report.gradient_norm = std::sqrt(SumOfSquares(set_->flat_gradients()));
  report.skipped = !std::isfinite(report.gradient_norm);
  if (report.skipped) return report;
  if (options_.clip_norm > 0 && report.gradient_norm > options_.clip_norm) {
    ScaleGradients(static_cast<float>(options_.clip_norm / report.gradient_norm));
  }
  std::array<double, kOptimizerGroups> squares{};
  std::array<int64_t, kOptimizerGroups> counts{};
  pool_->ParallelFor(std::ssize(jobs_), 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      RunJob(jobs_[static_cast<size_t>(i)], lr, *workers_[static_cast<size_t>(worker)]);
    }
  });
  for (const Job& job : jobs_) {
    const auto group = static_cast<size_t>(units_[job.unit].group);
    squares[group] += job.squares;
    counts[group] += job.count;
  }
  for (const size_t index : shared_units_) {
    Unit& unit = units_[index];
    const auto group = static_cast<size_t>(unit.group);
    const std::span<const float> masters =
        set_->masters().subspan(static_cast<size_t>(unit.offset), static_cast<size_t>(unit.count));
    pool_->ParallelFor(unit.count, kRun, [&](int64_t begin, int64_t end, int) {
      std::copy(masters.begin() + begin, masters.begin() + end, before_.begin() + begin);
    });
    StepUnit(unit, lr);
    squares[group] += SumOfSquaredChanges(unit);
    counts[group] += unit.count;
  }
  for (size_t i = 0; i < squares.size(); ++i) {
    if (lr == 0 || counts[i] == 0) continue;
    report.update_rms[i] = std::sqrt(squares[i] / static_cast<double>(counts[i])) / lr;
  }
  ReportHeads(&report);
  ++steps_;
  report.clipped_heads = ClipLogits(largest_logits);
  return report;
}

void Optimizer::ReportHeads(OptimizerReport* report) const {
  double spreads = 0, ratios = 0;
  int64_t spreads_count = 0, ratios_count = 0;
  for (const Unit& unit : units_) {
    for (size_t kind = 0; kind < unit.head_kinds; ++kind) {
      // The learning rate is left out: it cancels in both figures.
      const auto size = [&](size_t i) {
        return std::sqrt(heads_[i].squares / static_cast<double>(heads_[i].count));
      };
      const size_t first = unit.heads_begin + kind, step = unit.head_kinds;
      double sum = 0, smallest = size(first), largest = smallest;
      int64_t heads = 0;
      for (size_t i = first; i < unit.heads_end; i += step, ++heads) {
        sum += size(i);
        smallest = std::min(smallest, size(i));
        largest = std::max(largest, size(i));
      }
      if (heads < 2 || largest == 0) continue;
      const double mean = sum / static_cast<double>(heads);
      double deviations = 0;
      for (size_t i = first; i < unit.heads_end; i += step) {
        deviations += (size(i) - mean) * (size(i) - mean);
      }
      spreads += std::sqrt(deviations / static_cast<double>(heads)) / mean;
      ++spreads_count;
      if (smallest == 0) continue;
      ratios += largest / smallest;
      ++ratios_count;
    }
  }
  if (spreads_count > 0) report->head_update_spread = spreads / static_cast<double>(spreads_count);
  if (ratios_count > 0) report->head_update_ratio = ratios / static_cast<double>(ratios_count);
}

int64_t Optimizer::ClipLogits(std::span<const float> largest_logits) {
  if (options_.qk_clip_tau <= 0 || largest_logits.empty()) return 0;
  const ModelConfig& config = set_->config();
  const MlaConfig& mla = config.mla;
  const auto mla_layers = std::ranges::count(config.is_mla, true);
  K3_CHECK(std::ssize(largest_logits) == mla_layers * mla.heads,
           "a largest logit for each head of each MLA layer");
  const QkClipShape shape{.heads = mla.heads,
                          .nope = mla.qk_nope_dim,
                          .rope = mla.qk_rope_dim,
                          .value = mla.v_dim,
                          .q_rank = mla.q_lora_rank > 0 ? mla.q_lora_rank : config.hidden_size,
                          .kv_rank = mla.kv_lora_rank};
  const auto master = [&](int64_t layer, std::string_view name) {
    const TrainedTensor* tensor =
        set_->Lookup(fmt::format("layers.{}.self_attn.{}.weight", layer, name));
    K3_CHECK(tensor != nullptr, "an MLA layer has its projections");
    return set_->Master(*tensor);
  };
  int64_t clipped = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.is_mla[static_cast<size_t>(layer)]) continue;
    const std::span<const float> logits = largest_logits.first(static_cast<size_t>(mla.heads));
    largest_logits = largest_logits.subspan(static_cast<size_t>(mla.heads));
    clipped += QkClip(shape, logits, options_.qk_clip_tau,
                      master(layer, mla.q_lora_rank > 0 ? "q_b_proj" : "q_proj"),
                      master(layer, "kv_b_proj"));
  }
  return clipped;
}

}  // namespace k3::train
