"""What commands answer with --json, held against cli/schemas/. Without python3-jsonschema the test is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from skipping import skip

try:
    from jsonschema import Draft202012Validator
except ImportError:
    skip("python3-jsonschema >= 4 is not installed (scripts/setup test)")

FILES = sorted((Path(__file__).resolve().parent.parent.parent / "cli" / "schemas").glob("*.schema.json"))
VALIDATORS = {
    file.name.removesuffix(".schema.json"): Draft202012Validator(json.loads(file.read_text())) for file in FILES
}


def faults(schema: str, answer: Any) -> list[str]:
    """Where an answer is not as its schema says: of `ps` as cli/schemas/ps.schema.json."""
    return [f"{fault.json_path}: {fault.message}" for fault in VALIDATORS[schema].iter_errors(answer)]
