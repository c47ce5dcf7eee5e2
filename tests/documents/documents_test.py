#!/usr/bin/env python3
"""Runs the commands in the documents: documents_test.py CURB BUILD-FOLDER

Every line of a block ```sh is in RUN or, with the reason, in NOT_RUN. bash runs those in RUN unchanged, each in a folder
of its own on the simulated driver. Commands and options in `curb …` in the running text must exist, as must the targets
of links and the paths that ARCHITECTURE and CONTRIBUTING name. The shim has its atomics where ARCHITECTURE says, and
namespaces that lead to their folder.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "common"))
from curb_help import commands_of, misuse  # noqa: E402
from simulated import within  # noqa: E402

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in ROOT.rglob("*.md") if not page.relative_to(ROOT).parts[0].startswith(("build", "dist", "."))]

ALL_PIECES = "trained with 8 of 8 pieces"
RUN = {  # line: text that its output must contain
    "PATH=$PWD/build/bin:$PATH": "",
    "curb run --cap 8GiB -- python train.py": ALL_PIECES,
    "curb run --job-cap 16GiB -- python train.py": ALL_PIECES,
    "LD_PRELOAD=/path/to/libcurb.so CURB_POLICY=job.json python train.py": ALL_PIECES,
    "curb run --sim --cap 4GiB -- ./my_cuda_program": ALL_PIECES,
    "curb ps": "train.py",
    "curb cap PID 6GiB": "6 GiB",
    "curb release PID": "2 GiB",
    "curb suspend PID": "curb resume",
    "$EDITOR job.json": "",
    "curb policy check job.json": "valid",
    "curb policy show job.json": "8GiB",
    "curb policy explain job.json -- python x.py": "x.py",
    "curb policy schema": '"$schema"',
    "curb policy check ceiling.json": "valid",
    "curb policy init": "wrote policy.json",
    "curb run --policy policy.json -- python train.py": ALL_PIECES,
    "curb run --trace run.json -- python train.py": ALL_PIECES,
    "curb run --trace run.json --stacks 64MiB -- python train.py": ALL_PIECES,
    "curb report run.json": "smallest cap",
    "curb replay --cap 4GiB run.json": "smallest cap",
    "curb run --cap 8GiB --steer -- python train.py": ALL_PIECES,
    "curb run --cap 8GiB -- torchrun --nproc-per-node 4 train.py": ALL_PIECES,
    "curb run --job-cap 24GiB -- torchrun --nproc-per-node 4 train.py": ALL_PIECES,
    "curb run --cap 8GiB -- accelerate launch train.py": ALL_PIECES,
    "curb run --cap 8GiB --steer -- jupyter lab": ALL_PIECES,
    "curb run --cap 25% -- dask worker tcp://SCHEDULER:8786 --nworkers 4": ALL_PIECES,
    "curb run --nap 10m -- jupyter lab": ALL_PIECES,
    "curb run --turn 30s -- python train.py": ALL_PIECES,
    "curb run --turn 30s --nap 1m -- jupyter lab": ALL_PIECES,
    "curb run --cap 50% --turn 5m -- python train.py": ALL_PIECES,
    "curb release --name '*ipykernel*'": "released 2 GiB",
    "srun curb run --cap 8GiB -- python train.py": ALL_PIECES,
    "curb metrics": "curb_nvml_up",
    "curb metrics --textfile /var/lib/prometheus/node-exporter/curb.prom": "",
    "cmake --install build --prefix /usr": "bin/curb",
    "mkdir -p /etc/curb": "",
    "$EDITOR /etc/curb/policy.json; curb policy check /etc/curb/policy.json": "valid",
    "curb doctor": "libcurb.so",
}
AFTER = {
    "curb run --policy policy.json -- python train.py": "curb policy init",
    "curb report run.json": "curb run --trace run.json -- python train.py",
    "curb replay --cap 4GiB run.json": "curb run --trace run.json -- python train.py",
    "$EDITOR /etc/curb/policy.json; curb policy check /etc/curb/policy.json": "mkdir -p /etc/curb",
}
"""Lines that need another line first."""
NOT_RUN = {
    "git clone URL-OF-THIS-REPOSITORY curb && cd curb": "there is no one URL; scripts/try-clean --whole clones",
    "curb policy init --machine 5 ceiling.json": "that file is there already; cli_test and users_test run it",
    "scripts/build": "it makes what is tested here; scripts/try-clean runs it",
    "pip install --no-index --find-links . curb-gpu": "packaging/try runs it with each Python",
    "apt install ./curb_*_amd64.deb ./curb-sim_*_amd64.deb": "packaging/try runs it in new userlands",
    "scripts/setup build": "installs packages of this machine; scripts/build runs it",
    "pip install .": "minutes; packaging/try runs it with each Python",
    "pip install --upgrade --no-index --find-links . curb-gpu": "as pip install",
    "pip uninstall curb-gpu": "packaging/check runs it with each Python",
    "apt purge curb curb-sim": "packaging/check removes them in new userlands, while a program runs under curb",
    "scripts/mutants": "half an hour; it runs other tests",
    "scripts/package --test": "minutes; scripts/test --nightly runs it",
    "scripts/test-aarch64": "an hour, and it needs root",
    "scripts/demo": "scripts/test and scripts/try-clean run it",
    "scripts/test": "it runs this test",
    "scripts/test --quick": "it runs this test",
    "scripts/test --nightly": "hours",
    "scripts/gpu-test": "needs a GPU",
    "scripts/gpu-test figures DIR": "as scripts/gpu-test",
    "scripts/bench": "minutes; the test `bench` runs a short one",
    'scripts/bench --only "alloc + free" --quick': "as scripts/bench",
    "scripts/bench --against NAME=/path/lib.so,VAR=value --against mps": "needs another shim, and MPS a GPU",
    "scripts/bench --minutes 4": "as scripts/bench",
    "scripts/try-clean trixie": "needs a mirror, and builds all anew",
    "curb-preload check": "needs root and a library under /usr; surroundings_preload_test runs it in a machine of its own",
    "curb-preload install": "as curb-preload check",
    "curb-preload remove": "as curb-preload check",
    "xargs rm < build/install_manifest.txt": "it would remove what other tests use; install_test installs into folders of its own",
    "scripts/test-integrations": "minutes; scripts/test --nightly runs it",
    "sbatch --gpu-mem=6GiB train.sh": "needs Slurm; integrations/slurm/test submits such jobs",
    "srun --gres=shard:1 python train.py": "as sbatch",
    "scancel --signal=URG JOBID": "as sbatch",
    "apt install ./curb_*_amd64.deb ./slurm-wlm-curb_*_amd64.deb": "packaging/try runs it in new userlands",
    "$EDITOR /etc/slurm/plugstack.conf.d/curb.conf": "packaging/check edits it in a new userland",
    "sed 's|REGISTRY|ghcr.io/you|' pod.yaml | kubectl apply -f -": "needs a cluster; integrations/kubernetes/test checks the manifest and has podman run the pod",
    "sed 's|REGISTRY|ghcr.io/you|' nodes.yaml | kubectl apply -f -": "as that of pod.yaml",
    "kubectl apply -f admission.yaml": "as that of pod.yaml",
    "kubectl edit configmap train-curb": "as that of pod.yaml",
    "curb top": "needs a terminal; top_test drives it in one",
    "curb kernelspec install --cap 8GiB --steer --nap 10m": "needs Jupyter; integrations/jupyterhub runs such a kernel",
    "curb cdi generate --cap 4GiB --cap 8GiB": "writes the machine's own files; integrations/containers writes others",
    "podman run --device nvidia.com/gpu=all --device curb.dev/cap=8GiB IMAGE python train.py": "needs a GPU; integrations/containers runs it without",
    "systemctl daemon-reload": "the machine's own services; integrations/systemd has systemd read the drop-in",
    "systemctl restart NAME": "as systemctl daemon-reload",
    "systemctl reload NAME": "as systemctl daemon-reload",
    "systemd-run --user --scope curb run --cap 8GiB -- python train.py": "needs systemd",
    "docker run --device nvidia.com/gpu=all --device curb.dev/cap=8GiB IMAGE python train.py": "as podman run; needs Docker",
    "docker run --gpus all -v /usr/lib/curb:/usr/lib/curb:ro -e LD_PRELOAD=/usr/lib/curb/libcurb.so -e CURB_CAP=8GiB IMAGE python train.py": "needs Docker and a GPU",
    "sudo install -D -o root -g root -m 644 ceiling.json /etc/curb/policy.json": "the machine's own file",
    "systemctl enable --now curb-metrics.timer": "the machine's own services",
}

TRIED_BY = {  # the test of each recipe of which no line is in RUN
    "JupyterHub": "integrations/jupyterhub/test",
    "Containers": "integrations/containers/test",
    "Kubernetes": "integrations/kubernetes/test",
    "systemd": "integrations/systemd/test",
    "Ray": "integrations/ray/test",
    "A machine for five users, in five steps": "tests/process/naps/users_test.cpp",
    "A machine with EL8, or another old glibc": "packaging/try",
    "The Python module from a clone": "packaging/try",
    "Upgrading and uninstalling": "packaging/check",
}


def version():
    return subprocess.run([CURB, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def outside_blocks(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def blocks(kind):
    """Yields (document, text) of every block of a kind: "sh", "jsonc"; "" for no kind."""
    for document in DOCUMENTS:
        for block in re.finditer(r"^```(\w*)\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL):
            if block[1] == kind:
                yield document, block[2]


def commands_in(text):
    """Yields each command line, without its comment."""
    for line in text.splitlines():
        if command := re.sub(r"(^|\s+)# .*", "", line).strip():
            yield command


def shown():
    """Returns each command line and the document that shows it first."""
    lines = {}
    for document, text in blocks("sh"):
        for command in commands_in(text):
            lines.setdefault(command, document.name)
    return lines


def anchors(text):
    """Returns the headings as GitHub's anchors."""
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in re.findall(r"^#+ (.*)", outside_blocks(text), re.MULTILINE)}


