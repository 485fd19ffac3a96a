#!/usr/bin/env python3
"""Builds an OCI image of a program that is built already, without a daemon, and prints the file's path.

  oci.py BINARY NAME FILE      for example: target/release/whet whet target/oci/whet.tar

The image has one layer: the program and the shared libraries it needs, at their paths. The same binary and sources
make the same bytes. `skopeo copy oci-archive:FILE docker://...` puts it into a registry.
"""
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile


def commit_time():
    """The date of the last commit, as for the other packages."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or subprocess.check_output(["git", "log", "-1", "--format=%ct"], text=True))


def libraries(binary):
    """Returns the paths of the shared libraries that a program is loaded with, the dynamic loader among them."""
    result = subprocess.run(["ldd", binary], capture_output=True, text=True)
    if "not a dynamic executable" in result.stdout + result.stderr or "statically linked" in result.stdout:
        return []
    if result.returncode != 0:
        sys.exit(f"ldd {binary}: {result.stderr.strip()}")
    return sorted(set(re.findall(r"(/\S+) \(0x", result.stdout)))


def add(tar, path, data, mode, time):
    info = tarfile.TarInfo(path)
    info.mode, info.mtime = mode, time
    if data is None:
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))


def layer(binary, name, time):
    files = {f"usr/bin/{name}": (pathlib.Path(binary).read_bytes(), 0o755)}
    for library in libraries(binary):
        files[library.lstrip("/")] = (pathlib.Path(library).read_bytes(), 0o755)
    # Programs of the image write here, to mounted folders.
    folders = {"tmp", "run", "etc", "var", "var/lib"}
    for path in files:
        folders |= {str(parent) for parent in pathlib.PurePath(path).parents if str(parent) != "."}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder in sorted(folders):
            add(tar, folder, None, 0o1777 if folder == "tmp" else 0o755, time)
        for path in sorted(files):
            data, mode = files[path]
            add(tar, path, data, mode, time)
    return out.getvalue()


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    binary, name, target = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    time = commit_time()
    version = subprocess.check_output([binary, "--version"], text=True).split()[-1]
    blobs = {}

    def blob(data, media_type):
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def text(value):
        return json.dumps(value, sort_keys=True, indent=1).encode() + b"\n"

    plain = layer(binary, name, time)
    packed = gzip.compress(plain, 9, mtime=0)
    created = subprocess.check_output(["date", "-u", "-d", f"@{time}", "+%Y-%m-%dT%H:%M:%SZ"], text=True).strip()
    config = {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/usr/bin/{name}"], "Env": ["PATH=/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(plain).hexdigest()]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(text(config), "application/vnd.oci.image.config.v1+json"),
        "layers": [blob(packed, "application/vnd.oci.image.layer.v1.tar+gzip")],
        "annotations": {"org.opencontainers.image.version": version},
    }
    entry = blob(text(manifest), "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": version}
    index = {"schemaVersion": 2, "manifests": [entry]}
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        add(tar, "oci-layout", text({"imageLayoutVersion": "1.0.0"}), 0o644, time)
        add(tar, "index.json", text(index), 0o644, time)
        for digest in sorted(blobs):
            add(tar, f"blobs/sha256/{digest}", blobs[digest], 0o644, time)
    print(target)


main()
