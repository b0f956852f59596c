"""openvse in a process of its own where PyTorch cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCKED = ("torch", "transformers", "accelerate", "safetensors", "yaml", "huggingface_hub")
START = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ImportError(f"{{name}} is not here")
sys.meta_path.insert(0, Blocked())
"""
COMMAND = """
from openvse.cli import main
sys.argv[0] = "openvse"
main()
"""


def begin(code: str, *words: str, folder: Path | None = None) -> subprocess.Popen[str]:
    """Start Python code in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80"}
    return subprocess.Popen(
        [sys.executable, "-c", START + code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
    )


def run(code: str, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python code in a folder to its end."""
    with begin(code, *words, folder=folder) as process:
        printed, said = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, printed, said)
