// Feeds arbitrary files to the safetensors header reader. A header that passes must describe
// tensors that tile the data section, because views are made of it without another check.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "checkpoint/memory_file.h"
#include "checkpoint/safetensors.h"

namespace {

void CheckHeader(const k3::SafetensorsHeader& header, int64_t file_bytes) {
  int64_t total = 0;
  for (const k3::TensorInfo& tensor : header.tensors) {
    K3_CHECK(tensor.file_offset >= header.data_offset, "starts in the data section");
    K3_CHECK(tensor.bytes >= 0 && tensor.file_offset + tensor.bytes <= file_bytes, "ends in it");
    K3_CHECK(tensor.shape.Elements() * k3::DTypeBytes(tensor.dtype) == tensor.bytes, "size fits");
    total += tensor.bytes;
  }
  K3_CHECK(total == header.data_bytes, "no holes");
  K3_CHECK(header.data_offset + header.data_bytes == file_bytes, "no rest");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  k3::MemoryFile file(bytes);
  const auto header = k3::ReadSafetensorsHeader(file, "fuzz.safetensors");
  if (header.ok()) CheckHeader(*header, file.size());

  // The same bytes as bare JSON, so that the length field is no hurdle. The data section is as long
  // as the first byte says.
  if (size < 1) return 0;
  const std::string_view json(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto bare = k3::ParseSafetensorsHeader(json, 8, data[0], "fuzz.safetensors");
  if (bare.ok()) CheckHeader(*bare, 8 + data[0]);
  return 0;
}
