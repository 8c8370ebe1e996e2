"""rlkit on a GPU: agreement with the CPU, and the speed of training and of replay structures, within 25 minutes.

The machine needs JAX with its plugin for the GPU, Python 3.12, and no network. What else rlkit needs is carried there:

    python benchmarks/gpu/run.py --pack wheels                  # here: downloads wheels, under 64 MiB in all
    python -m pip install --no-index --no-deps wheels/*.whl     # there, in the root of the repository
    PYTHONPATH=. python benchmarks/gpu/run.py

Where nothing may be installed, `pip install --no-index --no-deps --target packages wheels/*.whl` and
`PYTHONPATH=.:packages` do the same.

Each part has a process of its own and a share of the time; one that fails or hangs leaves the others alone. gpu.json
and gpu.md are written whenever a case has a new result. A run of some parts keeps the results of the others, so that
several shorter commands do as well. `--quick` runs everything at small sizes, on the CPU where there is nothing else.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

import rendering
from common import report
from sizes import FULL, QUICK, SHARES

HERE = Path(__file__).resolve().parent
SOFT = 0.85  # share of a part's time after which it starts nothing new; at its end it is killed


def work(part: str, seconds: float, quick: bool, rejax: str | None) -> None:
    """In a part's own process: print what it finds, one line of JSON each."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # prints of libraries go to standard error
    import jax
    from measuring import Budget
    from parts import PARTS

    device = jax.devices()[0]
    made = report.provenance() | {"device": f"{jax.device_count()} x {device.platform} ({device.device_kind})"}
    print(json.dumps({"made": made}), file=out)
    sizes = (QUICK if quick else FULL)[part] | {"python": rejax}
    for name, fields in PARTS[part](sizes, Budget(seconds)):
        print(json.dumps({"case": name, "fields": fields}), file=out)
    print(json.dumps({"memory": device.memory_stats()}), file=out)


def run_part(part: str, seconds: float, results: dict[str, Any], options: argparse.Namespace) -> None:
    """Run a part in a process of its own, and write what it finds as it comes."""
    command = [sys.executable, __file__, "--worker", part, "--seconds", str(SOFT * seconds)]
    command += (["--quick"] if options.quick else []) + (["--rejax", options.rejax] if options.rejax else [])
    variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if part == "rejax" else {}  # its workers need memory
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | variables)
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    begin, found = time.monotonic(), results.setdefault(part, {})
    found.clear()
    found["cases"] = {}
    try:
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if "case" in message:
                found["cases"].setdefault(message["case"], {}).update(message["fields"])
            else:
                found |= message
            write(results, options)
        code = process.wait()
    finally:
        timer.cancel()
        process.kill()
    found["took"] = time.monotonic() - begin
    if code:
        late = found["took"] >= seconds
        found["ended"] = f"Ended after {found['took']:.0f} s: " + ("out of time" if late else f"exit code {code}") + "."
    write(results, options)
    print(f"{part}: {found['took']:.0f} s. {found.get('ended', '')}", file=sys.stderr)


def write(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Write the results; each file is whole at any moment."""
    options.results.mkdir(parents=True, exist_ok=True)
    page = report.page("gpu", results, rendering.render, Path(__file__))
    for name, text in (("gpu.json", json.dumps(results, indent=1) + "\n"), ("gpu.md", page)):
        temporary = options.results / f".{name}"
        temporary.write_text(text)
        temporary.replace(options.results / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=SHARES, default=[*SHARES], help="some of the parts")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all parts together (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--rejax", metavar="PYTHON", help="an interpreter that has rejax, for the part of this name")
    parser.add_argument("--results", type=Path, help="where gpu.json and gpu.md go (beside this script)")
    parser.add_argument("--pack", type=Path, metavar="DIR", help="download wheels for such a machine, and run nothing")
    parser.add_argument("--worker", choices=SHARES, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pack is not None:
        from packing import pack

        pack(options.pack)
        return
    if options.worker is not None:
        work(options.worker, options.seconds, options.quick, options.rejax)
        return
    if options.results is None:
        options.results = Path(tempfile.gettempdir()) / "rlkit-gpu" if options.quick else HERE
    results = report.read(options.results, "gpu")
    deadline = time.monotonic() + 60 * options.minutes
    left = sum(SHARES[part] for part in options.parts)
    for part in options.parts:  # a part's unused time goes to those after it
        run_part(part, (deadline - time.monotonic()) * SHARES[part] / left, results, options)
        left -= SHARES[part]
    print((options.results / "gpu.md").read_text())


if __name__ == "__main__":
    main()
