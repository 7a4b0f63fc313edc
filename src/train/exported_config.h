#pragma once
// The config.json of an exported checkpoint: the one that was trained from, with what training
// decides. Text in, text out; unchanged to the byte where nothing has to change. Failures are those
// of ParseModelConfig, for a text that is no configuration.

#include <string>
#include <string_view>

#include "base/status.h"
#include "text/tokenizer.h"

namespace k3::train {

/// With the official quantization_config when the experts are MXFP4, without one when they are not:
/// other programs look for tensors by it.
Result<std::string> WithQuantization(std::string_view config_json, bool quantised);

/// With the ids that the tokenizer has for [BOS], <|end_of_msg|> and [PAD] in bos_token_id,
/// eos_token_id and pad_token_id, wherever these stand and name others; so that an answer's end is
/// known as such.
Result<std::string> WithTokenizerIds(std::string_view config_json, const Tokenizer& tokenizer);

}  // namespace k3::train
