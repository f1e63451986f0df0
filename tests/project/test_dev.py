"""`./dev package`, with the real apt-get and dpkg on a root of the test's own: it starts nothing and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.running import ROOT, until

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The file that forbids the start of services. `./dev` must not write it.
POLICY = Path("/usr/sbin/policy-rc.d")

CONTROL = """\
Package: {name}
Version: 1
Architecture: all
Maintainer: nobody <nobody@localhost>
Description: a package with a service
"""

POSTINST = """\
#!/bin/sh
set -e
echo begun >>{said}
while [ -d {folder} ] && [ ! -e {gate} ]; do sleep 0.05; done
for each in invoke-rc.d deb-systemd-invoke service; do
    readlink -f "$(command -v $each)" >>{said}
    $each {name} start
done
echo ended >>{said}
"""

APT = """\
Dir "{root}/";
Dir::State::status "{root}/var/lib/dpkg/status";
Dir::Bin::dpkg "/usr/bin/dpkg";
APT::Sandbox::User "root";
DPkg::Options {{
    "--admindir={root}/var/lib/dpkg"; "--instdir={root}"; "--log=/dev/null"; "--force-not-root"; "--force-script-chrootless";
}};
"""

FOLDERS = (
    "var/lib/dpkg/updates",
    "var/lib/dpkg/info",
    "var/lib/dpkg/triggers",
    "var/lib/apt/lists/partial",
    "var/cache/apt/archives/partial",
    "var/log/apt",
    "etc/apt/apt.conf.d",
    "etc/apt/preferences.d",
)


@dataclass
class Package:
    """A package whose configuration waits for a file, and then tries to start a service in each possible way."""

    name: str
    folder: Path

    def build(self) -> Path:
        """Build the package; returns its file."""
        files = {each: self.folder / f"{self.name}.{each}" for each in ("said", "gate")}
        values = {"name": self.name, "folder": self.folder} | files
        inside = self.folder / self.name / "DEBIAN"
        inside.mkdir(parents=True)
        (inside / "control").write_text(CONTROL.format(**values))
        (inside / "postinst").write_text(POSTINST.format(**values))
        (inside / "postinst").chmod(0o755)
        built = self.folder / f"{self.name}.deb"
        subprocess.run(["dpkg-deb", "--build", self.folder / self.name, built], check=True, capture_output=True)
        return built

    @property
    def said(self) -> list[str]:
        """The output of the configuration."""
        written = self.folder / f"{self.name}.said"
        return written.read_text().split() if written.exists() else []

    def open_gate(self) -> None:
        """Let the configuration continue."""
        (self.folder / f"{self.name}.gate").touch()


@dataclass
class Machine:
    """A separate root for apt and dpkg."""

    folder: Path

    def package(self, name: str) -> tuple[Package, subprocess.Popen[str]]:
        """Start `./dev package` for a new package."""
        made = Package(name, self.folder)
        environment = os.environ | {"APT_CONFIG": str(self.folder / "apt.conf"), "LC_ALL": "C"}
        command = [str(ROOT / "dev"), "package", str(made.build())]
        return made, subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    @property
    def installed(self) -> set[str]:
        """The packages that dpkg has configured."""
        stanzas = (self.folder / "root/var/lib/dpkg/status").read_text().split("\n\n")
        return {stanza.split()[1] for stanza in stanzas if "Status: install ok installed" in stanza}


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    """A machine; without Debian's commands the test is skipped."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        pytest.skip("there is no apt-get on this machine, and so nothing that ./dev could install with it")
    root = folder / "root"
    for each in FOLDERS:
        (root / each).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    (folder / "apt.conf").write_text(APT.format(root=root))
    policy = policies()
    yield Machine(folder)
    assert policies() == policy


def policies() -> list[tuple[int, int]]:
    """The inode and modification time of the machine's policy for services, if it has one."""
    try:
        found = POLICY.stat()
    except FileNotFoundError:
        return []
    return [(found.st_ino, found.st_mtime_ns)]


def ended(running: subprocess.Popen[str]) -> str:
    """Wait until the process has ended successfully; returns its output."""
    _, said = running.communicate(timeout=120)
    assert running.returncode == 0, said
    return said


def test_a_package_is_installed_and_its_services_do_not_start(machine: Machine) -> None:
    """During the installation, `true` replaces the programs that would start them."""
    tiny, running = machine.package("rd-tiny")
    tiny.open_gate()
    said = ended(running)
    assert "dev: installing" in said
    assert machine.installed == {"rd-tiny"}
    assert [word.rpartition("/")[2] for word in tiny.said] == ["begun", "true", "true", "true", "ended"]


def test_an_installation_that_is_killed_leaves_nothing_and_still_starts_nothing(machine: Machine) -> None:
    """When the script is killed, apt goes on. The next installation waits for the end of apt."""
    first, killed = machine.package("rd-first")
    until(lambda: first.said == ["begun"], what="the first package to be configured")
    during = policies()
    killed.kill()
    killed.wait(30)
    second, running = machine.package("rd-second")
    first.open_gate()
    second.open_gate()
    ended(running)
    assert machine.installed == {"rd-first", "rd-second"}
    assert [word.rpartition("/")[2] for word in first.said] == ["begun", "true", "true", "true", "ended"]
    assert policies() == during
    if killed.stderr is not None:
        killed.stderr.close()


