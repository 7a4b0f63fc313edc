#include "sampling_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <string_view>

#include "config/json.h"
#include "number_check.h"

namespace k3::cli {
namespace {

// The model card's choice for single-turn tasks, where the checkpoint does not say.
constexpr float kCardTemperature = 1.0f;
constexpr float kCardTopP = 0.95f;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr NumberRange kFiniteFromZero = {[](float x) { return x >= 0 && x < kInfinity; },
                                         "a finite number from 0"};
constexpr NumberRange kFiniteAboveZero = {[](float x) { return x > 0 && x < kInfinity; },
                                          "a finite number above 0"};
constexpr NumberRange kProbability = {[](float x) { return x >= 0 && x <= 1; },
                                      "a number from 0 to 1"};
constexpr NumberRange kProbabilityAboveZero = {[](float x) { return x > 0 && x <= 1; },
                                               "a number above 0 and at most 1"};
constexpr NumberRange kCountPenalty = {
    [](float x) { return x >= -kCountPenaltyMax && x <= kCountPenaltyMax; },
    "a number from -2 to 2"};

/// ID=BIAS; nothing for anything else.
std::optional<LogitBias> ParseLogitBias(std::string_view text) {
  const size_t sign = text.find('=');
  if (sign == std::string_view::npos) return std::nullopt;
  const std::optional<uint64_t> id = ParseWholeNumber(text.substr(0, sign));
  const std::optional<float> bias = ParseNumber(text.substr(sign + 1));
  if (!id.has_value() || *id > std::numeric_limits<int32_t>::max()) return std::nullopt;
  if (!bias.has_value() || !(*bias >= -kLogitBiasMax && *bias <= kLogitBiasMax)) {
    return std::nullopt;
  }
  return LogitBias{static_cast<int32_t>(*id), *bias};
}

CLI::Validator IsLogitBias() {
  const auto check = [](const std::string& text) -> std::string {
    if (ParseLogitBias(text).has_value()) return "";
    return fmt::format(
        "expected ID=BIAS with a token id from 0 and a bias from -100 to 100, found {}",
        QuoteForMessage(text));
  };
  return CLI::Validator(check, "");
}

CLI::Validator IsStopString() {
  const auto check = [](const std::string& text) -> std::string {
    if (!text.empty() && std::ssize(text) <= kStopStringBytesMax) return "";
    return fmt::format("expected 1 to {} bytes of text, found {}", kStopStringBytesMax,
                       text.size());
  };
  return CLI::Validator(check, "");
}

void AddDistributionFlags(CLI::App& command, SamplingFlags& flags) {
  command
      .add_option("--temperature", flags.temperature,
                  "Flattens (above 1) or sharpens (below 1) the choice; 0 takes the best token. "
                  "Default: generation_config.json, else 1.")
      ->transform(Number(kFiniteFromZero))
      ->type_name("X");
  command
      .add_option("--top-k", flags.top_k,
                  "Draws from the K best tokens; 0: from all. Default: generation_config.json, "
                  "else 0.")
      ->transform(WholeNumber(INT64_MAX))
      ->type_name("K");
  command
      .add_option("--top-p", flags.top_p,
                  "Draws from the best tokens that together reach this probability. Default: "
                  "generation_config.json, else 0.95.")
      ->transform(Number(kProbabilityAboveZero))
      ->type_name("P");
  command
      .add_option("--min-p", flags.min_p,
                  "Drops tokens with less than this share of the best one's probability.")
      ->transform(Number(kProbability))
      ->type_name("P")
      ->capture_default_str();
  command.add_flag("--greedy", flags.greedy, "Takes the best token each time: temperature 0.")
      ->excludes("--temperature");
  command
      .add_option("--seed", flags.seed,
                  "The same seed, prompt and options give the same text, on every machine.")
      ->transform(WholeNumber(UINT64_MAX))
      ->type_name("N")
      ->capture_default_str();
}

void AddAdjustmentFlags(CLI::App& command, SamplingFlags& flags) {
  command
      .add_option("--repetition-penalty", flags.repetition_penalty,
                  "Above 1 makes tokens of the prompt and the answer less likely to come again: "
                  "positive logits are divided by it, others multiplied. 1: off.")
      ->transform(Number(kFiniteAboveZero))
      ->type_name("X")
      ->capture_default_str();
  command
      .add_option("--presence-penalty", flags.presence_penalty,
                  "Taken off the logits of tokens that the answer holds; -2 to 2.")
      ->transform(Number(kCountPenalty))
      ->type_name("X")
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", flags.frequency_penalty,
                  "Taken off the logits of tokens for each time that the answer holds them; -2 to "
                  "2.")
      ->transform(Number(kCountPenalty))
      ->type_name("X")
      ->capture_default_str();
  command
      .add_option("--logit-bias", flags.logit_bias,
                  "Adds to the logit of a token id, -100 (never) to 100 (always); may be given "
                  "more than once.")
      ->check(IsLogitBias())
      ->type_name("ID=BIAS")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void AddStopFlag(CLI::App& command, SamplingFlags& flags) {
  // A function gets the words as they are; a list of strings would take {} and [a,b] for lists.
  const CLI::callback_t take = [&flags](const CLI::results_t& words) {
    flags.stops = words;
    return true;
  };
  command
      .add_option("--stop", take,
                  "Ends before this text, taken as it is, when it comes up; may be given more than "
                  "once. An answer in chat form ends where its response has it.")
      ->check(IsStopString())
      ->type_name("TEXT")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace

void AddSamplingFlags(CLI::App& command, SamplingFlags& flags) {
  AddDistributionFlags(command, flags);
  AddAdjustmentFlags(command, flags);
  AddStopFlag(command, flags);
}

Result<SamplingOptions> ChooseSampling(const SamplingFlags& flags,
                                       const GenerationConfig& defaults) {
  SamplingOptions sampling;
  sampling.temperature =
      flags.temperature.value_or(defaults.temperature.value_or(kCardTemperature));
  sampling.top_p = flags.top_p.value_or(defaults.top_p.value_or(kCardTopP));
  sampling.top_k = flags.top_k.value_or(defaults.top_k.value_or(0));
  sampling.min_p = flags.min_p;
  sampling.repetition_penalty = flags.repetition_penalty;
  sampling.presence_penalty = flags.presence_penalty;
  sampling.frequency_penalty = flags.frequency_penalty;
  sampling.seed = flags.seed;
  if (flags.greedy) sampling.temperature = 0;
  for (const std::string& text : flags.logit_bias) {
    const std::optional<LogitBias> entry = ParseLogitBias(text);
    if (!entry.has_value()) {
      return InvalidArgument(
          fmt::format("--logit-bias: expected ID=BIAS, found {}", QuoteForMessage(text)));
    }
    sampling.logit_bias.push_back(*entry);
  }
  K3_RETURN_IF_ERROR(sampling.Validate());
  return sampling;
}

Result<StopMatcher> MakeStopMatcher(const SamplingFlags& flags) {
  Result<StopMatcher> matcher = StopMatcher::Create(flags.stops);
  if (!matcher.ok()) return matcher.status().WithContext("--stop");
  return matcher;
}

}  // namespace k3::cli
