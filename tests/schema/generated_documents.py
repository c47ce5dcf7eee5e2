"""Valid, invalid and borderline policies, for schema_test.py."""

# ---- values at the edges of each type ----

U64 = (1 << 64) - 1
YEAR = 365 * 24 * 3600 * 1000  # ms
UUID = "8f3a1b2c-4d5e-6f70-8192-a3b4c5d6e7f8"
HEX = UUID.replace("-", "")

SIZES = (
    """0 1 8GiB 1.5GiB 0008MiB 1.0B 1.5B 1.5 0.0 0GiB 8B 8KiB 8K 8M 8T 8TiB 8PiB 8iB 8Gib 8GB 8g 8b -1 +1 -0 .5GiB 5.GiB
    1e3 0x10 1,5GiB 1_000 B GiB 8GiB8GiB 0.0009765625KiB 0.0009765624KiB
    0% 0.00% 0.01% 0.001% 0.010% 12.25% 12.255% 99.99% 100% 100.00% 100.01% 101% 120% 0100% 00.50% -5% % 1.%""".split()
)
SIZES += ["8", "1.5", "8 GiB", "8  G", "8 B", "5 %", "", " ", "8 ", " 8", "8GiB ", "8GiB\n", "8\tGiB", "8\u00a0GiB", "\u0668GiB"]
SIZES += [f"{U64 + more}{unit}" for more in (0, 1) for unit in ("", "B", ".0", " B")] + [f"{'0' * 30}{U64}"]
for shift, short in ((10, "K"), (20, "M"), (30, "G"), (40, "T")):
    SIZES += [f"{(U64 >> shift) + more}{unit}" for more in (0, 1) for unit in (short, short + "iB", f".9{short}")]
    SIZES += [f"0.123456789012345678{more}{short}iB" for more in ("", "9", "000", "0001")]

