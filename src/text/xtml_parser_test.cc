#include "text/xtml_parser.h"

#include <algorithm>
#include <functional>
#include <sstream>

#include "text/random_text.h"
#include "text/xtml_test_util.h"

namespace k3 {
namespace {

class XtmlParserTest : public XtmlTest {
 protected:
  XtmlParserTest() : XtmlTest(K3_SOURCE_DIR "/models/kjv") {}
};

TEST_F(XtmlParserTest, ReadsAnOrdinaryAnswer) {
  EXPECT_EQ(Show("Let me see.</think><response>Hi!</response></message><|end_of_msg|>"),
            "think(Let me see.) response(Hi!)");
  EXPECT_EQ(ShowFromResponse("Hi!</response></message><|end_of_msg|>"), "response(Hi!)");
  EXPECT_EQ(Show("Two calls.</think><response>Wait.</response><tools>"
                 "<call tool=\"weather\" index=\"1\">"
                 "<argument key=\"city\" type=\"string\">Oslo</argument>"
                 "<argument key=\"days\" type=\"number\">2</argument></call>"
                 "<call tool=\"time\" index=\"2\"></call></tools></message><|end_of_msg|>"),
            "think(Two calls.) response(Wait.) weather{\"city\": \"Oslo\", \"days\": 2} time{}");
  EXPECT_EQ(Show("</think><response></response></message><|end_of_msg|>"), "");
  EXPECT_EQ(Show(""), "");
}

TEST_F(XtmlParserTest, ReadsAWholeMessage) {
  const std::string_view whole =
      "<message role=\"assistant\"><think>a</think><response>b</response>"
      "<tools><call tool=\"f\"></call></tools></message><|end_of_msg|>";
  EXPECT_EQ(Show(whole), "think(a) response(b) f{}");
  EXPECT_EQ(ShowFromResponse(whole), "think(a) response(b) f{}");
  // What vanishes does not make it late; a missing separator does not matter.
  EXPECT_EQ(Show("<[BOS]><message role=\"assistant\"><response>b</response>"), "response(b)");
  EXPECT_EQ(Show("<|open|>message role=\"assistant\"<|open|>think<|sep|>a"), "think(a)");
  // Behind other ids it starts a message of somebody else.
  EXPECT_EQ(Show("a<message role=\"user\">b<response>c"), "think(a)");
  EXPECT_EQ(Show("<|sep|><message role=\"user\"><response>c"), "");
}

TEST_F(XtmlParserTest, ForgivesTheEndOfThinking) {
  for (const char* end :
       {"</think><response>", "<response>", "</response><response>", "<|close|><|sep|><response>",
        "<|close|>think<|open|>response<|sep|>", "<|open|>response<|sep|>", "</think>x<response>",
        "</think></think><response>", "<|close|><|open|>response<|sep|>",
        "<think></think><|sep|><response>",
        "</tools></call></argument></json></think><response>"}) {
    EXPECT_EQ(Show(fmt::format("a{}b</response></message><|end_of_msg|>", end)),
              "think(a) response(b)")
        << end;
  }
  for (const char* end : {"", "<|end_of_msg|>", "</message>", "</message><|end_of_msg|>",
                          "</response></message>", "</think>b", "<tools>b", "<|close|><|sep|>b"}) {
    EXPECT_EQ(Show(fmt::format("a{}", end)), "think(a)") << end;
  }
  EXPECT_EQ(Show("a<tools><call tool=\"f\"></call></tools>"), "think(a) f{}");
}

TEST_F(XtmlParserTest, ForgivesTheEndOfTheResponse) {
  for (const char* end : {"", "<|end_of_msg|>", "</message>", "</response>", "</response>c",
                          "<tools>c</tools>", "<|close|><|sep|>c", "<|close|>response<|close|>c",
                          "<|close|>response<|end_of_msg|>", "</message>c<response>c"}) {
    EXPECT_EQ(ShowFromResponse(fmt::format("b{}", end)), "response(b)") << end;
  }
  EXPECT_EQ(ShowFromResponse("b</response>x<response>c"), "response(bc)");
  EXPECT_EQ(ShowFromResponse("b<response>c</think>d"), "response(bcd)");
  // Thinking that starts inside the response ends inside it.
  EXPECT_EQ(ShowFromResponse("b<think>a</think>c</response>d"), "think(a) response(bc)");
  EXPECT_EQ(ShowFromResponse("<think>a</think><response>c</response>d"), "think(a) response(c)");
  EXPECT_EQ(ShowFromResponse("b<think>a<think>a</think>c"), "think(aa) response(bc)");
  EXPECT_EQ(ShowFromResponse("b<think>a</response>d"), "think(a) response(b)");
  EXPECT_EQ(ShowFromResponse("b<think>a<|close|><|sep|>c"), "think(a) response(bc)");
  EXPECT_EQ(ShowFromResponse("b</response><think>a</think>c"), "think(a) response(b)");
}

TEST_F(XtmlParserTest, WordsAreNoTags) {
  EXPECT_EQ(Show("I think the response calls tools: message."),
            "think(I think the response calls tools: message.)");
  // Spelt markers are text, too.
  Ids ids = *tokenizer.Encode("<|close|>think<|sep|>");
  EXPECT_EQ(ShowAnswer(ParseXtml(tokenizer, markers, {}, ids)), "think(<|close|>think<|sep|>)");
}

TEST_F(XtmlParserTest, UnknownTagsLeaveTheirText) {
  EXPECT_EQ(Show("a<b c=\"d\">e</b>f"), "think(ab c=\"d\"ebf)");
  EXPECT_EQ(ShowFromResponse("a<thinking>b</Think>c"), "response(athinkingbThinkc)");
  EXPECT_EQ(ShowFromResponse("a<|open|>b<|open|>c<|close|><|close|>d<|sep|><|sep|>e"),
            "response(abcde)");
  EXPECT_EQ(ShowFromResponse("a<|open|>b"), "response(ab)");
  EXPECT_EQ(ShowFromResponse("a<|open|><|sep|>b<|open|> <|sep|>c<|close|> x<|sep|>d"),
            "response(ab c xd)");
  EXPECT_EQ(ShowCall("<b><argument key=\"a\" type=\"string\">x<b>y</b>z</argument></b>"),
            "f{\"a\": \"xbybz\"}");
  EXPECT_EQ(ShowCall("<argument key=\"a\" type=\"number\">1<b>2</argument>"), "f{\"a\": \"1b2\"}");
}

TEST_F(XtmlParserTest, ATagWithoutSeparatorLeavesWhatFollows) {
  EXPECT_EQ(ShowFromResponse("<|close|>response<|open|>tools<|open|>call tool=\"f\"<|open|>"
                             "argument key=\"a\" type=\"string\"Oslo &amp;<|close|>argument"
                             "<|close|>call<|close|>tools<|end_of_msg|>"),
            "f{\"a\": \"Oslo &amp;\"}");
  EXPECT_EQ(Show("<call tool=\"f\"><|open|>argument key=\"a\" type=\"string\"b=\"c\"</call>"),
            R"(f{"a": "b=\"c\""})");
  EXPECT_EQ(Show("<|open|>response Hi \"there\"<|close|>response<|sep|>"),
            "response( Hi \"there\")");
  EXPECT_EQ(Show("<|close|>think Hi<|open|>response<|sep|>b"), "response(b)");
}

TEST_F(XtmlParserTest, TheEndOfTheIdsCompletesNoTag) {
  EXPECT_EQ(ShowFromResponse("a<|close|>respo"), "response(a)");
  EXPECT_EQ(ShowFromResponse("a<|close|>response"), "response(a)");
  EXPECT_EQ(ShowFromResponse("a<|open|>call tool=\"f\""), "response(a)");
  EXPECT_EQ(Show("<tools><call tool=\"f\"><|close|>call"), "cut:f");
  EXPECT_EQ(Show("<tools><call tool=\"f\"><|close|>call<|end_of_msg|>"), "f{}");
}

TEST_F(XtmlParserTest, NothingCountsAfterTheEndOfTheMessage) {
  EXPECT_EQ(ShowFromResponse("a<|end_of_msg|>b<response>c<tools><call tool=\"f\"></call>"),
            "response(a)");
  XtmlParser parser(tokenizer, markers, {});
  std::vector<XtmlEvent> events;
  EXPECT_FALSE(parser.ended());
  for (const int32_t id : Markup("a</message>")) parser.Feed(id, events);
  EXPECT_FALSE(parser.ended());
  parser.Feed(markers.end_of_message, events);
  EXPECT_TRUE(parser.ended());
}

TEST_F(XtmlParserTest, SaysWhenContentComes) {
  XtmlParser parser(tokenizer, markers, {});
  std::vector<XtmlEvent> events;
  const auto in_response = [&](std::string_view markup) {
    for (const int32_t id : Markup(markup)) parser.Feed(id, events);
    return parser.in_response();
  };
  EXPECT_FALSE(in_response("a"));
  EXPECT_FALSE(in_response("</think>"));
  EXPECT_FALSE(in_response("<|open|>response"));
  EXPECT_TRUE(in_response("<|sep|>"));
  EXPECT_TRUE(in_response("b"));
  EXPECT_FALSE(in_response("<|close|>"));
  EXPECT_TRUE(in_response("other"));
  EXPECT_FALSE(in_response("</response>"));
}

TEST_F(XtmlParserTest, TypesArguments) {
  const std::pair<const char*, const char*> cases[] = {
      {"\"string\">2", "\"2\""},
      {"\"string\">", "\"\""},
      {"\"string\"> a\"b\\c\n\t ", R"(" a\"b\\c\n\t ")"},
      {"\"string\">é世\x01\x7F", "\"é世\\u0001\x7F\""},
      {"\"number\">2", "2"},
      {"\"number\"> -1.50e+3\n", "-1.50e+3"},
      {"\"integer\">123456789012345678901234567890", "123456789012345678901234567890"},
      {"\"number\">1e999", "\"1e999\""},
      {"\"number\">NaN", "\"NaN\""},
      {"\"number\">01", "\"01\""},
      {"\"number\">1, 2", "\"1, 2\""},
      {"\"number\">1], [2", "\"1], [2\""},
      {"\"number\">", "\"\""},
      {"\"number\"> \n", "\" \\n\""},
      {"\"boolean\">true", "true"},
      {"\"boolean\">True", "\"True\""},
      {"\"null\">null", "null"},
      {"\"object\">{\"a\":  [1,\n2]}", "{\"a\":  [1,\n2]}"},
      {"\"object\">{\"a\": 1, \"a\": 2}", R"("{\"a\": 1, \"a\": 2}")"},
      {"\"object\">{\"a\": 1", R"("{\"a\": 1")"},
      {"\"array\">[1, \"é\"]", "[1, \"é\"]"},
      {"\"array\">\xEF\xBB\xBF[]", "\"\xEF\xBB\xBF[]\""},
      {"\"any\">\"x\"", "\"x\""},
      {"\"\">1", "1"},
      {"\"\">x", "\"x\""},
  };
  for (const auto& [argument, json] : cases) {
    EXPECT_EQ(ShowCall(fmt::format("<argument key=\"a\" type={}</argument>", argument)),
              fmt::format("f{{\"a\": {}}}", json));
  }
}

TEST_F(XtmlParserTest, KeepsTheNestingOfWholeArgumentsInBounds) {
  for (const int64_t depth : {int64_t{62}, int64_t{63}, int64_t{64}, int64_t{1000}}) {
    const std::string value = Repeat("[", depth) + Repeat("]", depth);
    const std::string shown =
        ShowCall(fmt::format("<argument key=\"a\" type=\"array\">{}</argument>", value));
    const char* quote = depth <= 63 ? "" : "\"";
    EXPECT_EQ(shown, fmt::format("f{{\"a\": {}{}{}}}", quote, value, quote));
  }
}

TEST_F(XtmlParserTest, TheSchemaTellsWhereNoTypeIsGiven) {
  const JsonValue tools = *ParseJson(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties":
            {"s": {"type": "string"}, "n": {"type": "number"}, "l": {"type": ["string"]}}}}},
          {"type": "function", "function": {"name": "f", "parameters": {"properties":
            {"n": {"type": "string"}}}}},
          1, {}, {"function": 1}, {"function": {"name": 1}}, {"function": {"name": "g"}},
          {"function": {"name": "h", "parameters": {"properties": [1]}}},
          {"function": {"name": "i", "parameters": {"properties": {"s": 1, "t": {"type": 1}}}}}])",
      "tools");
  EXPECT_EQ(ShowCall("<argument key=\"s\">1</argument><argument key=\"n\">1</argument>"
                     "<argument key=\"l\">1</argument><argument key=\"x\">1</argument>"
                     "<argument key=\"y\">one</argument>",
                     &tools),
            R"(f{"s": "1", "n": 1, "l": 1, "x": 1, "y": "one"})");
  // A type that is given counts, and without tools JSON is tried.
  EXPECT_EQ(ShowCall("<argument key=\"s\" type=\"number\">1</argument>", &tools), R"(f{"s": 1})");
  EXPECT_EQ(ShowCall("<argument key=\"s\">1</argument>"), R"(f{"s": 1})");
  const JsonValue no_array(int64_t{3});
  EXPECT_EQ(ShowCall("<argument key=\"s\">1</argument>", &no_array), R"(f{"s": 1})");
}

