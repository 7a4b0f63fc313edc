#pragma once
// ExportGguf: a checkpoint as one GGUF file of the architecture `kimi-k3`, which llama.cpp reads.
//
//   K3_TRY(const Checkpoint checkpoint, Checkpoint::Open(dir));
//   GgufExport exported{.checkpoint = &checkpoint, .tokenizer = nullptr, .out_path = "k3.gguf"};
//   K3_TRY(const GgufExportSummary summary, ExportGguf(*files, exported));
//
// Tensors are converted a few rows at a time from the mapped shards, so a model may be larger than
// memory. Everything is looked up and checked before the first byte is written, except MXFP4
// scales, which are read with their matrix. The file appears under its name when it is whole. One
// thread; the same checkpoint and types give the same bytes.
//
// Failures: Unimplemented for a model that the format cannot express, ResourceExhausted when the
// disk has no room (before writing, if the system says), those of WeightStore and of the writer.

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "engine/gguf_plan.h"
#include "engine/gguf_vocabulary.h"
#include "sys/file.h"
#include "text/tokenizer.h"

namespace k3 {

struct GgufExport {
  const Checkpoint* checkpoint = nullptr;
  const Tokenizer* tokenizer = nullptr;  // null: placeholder tokens
  std::string out_path;
  std::string name;  // "general.name"
  GgufTypes types;
  /// Told the bytes written so far and in all; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
  /// Asked now and then; true ends the export with Cancelled, and nothing is left. May be empty.
  std::function<bool()> should_stop;
};

struct GgufExportSummary {
  int64_t tensors_count = 0;
  int64_t file_bytes = 0;
  int64_t unblocked_count = 0;    // as in GgufPlan
  int64_t plain_banks_count = 0;  // as in GgufPlan
  int64_t vision_count = 0;       // tensors of the checkpoint that are left out
  GgufVocabularySummary vocabulary;
};

Result<GgufExportSummary> ExportGguf(FileSystem& files, const GgufExport& exported);

}  // namespace k3
