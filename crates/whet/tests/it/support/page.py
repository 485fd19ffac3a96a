"""Reads a page strictly, as XML, and reports what is wrong with it: page.py FILE TEXT...

Each TEXT must be in the page as text: then foreign text was escaped and did not become markup.
"""

import re
import sys
import xml.etree.ElementTree as ET

HTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"
KNOWN = {
    HTML: """html head meta title style body main header footer section h1 h2 h3 p span code b small div dl dt dd figure
        figcaption table thead tbody tr th td""".split(),
    SVG: ["svg", "path"],
}


def main() -> None:
    path, *wanted = sys.argv[1:]
    source = open(path, encoding="utf-8").read()
    page = ET.fromstring(source)
    for element in page.iter():
        space, name = re.fullmatch(r"(\{.*\})(.*)", element.tag).groups()
        # The colour key is in the page's own name space: a browser sees it as SVG all the same.
        known = KNOWN.get(space, []) + (KNOWN[SVG] if space == HTML else [])
        assert name in known, f"<{name}> has no business here"
        for attribute, value in element.attrib.items():
            assert not attribute.startswith("on"), f"{attribute} is a script"
            assert attribute not in ("href", "src", "action", "data"), f"{attribute}={value} refers to something"
    style = page.find(f"{HTML}head/{HTML}style").text
    assert not re.search(r"url\(|@import", style), "the style refers to something"
    assert "prefers-color-scheme: dark" in style and "@media print" in style
    text = " ".join(" ".join(page.itertext()).split())
    for each in wanted:
        assert each in text, f"{each!r} is not in the text"
    maps = [svg for svg in page.iter(f"{SVG}svg")]
    for svg in maps:
        width, height = map(int, svg.get("viewBox").split()[2:])
        assert svg.get("aria-label") and len(svg) >= 2, "a map without heat, or without words"
        for drawn in svg.iter(f"{SVG}path"):
            for x, y, across in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", drawn.get("d")):
                assert int(x) + int(across) <= width and int(y) < height, f"{x} {y} {across} is outside"
    print(len(maps))


main()
