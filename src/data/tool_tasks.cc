#include "data/tool_tasks.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/task_json.h"

namespace k3::tasks {
namespace {

constexpr std::string_view kSkies[] = {"clear", "cloudy", "rainy", "foggy", "windy"};

struct Unit {
  std::string_view name;    // as the tool takes it
  std::string_view many;    // as a question says it
  int64_t hundred_microns;  // in one
};
constexpr Unit kUnits[] = {{"inch", "inches", 254},
                           {"foot", "feet", 3048},
                           {"yard", "yards", 9144},
                           {"kilometre", "kilometres", 10'000'000},
                           {"mile", "miles", 16'093'440}};

ToolCall Call(std::string_view name, JsonValue::Members arguments) {
  ToolCall call;
  call.name = name;
  call.arguments = std::move(arguments);
  return call;
}

ToolTask DrawWeather(Random& random) {
  constexpr std::string_view kQuestions[] = {"What is the weather in {}?", "How is it in {} now?",
                                             "Tell me the weather in {}."};
  const std::string city = DrawPlace(random);
  const int64_t degrees = DrawBetween(random, -20, 40);
  const std::string_view sky = DrawFrom<std::string_view>(random, kSkies);
  return {
      .subject = WeatherSubject(city),
      .question = fmt::format(fmt::runtime(DrawFrom<std::string_view>(random, kQuestions)), city),
      .call = Call("get_weather", {{"city", Text(city)}}),
      .result = DumpJson(Object({{"degrees", Integer(degrees)}, {"sky", Text(sky)}})),
      .answer = fmt::format("In {} it is {} and {} degrees.", city, sky, degrees)};
}

ToolTask DrawMultiply(Random& random) {
  constexpr std::string_view kQuestions[] = {"What is {} times {}?", "Multiply {} by {}.",
                                             "{} * {} = ?"};
  const int64_t a = DrawBetween(random, 2, 999);
  const int64_t b = DrawBetween(random, 2, 999);
  return {
      .subject = fmt::format("multiply {} {}", std::min(a, b), std::max(a, b)),
      .question = fmt::format(fmt::runtime(DrawFrom<std::string_view>(random, kQuestions)), a, b),
      .call = Call("multiply", {{"a", Integer(a)}, {"b", Integer(b)}}),
      .result = DumpJson(Object({{"product", Integer(a * b)}})),
      .answer = fmt::format("{} times {} is {}.", a, b, a * b)};
}

ToolTask DrawAlarm(Random& random) {
  constexpr std::string_view kQuestions[] = {"Wake me at {:02}:{:02}{}.",
                                             "Set an alarm for {:02}:{:02}{}.",
                                             "I need an alarm at {:02}:{:02}{}."};
  const int64_t hour = DrawBetween(random, 0, 23);
  const int64_t minute = DrawBetween(random, 0, 59);
  const bool every_day = DrawBetween(random, 0, 1) == 1;
  const int64_t number = DrawBetween(random, 1, 999);
  return {.subject = fmt::format("set_alarm {} {} {}", hour, minute, every_day),
          .question = fmt::format(fmt::runtime(DrawFrom<std::string_view>(random, kQuestions)),
                                  hour, minute, every_day ? " every day" : ""),
          .call = Call("set_alarm", {{"hour", Integer(hour)},
                                     {"minute", Integer(minute)},
                                     {"every_day", JsonValue(every_day)}}),
          .result = DumpJson(Object({{"alarm", Integer(number)}})),
          .answer = fmt::format("Alarm {} is set for {:02}:{:02}{}.", number, hour, minute,
                                every_day ? " every day" : "")};
}

ToolTask DrawToMetres(Random& random) {
  constexpr std::string_view kQuestions[] = {"How many metres are {} {}?",
                                             "Give me {} {} in metres.", "{} {} in metres?"};
  const Unit& unit = DrawFrom<Unit>(random, kUnits);
  // Tenths that are no whole number, so that the argument is always shown as a fraction and never
  // in the singular.
  const int64_t tenths = DrawBetween(random, 1, 99) * 10 + DrawBetween(random, 1, 9);
  const std::string value = fmt::format("{}.{}", tenths / 10, tenths % 10);
  // Exact in integers, then rounded once: the shortest decimal is the exact length.
  const double metres = static_cast<double>(tenths * unit.hundred_microns) / 1e5;
  return {
      .subject = fmt::format("to_metres {} {}", value, unit.name),
      .question = fmt::format(fmt::runtime(DrawFrom<std::string_view>(random, kQuestions)), value,
                              unit.many),
      .call = Call("to_metres", {{"value", JsonValue(static_cast<double>(tenths) / 10)},
                                 {"unit", Text(unit.name)}}),
      .result = DumpJson(Object({{"metres", JsonValue(metres)}})),
      .answer = fmt::format("{} {} are {} metres.", value, unit.many, DumpJson(JsonValue(metres)))};
}

JsonValue Declare(std::string_view name, std::string_view description,
                  const std::vector<std::pair<std::string_view, std::string_view>>& parameters) {
  JsonValue::Members properties;
  JsonValue::Items required;
  for (const auto& [parameter, type] : parameters) {
    properties.emplace_back(parameter, Object({{"type", Text(type)}}));
    required.push_back(Text(parameter));
  }
  JsonValue schema = Object({{"type", Text("object")},
                             {"properties", Object(std::move(properties))},
                             {"required", Array(std::move(required))}});
  return Object({{"type", Text("function")},
                 {"function", Object({{"name", Text(name)},
                                      {"description", Text(description)},
                                      {"parameters", std::move(schema)}})}});
}

ToolTask Draw(Random& random) {
  switch (random.NextBelow(4)) {
    case 0:
      return DrawWeather(random);
    case 1:
      return DrawMultiply(random);
    case 2:
      return DrawAlarm(random);
    default:
      return DrawToMetres(random);
  }
}

}  // namespace

std::string WeatherSubject(std::string_view city) { return fmt::format("get_weather {}", city); }

ToolTask DrawToolTask(Random& random, int64_t number) {
  ToolTask task = Draw(random);
  task.call.id = fmt::format("call_{}", number);
  return task;
}

JsonValue::Items ToolTaskMessages(const ToolTask& task) {
  JsonValue function = Object(
      {{"name", Text(task.call.name)}, {"arguments", Text(DumpJson(Object(task.call.arguments)))}});
  JsonValue call = Object(
      {{"id", Text(*task.call.id)}, {"type", Text("function")}, {"function", std::move(function)}});
  JsonValue caller = AssistantMessage(fmt::format("I call {}.", task.call.name), "");
  caller.members()->emplace_back("tool_calls", Array({std::move(call)}));
  JsonValue result = Object({{"role", Text("tool")},
                             {"tool_call_id", Text(*task.call.id)},
                             {"content", Text(task.result)}});
  return {UserMessage(task.question), std::move(caller), std::move(result),
          AssistantMessage("", task.answer)};
}

JsonValue DrawTools(Random& random) {
  JsonValue::Items tools = {
      Declare("get_weather", "The weather in a city", {{"city", "string"}}),
      Declare("multiply", "The product of two numbers", {{"a", "integer"}, {"b", "integer"}}),
      Declare("set_alarm", "Sets an alarm",
              {{"hour", "integer"}, {"minute", "integer"}, {"every_day", "boolean"}}),
      Declare("to_metres", "A length in metres", {{"value", "number"}, {"unit", "string"}})};
  Shuffle(random, tools);
  return Array(std::move(tools));
}

}  // namespace k3::tasks