def dead_links():
    for document in PAGES:
        for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", document.read_text()):
            target = document.parent / link if link else document
            if ":" in link:
                continue
            if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
                yield f"{document.relative_to(ROOT)}: {link}#{anchor}"


def dead_paths():
    """Yields paths in code that begin with a folder of the project and do not exist."""
    for document in (ROOT / "docs/ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"):
        for path in re.findall(r"`([^`\s]+/[^`\s]*)[^`\n]*`", document.read_text()):
            folder, _, rest = re.sub(r"\b[A-Z]{4,}\b", "*", path).partition("/")  # NAME.cpp
            if not rest or not folder or folder == "build" or not (ROOT / folder).is_dir():
                continue
            if not any(next((ROOT / folder).glob(one), None) for one in (rest, f"{rest}.*", f"include/{folder}/{rest}")):
                yield f"{document.name}: {path}"


def broken_lines():
    """Yields lines of running text that end within a sentence."""
    for document in DOCUMENTS:
        lines = outside_blocks(document.read_text()).split("\n")
        for line, after in zip(lines, lines[1:]):
            is_text = line.strip() and not line.startswith(("|", "#", "!", "<!--"))
            goes_on = after.strip() and not after.lstrip().startswith(("- ", "|", "!", "<!--")) and not re.match(r"\d+\. ", after)
            if is_text and goes_on and not re.search(r"[.:?!)>;][\"*`)]*$", line):
                yield f"{document.name}: {line}"


