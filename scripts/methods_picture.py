"""The picture of docs/benchmarks.md and README: speed and answers of each method, as SVG for light and dark pages.

make-tables.py calls picture_of(). A point is {"label", "kind", "speed", "found"}; `kind` is "dense", "paper" or "other".
"""

WIDTH, HEIGHT = 880, 516
LEFT, RIGHT, TOP, BOTTOM = 84, 852, 104, 424
LOWEST, HIGHEST = -7.0, 109.0  # of the y axis, in percent: room for points at 0 and 100
SIZE = 13  # of labels
LETTER = 0.56  # a letter's mean width, in units of the size

STYLE = """
  .page { fill: #ffffff; stroke: #d8dee4 }
  text { font-family: -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 19px; font-weight: 600 }
  .note, .tick, .axis { font-size: 13px; fill: #59636e }
  .label { font-size: 13px; paint-order: stroke; stroke: #ffffff; stroke-width: 4px; stroke-linejoin: round }
  .label.paper, .label.dense { font-weight: 600 }
  .grid { stroke: #d8dee4; stroke-width: 1 }
  .base { stroke: #59636e; stroke-width: 1.5; stroke-dasharray: 5 4 }
  .lead { stroke: #8c959f; stroke-width: 0.8 }
  circle { stroke: #ffffff; stroke-width: 1.5 }
  circle.paper { fill: #0969da }
  circle.other { fill: #8c959f }
  circle.dense { fill: #bc4c00 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d }
    text { fill: #f0f6fc }
    .note, .tick, .axis { fill: #9198a1 }
    .label { stroke: #0d1117 }
    .grid { stroke: #2a313c }
    .base { stroke: #9198a1 }
    .lead { stroke: #656c76 }
    circle { stroke: #0d1117 }
    circle.paper { fill: #4493f8 }
    circle.other { fill: #818b98 }
    circle.dense { fill: #f0883e }
  }
"""


def distance(box, x, y):
    """From a point to the nearest of a box."""
    return ((min(max(x, box[0]), box[2]) - x) ** 2 + (min(max(y, box[1] + 3), box[3] - 3) - y) ** 2) ** 0.5


def overlap(a, b):
    """The common area of two boxes (left, top, right, bottom)."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def place(points):
    """Adds to each point the box of its label: of some places around it the one that covers least of all else."""
    dots = [(p["x"] - 7, p["y"] - 7, p["x"] + 7, p["y"] + 7) for p in points]
    taken = []
    for point in sorted(points, key=lambda p: (p["kind"] == "other", p["x"])):
        width = LETTER * SIZE * len(point["label"]) * (1.06 if point["kind"] != "other" else 1)
        best = None
        for away in (11, 24, 38, 52):
            for down in (0, -1, 1, -0.6, 0.6):
                for side in (1, 0, -1):
                    if side == 0 and abs(down) < 1:
                        continue
                    x = point["x"] + side * (away if abs(down) < 1 else 0.35 * away)
                    y = point["y"] + down * (away + 5)
                    left = x if side > 0 else x - width if side < 0 else x - width / 2
                    box = (left, y - 8, left + width, y + 8)
                    outside = box[0] < LEFT + 4 or box[2] > RIGHT or box[1] < TOP - 22 or box[3] > BOTTOM - 2
                    cost = sum(overlap(box, other) for other in taken + dots) + (1e6 if outside else 0) + 0.8 * away
                    own = distance(box, point["x"], point["y"])
                    cost += 60 * sum(distance(box, other["x"], other["y"]) < own + 4 for other in points
                                     if other is not point)
                    cost += 2 * (side == 0) + 4 * (side < 0) + 3 * (down != 0)
                    if best is None or cost < best[0]:
                        best = (cost, box)
        point["box"] = best[1]
        taken.append(best[1])


def picture_of(points, title, notes, x_axis, y_axis):
    fastest = max(p["speed"] for p in points) + 0.9
    across = lambda speed: round(LEFT + (RIGHT - LEFT) * speed / fastest, 1)
    up = lambda found: round(BOTTOM - (BOTTOM - TOP) * (found - LOWEST) / (HIGHEST - LOWEST), 1)
    for point in points:
        point["x"], point["y"] = across(point["speed"]), up(point["found"])
    place(points)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
             f'aria-label="{title}. {notes[0]}">', f"<style>{STYLE}</style>",
             f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
             f'<text class="title" x="24" y="36">{title}</text>']
    parts += [f'<text class="note" x="24" y="{58 + 18 * i}">{note}</text>' for i, note in enumerate(notes)]
    for found in range(0, 101, 25):
        parts.append(f'<path class="grid" d="M{LEFT} {up(found)}H{RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 10}" y="{up(found) + 4}" text-anchor="end">{found} %</text>')
    for speed in range(2, int(fastest) + 1, 2):
        parts.append(f'<path class="grid" d="M{across(speed)} {BOTTOM}v6"/>')
        parts.append(f'<text class="tick" x="{across(speed)}" y="{BOTTOM + 21}" text-anchor="middle">{speed}x</text>')
    parts.append(f'<path class="base" d="M{across(1)} {TOP - 6}V{BOTTOM}"/>')
    parts.append(f'<text class="tick" x="{across(1)}" y="{BOTTOM + 21}" text-anchor="middle">llama.cpp</text>')
    middle = (TOP + BOTTOM) / 2
    parts.append(f'<text class="axis" x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 46}" text-anchor="middle">{x_axis}</text>')
    parts.append(f'<text class="axis" x="22" y="{middle}" text-anchor="middle" transform="rotate(-90 22 {middle})">'
                 f'{y_axis}</text>')
    x = 24
    for kind, name in (("dense", "dense attention"), ("paper", "the five methods that glimpse began with"),
                       ("other", "other methods")):
        parts.append(f'<circle class="{kind}" cx="{x + 6}" cy="{HEIGHT - 18}" r="6"/>')
        parts.append(f'<text class="note" x="{x + 18}" y="{HEIGHT - 14}">{name}</text>')
        x += 44 + LETTER * SIZE * len(name)
    for p in points:
        left, top, right, bottom = p["box"]
        near = (min(max(p["x"], left), right), min(max(p["y"], top + 3), bottom - 3))
        if distance(p["box"], p["x"], p["y"]) > 15:
            parts.append(f'<path class="lead" d="M{p["x"]} {p["y"]}L{near[0]:.1f} {near[1]:.1f}"/>')
    for p in points:
        parts.append(f'<circle class="{p["kind"]}" cx="{p["x"]}" cy="{p["y"]}" r="6.5"/>')
    for p in points:
        left, top, right, _ = p["box"]
        parts.append(f'<text class="label {p["kind"]}" x="{(left + right) / 2:.1f}" y="{top + 12.5:.1f}" '
                     f'text-anchor="middle">{p["label"]}</text>')
    return "\n".join(parts + ["</svg>"]) + "\n"
