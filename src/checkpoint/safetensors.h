#pragma once
// The header of one safetensors file: 8 bytes little-endian header length, a JSON object that maps
// each tensor's name to {"dtype", "shape", "data_offsets": [begin, end]} with offsets into the data
// behind the header, and an optional "__metadata__" of strings to strings.
//
// The header is read through a streaming parser, never as a tree, and checked completely: every
// key once at every level, known types, at most 5 dimensions, sizes that match their ranges, and
// ranges that cover the data without overlap, hole or rest. A file that passes needs no further
// checks. Failures are Corruption and name file, tensor, field, expected and found.
// Source: the safetensors format description (github.com/huggingface/safetensors).

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/name_arena.h"
#include "sys/file.h"
#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace k3 {

/// Where one tensor lies. A plain value; `name` points into the arena of its header or checkpoint.
struct TensorInfo {
  std::string_view name;
  Shape shape;
  DType dtype = DType::kF32;
  int32_t shard = 0;        // index into Checkpoint::shards(); 0 for a header by itself
  int64_t file_offset = 0;  // of the first byte, from the start of the file
  int64_t bytes = 0;
};

struct SafetensorsHeader {
  NameArena names;
  std::vector<TensorInfo> tensors;  // by name
  std::vector<std::pair<std::string, std::string>> metadata;
  int64_t data_offset = 0;  // of the data section, from the start of the file
  int64_t data_bytes = 0;
};

/// Bytes before the JSON text.
inline constexpr int64_t kSafetensorsLengthBytes = 8;

/// Reads and checks the header of `file`; no tensor's bytes are touched. `where` names the file.
Result<SafetensorsHeader> ReadSafetensorsHeader(ReadableFile& file, std::string_view where);

/// Checks the JSON text of a header in a file whose data section starts at `data_offset` and has
/// `data_bytes` bytes.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_offset,
                                                 int64_t data_bytes, std::string_view where);

}  // namespace k3