class Sandbox:
    """A folder with the files that the documents name, and the process "PID", which caches 2 GiB under job.json."""

    def __init__(self, folder):
        self.folder = folder
        run = subprocess.run([CURB, "run", "--sim", "--dry-run", "--", "true"], capture_output=True, text=True, check=True)
        found = dict(line.split("=", 1) for line in run.stdout.splitlines() if "=" in line)
        for name in ("bin", "etc", "run/curb", "prometheus"):
            (folder / name).mkdir(parents=True)
        (folder / "run" / "curb").chmod(0o700)
        (folder / "build").symlink_to(BUILD)
        (folder / "bin/python").symlink_to(sys.executable)
        examples = ROOT / "config/examples"
        for name, source in {"job.json": "cap.json", "ceiling.json": "ceiling.json"}.items():
            (folder / name).write_text((examples / source).read_text())
        for name in ("train.py", "x.py"):
            (folder / name).write_text(Path(__file__).with_name("train.py").read_text())
        self.program("my_cuda_program", "exec python train.py")
        self.program("bin/torchrun", 'while [ "${1#-}" != "$1" ]; do shift 2; done; exec python "$@"')
        self.program("bin/accelerate", 'shift; exec python "$@"')
        for name in ("jupyter", "dask"):
            self.program(f"bin/{name}", "exec python train.py")
        self.program("bin/srun", 'exec "$@"')
        self.program("bin/editor", f'if [ -e "$1" ]; then sed -i s/8GiB/6GiB/ "$1"; else cp {examples}/ceiling.json "$1"; fi')
        self.environment = {
            "PATH": f"{folder}/bin:{CURB.parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "EDITOR": f"{folder}/bin/editor",
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "LD_LIBRARY_PATH": found["LD_LIBRARY_PATH"],
            "CURB_SIM_STATE": str(folder / "state"),
        }
        environment = {**self.environment, "LD_PRELOAD": found["LD_PRELOAD"], "CURB_POLICY": "job.json"}
        self.job = subprocess.Popen(
            ["python", "train.py", "stay", folder.name], cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if self.job.stdout.readline().strip() != ALL_PIECES:
            raise AssertionError("the stand-in for train.py does not run under curb")
        if not within(lambda: list((folder / "run/curb").glob(f"{self.job.pid}-*.sock"))):  # a thread creates it
            raise AssertionError("the stand-in for train.py has no socket")
        self.stands_for = {
            r"\bPID\b": str(self.job.pid),
            "ipykernel": f"train.py stay {folder.name}",  # and no program of another test
            "/path/to/libcurb.so": found["LD_PRELOAD"],
            "--prefix /usr": "--prefix usr",
            "/etc/curb": "etc/curb",
            "/var/lib/prometheus/node-exporter": "prometheus",
        }

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def type(self, line):
        for what, stands_for in self.stands_for.items():
            line = re.sub(what, stands_for, line)
        return subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=60,
        )

    def end(self):
        self.job.kill()
        self.job.communicate()


