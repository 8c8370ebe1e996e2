"""The files of the repository hold no path of a machine, no address of a package registry and no password."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MACHINE = re.compile(
    r"/(?:home|root|Users|work|tmp)/\w"  # paths of one machine
    r"|(?:pypi|pythonhosted|anaconda|npmjs|jfrog|artifactory)\.\w"  # package registries
    r"|--(?:extra-)?(?:index-url|find-links)"
    r"|https?://[^/\s]*@"  # an address with a name and password
)


def tracked() -> list[Path]:
    """Files under version control; in an unpacked source distribution, every text file."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    text = {".py", ".md", ".toml", ".txt", ".yaml", ".ipynb"}
    return [path for path in ROOT.rglob("[!.]*") if path.suffix in text]


def test_no_machine_paths_or_registries():
    matches, paths = [], tracked()
    assert Path(__file__).resolve() in {path.resolve() for path in paths}
    for path in paths:
        text = path.read_bytes().decode("utf-8", "ignore")
        matches += [f"{path.relative_to(ROOT)}: {match.group()}" for match in MACHINE.finditer(text)]
    assert matches == []


@pytest.mark.parametrize(
    "text", ["/ho" + "me/ann/x", "https://pyp" + "i.org/simple", "--index" + "-url x", "http" + "://a:b@c"]
)
def test_a_planted_path_or_address_is_reported(text):
    assert MACHINE.search(f"see {text} here")


def test_constraints_hold_no_addresses():
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert text.count("==") == len(re.findall(r"^[\w.-]+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))
