"""Reads the rows of the .def tables, for generated documents."""

import re


def rows_of(file, macro):
    """The cells of each row: names unchanged, adjacent string literals joined. None if a row has another form."""
    text = re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.MULTILINE)
    rows = []
    for found in re.finditer(rf'^{macro}\(((?:"(?:[^"\\]|\\.)*"|[^"()])*)\)$', text, re.MULTILINE):
        cells = re.findall(r'(?:"(?:[^"\\]|\\.)*"\s*)+|[^\s,"]+', found[1])
        rows.append(["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', cell)) if '"' in cell else cell for cell in cells])
    if len(rows) != len(re.findall(rf"^{macro}\(", text, re.MULTILINE)):
        return None
    return rows or None
