"""Folders of blocks on disk."""

from tests.support.block_folders import files, folder

__all__ = ["files", "folder"]
