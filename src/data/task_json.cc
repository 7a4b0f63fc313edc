#include "data/task_json.h"

#include <algorithm>

namespace k3::tasks {
namespace {

constexpr std::string_view kWords[] = {
    "acorn",  "amber",    "anchor",  "apple",  "arrow",  "autumn",   "badge",   "baker",  "bamboo",
    "barn",   "basket",   "beach",   "bell",   "berry",  "bird",     "blanket", "boat",   "bottle",
    "branch", "bread",    "breeze",  "brick",  "bridge", "brook",    "brush",   "bucket", "butter",
    "button", "cabin",    "cake",    "camel",  "candle", "canyon",   "carpet",  "castle", "cedar",
    "chair",  "cheese",   "cherry",  "clay",   "clock",  "cloud",    "clover",  "coin",   "comet",
    "copper", "coral",    "corn",    "cotton", "crane",  "creek",    "crown",   "daisy",  "dawn",
    "desert", "door",     "dove",    "dragon", "drum",   "eagle",    "earth",   "elbow",  "ember",
    "falcon", "farm",     "feather", "fern",   "field",  "finger",   "fire",    "flag",   "flour",
    "flower", "forest",   "fox",     "frost",  "garden", "gate",     "ginger",  "glass",  "glove",
    "goat",   "gold",     "grape",   "grass",  "hammer", "harbor",   "hat",     "hawk",   "hazel",
    "heron",  "hill",     "honey",   "horse",  "house",  "ice",      "iron",    "island", "ivory",
    "jacket", "jar",      "jewel",   "kettle", "key",    "king",     "kite",    "ladder", "lake",
    "lamp",   "leaf",     "lemon",   "letter", "lily",   "lion",     "maple",   "marble", "meadow",
    "melon",  "mint",     "mirror",  "moon",   "moss",   "mountain", "mouse",   "needle", "nest",
    "night",  "oak",      "ocean",   "olive",  "onion",  "orange",   "orchid",  "otter",  "owl",
    "paint",  "paper",    "pear",    "pebble", "pencil", "pepper",   "piano",   "pillow", "pine",
    "plate",  "plum",     "pond",    "poppy",  "queen",  "rabbit",   "rain",    "raven",  "ribbon",
    "rice",   "ring",     "river",   "road",   "robin",  "rope",     "rose",    "sail",   "salt",
    "sand",   "scarf",    "seed",    "shell",  "silk",   "silver",   "sky",     "snow",   "spoon",
    "spring", "squirrel", "star",    "stone",  "storm",  "straw",    "sugar",   "summer", "sun",
    "swan",   "table",    "tiger",   "tower",  "tree",   "tulip",    "valley",  "velvet", "violet",
    "wagon",  "walnut",   "water",   "wheat",  "willow", "wind",     "window",  "winter", "wolf",
    "wood",   "wool"};

constexpr std::string_view kCities[] = {
    "Accra",     "Amman",   "Athens",  "Bangkok",  "Beirut",    "Belfast",  "Berlin",   "Bern",
    "Bogota",    "Boston",  "Bremen",  "Brussels", "Bucharest", "Budapest", "Cairo",    "Calcutta",
    "Caracas",   "Chicago", "Cologne", "Dakar",    "Delhi",     "Denver",   "Dublin",   "Florence",
    "Geneva",    "Genoa",   "Glasgow", "Hamburg",  "Hanoi",     "Havana",   "Helsinki", "Istanbul",
    "Jakarta",   "Kabul",   "Kyoto",   "Lagos",    "Leeds",     "Lima",     "Lisbon",   "London",
    "Lyon",      "Madrid",  "Manila",  "Milan",    "Minsk",     "Montreal", "Moscow",   "Munich",
    "Nairobi",   "Naples",  "Nice",    "Osaka",    "Oslo",      "Oxford",   "Paris",    "Porto",
    "Prague",    "Quito",   "Riga",    "Rome",     "Santiago",  "Seoul",    "Seville",  "Sofia",
    "Stockholm", "Sydney",  "Tallinn", "Tokyo",    "Toronto",   "Tunis",    "Turin",    "Utrecht",
    "Venice",    "Vienna",  "Vilnius", "Warsaw",   "York",      "Zagreb",   "Zurich"};

}  // namespace

JsonValue Object(JsonValue::Members members) { return JsonValue(std::move(members)); }
JsonValue Array(JsonValue::Items items) { return JsonValue(std::move(items)); }

JsonValue UserMessage(std::string_view content) {
  return Object({{"role", Text("user")}, {"content", Text(content)}});
}

JsonValue AssistantMessage(std::string_view reasoning, std::string_view content) {
  JsonValue::Members members = {{"role", Text("assistant")}};
  if (!reasoning.empty()) members.emplace_back("reasoning_content", Text(reasoning));
  members.emplace_back("content", Text(content));
  return Object(std::move(members));
}

std::span<const std::string_view> Words() { return kWords; }
std::span<const std::string_view> Cities() { return kCities; }

std::vector<std::string> DrawWords(Random& random, int64_t count) {
  std::vector<std::string> drawn;
  while (std::ssize(drawn) < count) {
    const std::string word(DrawFrom(random, Words()));
    if (std::ranges::find(drawn, word) == drawn.end()) drawn.push_back(word);
  }
  return drawn;
}

std::string MakeUpName(Random& random) {
  constexpr std::string_view kOnsets[] = {"b",  "c",  "d",  "f",  "g",  "h",  "j",  "k", "l",  "m",
                                          "n",  "p",  "r",  "s",  "t",  "v",  "w",  "z", "br", "dr",
                                          "fl", "gr", "kl", "pr", "sh", "st", "th", "tr"};
  constexpr std::string_view kVowels[] = {"a", "e", "i", "o", "u", "ai", "ea", "ou"};
  constexpr std::string_view kCodas[] = {"", "", "", "k", "l", "m", "n", "nd", "r", "s", "t", "x"};
  std::string name;
  for (int64_t syllables = DrawBetween(random, 2, 3); syllables > 0; --syllables) {
    name += DrawFrom<std::string_view>(random, kOnsets);
    name += DrawFrom<std::string_view>(random, kVowels);
    name += DrawFrom<std::string_view>(random, kCodas);
  }
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name;
}

std::string DrawPlace(Random& random) {
  return random.NextBelow(2) == 0 ? std::string(DrawFrom(random, Cities())) : MakeUpName(random);
}

int64_t DrawBetween(Random& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random.NextBelow(static_cast<uint64_t>(high - low + 1)));
}

}  // namespace k3::tasks