class Documents(unittest.TestCase):
    def test_each_line_to_type_is_known(self):
        lines = shown()
        self.assertEqual({line: document for line, document in lines.items() if line not in RUN | NOT_RUN}, {})
        self.assertEqual([line for line in [*RUN, *NOT_RUN] if line not in lines], [], "in no document any more")
        self.assertEqual(RUN.keys() & NOT_RUN.keys(), set())

    def test_each_recipe_is_tried(self):
        recipes = re.split(r"^## ", (ROOT / "docs" / "RECIPES.md").read_text(), flags=re.MULTILINE)[1:]
        not_run = {recipe.partition("\n")[0] for recipe in recipes if not RUN.keys() & {*commands_in(recipe)}}
        self.assertEqual(not_run, TRIED_BY.keys())
        for test in TRIED_BY.values():
            self.assertTrue((ROOT / test).exists(), test)

    def test_each_that_can_be_run_does_what_it_is_for(self):
        for line, wanted in RUN.items():
            with self.subTest(line), tempfile.TemporaryDirectory(prefix="curb-") as folder:
                sandbox = Sandbox(Path(folder))
                try:
                    if line in AFTER:
                        sandbox.type(AFTER[line])
                    run = sandbox.type(line)
                finally:
                    sandbox.end()
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
                self.assertIn(wanted, run.stdout)

    def test_the_newest_release_of_the_changelog_is_this_version(self):
        newest = re.search(r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
        self.assertIsNotNone(newest)
        self.assertEqual(version(), f"curb {newest[1]}")

    def test_manifests_of_kubernetes_name_the_image_of_this_version(self):
        files = (path for path in (ROOT / "integrations/kubernetes").iterdir() if path.is_file())
        named = {one for path in files for one in re.findall(r"REGISTRY/curb:(\S+)", path.read_text())}
        self.assertEqual({f"curb {one}" for one in named}, {version()})

    def test_pictures_show_this_version(self):
        shown = {
            f"curb {one}"
            for picture in (ROOT / "docs/pictures").glob("*.svg")
            for one in re.findall(r"under&#160;curb&#160;([\d.]+\d)", picture.read_text())
        }
        self.assertEqual(shown, {version()}, "draw them anew: scripts/pictures")

    def test_the_text_of_readmes_figures_can_be_read_on_a_phone(self):
        figures = re.findall(r"!\[[^]]*\]\((docs/\S+\.svg)\)", (ROOT / "README.md").read_text())
        self.assertGreater(len(figures), 1)
        for figure in figures:
            text = (ROOT / figure).read_text()
            width = float(re.search(r'viewBox="0 0 ([\d.]+)', text)[1])
            size = float(re.search(r"font: (\d+)px", text)[1])
            self.assertGreaterEqual(size * 360 / width, 11, figure)

    def test_scripts_are_there(self):
        named = set()
        for document in DOCUMENTS:
            named.update(re.findall(r"(?<![\w/])scripts/[\w-]+", document.read_text()))
        self.assertGreater(len(named), 5)
        for name in sorted(named):
            self.assertTrue(os.access(ROOT / name, os.X_OK), f"{name} is no program")

    def test_links_lead_somewhere(self):
        self.assertEqual(list(dead_links()), [])

    def test_lines_end_where_sentences_end(self):
        self.assertEqual(list(broken_lines()), [])

    def test_paths_that_are_named_are_there(self):
        self.assertEqual(list(dead_paths()), [])

    def test_atomics_are_where_the_architecture_says(self):
        text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
        named = {folder: int(count) for folder, count in re.findall(r"^\| `([a-z]+)` \| (\d+) \|", text, re.M)}
        found = {}
        for path in sorted((ROOT / "shim").rglob("*.[ch]pp")):
            code = re.sub(r"//.*", "", path.read_text(encoding="utf-8")).splitlines()
            folder = path.relative_to(ROOT / "shim").parts[0]
            found[folder] = found.get(folder, 0) + sum("std::atomic<" in line for line in code)
        self.assertEqual({folder: count for folder, count in found.items() if count}, named)

    def test_a_namespace_of_the_shim_is_in_one_folder_and_has_its_name(self):
        folders = {}
        for path in sorted((ROOT / "shim").rglob("*.[ch]pp")):
            for names in re.findall(r"^namespace ([a-z_:]+) {", path.read_text(encoding="utf-8"), re.M):
                for name in {*names.split("::")} - {"curb", "shim", "detail"}:
                    folders.setdefault(name, set()).add(path.relative_to(ROOT / "shim").parts[0])
        for name, places in folders.items():
            folder, *others = places
            self.assertEqual(others, [], f"{name} is in {places}")
            # Or the name of a file or folder in it.
            named = [folder, *(path.name for path in (ROOT / "shim" / folder).rglob("*"))]
            self.assertTrue(any(one.startswith(name) for one in named), f"{name} in shim/{folder}")

    def test_policies_that_are_shown_are_valid(self):
        for document, text in blocks("jsonc"):
            with self.subTest(document=document.name, policy=text):
                run = subprocess.run([CURB, "policy", "check", "-"], input=text, capture_output=True, text=True, check=False)
                self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_commands_in_running_text_name_what_there_is(self):
        root, checked = commands_of(CURB), 0
        for document in DOCUMENTS:
            for code in re.findall(r"`(curb [^`\n]+)`", outside_blocks(document.read_text())):
                words = shlex.split(re.sub(r" (…|--|>) .*", "", code))[1:]
                if words[0] == "COMMAND":
                    continue
                with self.subTest(document=document.name, code=code):
                    self.assertIsNone(misuse(root, words))
                    checked += 1
        self.assertGreater(checked, 50)


if __name__ == "__main__":
    CURB, BUILD = (Path(word).resolve() for word in sys.argv[1:3])
    del sys.argv[1:3]
    unittest.main()