TEST_F(XtmlParserTest, UnescapesAttributes) {
  EXPECT_EQ(Show("<call tool=\"&quot;a&amp;quot;&lt;&amp;amp;\">"
                 "<argument key=\"&amp;&quot;\\\" type=\"&quot;\">1</argument></call>"),
            R"("a&quot;&lt;&amp;{"&\"\\": 1})");
  // The first of two attributes counts, and any order does.
  EXPECT_EQ(Show("<call index=\"1\"  tool=\"f\" tool=\"g\"><argument type=\"number\" x=\"\" "
                 "key=\"a\">1</argument></call>"),
            R"(f{"a": 1})");
  Ids ids = Markup("<|open|>call tool=\"");
  ids.push_back(0xE4);
  Add("\"", ids);
  for (const int32_t id : Markup("<|sep|></call>")) ids.push_back(id);
  EXPECT_EQ(ShowAnswer(Parse(ids)), "\uFFFD{}");
}

TEST_F(XtmlParserTest, CallsWithoutANameAreDropped) {
  for (const char* call : {"call", "call index=\"1\"", "call tool=\"\"", "call tool=f",
                           "call tool=\"f", "call tools=\"f\""}) {
    EXPECT_EQ(Show(fmt::format("<tools><{}><argument key=\"a\" type=\"string\">x</argument></call>"
                               "<call tool=\"g\"></call></tools>",
                               call)),
              "g{}")
        << call;
  }
}

