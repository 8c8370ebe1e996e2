"""Worker processes that die, hang or fail; no worker outlives its pool, however the pool ends."""

import os
import signal
import subprocess
import threading
import time

import numpy as np
import psutil
import pytest
from mistakes import mistake
from pool_scripts import POOL, STEP, script

from rlkit import hosts
from rlkit.hosts import orphans
from rlkit.types import ConfigError

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore:.*its worker starts anew:UserWarning")]
TIMEOUT = 0.5  # seconds, of a call of an environment, where one hangs on purpose


def children():
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def _no_orphans():
    before = {p.pid for p in children()}
    yield
    assert {p.pid for p in children()} <= before


def act(pool):
    return np.zeros(pool.num_envs, np.int32)


def test_waiting_for_a_slow_worker_never_calls_popen_poll(monkeypatch):
    def forbidden(popen):
        raise AssertionError("an interrupt in the middle of Popen.poll leaves its lock held")

    with hosts.make("host_envs:Target", num_envs=1, backend="process", sleep=0.5) as pool:
        pool.reset()
        with monkeypatch.context() as patch:
            patch.setattr(subprocess.Popen, "poll", forbidden)
            assert pool.step(act(pool)).terminated.all()


MESSAGES = {
    "kill": "the process ended: killed by SIGKILL",
    "segv": "the process ended: killed by SIGSEGV",
    "exit": "the process ended: exit code 3",
    "stop": "no answer for 0.5 s",
    "loop": "no answer for 0.5 s",
    "raise": "RuntimeError: broken on purpose (host_envs.py, line ",
}
EACH_FAULT = (("step", "kill"), ("constructor", "exit"), ("reset", "stop"), ("reset", "raise"))  # and each stage


@pytest.mark.parametrize(
    ("where", "how"),
    [
        pytest.param(where, how, marks=() if (where, how) in EACH_FAULT else pytest.mark.slow)
        for where in ("step", "constructor", "reset")
        for how in MESSAGES
    ],
)
def test_without_restarts_a_fault_is_an_error(where, how):
    """The error comes within 10 s and names the environment, the worker, the seed, the stage and the cause."""
    begin, stage = time.monotonic(), "the constructor" if where == "constructor" else where
    place = ["env='host_envs:Breaks': environment ", " of worker ", ", seed "]
    with mistake(MESSAGES[how], f"failed in {stage}: ", *place, kind=hosts.HostError):
        run_to_the_fault(how=how, where=where, num_envs=2, num_workers=1, restarts=0, timeout=TIMEOUT)
    assert time.monotonic() - begin < 10


def run_to_the_fault(**settings):
    with hosts.make("host_envs:Breaks", **settings) as pool:
        pool.reset()
        for _ in range(12):
            pool.step(act(pool))


@pytest.mark.parametrize(
    ("how", "where"),
    [
        *(("kill", "step"), ("exit", "reset")),
        *(pytest.param(how, "step", marks=pytest.mark.slow) for how in ("stop", "raise")),
    ],
)
def test_a_restart_begins_another_episode(tmp_path, how, where):
    """The step that failed is not a transition, a new episode follows, and the other worker is not affected."""
    with hosts.make(
        "host_envs:Breaks", num_envs=4, num_workers=2, timeout=TIMEOUT, how=how, where=where, once=str(tmp_path / "x")
    ) as pool:
        obs, history = pool.reset(), []
        for _ in range(12):
            step = pool.step(act(pool))
            np.testing.assert_array_equal(step.next_obs[step.real, 1], obs[step.real, 1] + 1)
            assert not (step.terminated | step.truncated)[~step.real].any()
            assert (step.obs[~step.real, 1] == 0).all()
            assert (step.lengths[~step.real] == 0).all()
            assert np.isin(step.lengths, (0, 5)).all()  # an episode is complete, or not counted
            history.append((step.real, step.obs))
            obs = step.obs
        real = np.stack([real for real, _ in history])  # [T, N]
        broken = np.argwhere(~real)
        time = {"step": 2, "reset": 4}[where]
        assert broken.tolist() in ([[time, 0], [time, 1]], [[time, 2], [time, 3]])
        worker = broken[0, 1]
        others = [env for env in range(4) if env not in broken[:, 1]]
        assert (history[time][1][worker, 2] != history[time - 1][1][worker, 2]).all()  # another seed
        assert (history[time][1][others, 2] == history[time - 1][1][others, 2]).all()
        assert pool.restarted == 1
        assert len(children()) == 3  # two workers and the orphan killer


@pytest.mark.parametrize("how", [pytest.param("exit", marks=pytest.mark.slow), "raise"])
def test_the_number_of_restarts_is_limited(how):
    """Each restart counts; the error is raised when all are used up. Steps are completed between the failures."""
    with hosts.make("host_envs:Breaks", num_envs=1, how=how, restarts=2) as pool:
        pool.reset()
        reals = []
        with pytest.raises(hosts.HostError, match="all 2 restarts are used up"):  # noqa: PT012
            for _ in range(20):
                reals.append(bool(pool.step(act(pool)).real[0]))
        assert reals == [True, True, False] * 2 + [True, True]


