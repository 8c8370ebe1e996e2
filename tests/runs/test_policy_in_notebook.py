"""The HTML of a policy in a notebook."""

import re
from types import SimpleNamespace

from rlkit.runs.policy import Policy


def test_a_policy_shows_the_pictures_that_its_run_has(tmp_path):
    config = SimpleNamespace(run=SimpleNamespace(agent="ppo", env="<b>"))
    policy = Policy(None, None, (), None, None, config, 7, tmp_path)  # type: ignore[arg-type]
    assert "&lt;b&gt;, step 7" in policy._repr_html_()
    assert "<img" not in policy._repr_html_()
    (tmp_path / "policy.gif").write_bytes(b"GIF89a")
    assert re.findall(r'src="(.*?)"', policy._repr_html_()) == ["data:image/gif;base64,R0lGODlh"]
    (tmp_path / "curve.png").write_bytes(b"x")
    assert len(re.findall("<img", policy._repr_html_())) == 2
