#include "data/corpus.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "data/chat_tasks.h"
#include "data/corpus_files.h"
#include "text/xtml_renderer.h"
#include "text/xtml_test_util.h"

namespace k3 {
namespace {

using Mask = std::vector<uint8_t>;

Corpus MakeCorpus(const std::vector<Ids>& documents) {
  Corpus corpus;
  for (const Ids& document : documents) corpus.AddDocument(document);
  return corpus;
}

Ids IdsOf(std::span<const int32_t> ids) { return {ids.begin(), ids.end()}; }

std::vector<Ids> Documents(const Corpus& corpus) {
  std::vector<Ids> documents;
  for (int64_t i = 0; i < corpus.documents_count(); ++i) {
    documents.push_back(IdsOf(corpus.Document(i)));
  }
  return documents;
}

Mask MaskOf(const Corpus& corpus) {
  Mask mask;
  for (int64_t i = 0; i < corpus.tokens_count(); ++i) mask.push_back(corpus.IsSupervised(i));
  return mask;
}

TEST(CorpusTest, KeepsDocumentsInOrder) {
  Corpus corpus = MakeCorpus({{5, 6}, {}, {7}});
  EXPECT_EQ(Documents(corpus), (std::vector<Ids>{{5, 6}, {7}}));
  EXPECT_EQ(corpus.tokens_count(), 3);
  EXPECT_EQ(corpus.DocumentStart(1), 2);
  EXPECT_EQ(corpus.CountSupervisedTargets(), 1);
  EXPECT_EQ(Corpus().documents_count(), 0);
  EXPECT_EQ(Corpus().CountSupervisedTargets(), 0);
}

TEST(CorpusTest, DocumentsWithoutMaskAreSupervisedBesideThoseWithOne) {
  Corpus corpus;
  corpus.AddDocument(Ids{1, 2});
  corpus.AddDocument(Ids{3, 4, 5}, Mask{1, 0, 1});
  corpus.AddDocument(Ids{6, 7});
  EXPECT_EQ(MaskOf(corpus), (Mask{1, 1, 1, 0, 1, 1, 1}));
  EXPECT_EQ(corpus.CountSupervisedTargets(), 3);  // 2, 5 and 7
}

TEST(CorpusTest, FingerprintTellsEveryDifference) {
  const Corpus corpus = MakeCorpus({{1, 2}, {3}});
  // FNV-1a in another language over the bytes of 2, 0, 2, 3 (64 bits) and 1, 2, 3 (32 bits).
  EXPECT_EQ(corpus.Fingerprint(), 0xA75299C9B0E87166u);
  EXPECT_EQ(corpus.Fingerprint(), MakeCorpus({{1, 2}, {3}}).Fingerprint());
  EXPECT_NE(corpus.Fingerprint(), MakeCorpus({{1}, {2, 3}}).Fingerprint());
  EXPECT_NE(corpus.Fingerprint(), MakeCorpus({{1, 2, 3}}).Fingerprint());
  EXPECT_NE(corpus.Fingerprint(), MakeCorpus({{3}, {1, 2}}).Fingerprint());
  EXPECT_NE(corpus.Fingerprint(), MakeCorpus({{1, 2}, {4}}).Fingerprint());
  Corpus masked = MakeCorpus({{1, 2}});
  masked.AddDocument(Ids{3}, Mask{1});
  EXPECT_EQ(corpus.Fingerprint(), masked.Fingerprint());
  Corpus other = MakeCorpus({{1, 2}});
  other.AddDocument(Ids{3}, Mask{0});
  EXPECT_NE(corpus.Fingerprint(), other.Fingerprint());
}

TEST(SplitDocumentsTest, ADocumentAtTheBorderGoesToTraining) {
  Corpus corpus = MakeCorpus({{1, 2}, {3, 4, 5, 6}});
  corpus.AddDocument(Ids{7, 8}, Mask{0, 1});
  Corpus training = MakeCorpus({{9}}), validation;
  SplitDocuments(corpus, 0.5, training, validation);
  EXPECT_EQ(Documents(training), (std::vector<Ids>{{9}, {1, 2}, {3, 4, 5, 6}}));
  EXPECT_EQ(Documents(validation), (std::vector<Ids>{{7, 8}}));
  EXPECT_EQ(MaskOf(validation), (Mask{0, 1}));
}

TEST(SplitDocumentsTest, HoldsBackTheLastTokensRoundedDown) {
  struct Case {
    size_t documents;
    double fraction;
    int64_t training;
  };
  for (const Case& one : {Case{10, 0.3, 7}, Case{10, 0.31, 7}, Case{10, 0.39, 7}, Case{10, 0.4, 6},
                          Case{100, 0.29, 71}, Case{100, 0.07, 93}, Case{2, 0.5, 1},
                          Case{3, 0.5, 2}, Case{10, 0.05, 10}, Case{10, 0.0, 10}}) {
    const Corpus corpus = MakeCorpus(std::vector<Ids>(one.documents, Ids{1}));
    Corpus training, validation;
    SplitDocuments(corpus, one.fraction, training, validation);
    EXPECT_EQ(training.documents_count(), one.training) << one.documents << " " << one.fraction;
    EXPECT_EQ(validation.documents_count(), static_cast<int64_t>(one.documents) - one.training);
  }
}

TEST(ValidationWindowsTest, CutsEachDocumentAsEvalDoes) {
  for (int64_t tokens = 1; tokens <= 40; ++tokens) {
    for (int64_t context = 2; context <= 12; ++context) {
      const Corpus corpus = MakeCorpus({{7, 7, 7}, Ids(static_cast<size_t>(tokens), 1)});
      int64_t predictions = 0;
      int64_t last_end = 3;
      for (const TokenWindow& window : ValidationWindows(corpus, context)) {
        if (window.begin < 3) {
          EXPECT_LE(window.end, 3);
          continue;
        }
        EXPECT_EQ(window.begin, last_end);
        last_end = window.end;
        predictions += window.end - window.begin - 1;
      }
      // What MeasurePerplexity counts for a text of so many tokens.
      const int64_t rest = tokens % context;
      EXPECT_EQ(predictions, tokens / context * (context - 1) + std::max<int64_t>(rest - 1, 0));
    }
  }
}

TEST(ValidationWindowsTest, LeavesOutWindowsWithNothingToPredict) {
  Corpus corpus;
  corpus.AddDocument(Ids{1, 2, 3, 4, 5, 6}, Mask{0, 0, 1, 0, 0, 1});
  // The first window predicts 2, the second 4, the last 6.
  EXPECT_EQ(ValidationWindows(corpus, 2), (std::vector<TokenWindow>{{4, 6}}));
  EXPECT_EQ(ValidationWindows(corpus, 3), (std::vector<TokenWindow>{{0, 3}, {3, 6}}));
}

/// Files in a directory that goes away again, and the tokenizer of models/kjv.
class CorpusFilesTest : public XtmlTest {
 protected:
  CorpusFilesTest() : XtmlTest(K3_SOURCE_DIR "/models/kjv") {
    std::filesystem::create_directories(directory_);
  }
  ~CorpusFilesTest() override { std::filesystem::remove_all(directory_); }