TEST_F(XtmlParserTest, TheFirstOfTwoEqualKeysCounts) {
  EXPECT_EQ(ShowCall("<argument key=\"a\" type=\"number\">1</argument>"
                     "<argument key=\"a\" type=\"string\">x</argument>"
                     "<argument key=\"b\" type=\"number\">2</argument>"
                     "<argument key=\"a\" type=\"number\">3</argument>"),
            R"(f{"a": 1, "b": 2})");
  EXPECT_EQ(Show("<call tool=\"f\"><argument key=\"a\">1</argument></call>"
                 "<call tool=\"f\"><argument key=\"a\">2</argument></call>"),
            R"(f{"a": 1} f{"a": 2})");
  EXPECT_EQ(ShowCall("<argument key=\"\">1</argument><argument key=\"\">2</argument>"),
            R"(f{"": 1})");
}

TEST_F(XtmlParserTest, AnArgumentWithoutAKeyLeavesTheCallIncomplete) {
  EXPECT_EQ(ShowCall("<argument key=\"a\">1</argument><argument type=\"string\">x</argument>"
                     "<argument key=\"b\">2</argument>"),
            R"(cut:f{"a": 1, "b": 2)");
}

TEST_F(XtmlParserTest, JsonBlocks) {
  EXPECT_EQ(ShowCall("<json type=\"object\"> {\"a\":1 }\n</json>"), "f {\"a\":1 }\n");
  EXPECT_EQ(ShowCall("<json type=\"object\">{\"a\": oops</json>"), "f{\"a\": oops");
  EXPECT_EQ(ShowCall("<json></json>"), "f{}");
  EXPECT_EQ(ShowCall("<json> \n</json>"), "f{}");
  for (const char* other : {"[]", "1", "\"x\"", "null", " true "}) {
    EXPECT_EQ(ShowCall(fmt::format("<json>{}</json>", other)), "cut:f") << other;
  }
  // The first that comes counts, a block or arguments.
  EXPECT_EQ(ShowCall("<argument key=\"a\">1</argument><json>{\"b\": 2}</json>"), R"(f{"a": 1})");
  EXPECT_EQ(ShowCall("<json>{\"b\": 2}</json><argument key=\"a\">1</argument>"), R"(f{"b": 2})");
  EXPECT_EQ(ShowCall("<json>{\"b\": 2}</json><json>{}</json>"), R"(f{"b": 2})");
  EXPECT_EQ(Show("<call tool=\"f\"><json>{\"b\": 2}</call>"), R"(f{"b": 2})");
  EXPECT_EQ(Show("<call tool=\"f\"><json>{\"b\": 2}"), "cut:f");
  EXPECT_EQ(Show("<call tool=\"f\"><json>1</json></call><call tool=\"g\"></call>"), "cut:f g{}");
}