def test_two_at_once_install_one_after_the_other(machine: Machine) -> None:
    """The second waits; apt alone would refuse it."""
    first, running = machine.package("rd-first")
    until(lambda: first.said == ["begun"], what="the first package to be configured")
    second, waiting = machine.package("rd-second")
    assert waiting.stderr is not None
    assert "dev: installing" in waiting.stderr.readline()
    assert not second.said
    first.open_gate()
    second.open_gate()
    ended(running)
    ended(waiting)
    assert machine.installed == {"rd-first", "rd-second"}


@pytest.fixture
def without_chromium(folder: Path) -> Path:
    """A folder with the machine's programs, without a browser. Its `apt-get` notes its arguments and installs nothing."""
    programs = folder / "programs"
    programs.mkdir()
    for each in [path for place in ("/usr/bin", "/bin") for path in Path(place).iterdir()]:
        if each.name not in {"chromium", "apt-get"} and not (programs / each.name).exists():
            (programs / each.name).symlink_to(each)
    (programs / "apt-get").write_text(f'#!/bin/sh\necho "$*" >>{folder}/asked\nexit 1\n')
    (programs / "apt-get").chmod(0o755)
    return programs


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs anything")
@pytest.mark.parametrize("forbidden", ["", "1"])
def test_what_is_missing_is_installed_unless_that_is_forbidden(folder: Path, without_chromium: Path, forbidden: str) -> None:
    """`DEV_NO_INSTALL=1 ./dev test` says what is missing, and goes on."""
    environment = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("PYTEST")}
    environment |= {"PATH": str(without_chromium), "DEV_NO_INSTALL": forbidden}
    done = subprocess.run(
        [ROOT / "dev", "test", "--version"], env=environment, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert "no chromium" in done.stderr
    asked = (folder / "asked").read_text() if (folder / "asked").exists() else ""
    assert ("chromium" in asked) is not bool(forbidden)


def functions(*names: str) -> str:
    """The text of these functions of `./dev`."""
    text = (ROOT / "dev").read_text()
    found = [re.search(rf"^{name}\(\) \{{.*?^\}}$", text, re.MULTILINE | re.DOTALL) for name in names]
    return "\n".join(each[0] for each in found if each)


PIP = """\
WARNING: Location 'somewhere' is ignored
Ignoring tzdata: markers 'sys_platform == "win32"' don't match your environment
Processing /wheels/amqp-5.4.2-py3-none-any.whl (from -r requirements/demo.txt (line 1))
  Downloading amqp-5.4.2-py3-none-any.whl
Requirement already satisfied: click==8.5.1 in ./.venv (from -r requirements/demo.txt (line 4))
Building wheels for collected packages: pyspark
  Building wheel for pyspark (pyproject.toml): started
  Building wheel for pyspark (pyproject.toml): finished with status 'done'
Installing collected packages: amqp
"""
#: The third package is for another system.
STAGES = ("package 1 of 2, amqp", "package 2 of 2, click", "building pyspark", "unpacking 2 packages")


@pytest.mark.parametrize(
    ("printed", "is_terminal", "shown"),
    [
        (PIP, "", [f"dev: demo: {each}" for each in STAGES]),
        (PIP, "yes", ["", *(f"\x1b[Kdev: demo: {each}" for each in STAGES)]),
        (
            "Collecting amqp\nERROR: no match:\n    amqp from x\n",
            "",
            ["dev: demo: package 1 of 3, amqp", "ERROR: no match:", "    amqp from x"],
        ),
    ],
)
def test_installing_says_how_far_it_is_and_errors_whole(printed: str, is_terminal: str, shown: list[str]) -> None:
    """Other output of pip is not shown."""
    command = ["bash", "-c", f'{functions("progress")}\nprogress demo 3 "{is_terminal}"']
    done = subprocess.run(command, input=printed, capture_output=True, text=True, check=True, timeout=30)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line != "\x1b[K"] == shown
    assert done.stderr == ""


SLOW_PIP = """\
#!/bin/sh
echo Collecting amqp
while [ -d {folder} ] && [ ! -e {gate} ]; do sleep 0.05; done
echo 'ERROR: https://me:secret@index.example/ is away'
exit 1
"""


@pytest.mark.parametrize("on_a_terminal", [True, False])
def test_progress_is_shown_while_pip_still_works(folder: Path, *, on_a_terminal: bool) -> None:
    """No program between pip and the terminal waits for the end of pip. Addresses are never shown."""
    pip = folder / "venv" / "bin" / "python"
    pip.parent.mkdir(parents=True)
    pip.write_text(SLOW_PIP.format(folder=folder, gate=folder / "gate"))
    pip.chmod(0o755)
    (folder / "requirements").mkdir()
    (folder / "requirements" / "demo.txt").write_text("amqp==5.4.2 \\\n    --hash=sha256:0\n")
    read, written = pty.openpty() if on_a_terminal else os.pipe()
    code = f"set -euo pipefail\nvenv={folder}/venv\n{functions('without_addresses', 'progress', 'install_lock')}\ninstall_lock demo"
    with subprocess.Popen(["bash", "-c", code], cwd=folder, stderr=written, stdout=written) as running:
        os.close(written)
        said = b""
        try:
            while b"demo: package 1 of 1, amqp" not in said:
                assert select.select([read], [], [], 10)[0], said
                said += os.read(read, 4096)
            assert running.poll() is None
        finally:
            (folder / "gate").touch()
        assert running.wait(30) == 1
    with contextlib.suppress(OSError):  # Linux reports the end of a terminal as this error
        while more := os.read(read, 4096):
            said += more
    os.close(read)
    assert said.decode().split("\n")[-2].strip() == "ERROR: <address> is away"
