// The random gates of LycheeDecode's training (Lin et al., section 3.2 and appendix A) and of its two ablations: a gate
// z in [0, 1] says how much of a head's output comes from full attention, the rest from the set that it inherits.
// Closed forms and their derivatives by a gate's free parameters. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace glimpse::train {

enum class GateKind : std::uint8_t {
  hard_kuma,      ///< Kumaraswamy(exp a, exp b), stretched to (-0.1, 1.1) and clipped (Bastings et al., 2019)
  hard_concrete,  ///< a binary concrete of location a at temperature 2/3, stretched and clipped alike (Louizos et al.,
                  ///< 2018; PruLong's gates)
  clipped,        ///< a itself, clipped: nothing is drawn (DuoAttention's gates)
};
/// "hard-kuma", "hard-concrete", "clipped". Throws UserError with the nearest name.
GateKind parse_gate(std::string_view text);
std::string_view name(GateKind kind);

/// Before it is clipped a gate lies in (kStretchLow, kStretchHigh).
inline constexpr double kStretchLow = -0.1, kStretchHigh = 1.1;

struct Gate {
  double a = 0, b = 0;  ///< free parameters; `b` is hard_kuma's alone
  friend bool operator==(const Gate&, const Gate&) = default;
};

/// A number, and its derivatives by the gate's parameters.
struct Slope {
  double value = 0, by_a = 0, by_b = 0;
};

/// Where training begins: the uniform distribution (hard_kuma, as in the paper), its like, and 1.
Gate first_gate(GateKind kind);
/// Parameters are kept where a gate is neither certain to be open nor certain to be shut: there its chance to be open
/// has no slope, and the constraint could not move it any more.
Gate limited(GateKind kind, const Gate& gate);

/// The gate drawn by `u`, uniform in (0, 1). A clipped end has slope 0.
Slope sampled(GateKind kind, const Gate& gate, double u);
/// P(z != 0), by which the paper counts heads (equation 8); of `clipped` z itself.
Slope open_chance(GateKind kind, const Gate& gate);

/// P(z <= x) for x in [0, 1).
double chance_at_most(GateKind kind, const Gate& gate, double x);
/// P(z = 0) and P(z = 1).
double shut_chance(GateKind kind, const Gate& gate);
double full_chance(GateKind kind, const Gate& gate);
/// E[z], within 1e-6: what a profile holds of a head. A head above 0.5 is a retrieval head.
double expected(GateKind kind, const Gate& gate);

}  // namespace glimpse::train