TEST_F(XtmlParserTest, OnlyItsEndCompletesACall) {
  const std::string call = "<tools><call tool=\"f\"><argument key=\"a\" type=\"string\">x";
  for (const char* end : {"</argument></call>", "</call>", "<|close|><|sep|><|close|><|sep|>",
                          "</json></call>", "<|close|>argument<|close|>call<|end_of_msg|>"}) {
    EXPECT_EQ(Show(call + end), R"(f{"a": "x"})") << end;
  }
  for (const char* end :
       {"</argument>", "</argument></tools>", "</argument></message>", "</argument><|end_of_msg|>",
        "</argument><|close|>call", "</argument></tools></call>", "</argument><response></call>"}) {
    EXPECT_EQ(Show(call + end), R"(cut:f{"a": "x")") << end;
  }
  for (const char* end : {"", "</tools>", "</message>", "<|end_of_msg|>", "</tools></call>"}) {
    EXPECT_EQ(Show(call + end), R"(cut:f{"a": "x)") << end;
  }
  EXPECT_EQ(Show(call + "</argument><call tool=\"g\"></call></call>"), R"(cut:f{"a": "x" g{})");
  EXPECT_EQ(Show(call + "<call tool=\"g\"></call>"), R"(cut:f{"a": "x g{})");
  EXPECT_EQ(Show(call + "<call></call><call tool=\"g\"></call>"), R"(cut:f{"a": "x g{})");
  // An argument that was not closed is when the next one opens.
  EXPECT_EQ(Show(call + "<argument key=\"b\">1</call>"), R"(f{"a": "x", "b": 1})");
  EXPECT_EQ(Show("<call tool=\"f\"><argument key=\"a\">1<argument key=\"b\">2</call>"),
            R"(f{"a": 1, "b": 2})");
  // A value that is held shows only when it is closed.
  EXPECT_EQ(Show("<call tool=\"f\"><argument key=\"a\">1"), "cut:f");
}