TIMES = """0s 0ms 000s 1ms 30s 10m 2h 1d 500ms 030s 30 s -1s +1s 1.5s 30S 30sec 1w 1y 1us 9999999999d 1m30s""".split()
TIMES += ["", "30 s", " 30s", "30s ", "30s\n", "30 seconds", "\u0663s", f"{'0' * 30}365d"]
for unit, length in (("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)):
    TIMES += [f"{YEAR // length + more}{unit}" for more in (-1, 0, 1)]

STRINGS = ["", "x", "a b", "\u00e4\u20ac\U0001f600", "\\", '"', "*", "[", "x" * 5000]
STRINGS += ["a\nb", "a\tb", "a\u0000b", "\u0000", "a\u0000", "a\n", "\u007f", "\u0080"]

NAMES = "A _ A1 a_B 1A A-B A=B LD_PRELOAD LD_ LD ld_x CURB_CAP CURB_ CURB XLD_A \u00c4".split() + ["", "A B", "A\n"]

SIGNALS = """none None SIGUSR1 SIGUSR2 USR1 sigusr1 SIGHUP SIGWINCH SIGURG SIGIO SIGPOLL SIGPWR SIGXCPU SIGKILL
    SIGTERM SIGCHLD SIGRTMIN SIGRTMIN+0 SIGRTMIN+1 SIGRTMIN+01 SIGRTMIN+9 SIGRTMIN+10 SIGRTMIN+29
    SIGRTMIN+30 SIGRTMIN+31 SIGRTMIN+300 SIGRTMIN-1 SIGRTMIN+ SIGRTMAX SIGRTMAX-1 10""".split()

STEPS = [[], ["pools"], ["cache", "pools", "frameworks", "pressure"], ["pressure", "cache"]]
STEPS += [["pools", "pools"], ["pool"], [1], [["pools"]], ["pools", None], "pools", {}]

VARIABLES = [{}, *({name: "x"} for name in NAMES), *({"A": text} for text in STRINGS)]
VARIABLES += [{"A": 1}, {"A": None}, {"A": []}, {"A": "b", "LD_X": ""}]

# Values by the names of the definitions in the schema. Valid ones come first.
VALUES = {
    "ignored": STRINGS,
    "version": [1, 1.0, 0, 2, -1, 1.5, True, "1", 10**20],
    "size": SIZES,
    "positive_size": SIZES,
    "time": TIMES,
    "positive_time": TIMES,
    "delay": [*TIMES, "never", "Never", "never ", "none"],
    "factor": [1.01, 1.0100001, 1.5, 2, 100, 100.0, 1, 1.0, 1.009, 100.1, 101, 0, -2, 1e300, 1e-300, "1.5", 10**30],
    "flag": [True, False, 0, 1, "true", "yes"],
    "report": ["cap", "device", "Cap", "", "both", "cap\n"],
    "share": ["all", "order", "none", "All", "", "nobody", "all\n"],
    "job_of": ["tree", "cgroup", "slurm", "user", "Tree", "", "users", "tree\n"],
    "signal": [*SIGNALS, "SIGRTMIN ", "", 10],
    "steps": STEPS,
    "environment": VARIABLES,
    "level": ["trace", "debug", "info", "warning", "error", "off", "warn", "", "INFO", "none", 3],
    "path": STRINGS,
    "text": STRINGS,
    "glob": STRINGS,
    "globs": VARIABLES,
}
ANY = [None, True, 0, 1, -1, 1.5, 1e300, "", "1", "8GiB", "none", [], {}, [1], {"a": 1}, ["pools"]]

DEVICES = """* ** cuda:0 cuda:7 cuda:10 cuda:00 cuda:01 cuda:-1 cuda: cuda:x cuda CUDA:0 cuda:2147483647 cuda:2147483648
    nvml:0 nvml:99 nvml:2147483648 nvml:+1 0 gpu0 all cap
    GPU- GPU-- GPU-8 GPU-8f3a1b2 GPU-8F3A GPU-8f3a1b2c GPU-8f3a1b2c- GPU-8f3a1b2c-- GPU-8f3a1b2c4 GPU-8-f GPU-xyz
    gpu-8f3a MIG-8f3a MIG-GPU-8f3a 3b:00.0 3B:1f.7 3b:20.0 3b:1f.8 3b:0.0 b:0.0 13b:00.0 3b:000.0 3b:00 3b:00:0 :3b:00.0
    0000:3b:00.0 00000000:3B:00.0 000000000:3b:00.0 ffffffff:ff:1f.7 g:3b:00.0 0:0:0:0.0 3b:00. 3b:.0 3b:00.00
    0x3b:00.0""".split()
DEVICES += ["", "cuda: 0", "cuda:0\n", " 3b:00.0", "3b:00.0\n", f"GPU-{HEX}", f"GPU-{UUID}-", f"GPU-{UUID}\n"]
DEVICES += [f"MIG-{UUID}", f"MIG-{UUID}0", *(f"GPU-{UUID[:length]}" for length in range(1, 37))]

# ---- documents ----


def fields(schema, at, pointer=()):
    """Yields the fields of a schema: (path, name of the type). Of devices those of "*", of rules those of the first."""
    if "$ref" in at:
        name = at["$ref"].rsplit("/", 1)[1]
        target = schema["$defs"][name]
        if "properties" not in target:
            yield pointer, name
            return
        at = target
    if "items" in at and "$ref" in at["items"] and pointer == ("rules",):
        yield from fields(schema, at["items"], (*pointer, 0))
    for key, inner in at.get("properties", {}).items():
        yield from fields(schema, inner, (*pointer, key))


def least():
    """Returns a document to which every field can be added: growth has the members that it requires."""
    growth = {"start": "1B", "step": "1GiB"}
    return {"version": 1, "gpu": {"*": {"growth": growth}}, "rules": [{"match": {}}]}


def put(document, path, value):
    if path[-1] == "factor":
        put_away(document, (*path[:-1], "step"))
    at = document
    for key, following in zip(path, path[1:]):
        if isinstance(at, list):
            at = at[key]
        else:
            at = at.setdefault(key, [] if isinstance(following, int) else {})
    at[path[-1]] = value
    return document


def put_away(document, path):
    for key in path[:-1]:
        document = document.get(key, {}) if isinstance(document, dict) else document[key]
    document.pop(path[-1], None)


def one_change_each(leaves):
    """Yields documents with one field set: to every value in the list of its type, and to some of other types."""
    for path, type_name in leaves:
        for value in [*VALUES[type_name], *ANY]:
            yield put(least(), path, value)


OBJECTS = [
    (),
    ("gpu", "*"),
    ("gpu", "*", "growth"),
    ("gpu", "*", "cache"),
    ("job",),
    ("release",),
    ("frameworks",),
    ("log",),
    ("trace",),
    ("rules", 0),
    ("rules", 0, "match"),
    ("rules", 0, "gpu", "*"),
    ("rules", 0, "log"),
]
KEYS = """x cap version $schema match name rules gpu growth step * level Gpu gpu/*/cap""".split() + [""]


def structures():
    """Yields documents that differ in keys or structure, not in the value of a field."""
    yield from [{}, [], None, 1, "policy", {"version": 1}]
    for key in DEVICES:
        yield {"version": 1, "gpu": {key: {"cap": "1GiB"}}}
        yield {"version": 1, "rules": [{"match": {}, "gpu": {key: {}}}]}
    for at in OBJECTS:
        for key in KEYS:
            for value in ["1GiB", 1, {}, []]:
                yield put(least(), (*at, key), value)
        for value in ANY if at else []:
            yield put(least(), at, value)
    for value in [*ANY, [{}], [{"match": {}}, {"match": {}}], [{"match": None}], [{"name": "x"}], [[]], [None]]:
        yield {"version": 1, "rules": value}
    yield put(least(), ("gpu", "*", "growth"), {"start": "1GiB", "step": "1GiB", "factor": 2})


def generated(schema):
    """Yields documents for a schema and its parser, valid and invalid ones."""
    leaves = list(fields(schema, schema))
    types = {name for _, name in leaves}
    assert types == set(VALUES), f"the types of fields that have no list of values, or no field: {types ^ set(VALUES)}"
    yield from one_change_each(leaves)
    yield from structures()
