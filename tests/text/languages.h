// Short texts in twenty languages, and code and symbols: written for these tests.
#pragma once

#include <string_view>

namespace glimpse::text::testing {

struct Sample {
  std::string_view language;
  std::string_view text;
};

inline constexpr Sample kSamples[] = {
    {"English", "The lantern hung in the attic for 27 years. Nobody asked who'd lit it; they didn't want to know!"},
    {"German", "Über den Dächern läutete es zwölf. „Möchten Sie Straßenkarten?“, fragte der Verkäufer müde."},
    {"French", "Où étiez-vous hier soir ? J'ai goûté à l'œuf, puis au maïs, et c'était déjà l'été."},
    {"Spanish", "¿Quién pidió el jalapeño? ¡Qué vergüenza! El niño cantó una canción de cuna en 1.984 versos."},
    {"Portuguese", "A manhã não trouxe notícias. Então, às três, os irmãos viram o avião sobre as ilhas."},
    {"Italian", "Perché la città è così silenziosa? L'ultimo tram passò alle 23:45, carico di caffè."},
    {"Polish", "Zażółć gęślą jaźń. Wczoraj o świcie źrebię wybiegło na łąkę, a gospodarz śmiał się głośno."},
    {"Czech", "Příliš žluťoučký kůň úpěl ďábelské ódy. Večer se řeka rozlila až k prvním domům."},
    {"Turkish", "İstanbul'da ılık bir gündü; çocuklar ağaçların gölgesinde şarkı söylüyordu."},
    {"Vietnamese", "Buổi sáng trời nhiều mây. Người bán phở hỏi: \"Anh ăn gì?\" và mỉm cười."},
    {"Russian", "Съешь же ещё этих мягких французских булок, да выпей чаю. В 1812 году снег выпал рано."},
    {"Ukrainian", "Їжак знайшов під ґанком п'ять яблук. Чи є в лісі ще хтось, хто не спить?"},
    {"Greek", "Η θάλασσα ήταν ήσυχη. «Πότε φεύγει το πλοίο;» ρώτησε ο γέρος, κοιτώντας τον ουρανό."},
    {"Hebrew", "הספינה עזבה את הנמל בשעה 7:30. \"מי לקח את המפה?\" שאל רב החובל."},
    {"Arabic", "وصلت السفينة إلى الميناء في الساعة ٧:٣٠ صباحًا. هل رأيتَ الخريطة القديمة؟"},
    {"Hindi", "नदी के किनारे एक छोटा-सा गाँव था। क्या आपने वहाँ की मिठाई खाई है? मूल्य ₹१२५ है।"},
    {"Thai", "เช้าวันนี้ฝนตกหนักมาก น้ำท่วมถนนสายเล็ก ๆ หลังวัด แล้วเราจะไปกันอย่างไร"},
    {"Chinese", "春天来了，河边的柳树都绿了。他问：“你看见那封信了吗？”第二天一共到了三百六十五个人。"},
    {"Japanese", "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。カタカナも１２３も書ける。"},
    {"Korean", "강가의 작은 마을에 눈이 내렸다. \"편지는 어디에 있나요?\"라고 아이가 물었다. 모두 42통이었다."},
    {"emoji",
     "👩‍👩‍👧‍👦 went 🏃🏽‍♀️ to 🇺🇳 & back 🎉🎉🎉 ❤️‍🔥 ☕️ 1️⃣"},
    {"symbols", "½ ≠ ⅓, ∑∞, ﬁ, e\u0301, \u200Bzero\u00A0width — end"},
    {"C++",
     "template <class T>\nT&& forward(T& x) {\n\treturn static_cast<T&&>(x);  // 0x7fff'ffff\n}\n\n\n    if "
     "(a<=b)\r\n"},
    {"Python", "def f(x: int = 3) -> str:\n    '''doc'''\n    return f\"{x:>8.2f}\" if x ** 2 != 10_000 else None\n"},
    {"white space", "  two  three   four    \n\n \n\t\t tab \r\n end   "},
};

}  // namespace glimpse::text::testing