TEST_F(XtmlParserTest, CallsNeedNoToolsSection) {
  for (const char* before : {"", "</think>", "<response>", "</think><response></response>",
                             "<tools>", "<tools><tools>", "<tools></tools>"}) {
    EXPECT_EQ(Show(fmt::format("{}<call tool=\"f\"></call>x<call tool=\"g\"></call>", before)),
              "f{} g{}")
        << before;
  }
}

TEST_F(XtmlParserTest, OtherIdsVanishEverywhere) {
  const Ids ids = Markup(
      "a<1>b</think><response>c</response><tools><call tool=\"f\"><argument key=\"a\" "
      "type=\"string\">d<0><1><2></argument></call></tools></message><|end_of_msg|>");
  const ParsedAnswer expected = Parse(ids);
  for (const int32_t extra : {-1, INT32_MIN, INT32_MAX, 2048, 2047, 1952, 1953, 1960}) {
    Ids more = {extra};
    for (const int32_t id : ids) more.insert(more.end(), {id, extra});
    EXPECT_EQ(Parse(more), expected) << extra;
  }
  EXPECT_EQ(ShowAnswer(expected), "think(a\uFFFDb) response(c) f{\"a\": \"d世\"}");
}

TEST_F(XtmlParserTest, MakesUtf8OfEveryRun) {
  EXPECT_EQ(Show("a<0><1><2>b"), "think(a世b)");
  EXPECT_EQ(Show("a<0><1></think><2>"), "think(a\uFFFD)");
  EXPECT_EQ(Show("a<0><1>"), "think(a\uFFFD)");
  EXPECT_EQ(Show("a<0><1><|sep|><2>"), "think(a\uFFFD\uFFFD)");
  EXPECT_EQ(Show("a<0><|open|><1><2><|sep|>"), "think(a\uFFFD\uFFFD\uFFFD)");
  EXPECT_EQ(Show("a<|open|>b<0><1><2>c<0><|sep|><1>"), "think(ab世c\uFFFD\uFFFD)");
  EXPECT_EQ(Show("<|open|>think a<0><|open|><1><2><|sep|>"), "think( a\uFFFD\uFFFD\uFFFD)");
  EXPECT_EQ(Show("a<0><response><1>"), "think(a\uFFFD) response(\uFFFD)");
  EXPECT_EQ(ShowCall("<argument key=\"a\" type=\"string\">x<0></argument>"
                     "<argument key=\"b\" type=\"number\">\"<0><1><2>\"</argument>"
                     "<argument key=\"c\" type=\"number\">\"<0><1>\"</argument>"),
            "f{\"a\": \"x\uFFFD\", \"b\": \"世\", \"c\": \"\uFFFD\"}");
}

