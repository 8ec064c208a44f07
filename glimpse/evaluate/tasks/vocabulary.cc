#include "glimpse/evaluate/tasks/vocabulary.h"

#include <array>

namespace glimpse::evaluate {
namespace {

// None is a part of another one: an answer that holds one does not hold another by accident.
constexpr std::array<std::string_view, 507> kWords{
    "acorn",    "admire",    "album",   "almond",  "angle",    "answer",     "apple",   "apron",     "arch",
    "atlas",    "attic",     "autumn",  "avenue",  "bacon",    "badge",      "bakery",  "ballad",    "bamboo",
    "banner",   "barrel",    "basket",  "beach",   "bean",     "bell",       "belt",    "bench",     "bicycle",
    "birch",    "blanket",   "blossom", "boat",    "bonnet",   "border",     "bottle",  "bottom",    "bowl",
    "branch",   "bread",     "breeze",  "brick",   "bridge",   "brook",      "brush",   "bucket",    "button",
    "cabin",    "cable",     "camel",   "camera",  "canal",    "canoe",      "canvas",  "cardboard", "carpet",
    "carrot",   "castle",    "cattle",  "cave",    "ceiling",  "cellar",     "cement",  "chain",     "chair",
    "chalk",    "chapel",    "cheese",  "cherry",  "chimney",  "circle",     "city",    "clay",      "cliff",
    "clock",    "cloth",     "cloud",   "coast",   "coat",     "coffee",     "collar",  "column",    "compass",
    "copper",   "coral",     "corner",  "cottage", "cotton",   "court",      "cradle",  "crane",     "crayon",
    "creek",    "cricket",   "crown",   "crystal", "cup",      "curtain",    "cushion", "cymbal",    "daisy",
    "dance",    "dawn",      "deer",    "desert",  "desk",     "diamond",    "dinner",  "ditch",     "dock",
    "doctor",   "domino",    "door",    "dove",    "dragon",   "drawer",     "dress",   "drum",      "duck",
    "dune",     "eagle",     "earth",   "easel",   "echo",     "elbow",      "ember",   "empire",    "entry",
    "evening",  "exhibit",   "eyelid",  "fabric",  "factory",  "fair",       "farm",    "feather",   "fence",
    "fern",     "fiddle",    "field",   "finger",  "fire",     "fish",       "flag",    "flame",     "flask",
    "flint",    "floor",     "flour",   "flower",  "flute",    "fog",        "forest",  "fork",      "fortress",
    "fountain", "fox",       "frame",   "frog",    "frost",    "fruit",      "funnel",  "furnace",   "galaxy",
    "gallery",  "gate",      "geese",   "giant",   "ginger",   "glacier",    "glass",   "globe",     "glove",
    "goat",     "gold",      "goose",   "grain",   "granite",  "grape",      "grass",   "gravel",    "grove",
    "guitar",   "gully",     "hammer",  "hammock", "hand",     "harp",       "harvest", "hat",       "hawk",
    "hazel",    "heart",     "hedge",   "helmet",  "herb",     "heron",      "hill",    "hinge",     "honey",
    "hood",     "horizon",   "horse",   "hotel",   "house",    "hut",        "ink",     "iron",      "ivory",
    "ivy",      "jacket",    "jar",     "jasmine", "jewel",    "journal",    "jug",     "juice",     "jungle",
    "keel",     "kernel",    "kitchen", "kite",    "knee",     "knife",      "knot",    "lake",      "lamb",
    "lamp",     "lark",      "laundry", "lava",    "lawn",     "leaf",       "leather", "ledge",     "lemon",
    "lens",     "letter",    "library", "lichen",  "lily",     "lime",       "linen",   "lizard",    "loaf",
    "lobby",    "lodge",     "loom",    "lotus",   "lumber",   "lunch",      "magnet",  "mango",     "mantle",
    "marble",   "market",    "marsh",   "mask",    "mast",     "meadow",     "melon",   "metal",     "mill",
    "mint",     "mirror",    "mist",    "mitten",  "moat",     "monk",       "moon",    "moss",      "moth",
    "mountain", "mouse",     "mud",     "muffin",  "mural",    "museum",     "mustard", "napkin",    "neck",
    "nest",     "night",     "noodle",  "north",   "nut",      "oak",        "oasis",   "ocean",     "olive",
    "onion",    "orange",    "orchard", "organ",   "ornament", "oven",       "oyster",  "paddle",    "page",
    "paint",    "palace",    "palm",    "paper",   "parade",   "park",       "parrot",  "parsley",   "passage",
    "path",     "pavilion",  "peach",   "peak",    "pear",     "pebble",     "pelican", "pencil",    "penguin",
    "pepper",   "piano",     "pier",    "pigeon",  "pillow",   "pine",       "pitcher", "planet",    "plank",
    "plate",    "plaza",     "plow",    "plum",    "pocket",   "pond",       "pony",    "poppy",     "porch",
    "portrait", "potato",    "pottery", "prairie", "prism",    "pumpkin",    "puppet",  "purse",     "puzzle",
    "quail",    "quartz",    "queen",   "quill",   "quilt",    "rabbit",     "radio",   "radish",    "raft",
    "rail",     "raspberry", "reed",    "reef",    "ribbon",   "rice",       "road",    "robin",     "rocket",
    "roof",     "root",      "rope",    "rose",    "rudder",   "rug",        "sail",    "salad",     "salmon",
    "salt",     "sandal",    "sapling", "satin",   "sauce",    "scarf",      "school",  "scissors",  "sculpture",
    "seal",     "season",    "seed",    "shadow",  "shark",    "shed",       "sheep",   "shelf",     "shell",
    "shield",   "ship",      "shirt",   "shoe",    "shore",    "shovel",     "shrub",   "signal",    "silk",
    "silver",   "siren",     "skate",   "sky",     "sled",     "sleeve",     "slope",   "smoke",     "snail",
    "snow",     "soap",      "sock",    "sofa",    "soil",     "song",       "soup",    "south",     "spade",
    "sparrow",  "spice",     "spider",  "spindle", "spoon",    "spring",     "square",  "squirrel",  "stable",
    "stadium",  "stairs",    "stamp",   "statue",  "steam",    "steel",      "stem",    "stone",     "stool",
    "storm",    "stove",     "straw",   "stream",  "street",   "string",     "sugar",   "summer",    "summit",
    "sunset",   "swallow",   "swan",    "sweater", "tailor",   "tambourine", "teapot",  "temple",    "tent",
    "thistle",  "thorn",     "thread",  "throne",  "thunder",  "ticket",     "tide",    "tile",      "timber",
    "toast",    "tomato",    "torch",   "tower",   "town",     "train",      "tray",    "treasure",  "trumpet",
    "trunk",    "tulip",     "tunnel",  "turnip",  "turtle",   "umbrella",   "valley",  "valve",     "vase",
    "velvet",   "veranda",   "vessel",  "village", "vinegar",  "volcano",    "wagon",   "waist",     "wallet",
    "wardrobe", "water",     "wave",    "wax",     "weather",  "wheat",      "wheel",   "whistle",   "willow",
    "window",   "wing",      "winter",  "wolf",    "wood",     "wool",       "wreath",  "yard",      "yarn",
    "yogurt",   "zebra",     "zipper"};

}  // namespace

std::span<const std::string_view> vocabulary() {
  return kWords;
}

}  // namespace glimpse::evaluate
