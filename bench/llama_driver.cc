// Drives the prebuilt llama.cpp for bench/compare: what `k3 bench` and `k3 logits` measure, through
// llama.cpp's C functions, so that nothing of ours stands between its calls and the clock.
//
//   llama_driver speed MODEL [--prompt P --gen G --depth D --state FILE --repeats R] [settings]
//   llama_driver deepen MODEL --depth D --state FILE [settings]
//   llama_driver logits MODEL --tokens IDS --out FILE [settings]
//
// `speed` prints JSON with the first token of a 16-token prompt since process start, and for every
// repeat the speed of a prompt of P tokens and of G greedy tokens after it, all at depth D.
// `deepen` runs D tokens and writes the sequence to FILE; `speed` starts every repeat from it.
// `logits` writes the last token's logits as float32. Settings: --threads N, --flash on|off|auto,
// --kv f16|f32, --batch N, --ubatch N, --load auto|none|mmap, --repack on|off, --pool on|off.
//
// Declarations are written by hand for the version that package.json pins; the defaults that
// the library returns are checked against what this layout expects before anything else.
// One thread. Every failure ends the program with a message and code 1.
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

extern "C" {
struct llama_model;
struct llama_context;
struct llama_vocab;
struct llama_memory;
struct ggml_threadpool;

struct llama_model_params {
  void* devices;
  const void* tensor_buft_overrides;
  int32_t n_gpu_layers;
  int32_t split_mode;
  int32_t load_mode;  // -1 auto, 0 none, 1 mmap
  int32_t lazy_mode;
  int32_t main_gpu;
  const float* tensor_split;
  bool (*progress_callback)(float, void*);
  void* progress_callback_user_data;
  const void* kv_overrides;
  bool vocab_only;
  bool check_tensors;
  bool use_extra_bufts;
  bool no_host;
  bool no_alloc;
  bool load_mtp;
};

struct llama_context_params {
  uint32_t n_ctx;
  uint32_t n_batch;
  uint32_t n_ubatch;
  uint32_t n_seq_max;
  uint32_t n_rs_seq;
  uint32_t n_outputs_max;
  uint32_t n_outputs_max_per_seq;
  int32_t n_threads;
  int32_t n_threads_batch;
  int32_t ctx_type;
  int32_t rope_scaling_type;
  int32_t pooling_type;
  int32_t attention_type;
  int32_t flash_attn_type;  // -1 auto, 0 off, 1 on
  float rope_freq_base;
  float rope_freq_scale;
  float yarn_ext_factor;
  float yarn_attn_factor;
  float yarn_beta_fast;
  float yarn_beta_slow;
  uint32_t yarn_orig_ctx;
  float defrag_thold;
  void* cb_eval;
  void* cb_eval_user_data;
  int32_t type_k;  // 0 float32, 1 float16
  int32_t type_v;
  void* abort_callback;
  void* abort_callback_data;
  bool embeddings;
  bool offload_kqv;
  bool no_perf;
  bool op_offload;
  bool swa_full;
  bool kv_unified;
  void* samplers;
  size_t n_samplers;
  void* ctx_other;
};

struct llama_batch {
  int32_t n_tokens;
  int32_t* token;
  float* embd;
  int32_t* pos;
  int32_t* n_seq_id;
  int32_t** seq_id;
  int8_t* logits;
};

struct ggml_threadpool_params {
  bool cpumask[512];
  int n_threads;
  int prio;
  uint32_t poll;
  bool strict_cpu;
  bool paused;
};

llama_model_params llama_model_default_params();
llama_context_params llama_context_default_params();
void llama_backend_init();
void llama_log_set(void (*callback)(int level, const char* text, void* data), void* data);
llama_model* llama_model_load_from_file(const char* path, llama_model_params params);
void llama_model_free(llama_model* model);
const llama_vocab* llama_model_get_vocab(const llama_model* model);
int32_t llama_vocab_n_tokens(const llama_vocab* vocab);
llama_context* llama_init_from_model(llama_model* model, llama_context_params params);
void llama_free(llama_context* context);
llama_memory* llama_get_memory(const llama_context* context);
void llama_memory_clear(llama_memory* memory, bool data);
llama_batch llama_batch_get_one(int32_t* tokens, int32_t n_tokens);
int32_t llama_decode(llama_context* context, llama_batch batch);
float* llama_get_logits_ith(llama_context* context, int32_t i);
size_t llama_state_seq_save_file(llama_context* context, const char* path, int32_t seq,
                                 const int32_t* tokens, size_t n_tokens);
size_t llama_state_seq_load_file(llama_context* context, const char* path, int32_t seq,
                                 int32_t* tokens, size_t n_max, size_t* n_tokens);
void llama_attach_threadpool(llama_context* context, ggml_threadpool* pool,
                             ggml_threadpool* batch_pool);
const char* llama_version();

void ggml_backend_load_all_from_path(const char* directory);
void* ggml_backend_dev_by_type(int type);
void* ggml_backend_dev_backend_reg(void* device);
void* ggml_backend_reg_get_proc_address(void* reg, const char* name);
ggml_threadpool_params ggml_threadpool_params_default(int n_threads);
}