TEST_F(XtmlParserTest, StreamsTextAsItComes) {
  XtmlParser parser(tokenizer, markers, {});
  const auto feed = [&](const Ids& ids) {
    std::vector<XtmlEvent> events;
    for (const int32_t id : ids) parser.Feed(id, events);
    std::string text;
    for (const XtmlEvent& event : events) {
      text += fmt::format("{}:{}:{};", static_cast<int>(event.kind), event.call, event.text);
    }
    return text;
  };
  EXPECT_EQ(feed({'a'}), "0:0:a;");
  EXPECT_EQ(feed({0xE4, 0xB8}), "");
  EXPECT_EQ(feed({0x96}), "0:0:世;");
  EXPECT_EQ(feed(Markup("<call tool=\"f\"></call>")), "2:0:f;3:0:{};4:0:;");
  EXPECT_EQ(feed(Markup("<call tool=\"g\">")), "2:1:g;");
  EXPECT_EQ(feed(Markup("<argument key=\"a\" type=\"string\">")), "3:1:{\"a\": \";");
  EXPECT_EQ(feed({'x', '"'}), "3:1:x;3:1:\\\";");
  EXPECT_EQ(feed(Markup("</argument>")), "3:1:\";");
  EXPECT_EQ(feed(Markup("<argument key=\"b\" type=\"number\">12")), "");
  EXPECT_EQ(feed(Markup("</argument>")), "3:1:, \"b\": 12;");
  EXPECT_EQ(feed(Markup("</call>")), "3:1:};4:1:;");
  EXPECT_EQ(feed(Markup("<response>")), "");
  // A marker by mistake holds nothing back once no known tag can come of it.
  EXPECT_EQ(feed(Ids{markers.open, 'c', 'a'}), "");
  EXPECT_EQ(feed({'t'}), "1:0:cat;");
  EXPECT_EQ(feed({'s'}), "1:0:s;");
  EXPECT_EQ(feed(Ids{markers.sep, markers.close, 't', 'h', 'i', 'n', 'k'}), "");
  EXPECT_EQ(feed({'s'}), "1:0:thinks;");
}

