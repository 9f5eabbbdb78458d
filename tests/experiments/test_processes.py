"""Work in processes of its own, and a service that shares a GPU among them."""

import os
from pathlib import Path

import pytest

from tokengt.experiments import processes
from tokengt.experiments.processes import shared_gpu


def fake_service(folder: Path, status: int = 0) -> Path:
    """A program of the service's name that writes down what it is asked for."""
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\necho "$1 $(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {folder}/asked\nexit {status}\n')
    program.chmod(0o755)
    return folder / "asked"


def test_the_service_is_started_for_the_block_and_ended_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    asked = fake_service(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with shared_gpu(True) as environment:
        pipe = environment["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(pipe).is_dir()
        assert asked.read_text().split() == ["-d", pipe]
    assert asked.read_text().split() == ["-d", pipe, "quit", pipe]
    assert not Path(pipe).exists()


@pytest.mark.parametrize("reason", ["not wanted", "not there", "fails", "set up already"])
def test_without_the_service_nothing_is_set(reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    if reason != "not there":
        fake_service(tmp_path, status=1 if reason == "fails" else 0)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    else:
        monkeypatch.setattr(processes.shutil, "which", lambda name: None)
    if reason == "set up already":
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere")
    with shared_gpu(reason != "not wanted") as environment:
        assert environment == {}
