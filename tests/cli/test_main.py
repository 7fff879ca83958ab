from __future__ import annotations

import subprocess
import sys

import pytest

from torso.cli.main import COMMANDS, main


def test_help_names_every_command_and_needs_no_torch() -> None:
    program = "import sys; from torso.cli.main import main; main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


def test_an_unknown_command_is_told_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "no command is called 'trian'" in capsys.readouterr().err


def test_no_command_at_all_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: torso" in capsys.readouterr().out


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"torso {command}" in capsys.readouterr().out


def test_an_unknown_flag_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--modell", "mini"])
    assert ended.value.code == 2
