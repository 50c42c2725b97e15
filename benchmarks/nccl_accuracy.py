"""How often gpuprof answers communication logs rightly.

    python benchmarks/nccl_accuracy.py [--seeds 3]

Prints one row a labelled case (where they lie beside the repository), then a table of generated
logs: for each NCCL release every fault it can print, planted among healthy lines, and healthy logs
with and without benign warnings. `first`: the confirmed class is the answer; `among`: it is one of
several that the line cannot tell apart; `none`: rightly no finding.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.nccl_cases import CASES, labelled_rows
from fixtures.nccl_faults import BENIGN
from fixtures.nccl_logs import LAUNCHERS, VERSIONS, Job, build_log, faults_of
from gpuprof.analyzers.nccl_causes import cause_classes, findings_from_commlog
from gpuprof.readers.nccl_log import read_nccl_log


def labelled() -> None:
    totals: Counter[str] = Counter()
    for row in labelled_rows():
        totals[row.state] += 1
        answer = ", ".join(row.answered) or "nothing"
        ranks = ",".join(map(str, row.ranks[:8]))
        print(
            f"{row.state:6} {row.source:8} {row.case:24} {row.expected or 'nothing':27} "
            f"line {row.line or '-':>6} ranks {ranks or '-':12} {answer[:70]}"
        )
    print("labelled:", dict(totals))


def generated(seeds: int) -> None:
    total = wrong = healthy = accused = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nccl.log"
        for version in VERSIONS:
            states: Counter[str] = Counter()
            for seed in range(seeds):
                shape = {
                    "nodes": 2 + seed % 2,
                    "gpus": (8, 4)[seed % 2],
                    "launcher": LAUNCHERS[seed % 4],
                }
                for name in ("", "benign", *faults_of(version)):
                    job = Job(version, seed=seed * 7919 + len(name), steps=30, **shape)
                    text, fault, _ = build_log(job, name if name not in ("", "benign") else None)
                    if name == "benign":
                        text += "\n".join(line(job, job.rng.randrange(job.size)) for line in BENIGN)
                    path.write_text(text + "\n")
                    findings = findings_from_commlog(read_nccl_log(path))
                    answer = cause_classes(findings[0]) if findings else ()
                    if fault is None:
                        healthy += 1
                        accused += bool(findings)
                        states["accused" if findings else "none"] += 1
                    else:
                        total += 1
                        right = answer[:1] == (fault.kind,)
                        wrong += not right
                        states["first" if right else "wrong"] += 1
                        if not right:
                            print(f"       NCCL {version} {name}: {answer}")
            print(f"NCCL {version:8} {dict(states)}")
    print(
        f"generated: {total - wrong} of {total} faults right ({(total - wrong) / total:.1%}), "
        f"{accused} of {healthy} healthy logs accused"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if CASES.is_dir():
        labelled()
    else:
        print("the labelled cases are not beside the repository")
    generated(arguments.seeds)


if __name__ == "__main__":
    main()
