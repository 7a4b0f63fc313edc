#include "train/training_state.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/writer.h"
#include "config/json.h"

namespace k3::train {
namespace {

constexpr std::string_view kFormat = "k3-training";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kHashField = "xxh3_64";
constexpr size_t kReadBytes = size_t{1} << 20;

/// One array of the state, by the name it has in the file.
struct StateTensor {
  std::string name;
  Shape shape;
  std::span<float> values;
};

std::vector<StateTensor> StateTensors(ParameterSet& set, Optimizer& optimizer) {
  std::vector<StateTensor> tensors;
  const auto add = [&](std::string_view kind, const ExpectedTensor& spec, std::span<float> values) {
    tensors.push_back({fmt::format("{}.{}", kind, spec.name), spec.shape, values});
  };
  for (const TrainedTensor& tensor : set.tensors()) {
    add("master", tensor.spec, set.Master(tensor));
    const Optimizer::Moments moments = optimizer.MomentsOf(tensor);
    if (moments.first.empty()) continue;
    if (moments.second.empty()) {
      add("momentum", tensor.spec, moments.first);
    } else {
      add("moment1", tensor.spec, moments.first);
      add("moment2", tensor.spec, moments.second);
    }
  }
  return tensors;
}

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }

  void Add(std::span<const std::byte> bytes) {
    XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  }
  /// All fields but the hash itself, by name.
  void Add(SafetensorsWriter::Metadata metadata) {
    std::ranges::sort(metadata);
    for (const auto& [name, value] : metadata) {
      if (name == kHashField) continue;
      const std::string entry = fmt::format("{}:{}{}:{}", name.size(), name, value.size(), value);
      Add(std::as_bytes(std::span(entry)));
    }
  }
  std::string Text() const { return fmt::format("{:016x}", XXH3_64bits_digest(state_.get())); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

/// Reads a state file's header fields, naming the file in every failure.
class Fields {
 public:
  Fields(const SafetensorsHeader& header, std::string path)
      : header_(header), path_(std::move(path)) {}

  Result<std::string> Text(std::string_view key) const {
    for (const auto& [name, value] : header_.metadata) {
      if (name == key) return value;
    }
    return Corruption(fmt::format(
        "{}: __metadata__: expected the field {}, found none; this is no training state "
        "of this program",
        path_, key));
  }
  Result<int64_t> Count(std::string_view key) const {
    K3_TRY(const std::string text, Text(key));
    int64_t value = -1;
    const char* end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && last == end && value >= 0) return value;
    return Corruption(fmt::format(
        "{}: __metadata__.{}: expected a whole number from 0, found {}; take an earlier "
        "state",
        path_, key, QuoteForMessage(text)));
  }
  /// The field has to be `expected`.
  Status Expect(std::string_view key, std::string_view expected, std::string_view advice) const {
    K3_TRY(const std::string found, Text(key));
    if (found == expected) return OkStatus();
    return InvalidArgument(fmt::format("{}: __metadata__.{}: expected {}, found {}; {}", path_, key,
                                       QuoteForMessage(expected), QuoteForMessage(found), advice));
  }

 private:
  const SafetensorsHeader& header_;
  std::string path_;
};

/// The stored tensor of each of `tensors`, or what does not fit.
Result<std::vector<const TensorInfo*>> Match(const SafetensorsHeader& header,
                                             const std::vector<StateTensor>& tensors,
                                             const std::string& path) {
  constexpr std::string_view kAdvice = "go on with the configuration and optimizer that wrote it";
  std::vector<const TensorInfo*> matched;
  for (const StateTensor& tensor : tensors) {
    const auto found = std::ranges::lower_bound(header.tensors, tensor.name, {}, &TensorInfo::name);
    if (found == header.tensors.end() || found->name != tensor.name) {
      return InvalidArgument(fmt::format("{}: expected the tensor {}, found none of that name; {}",
                                         path, QuoteForMessage(tensor.name), kAdvice));
    }
    if (found->dtype != DType::kF32 || found->shape != tensor.shape) {
      return InvalidArgument(fmt::format(
          "{}: tensor {}: expected F32 {}, found {} {}; {}", path, QuoteForMessage(tensor.name),
          tensor.shape.ToString(), DTypeName(found->dtype), found->shape.ToString(), kAdvice));
    }
    matched.push_back(&*found);
  }
  if (header.tensors.size() != tensors.size()) {
    return InvalidArgument(fmt::format("{}: expected {} tensors, found {}; {}", path,
                                       tensors.size(), header.tensors.size(), kAdvice));
  }
  return matched;
}

/// Corruption unless metadata and data section have the hash that the header states.
Status CheckHash(ReadableFile& file, const SafetensorsHeader& header, const Fields& fields,
                 const std::string& path) {
  K3_TRY(const std::string expected, fields.Text(kHashField));
  Hasher hasher;
  hasher.Add({header.metadata.begin(), header.metadata.end()});
  std::vector<std::byte> buffer(kReadBytes);
  for (int64_t at = 0; at < header.data_bytes;) {
    const auto n = std::min(header.data_bytes - at, std::ssize(buffer));
    const std::span<std::byte> part(buffer.data(), static_cast<size_t>(n));
    K3_RETURN_IF_ERROR(file.ReadAt(header.data_offset + at, part));
    hasher.Add(part);
    at += n;
  }
  if (hasher.Text() == expected) return OkStatus();
  return Corruption(fmt::format(
      "{}: expected the checksum {}, found {}; the file is damaged, begin the run again "
      "or take a copy of an earlier state",
      path, QuoteForMessage(expected), hasher.Text()));
}

}  // namespace

