"""Training under CUDA graph capture while the test requests a release every 100 ms."""

from __future__ import annotations

from lab import Case, Lab, torch_allocator
from row import CAP, Row

_EVERY_S = 0.1


def capture_case(conf: str = "") -> Case:
    def case(lab: Lab, row: Row) -> None:
        lab.need("torch")
        job = lab.job(row.name, CAP)
        seconds = 2.0 if lab.quick else 6.0
        program = lab.python("training/capture_loop.py", str(seconds))
        with row.watching(lab.capped(program, job, torch_allocator(conf))) as session:
            session.expect("warm", 120)
            session.tell("capture")
            sent = session.send_every(_EVERY_S, most=int(10 * seconds / _EVERY_S))
            spans = session.expect("captured", 60)["spans"]
            session.tell("compare")
            done = session.expect("done", 60)
            session.finish()
        within = sum(any(begin <= moment <= end for begin, end in spans) for moment in sent)
        releases = [message for message in job.log.messages() if message.startswith("released")]
        row.details = done | {"signals": len(sent), "signals_within_captures": within, "releases": len(releases)}
        row.goes_on = done["close"]
        row.expect(done["close"], f"captured and eager training differ: losses {done['losses'][1:]}")
        row.expect(done["losses"][2] < done["losses"][0], "the loss did not fall: nothing was trained")
        row.expect(within > 0, "no signal arrived during a capture: nothing was tested")
        row.expect(len(releases) > len(sent) / 2, f"only {len(releases)} releases for {len(sent)} signals")
        row.add_note(
            f"{done['captures']} captures, {len(sent)} signals, {within} of them within a capture, {len(releases)} releases; "
            f"weights {'identical to' if done['identical'] else 'close to'} those of {done['steps']} eager steps"
        )

    return case


CAPTURE = {
    "capture native": capture_case(),
    "capture cudaMallocAsync": capture_case("backend:cudaMallocAsync"),
}
