#!/usr/bin/env python3
"""Prints the licenses of all crates that are linked into a program: each crate with its terms, each text once.

  third_party.py [PACKAGE [FEATURES]]      the package of this workspace; whet by default
"""
import json
import pathlib
import subprocess
import sys

TEXTS = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


def metadata(features):
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    command += ["--filter-platform", "x86_64-unknown-linux-gnu"]
    if features:
        command += ["--features", features]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def linked(data, root):
    """Returns all packages that `root` is built from, without those for tests or builds alone."""
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    seen, todo = set(), [root]
    while todo:
        package = todo.pop()
        if package in seen:
            continue
        seen.add(package)
        for dep in nodes[package]["deps"]:
            if any(kind["kind"] is None for kind in dep["dep_kinds"]):
                todo.append(dep["pkg"])
    return seen


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else "whet"
    data = metadata(sys.argv[2] if len(sys.argv) > 2 else None)
    packages = {package["id"]: package for package in data["packages"]}
    root = next(p["id"] for p in data["packages"] if p["name"] == wanted and p["source"] is None)
    foreign = [packages[i] for i in linked(data, root) if packages[i]["source"] is not None]
    foreign.sort(key=lambda p: (p["name"], p["version"]))
    texts, missing = {}, []
    print(f"{wanted} contains these libraries. Their licenses stand below, each text once.\n")
    for package in foreign:
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license'] or 'see below'}")
        folder = pathlib.Path(package["manifest_path"]).parent
        files = sorted(f for f in folder.iterdir() if f.is_file() and f.name.upper().startswith(TEXTS))
        for file in files:
            text = file.read_text(errors="replace").strip()
            texts.setdefault(text, []).append(name)
        if not files and package["license"] is None:
            missing.append(name)
    for text, names in texts.items():
        print(f"\n{'=' * 72}\n{', '.join(names)}\n{'-' * 72}\n{text}")
    if missing:
        sys.exit(f"no license: {', '.join(missing)}")


if __name__ == "__main__":
    main()
