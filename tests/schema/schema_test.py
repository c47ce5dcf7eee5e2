#!/usr/bin/env python3
"""Compares config/policy.schema.json with the parser: schema_test.py BUILD

Both must accept and reject the same documents, except those of BEYOND, which JSON Schema cannot express. Documents come from
the examples, from the parser's own tests (BUILD/tests/parser_texts records them) and from a generator.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from generated_documents import generated  # noqa: E402
from skipping import skip  # noqa: E402

try:
    from jsonschema import Draft202012Validator
except ImportError:
    skip("python3-jsonschema >= 4 is not installed (scripts/setup test)")

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = ROOT / "config" / "policy.schema.json"
EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.json"))

# Documents that the parser refuses and a schema cannot: why, the parser's message, and the text.
WITH = '{"version": 1, "gpu": {"*": {"growth": %s, "cap": "8GiB"}}}'
BEYOND = [
    ("readers of JSON keep the last of two equal keys", "stands twice|^there are 100 errors up to here", '{"version": 1, "log": {}, "log": {}}'),
    ("two spellings of a device are two keys", "is the device that .* names at",
     '{"version": 1, "gpu": {"3b:00.0": {}, "0000:3B:00.0": {}}}'),
    ("schemas do not compare values", "it begins above the cap", WITH % '{"start": "9GiB", "step": "1GiB"}'),
    ('step or factor may stand under "*", or in the file that a rule is laid over', "the allowance would never grow",
     WITH % '{"start": "1GiB"}'),
    ("start may stand there too", 'has no effect without "start"', WITH % '{"step": "1GiB"}'),
    ("1.0 is the same number to JSON", "the version is written 1", '{"version": 1.0}'),
    ("whether 0.0001KiB is a byte takes arithmetic", "is too little; the least is 1B$",
     WITH % '{"start": "0.0001KiB", "step": "1GiB"}'),
    ("schemas do not see files", "larger than 1 MiB", '{"version": 1}' + " " * (1 << 20)),
    ("readers differ on half of a surrogate pair", "begins no escape of JSON", r'{"$schema": "\ud800", "version": 1}'),
]  # fmt: skip


def curb(*arguments, **options):
    return subprocess.run([CURB, *arguments], stdout=subprocess.PIPE, text=True, **options)


def refuse(constant):
    raise ValueError(f"{constant} is not JSON")


def document_of(text):
    """Parses the bytes as JSON. Raises ValueError if they are not JSON."""
    try:
        return json.loads(text.decode("utf-8"), parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("deeper than this reader goes") from error


def as_python_reads(schema):
    """Returns the schema for Python, whose "$" also matches before a last newline; that of ECMA-262 does not."""

    def ending(pattern):
        return re.sub(r"\$$", r"\\Z", pattern)

    if isinstance(schema, list):
        return [as_python_reads(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key == "patternProperties":
            out[key] = {ending(pattern): as_python_reads(inner) for pattern, inner in value.items()}
        else:
            out[key] = ending(value) if key == "pattern" and isinstance(value, str) else as_python_reads(value)
    return out


def parser_verdicts(texts):
    """Returns the parser's messages for each text; none if it is valid."""
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for number, text in enumerate(texts):
            names.append(os.path.join(folder, f"{number}.json"))
            Path(names[-1]).write_bytes(text)
        for first in range(0, len(names), 1000):
            answer = curb("policy", "check", "--json", *names[first : first + 1000])
            verdicts += [json.loads(line) for line in answer.stdout.splitlines()]
    assert len(verdicts) == len(texts), f"{len(verdicts)} answers to {len(texts)} files"
    for verdict in verdicts:
        assert verdict["valid"] == (not verdict["diagnostics"]), verdict
    return [[one["message"] for one in verdict["diagnostics"]] for verdict in verdicts]


# ---- documents ----