namespace {

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "llama_driver: %s\n", message.c_str());
  std::exit(1);
}

/// llama.cpp's warnings and errors go to stderr, or all it says if LLAMA_DRIVER_VERBOSE is set.
/// `last_level` is an int of the caller's: a line's later parts have the level "continued".
void PrintWarnings(int level, const char* text, void* last_level) {
  constexpr int kWarn = 3, kContinued = 5;
  int& current = *static_cast<int*>(last_level);
  if (level != kContinued) current = level;
  if (current >= kWarn || std::getenv("LLAMA_DRIVER_VERBOSE") != nullptr) std::fputs(text, stderr);
}

int64_t Nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

double SecondsSince(int64_t start_ns) {
  return static_cast<double>(Nanoseconds(CLOCK_MONOTONIC) - start_ns) * 1e-9;
}

/// As k3's ProcessStartNanoseconds: to within one tick of 10 ms, on CLOCK_MONOTONIC.
int64_t ProcessStart() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  const int64_t start_ns = std::stoll(field) * (1'000'000'000LL / sysconf(_SC_CLK_TCK));
  return start_ns + Nanoseconds(CLOCK_MONOTONIC) - Nanoseconds(CLOCK_BOOTTIME);
}

int64_t PeakResidentBytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  Fail("/proc/self/status: expected a line VmHWM, found none");
}

/// Command line: COMMAND MODEL and pairs of `--name value`.
class Options {
 public:
  Options(int count, char** values) {
    if (count < 3) Fail("expected COMMAND MODEL; see the head of llama_driver.cc");
    command = values[1];
    model = values[2];
    for (int i = 3; i < count; i += 2) {
      if (i + 1 == count) Fail(std::string(values[i]) + ": expected a value");
      given_[values[i]] = values[i + 1];
    }
  }

  std::string Text(const std::string& name, const std::string& otherwise) const {
    const auto found = given_.find("--" + name);
    return found == given_.end() ? otherwise : found->second;
  }
  int Number(const std::string& name, int otherwise) const {
    return std::stoi(Text(name, std::to_string(otherwise)));
  }
  int Choice(const std::string& name, const std::string& otherwise,
             const std::map<std::string, int>& values) const {
    const auto found = values.find(Text(name, otherwise));
    if (found == values.end()) Fail("--" + name + ": unexpected value " + Text(name, otherwise));
    return found->second;
  }

  bool IsOn(const std::string& name) const {
    return Choice(name, "on", {{"off", 0}, {"on", 1}}) != 0;
  }

  std::string command, model;

 private:
  std::map<std::string, std::string> given_;
};

