"""Reads the rows of the .def tables, for generated documents."""

import re


def rows_of(file, macro):
    """Returns the cells of each row, with adjacent string literals joined. None: a row has another form, or there is none."""
    text = re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.MULTILINE)
    rows = []
    for found in re.finditer(rf'^{macro}\(((?:"(?:[^"\\]|\\.)*"|[^"()])*)\)$', text, re.MULTILINE):
        cells = re.findall(r'(?:"(?:[^"\\]|\\.)*"\s*)+|[^\s,"]+', found[1])
        rows.append(["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', cell)) if '"' in cell else cell for cell in cells])
    if len(rows) != len(re.findall(rf"^{macro}\(", text, re.MULTILINE)):
        return None
    return rows or None