def texts_of_the_parsers_tests():
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "texts")
        # Without CURB_MATRIX: these tests report their counts in a run of their own.
        environment = {**os.environ, "CURB_RECORD": record, "CURB_MATRIX": ""}
        subprocess.run([PARSER_TEXTS], check=True, stdout=subprocess.DEVNULL, env=environment)
        texts = set()
        with open(record, "rb") as file:
            while length := file.readline():
                texts.add(file.read(int(length)))
    return sorted(texts)


class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.schema = json.loads(FILE.read_text())
        cls.validator = Draft202012Validator(as_python_reads(cls.schema))

    def agree(self, texts):
        """Checks that both judge each text alike, except BEYOND. Returns how many the schema accepted."""
        documents = [document_of(text) for text in texts]
        accepted = 0
        for text, document, messages in zip(texts, documents, parser_verdicts(texts)):
            valid = self.validator.is_valid(document)
            accepted += valid
            if valid == (not messages):
                continue
            shown = text[:300].decode("utf-8", "replace")
            self.assertTrue(valid, f"the parser accepts, the schema does not: {shown}")
            for message in messages:
                self.assertTrue(
                    any(re.search(says, message) for _, says, _ in BEYOND),
                    f"the schema accepts, the parser does not ({message}): {shown}",
                )
        return accepted

    def test_it_is_a_schema(self):
        Draft202012Validator.check_schema(self.schema)

    def test_both_accept_the_examples(self):
        self.assertGreaterEqual(len(EXAMPLES), 6)
        texts = [without_comments(example.read_text()).encode() for example in EXAMPLES]
        self.assertEqual(self.agree(texts), len(texts))

    def test_both_judge_what_the_parsers_tests_read_alike(self):
        texts = []
        for text in texts_of_the_parsers_tests():
            try:
                document_of(text)
                texts.append(text)
            except ValueError:  # no JSON, so no schema is asked
                continue
        accepted = self.agree(texts)
        print(f"{len(texts)} texts of the parser's tests, {accepted} of them right by the schema")
        self.assertGreater(len(texts), 100)
        self.assertGreater(accepted, 10)

    def test_a_rule_may_have_all_that_a_file_may(self):
        own = {"$schema", "version", "rules"}
        self.assertEqual(set(self.schema["properties"]) - own, set(self.schema["$defs"]["rule"]["properties"]) - {"name", "match"})
        self.assertEqual(self.agree([b'{"version": 1, "rules": [{"match": {}, "environment": false, "share": "order"}]}']), 1)

    def test_both_judge_generated_documents_alike(self):
        texts = sorted({json.dumps(document).encode() for document in generated(self.schema)})
        accepted = self.agree(texts)
        print(f"{len(texts)} generated documents, {accepted} of them right by the schema")
        self.assertGreaterEqual(len(texts), 2000)
        self.assertGreater(accepted, len(texts) / 5)
        self.assertLess(accepted, len(texts) * 4 / 5)

    def test_what_a_schema_cannot_say_is_refused_by_the_parser_alone(self):
        texts = [text.encode() for _, _, text in BEYOND]
        for (why, says, _), text, messages in zip(BEYOND, texts, parser_verdicts(texts)):
            with self.subTest(why):
                self.assertTrue(self.validator.is_valid(document_of(text)))
                self.assertTrue(messages)
                for message in messages:
                    self.assertRegex(message, says)

    def test_comments_are_for_the_parser_alone(self):
        text = b'{ "version": 1 } // the least'
        self.assertEqual(parser_verdicts([text]), [[]])
        self.assertRaises(ValueError, document_of, text)


def without_comments(text):
    """Returns the text without its comments. Strings stay as they are."""
    return re.sub(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', lambda found: found[1] or "", text, flags=re.DOTALL)


if __name__ == "__main__":
    CURB, PARSER_TEXTS = (f"{sys.argv[1]}/{path}" for path in ("bin/curb", "tests/parser_texts"))
    unittest.main(argv=sys.argv[:1])