/// A wrong layout would read another field's default: each of these is at another place.
void CheckLayout(const llama_model_params& m, const llama_context_params& c) {
  const bool model_ok = m.n_gpu_layers == -1 && m.split_mode == 1 && m.load_mode == -1 &&
                        m.lazy_mode == 1 && m.use_extra_bufts && !m.vocab_only && !m.no_alloc;
  const bool context_ok = c.n_ctx == 512 && c.n_batch == 2048 && c.n_ubatch == 512 &&
                          c.n_seq_max == 1 && c.n_outputs_max_per_seq == 1 && c.n_threads == 4 &&
                          c.n_threads_batch == 4 && c.flash_attn_type == -1 &&
                          c.defrag_thold == -1.0f && c.type_k == 1 && c.type_v == 1 && c.no_perf &&
                          c.swa_full && !c.embeddings && c.n_samplers == 0;
  if (!model_ok || !context_ok) {
    Fail(std::string("llama.cpp ") + llama_version() +
         ": its default parameters are not those of the version that bench/package.json pins");
  }
}

/// The folder that libllama was loaded from; the kernels for each processor stand beside it.
std::string LibraryFolder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&llama_backend_init), &info) == 0) Fail("dladdr failed");
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/'));
}

/// A loaded model with one context of one sequence.
class Llama {
 public:
  Llama(const Options& options, int context_tokens) {
    llama_log_set(PrintWarnings, &log_level_);
    ggml_backend_load_all_from_path(LibraryFolder().c_str());
    llama_backend_init();
    llama_model_params model = llama_model_default_params();
    llama_context_params context = llama_context_default_params();
    CheckLayout(model, context);
    model.load_mode = options.Choice("load", "auto", {{"auto", -1}, {"none", 0}, {"mmap", 1}});
    model.use_extra_bufts = options.IsOn("repack");
    model_ = llama_model_load_from_file(options.model.c_str(), model);
    if (model_ == nullptr) Fail(options.model + ": llama.cpp cannot load it");
    // The memory is cut in blocks of 256 tokens.
    context.n_ctx = static_cast<uint32_t>((context_tokens + 255) / 256 * 256);
    context.n_batch = static_cast<uint32_t>(options.Number("batch", 2048));
    context.n_ubatch = static_cast<uint32_t>(options.Number("ubatch", 512));
    context.n_threads = context.n_threads_batch = options.Number("threads", 1);
    context.n_outputs_max = 1;
    context.flash_attn_type =
        options.Choice("flash", "auto", {{"auto", -1}, {"off", 0}, {"on", 1}});
    context.type_k = context.type_v = options.Choice("kv", "f16", {{"f32", 0}, {"f16", 1}});
    context_ = llama_init_from_model(model_, context);
    if (context_ == nullptr) Fail("llama.cpp cannot make a context");
    batch_ = static_cast<int>(context.n_batch);
    if (options.IsOn("pool")) AttachPool(context.n_threads);
  }

  int vocab_size() const { return llama_vocab_n_tokens(llama_model_get_vocab(model_)); }
  const float* logits() const { return llama_get_logits_ith(context_, -1); }
  void Clear() { llama_memory_clear(llama_get_memory(context_), true); }

  int32_t ArgMax() const {
    return static_cast<int32_t>(std::max_element(logits(), logits() + vocab_size()) - logits());
  }

  /// Returns when the last token's logits are there.
  void Run(std::vector<int32_t> tokens) {
    const int count = static_cast<int>(tokens.size());
    for (int done = 0; done < count; done += batch_) {
      llama_batch batch = llama_batch_get_one(&tokens[done], std::min(batch_, count - done));
      const int32_t code = llama_decode(context_, batch);
      if (code != 0) Fail("llama_decode ended with " + std::to_string(code));
    }
    logits();
  }

  void Save(const std::string& path, const std::vector<int32_t>& tokens) {
    if (llama_state_seq_save_file(context_, path.c_str(), 0, tokens.data(), tokens.size()) == 0) {
      Fail(path + ": llama.cpp cannot write the sequence");
    }
  }
  void Load(const std::string& path, int depth) {
    std::vector<int32_t> tokens(static_cast<size_t>(depth));
    size_t count = 0;
    if (llama_state_seq_load_file(context_, path.c_str(), 0, tokens.data(), tokens.size(),
                                  &count) == 0 ||
        count != tokens.size()) {
      Fail(path + ": llama.cpp cannot read a sequence of " + std::to_string(depth) + " tokens");
    }
  }