  std::string Write(const std::string& name, std::string_view content) const {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  Ids Encode(std::string_view text) const { return *tokenizer.Encode(text); }

  Status AddText(const std::string& path, const TextFileOptions& options = {}) {
    return AddTextFile(*files_, tokenizer, path, options, corpus_);
  }
  Status AddChats(const std::string& path) {
    return AddChatFile(*files_, tokenizer, path, corpus_);
  }

  const std::string directory_ = testing::TempDir() + "k3_corpus_files_" + std::to_string(getpid());
  const std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  Corpus corpus_;
};

TEST_F(CorpusFilesTest, AFileIsADocument) {
  const std::string text = "In the beginning\n\nGod created\n";
  ASSERT_TRUE(AddText(Write("a.txt", text)).ok());
  ASSERT_TRUE(AddText(Write("b.txt", "x"), {.bos_id = 1952, .eos_id = 1953}).ok());
  Ids framed = {1952};
  Add("x", framed);
  framed.push_back(1953);
  EXPECT_EQ(Documents(corpus_), (std::vector<Ids>{Encode(text), framed}));
}

TEST_F(CorpusFilesTest, SeparatorsMakeDocuments) {
  const std::string path = Write("a.txt", "\none\ntwo\n\n\r\n\nthree\r\n\nfour");
  ASSERT_TRUE(AddText(path, {.separator = "", .eos_id = 7}).ok());
  std::vector<Ids> expected = {Encode("one\ntwo\n"), Encode("three\r\n"), Encode("four")};
  for (Ids& ids : expected) ids.push_back(7);
  EXPECT_EQ(Documents(corpus_), expected);

  corpus_ = Corpus();
  ASSERT_TRUE(AddText(Write("b.txt", "one\n\n%\ntwo %\n%\n"), {.separator = "%"}).ok());
  EXPECT_EQ(Documents(corpus_), (std::vector<Ids>{Encode("one\n\n"), Encode("two %\n")}));
}

TEST_F(CorpusFilesTest, TextErrorsNameFileAndLine) {
  EXPECT_EQ(AddText(directory_ + "/none.txt").code(), StatusCode::kNotFound);
  const std::string bad = Write("bad.txt",
                                "one\ntwo\nthr\xFF"
                                "ee\n");
  EXPECT_EQ(AddText(bad).message(),
            bad +
                ":3: expected UTF-8, found the byte 0xFF at offset 11; convert the file, for "
                "example with iconv");
  const std::string empty = Write("empty.txt", "");
  EXPECT_EQ(AddText(empty).message(), empty + ": expected text, found an empty file");
  const std::string blank = Write("blank.txt", "\n\n");
  EXPECT_EQ(AddText(blank, {.separator = ""}).message(),
            blank + ": expected text, found separators alone");
  EXPECT_EQ(corpus_.documents_count(), 0);
}

TEST_F(CorpusFilesTest, ChatErrorsNameFileAndLine) {
  const std::string good = R"({"messages": [{"role": "assistant", "content": "yes"}]})";
  const auto message = [&](std::string_view line) {
    const std::string path = Write("c.jsonl", good + "\n\n" + std::string(line) + "\n");
    const std::string text = AddChats(path).message();
    EXPECT_TRUE(text.starts_with(path + ":3")) << text;
    return text.substr(path.size() + 2);
  };
  EXPECT_EQ(message(R"({"messages": [{"role": "user", "content": "hello"}]})"),
            ": messages: expected an assistant's message to learn from, found none");
  EXPECT_NE(message(R"({"messages": [{"role": "cook"}]})").find("messages[0].role"),
            std::string::npos);
  EXPECT_FALSE(message("{\"messages\": [").empty());
  EXPECT_NE(message(R"({"messages": [{"role": "tool", "content": "1"}]})")
                .find("messages[0]: expected the result of a tool call"),
            std::string::npos);
  EXPECT_NE(message("\"\xFE\"").find("expected UTF-8"), std::string::npos);
  EXPECT_NE(message("\"" + std::string(16 << 20, 'x') + "\"").find("expected a line of at most"),
            std::string::npos);
  const std::string blank = Write("blank.jsonl", "\r\n \n");
  EXPECT_EQ(AddChats(blank).message(),
            blank + ": expected a chat request a line, found blank lines alone");
  EXPECT_EQ(AddChats(directory_ + "/none.jsonl").code(), StatusCode::kNotFound);
}

TEST_F(CorpusFilesTest, OnlyWhatAnAssistantWroteIsSupervised) {
  // Two assistant's turns, tools, arguments that are no JSON, and an open answer that is not shown.
  std::string lines = R"({"messages": [{"role": "system", "content": "Be kind."},)"
                      R"({"role": "user", "content": "one"},)"
                      R"({"role": "assistant", "reasoning_content": "hm", "content": "two"},)"
                      R"({"role": "user", "content": "three"},)"
                      R"({"role": "assistant", "tool_calls": [)"
                      R"({"id": "a", "function": {"name": "f", "arguments": "{\"x\": 1}"}},)"
                      R"({"id": "b", "function": {"name": "g", "arguments": "{broken"}}]},)"
                      R"({"role": "tool", "tool_call_id": "a", "content": "four"}],)"
                      R"("tools": [{"name": "f"}], "add_generation_prompt": true})"
                      "\n";
  for (int64_t n = 0; n < 200; ++n) {
    lines += TaskLine(TaskGenerator(1, TaskSplit::kTraining).Make(n));
  }
  ASSERT_TRUE(AddChats(Write("c.jsonl", lines)).ok());
  ASSERT_EQ(corpus_.documents_count(), 201);

  std::string_view rest = lines;
  for (int64_t i = 0; i < corpus_.documents_count(); ++i) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() + 1);
    Result<ChatRequest> request = ParseChatRequest(*ParseJson(line, "line"), "line");
    ASSERT_TRUE(request.ok()) << request.status().ToString();
    request->add_generation_prompt = false;
    const std::vector<XtmlSegment> segments = *RenderXtml(*request);
    EXPECT_EQ(IdsOf(corpus_.Document(i)), *EncodeXtml(tokenizer, segments));
    std::string expected[2];
    for (const XtmlSegment& segment : segments) expected[segment.is_answer] += segment.text;
    std::string found[2];
    for (int64_t place = corpus_.DocumentStart(i); place < corpus_.DocumentStart(i + 1); ++place) {
      found[corpus_.IsSupervised(place)] +=
          tokenizer.TokenBytes(corpus_.ids()[static_cast<size_t>(place)]);
    }
    EXPECT_EQ(found[0], expected[0]);
    EXPECT_EQ(found[1], expected[1]);
    if (i > 0) continue;
    EXPECT_EQ(found[1].find("broken"), std::string::npos);
    EXPECT_EQ(found[1].substr(0, 41), "<|open|>think<|sep|>hm<|close|>think<|sep");
  }
}