std::string Fingerprint(std::string_view text) {
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

Status SaveTrainingState(FileSystem& files, const std::string& path,
                         const TrainingProgress& progress, ParameterSet& set,
                         Optimizer& optimizer) {
  const std::vector<StateTensor> tensors = StateTensors(set, optimizer);
  std::vector<TensorDeclaration> declarations;
  declarations.reserve(tensors.size());
  SafetensorsWriter::Metadata metadata = {{"format", std::string(kFormat)},
                                          {"version", std::string(kVersion)},
                                          {"step", std::to_string(progress.step)},
                                          {"tokens", std::to_string(progress.tokens)},
                                          {"optimizer_steps", std::to_string(optimizer.steps())},
                                          {"data_state", progress.data_state},
                                          {"fingerprint", progress.fingerprint}};
  Hasher hasher;
  hasher.Add(metadata);
  for (const StateTensor& tensor : tensors) {
    declarations.push_back({tensor.name, DType::kF32, tensor.shape});
    hasher.Add(std::as_bytes(tensor.values));
  }
  metadata.emplace_back(kHashField, hasher.Text());
  K3_TRY(SafetensorsWriter writer, SafetensorsWriter::Create(files, path, declarations, metadata));
  for (const StateTensor& tensor : tensors) {
    K3_RETURN_IF_ERROR(writer.Append(std::as_bytes(tensor.values)));
  }
  K3_RETURN_IF_ERROR(writer.Finish());
  const std::string dir = std::filesystem::path(path).parent_path().string();
  return files.SyncDirectory(dir.empty() ? "." : dir);
}

Result<TrainingProgress> LoadTrainingState(FileSystem& files, const std::string& path,
                                           std::string_view fingerprint, ParameterSet* set,
                                           Optimizer* optimizer) {
  K3_TRY(const std::unique_ptr<ReadableFile> file, files.OpenReadable(path));
  K3_TRY(const SafetensorsHeader header, ReadSafetensorsHeader(*file, path));
  const Fields fields(header, path);
  K3_RETURN_IF_ERROR(fields.Expect("format", kFormat, "give the state file of a training run"));
  K3_RETURN_IF_ERROR(fields.Expect("version", kVersion, "go on with the program that wrote it"));
  if (!fingerprint.empty()) {
    K3_RETURN_IF_ERROR(fields.Expect("fingerprint", fingerprint,
                                     "go on with the configuration that the run began with"));
  }
  TrainingProgress progress;
  K3_TRY(progress.step, fields.Count("step"));
  K3_TRY(progress.tokens, fields.Count("tokens"));
  K3_TRY(progress.data_state, fields.Text("data_state"));
  K3_TRY(progress.fingerprint, fields.Text("fingerprint"));
  K3_TRY(const int64_t optimizer_steps, fields.Count("optimizer_steps"));
  const std::vector<StateTensor> tensors = StateTensors(*set, *optimizer);
  K3_TRY(const std::vector<const TensorInfo*> stored, Match(header, tensors, path));
  K3_RETURN_IF_ERROR(CheckHash(*file, header, fields, path));
  for (size_t i = 0; i < tensors.size(); ++i) {
    K3_RETURN_IF_ERROR(
        file->ReadAt(stored[i]->file_offset, std::as_writable_bytes(tensors[i].values)));
  }
  optimizer->set_steps(optimizer_steps);
  return progress;
}

}  // namespace k3::train
