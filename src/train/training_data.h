#pragma once
// The data of a run: everything that a configuration names, read and encoded once, and what of it
// is held out.
//
// Without validation files of their own, text files give up their end: each is cut at the line that
// holds `fraction` of its bytes back, before it is encoded, and the ends together are one document
// (or as many as separator lines say).
// Of chat files the last conversations are held out, of synthetic tasks those that never occur in
// training.
// It is also given as text, so that `k3 eval --text` can measure what the run measures.
//
// Owns the ids. Failures name file and line (data/corpus_files.h), or say that nothing is left.

#include <string>

#include "base/status.h"
#include "data/corpus.h"
#include "sys/file.h"
#include "text/tokenizer.h"
#include "train/training_config.h"

namespace k3::train {

struct TrainingData {
  Corpus training;
  Corpus primer;      // of the first primer_steps; else empty
  Corpus validation;  // may be empty; text first, then conversations
  int64_t validation_text_tokens = 0;
  std::string validation_text;  // held out of text files; empty when there was nothing to cut
};

Result<TrainingData> LoadTrainingData(FileSystem& files, const Tokenizer& tokenizer,
                                      const TrainingConfig& config);

}  // namespace k3::train
