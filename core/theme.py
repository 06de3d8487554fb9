"""Colours of every picture, distinct for colour-blind readers, in a light and a dark form."""

from typing import Literal

Theme = Literal["light", "dark", "both"]

# After Okabe and Ito, in the order in which curves and voices are assigned them.
COLOURS = {
    "blue": ("#0072b2", "#4aa8e8"),
    "vermilion": ("#d55e00", "#ff8a4a"),
    "green": ("#009e73", "#1fbf92"),
    "pink": ("#cc79a7", "#e58fc0"),
    "ink": ("#1d1d1b", "#f0f0ec"),
    "violet": ("#7733dd", "#9a70ff"),
    "brown": ("#773311", "#f0e442"),
}
# Text, grid lines, shaded areas, the background; and the letters of bases.
PLAIN = {
    "quiet": ("#62625e", "#a8a8a3"),
    "line": ("#d9d9d4", "#3d3e41"),
    "tint": ("#eeeeea", "#292a2d"),
    "paper": ("#ffffff", "#17181a"),
    "A": ("#007a5e", "#20c093"),
    "C": ("#005f99", "#4ba9e9"),
    "G": ("#1e1e1c", "#f1f1ed"),
    "T": ("#b84a00", "#ff8b4b"),
}
LIGHT, DARK = ({name: pair[i] for name, pair in (COLOURS | PLAIN).items()} for i in (0, 1))


def themed(svg: str, theme: Theme = "both") -> str:
    """An SVG drawn in colours of LIGHT, in another theme.

    "both" follows the reader's system. Programs that ignore its media query draw the light form.
    """
    found = [name for name in LIGHT if LIGHT[name] in svg]
    if theme == "light":
        return svg
    if theme == "dark":
        for name in found:
            svg = svg.replace(LIGHT[name], DARK[name])
        return svg
    rules = "".join(
        f'[{key}="{LIGHT[name]}"],[style*="{key}: {LIGHT[name]}"]{{{key}:{DARK[name]}!important}}'
        for name in found
        for key in ("fill", "stroke")
        if f'{key}="{LIGHT[name]}' in svg or f"{key}: {LIGHT[name]}" in svg
    )
    begin = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:begin]}<style>@media (prefers-color-scheme:dark){{{rules}}}</style>{svg[begin:]}"
