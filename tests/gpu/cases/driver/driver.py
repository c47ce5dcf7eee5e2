"""The contract suite on the real driver, bare and under curb, and the conformance suite: every way to look an entry point up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lab import Lab
from row import Row

_CONTRACT = Path(__file__).resolve().parents[3] / "contract"
sys.path += [str(_CONTRACT), str(_CONTRACT / "blocks")]
import answers_test  # noqa: E402
import under_curb  # noqa: E402


def _contract(lab: Lab, row: Row) -> None:
    """Without curb the real driver passes the suite, as the simulated driver does."""
    suite = lab.built("tests/driver_contract")
    names = under_curb.names(suite)
    failed = {case.name: case.said for case in under_curb.run(suite, names, None) if not case.holds}
    row.details = {"cases": len(names), "failed": failed}
    row.expect(bool(names), f"{suite.name} lists no cases")
    row.expect(not failed, f"{len(failed)} of {len(names)}: " + "; ".join(failed))
    row.add_note(f"{len(names) - len(failed)} of {len(names)} cases hold on this driver")


def _contract_under_curb(lab: Lab, row: Row, naps: bool = False) -> None:
    """It passes under curb too, with a cap that nothing reaches, and curb's books equal NVML's figure."""
    suite = lab.built("tests/driver_contract")
    names = under_curb.names(suite)
    job = lab.job(row.name, "100%")
    job.policy.write_text(under_curb.policy(job.log_file, naps))
    cases = under_curb.run(suite, names, lab.capped_environment(job) | {"CONTRACT_BOOKS": str(job.log_file)})
    failed = {case.name: case for case in cases if not case.holds}
    # Cases that fail bare too are not curb's failures.
    bare = {case.name for case in under_curb.run(suite, failed, None) if not case.holds}
    differ = [case for case in failed.values() if case.name not in bare]
    wrong = [case.name for case in differ if not (case.by_design_with_naps if naps else case.by_design)]
    row.details = {
        "cases": len(names),
        "differ_from_bare": {case.name: case.said for case in differ},
        "fail_bare_too": sorted(bare),
        "books_off_mib": {case.name: case.off_mib for case in cases if case.off_mib is not None},
    }
    row.expect(bool(names), f"{suite.name} lists no cases")
    row.expect(job.log_file.exists(), "curb was not active: it wrote no log")
    row.expect(not wrong, f"{len(wrong)} of {len(names)} hold bare and not under curb: " + "; ".join(wrong))
    row.add_note(f"{len(names) - len(failed)} of {len(names)} cases hold under curb; {under_curb.furthest(cases)}")
    for begins, why in (under_curb.BY_DESIGN | under_curb.BY_DESIGN_WITH_NAPS).items():
        if any(case.name.startswith(begins) for case in differ):
            row.add_note(f"differs by design: '{begins} …': {why}")
    if bare:
        row.add_note(f"{len(bare)} fail without curb too")


def _contract_with_naps(lab: Lab, row: Row) -> None:
    """The same with naps in the policy: curb makes large blocks itself."""
    _contract_under_curb(lab, row, naps=True)


def _answers(lab: Lab, row: Row) -> None:
    """A program sees of the blocks that curb makes for naps what it sees of the driver's own."""
    count, differences = answers_test.compare(lab.built("tests/answers"), lab.library, lab.environment(None))
    unexpected = [str(one) for one in differences if not one.by_design]
    row.details = {"answers": count, "differ_by_design": [str(one) for one in differences if one.by_design], "differ": unexpected}
    row.expect(answers_test.made_blocks(differences), "curb made no blocks of its own")
    row.expect(not unexpected, f"{len(unexpected)} of {count} answers differ: " + "; ".join(unexpected[:10]))
    row.add_note(f"{count} answers compared: {len(differences) - len(unexpected)} differ by design")


def _conformance(lab: Lab, row: Row) -> None:
    """Every entry point by every way to reach it, bare and under curb."""
    command = [str(lab.built("tests/conformance")), "--curb", str(lab.library)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=False)
    lines = done.stdout.strip().splitlines()
    row.details = {"output": lines[-200:]}
    row.expect(done.returncode == 0, f"status {done.returncode}: " + "; ".join([*lines[-5:], done.stderr.strip()[-300:]]))
    row.add_note(lines[-1] if lines else "it printed nothing")


DRIVER = {
    "contract suite on the real driver": _contract,
    "contract suite under curb": _contract_under_curb,
    "contract suite with naps": _contract_with_naps,
    "answers about memory": _answers,
    "conformance": _conformance,
}