TEST_F(CorpusFilesTest, TheSupervisedIdsAreTheAnswerToTheParser) {
  const TaskGenerator generator(3, TaskSplit::kHeldOut);
  for (int64_t n = 0; n < 200; ++n) {
    const ChatTask task = generator.Make(n);
    corpus_ = Corpus();
    ASSERT_TRUE(AddChat(tokenizer, TaskLine(task), "task", corpus_).ok());
    // Each run of supervised ids is what one assistant's message was generated as.
    std::vector<Ids> runs;
    bool before = false;
    for (int64_t place = 0; place < corpus_.tokens_count(); ++place) {
      const bool supervised = corpus_.IsSupervised(place);
      if (supervised && !before) runs.emplace_back();
      if (supervised) runs.back().push_back(corpus_.ids()[static_cast<size_t>(place)]);
      before = supervised;
    }
    ASSERT_EQ(runs.size(), task.call.has_value() ? 2 : 1);
    for (Ids& run : runs) {
      EXPECT_EQ(run.back(), *tokenizer.SpecialId("<|end_of_msg|>"));
      run.pop_back();
    }
    EXPECT_EQ(ParseXtml(tokenizer, markers, {}, runs.back()).content, task.answer);
    if (!task.call.has_value()) continue;
    const ParsedAnswer first = ParseXtml(tokenizer, markers, {}, runs.front());
    ASSERT_EQ(first.tool_calls.size(), 1);
    EXPECT_EQ(first.tool_calls[0].name, task.call->name);
    EXPECT_EQ(first.tool_calls[0].arguments, DumpJson(JsonValue(task.call->arguments)));
  }
}

}  // namespace
}  // namespace k3