@pytest.mark.parametrize("backend", [pytest.param("process", marks=pytest.mark.slow), "serial"])
def test_an_exception_that_comes_again_at_once_ends_the_pool(tmp_path, backend):
    """One restart is tried, in which the worker completes no step."""
    with hosts.make("host_envs:Broken", num_envs=1, backend=backend, path=str(tmp_path / "x")) as pool:
        pool.reset()
        reals = []
        with pytest.raises(hosts.HostError, match="the simulator is broken"):  # noqa: PT012
            for _ in range(20):
                reals.append(bool(pool.step(act(pool)).real[0]))
        assert reals == [True, True, False]


def test_a_violation_of_the_contract_is_not_retried():
    with hosts.make("host_envs:Wrong", num_envs=1, how="late shape") as pool:
        pool.reset()
        with pytest.raises(ConfigError, match=r"expected float32\[2\]"):  # noqa: PT012
            for _ in range(5):
                pool.step(act(pool))
        assert pool.restarted <= 1


def test_many_slow_steps_are_not_a_hang():
    """The time limit is for each call: a worker with many environments may take longer."""
    with hosts.make("host_envs:Target", num_envs=8, num_workers=1, timeout=0.4, sleep=0.1) as pool:
        pool.reset()
        assert pool.step(act(pool)).real.all()


def test_a_late_answer_is_dropped():
    """A worker that timed out is removed; answers of its successor belong to the successor's commands."""
    with hosts.make("host_envs:Counter", num_envs=2, num_workers=2, timeout=TIMEOUT, length=50) as pool:
        pool.reset()
        for _ in range(3):
            pool.step(act(pool))
        victim = pool.workers.processes[1].popen.pid
        os.kill(victim, signal.SIGSTOP)
        step = pool.step(act(pool))
        assert step.real.tolist() == [True, False]
        assert not psutil.pid_exists(victim)
        for time_ in range(1, 4):
            step = pool.step(act(pool))
            assert step.obs[:, 1].tolist() == [4 + time_, time_]


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_a_failed_pool_raises_an_error(backend):
    with hosts.make("host_envs:Breaks", num_envs=1, backend=backend, restarts=0) as pool:
        pool.reset()
        with pytest.raises(hosts.HostError, match="broken on purpose"):  # noqa: PT012
            for _ in range(5):
                pool.step(act(pool))
        for use in (pool.reset, lambda: pool.step(act(pool))):
            with pytest.raises(hosts.HostError, match=r"env='host_envs:Breaks': .* after it has failed; make another"):
                use()


@pytest.mark.parametrize("stopped", [False, True])
def test_the_orphan_killer_ends_where_another_process_holds_its_pipe(monkeypatch, stopped):
    """Such a process is a child that was forked in the meantime. A helper that does not respond is killed."""
    monkeypatch.setattr(orphans, "_EXIT_SECONDS", 0.2 if stopped else 10.0)
    started = subprocess.Popen(["sleep", "100"], process_group=0)
    killer = orphans.OrphanKiller()
    killer.add(started.pid)
    copy = os.dup(killer.process.stdin.fileno())
    pid = killer.process.pid
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    closing = threading.Thread(target=killer.close, daemon=True)
    closing.start()
    closing.join(5)
    try:
        assert not closing.is_alive()
        assert not psutil.pid_exists(pid)
        assert stopped or started.wait(5) == -signal.SIGKILL
    finally:
        os.close(copy)
        if alive(pid):
            os.kill(pid, signal.SIGCONT)
        started.kill()
        started.wait()
        closing.join()


@pytest.mark.parametrize(
    ("how", "rest", "number"),
    [
        ("loop", STEP, signal.SIGKILL),  # in the middle of a step that never ends
        ("loop", STEP, signal.SIGINT),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("stop", STEP, signal.SIGKILL),
                ("none", "time.sleep(60)", signal.SIGKILL),
                ("none", "time.sleep(60)", signal.SIGTERM),
                ("none", "", None),
                ("none", "sys.exit(1)", None),
                ("none", "import os; os._exit(0)", None),
            )
        ),
    ],
)
def test_no_worker_outlives_the_pool(how, rest, number):
    parent = script(POOL.format(how=how) + rest)
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    time.sleep(0.3 if number is not None else 0.0)
    begin = time.monotonic()
    if number is not None:
        parent.send_signal(number)
    parent.wait(10)
    assert time.monotonic() - begin < 10
    end = time.monotonic() + 5
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []
    parent.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_processes_started_by_an_environment_end_with_the_pool(number):
    code = POOL.replace("host_envs:Breaks", "host_envs:Engine").replace(", how={how!r}", "")
    parent = script(code + "time.sleep(60)")
    parent.stdout.readline()
    started = [p for p in psutil.Process(parent.pid).children(recursive=True) if p.name() == "sleep"]
    assert len(started) == 2
    parent.send_signal(number)
    parent.wait(10)
    parent.stdout.close()
    assert not psutil.wait_procs(started, timeout=5)[1]


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_workers_after_jax_has_started(recwarn):
    """Start 8 workers 50 times while JAX's threads run: no hang, no warning about forks, no open files left."""
    import jax.numpy as jnp

    jnp.ones(1000).sum().block_until_ready()
    process = psutil.Process()
    for turn in range(50):
        with hosts.make("host_envs:Counter", num_envs=8, num_workers=8) as pool:
            pool.reset()
            pool.step(act(pool))
        if turn == 0:
            files = process.num_fds()
    assert process.num_fds() == files
    assert not [w for w in recwarn if "fork" in str(w.message)]