/// The place where a parser is, by what comes of more ids. Text in a json block shows late, so the
/// caller says whether one may be open.
std::string FindPlace(XtmlParser parser, bool may_be_block,
                      const std::function<Ids(std::string_view)>& markup) {
  std::vector<XtmlEvent> events;
  const auto feed = [&](std::string_view text) {
    for (const int32_t id : markup(text)) parser.Feed(id, events);
    return !events.empty();
  };
  if (feed("x")) {
    return events[0].kind == XtmlEvent::Kind::kReasoning ? "think"
           : events[0].kind == XtmlEvent::Kind::kContent ? "response"
                                                         : "value";
  }
  if (feed("<argument key=\"k\" type=\"string\">")) return may_be_block ? "value" : "call";
  return feed("<response>x") ? "between" : "over";
}

// The table above Open in xtml_parser.cc.
TEST_F(XtmlParserTest, EveryTagInEveryPlace) {
  std::istringstream words(R"(
      message     over     over     over     over     text
      think       think    think    think    think    text
      response    response response response response text
      tools       between  between  between  call     text
      call        call     call     call     call     call
      argument    think    response between  value    value
      json        think    response between  value    value
      /message    over     over     over     over     over
      /think      between  response between  call     text
      /response   between  between  between  call     text
      /tools      think    response between  between  between
      /call       think    response between  between  between
      /argument   think    response between  call     call
      /json       think    response between  call     call
      /           between  between  between  between  call
      other       text     text     between  call     text
      /other      text     text     between  call     text)");
  const std::pair<const char*, std::string> places[] = {
      {"think", "p"},
      {"response", "p<response>q"},
      {"between", "p</think>"},
      {"call", "p<tools><call tool=\"f\">"},
      {"value", "p<tools><call tool=\"f\"><argument key=\"a\" type=\"string\">r"}};
  int rows = 0;
  for (std::string tag; words >> tag; ++rows) {
    std::string inside = tag.front() == '/' ? tag.substr(1) : tag;
    if (tag == "call") inside += " tool='g'";
    if (tag == "argument") inside += " key='b' type='string'";
    std::ranges::replace(inside, '\'', '"');
    for (const auto& [place, before] : places) {
      std::string expected;
      words >> expected;
      XtmlParser parser(tokenizer, markers, {});
      std::vector<XtmlEvent> events;
      for (const int32_t id : Markup(before)) parser.Feed(id, events);
      events.clear();
      const char* slash = tag.front() == '/' ? "/" : "";
      for (const int32_t id : Markup(fmt::format("<{}{}>", slash, inside))) {
        parser.Feed(id, events);
      }
      std::string added;
      for (const XtmlEvent& event : events) added += event.text;
      const bool is_text = expected == "text";
      EXPECT_EQ(is_text, !inside.empty() && added == inside) << tag << " in " << place;
      EXPECT_EQ(FindPlace(parser, tag == "json", [&](auto text) { return Markup(text); }),
                is_text ? place : expected)
          << tag << " in " << place;
    }
  }
  EXPECT_EQ(rows, 17);
}

TEST_F(XtmlParserTest, LongTagsAreText) {
  const std::string fits(64 << 10, 'a');
  const std::string shown = Show(fmt::format("<call tool=\"{}\"></call>", fits.substr(12)));
  EXPECT_EQ(shown, fits.substr(12) + "{}");
  EXPECT_EQ(ShowFromResponse(fmt::format("<call tool=\"{}\"></call>", fits)),
            fmt::format("response(call tool=\"{}\")", fits));
  // A call that lost an argument this way is not to be run.
  EXPECT_EQ(ShowCall(fmt::format("<argument key=\"{}\">1</argument>", fits)), "cut:f");
  EXPECT_EQ(
      ShowCall(fmt::format("<argument key=\"a\" type=\"string\">x<argument key=\"{}\">1", fits)),
      "cut:f{\"a\": \"x");
  // A marker in a long text does no harm.
  EXPECT_EQ(
      ShowCall(fmt::format("<argument key=\"a\" type=\"string\"><|open|>{}</argument>", fits)),
      fmt::format("f{{\"a\": \"{}\"}}", fits));
}

}  // namespace
}  // namespace k3
