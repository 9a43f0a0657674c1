"""Checks a model folder for whoever may not import the worker, and tells what it holds.

    python -m worker.model_files FOLDER

One JSON object on standard output, or one line on standard error and exit status 1. Loads nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from cache_store.errors import StemcacheError
from worker.model_files.folder import check_folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m worker.model_files", description="Checks a model folder.")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    try:
        folder = check_folder(arguments.folder)
    except StemcacheError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    facts = {
        "path": str(folder.path),
        "model_type": str(folder.config.get("model_type", "unknown")),
        "weights_bytes": sum(file.stat().st_size for file in folder.weight_files),
        "has_chat_template": _has_chat_template(folder.path),
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


def _has_chat_template(folder: Path) -> bool:
    settings = folder / "tokenizer_config.json"
    if (folder / "chat_template.jinja").is_file():
        return True
    return settings.is_file() and '"chat_template"' in settings.read_text(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    sys.exit(main())
