"""Execute a notebook in its own folder and store its outputs: `python -m tools.run_notebook NOTEBOOK`.

What depends on the day or the machine is left out: times of execution, the kernel's version, the lines of progress.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def executed(notebook: nbformat.NotebookNode, folder: Path, timeout: int = 900) -> nbformat.NotebookNode:
    """Run `notebook` in `folder` and return it with its outputs; raises if a cell raises."""
    # The notebook can import modules from this folder, as in an editor.
    client = NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return notebook


def _is_progress(output: nbformat.NotebookNode) -> bool:
    shown = output.get("data", {}).keys() == {"text/plain"} and output.output_type == "display_data"
    return shown or output.get("name") == "stderr"


def main(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        executed(notebook, Path(folder))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not _is_progress(output)]
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
