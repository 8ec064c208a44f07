#include "glimpse/evaluate/tasks/prose.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "glimpse/evaluate/tasks/random.h"

namespace glimpse::evaluate {
namespace {

using Words = std::string_view;

constexpr std::array<Words, 40> kPeople{
    "miller",     "widow",   "teacher",  "sailor",    "carpenter", "doctor",    "stranger",  "shepherd",
    "captain",    "baker",   "merchant", "gardener",  "clerk",     "innkeeper", "fisherman", "painter",
    "traveller",  "judge",   "tailor",   "farmer",    "nurse",     "lawyer",    "poet",      "soldier",
    "blacksmith", "cook",    "pilot",    "librarian", "weaver",    "hunter",    "printer",   "musician",
    "mayor",      "student", "cousin",   "neighbour", "watchman",  "potter",    "guide",     "apprentice"};
constexpr std::array<Words, 32> kQualities{
    "old",     "tired",  "cheerful", "silent", "curious", "careful",  "stubborn", "gentle",
    "nervous", "wise",   "proud",    "hungry", "patient", "lonely",   "clever",   "anxious",
    "honest",  "lazy",   "younger",  "famous", "poor",    "polite",   "strange",  "weary",
    "busy",    "sleepy", "cautious", "grave",  "merry",   "restless", "humble",   "pale"};
constexpr std::array<Words, 40> kDeeds{
    "carried",  "mended",   "forgot",   "described", "sold",     "painted",  "dropped",  "examined",
    "borrowed", "praised",  "hid",      "counted",   "repaired", "admired",  "cleaned",  "offered",
    "returned", "measured", "followed", "burned",    "polished", "gathered", "lost",     "found",
    "bought",   "drew",     "refused",  "lifted",    "opened",   "watched",  "weighed",  "wrapped",
    "planted",  "shared",   "stole",    "mentioned", "traded",   "buried",   "unpacked", "remembered"};
constexpr std::array<Words, 40> kObjects{
    "a basket of apples",   "the broken clock",    "an iron key",        "a letter without a stamp",
    "the blue curtain",     "a pair of boots",     "the wooden ladder",  "a map of the coast",
    "a bundle of firewood", "the silver spoon",    "an old violin",      "the garden gate",
    "a sack of flour",      "the torn sail",       "a jar of honey",     "the heavy trunk",
    "a faded photograph",   "the kitchen table",   "a length of rope",   "the copper kettle",
    "a cage of pigeons",    "the account book",    "a lantern",          "the stone bench",
    "a barrel of salt",     "the window frame",    "a handful of seeds", "the wedding dress",
    "a walking stick",      "the brass bell",      "a loaf of bread",    "the fishing net",
    "an empty bottle",      "the woollen blanket", "a small boat",       "the church roof",
    "a bag of nails",       "the chess board",     "a bunch of violets", "the milk cart"};
constexpr std::array<Words, 32> kPlaces{"near the harbour",
                                        "behind the mill",
                                        "on the narrow bridge",
                                        "under the oak tree",
                                        "at the crossroads",
                                        "in the market square",
                                        "beside the river",
                                        "on the northern road",
                                        "in the cellar",
                                        "at the edge of the forest",
                                        "by the school wall",
                                        "across the valley",
                                        "in front of the inn",
                                        "along the canal",
                                        "on the hill above the town",
                                        "at the railway station",
                                        "in a quiet street",
                                        "between the barns",
                                        "below the old tower",
                                        "in the upper room",
                                        "outside the bakery",
                                        "on the frozen lake",
                                        "among the tall reeds",
                                        "beyond the last house",
                                        "at the bottom of the garden",
                                        "in the crowded hall",
                                        "near the lighthouse",
                                        "on the muddy path",
                                        "inside the chapel",
                                        "over the stable",
                                        "by the open window",
                                        "at the end of the pier"};
constexpr std::array<Words, 28> kTimes{"before the rain came",
                                       "early in the morning",
                                       "after a long winter",
                                       "when the bells had stopped",
                                       "late in the afternoon",
                                       "during the harvest",
                                       "on the second evening",
                                       "while the others slept",
                                       "at the first light",
                                       "a week after the fair",
                                       "in the middle of the night",
                                       "as soon as the tide turned",
                                       "long before supper",
                                       "on a windy day",
                                       "in the spring",
                                       "when nobody was looking",
                                       "just after the concert",
                                       "towards midnight",
                                       "on the way home",
                                       "in spite of the cold",
                                       "for the third time",
                                       "without a word",
                                       "with great care",
                                       "out of habit",
                                       "to everyone's surprise",
                                       "once the snow melted",
                                       "at the usual hour",
                                       "by candlelight"};
constexpr std::array<Words, 24> kThoughts{"nothing would ever be the same",
                                          "the road was longer than it looked",
                                          "money had little to do with it",
                                          "the summer would be dry",
                                          "a promise is easily made",
                                          "the house needed a new roof",
                                          "somebody must have known",
                                          "the answer lay in the mountains",
                                          "it was too late to turn back",
                                          "such things happen in small towns",
                                          "the dog had seen it first",
                                          "the soup was better without salt",
                                          "a good story needs no ending",
                                          "the wind would change by evening",
                                          "patience is a kind of courage",
                                          "the letters should have been kept",
                                          "music makes long evenings short",
                                          "the bridge could not bear the weight",
                                          "the children understood it at once",
                                          "no harvest had ever been so late",
                                          "the sea looks different every day",
                                          "strangers are seldom what they seem",
                                          "the lamp had been burning for hours",
                                          "it is wiser to listen than to speak"};
constexpr std::array<Words, 16> kVerbs{"thought",  "said",     "believed", "insisted", "admitted", "wrote",
                                       "declared", "wondered", "repeated", "supposed", "answered", "feared",
                                       "hoped",    "noticed",  "claimed",  "decided"};

std::string person(Random& random) {
  return random.below(3) == 0 ? fmt::format("the {}", random.of(kPeople))
                              : fmt::format("the {} {}", random.of(kQualities), random.of(kPeople));
}

std::string deed(Random& random) {
  return fmt::format("{} {} {}", random.of(kDeeds), random.of(kObjects), random.of(kPlaces));
}

}  // namespace

std::string generated_sentence(Random& random) {
  std::string text;
  switch (random.below(6)) {
    case 0:
      text = fmt::format("{} {} {}.", person(random), deed(random), random.of(kTimes));
      break;
    case 1:
      text = fmt::format("{}, {} {}.", random.of(kTimes), person(random), deed(random));
      break;
    case 2:
      text = fmt::format("{} {} that {}.", person(random), random.of(kVerbs), random.of(kThoughts));
      break;
    case 3:
      text = fmt::format("{} {}, and {} {} it {}.", person(random), deed(random), person(random), random.of(kDeeds),
                         random.of(kTimes));
      break;
    case 4:
      text =
          fmt::format("{}, because {}, {} {}.", random.of(kTimes), random.of(kThoughts), person(random), deed(random));
      break;
    default:
      text = fmt::format("there was {} {}, but {} {} that {}.", random.of(kObjects), random.of(kPlaces), person(random),
                         random.of(kVerbs), random.of(kThoughts));
  }
  text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string generated_prose(int sentences, std::uint64_t seed) {
  Random random(seed);
  std::string text;
  std::size_t paragraph = 3 + random.below(5);
  for (int i = 0; i < sentences; ++i) {
    text += generated_sentence(random);
    if (--paragraph > 0) {
      text += ' ';
      continue;
    }
    text += "\n\n";
    paragraph = 3 + random.below(5);
  }
  return text;
}

}  // namespace glimpse::evaluate