 private:
  /// Without a pool of its own llama.cpp starts its threads anew for every token.
  void AttachPool(int threads) {
    constexpr int kCpu = 0;
    void* reg = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(kCpu));
    using NewPool = ggml_threadpool* (*)(ggml_threadpool_params*);
    const auto new_pool =
        reinterpret_cast<NewPool>(ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_new"));
    if (new_pool == nullptr) Fail("llama.cpp has no function ggml_threadpool_new");
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    ggml_threadpool* pool = new_pool(&params);
    llama_attach_threadpool(context_, pool, pool);
  }

  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  int batch_ = 0;
  int log_level_ = 0;
};

std::vector<int32_t> RandomTokens(std::mt19937& random, int count, int vocab_size) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size));
  }
  return tokens;
}

std::string List(const std::vector<double>& values) {
  std::ostringstream text;
  for (const double& value : values) text << (&value == values.data() ? "" : ", ") << value;
  return "[" + text.str() + "]";
}

void Speed(const Options& options, int64_t start_ns) {
  const int prompt = options.Number("prompt", 512), gen = options.Number("gen", 64);
  const int depth = options.Number("depth", 0), repeats = options.Number("repeats", 1);
  Llama llama(options, depth + prompt + gen);
  std::mt19937 random(1);
  llama.Run(RandomTokens(random, 16, llama.vocab_size()));
  llama.ArgMax();
  const double first_token_s = SecondsSince(start_ns);
  std::vector<double> prefill, decode;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    llama.Clear();
    if (depth > 0) llama.Load(options.Text("state", ""), depth);
    const std::vector<int32_t> tokens = RandomTokens(random, prompt, llama.vocab_size());
    int64_t begin = Nanoseconds(CLOCK_MONOTONIC);
    llama.Run(tokens);
    prefill.push_back(prompt / SecondsSince(begin));
    begin = Nanoseconds(CLOCK_MONOTONIC);
    for (int i = 0; i < gen; ++i) llama.Run({llama.ArgMax()});
    decode.push_back(gen / SecondsSince(begin));
  }
  std::printf(
      "{\"version\": \"%s\", \"first_token_ms\": %g, \"prefill_tok_s\": %s, "
      "\"decode_tok_s\": %s, \"peak_rss_bytes\": %" PRId64 "}\n",
      llama_version(), first_token_s * 1e3, List(prefill).c_str(), List(decode).c_str(),
      PeakResidentBytes());
}

void Deepen(const Options& options) {
  const int depth = options.Number("depth", 0);
  Llama llama(options, depth);
  std::mt19937 random(1);
  const std::vector<int32_t> tokens = RandomTokens(random, depth, llama.vocab_size());
  const int64_t begin = Nanoseconds(CLOCK_MONOTONIC);
  llama.Run(tokens);
  std::printf("{\"prefill_tok_s\": %g}\n", depth / SecondsSince(begin));
  llama.Save(options.Text("state", ""), tokens);
}

void Logits(const Options& options) {
  std::vector<int32_t> tokens;
  std::istringstream ids(options.Text("tokens", ""));
  for (std::string id; std::getline(ids, id, ',');) tokens.push_back(std::stoi(id));
  if (tokens.empty()) Fail("--tokens: expected token ids, found none");
  Llama llama(options, static_cast<int>(tokens.size()));
  llama.Run(tokens);
  std::ofstream out(options.Text("out", ""), std::ios::binary);
  out.write(reinterpret_cast<const char*>(llama.logits()),
            static_cast<std::streamsize>(sizeof(float)) * llama.vocab_size());
  if (!out.flush()) Fail("--out: cannot write " + options.Text("out", ""));
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t start_ns = ProcessStart();
  const Options options(argc, argv);
  if (options.command == "speed") {
    Speed(options, start_ns);
  } else if (options.command == "deepen") {
    Deepen(options);
  } else if (options.command == "logits") {
    Logits(options);
  } else {
    Fail(options.command + ": expected speed, deepen or logits");
  }
  // Not the libraries' own clean-up: it would be timed by nobody and may wait for threads.
  std::fflush(stdout);
  std::_Exit(0);
}
