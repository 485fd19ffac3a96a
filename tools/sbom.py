#!/usr/bin/env python3
"""Prints the bill of materials (CycloneDX 1.5, JSON) of a package of this workspace: all crates linked into it.

  sbom.py [PACKAGE [FEATURES]]      whet by default
"""
import json
import sys

from third_party import linked, metadata


def component(package, checksums):
    name, version = package["name"], package["version"]
    out = {"type": "library", "name": name, "version": version}
    out["bom-ref"] = out["purl"] = f"pkg:cargo/{name}@{version}"
    if package["license"]:
        # Old manifests write the slash for OR.
        out["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if (name, version) in checksums:
        out["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
    return out


def locked():
    """Returns the checksums of Cargo.lock."""
    import tomllib

    with open("Cargo.lock", "rb") as file:
        packages = tomllib.load(file)["package"]
    return {(p["name"], p["version"]): p["checksum"] for p in packages if "checksum" in p}


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else "whet"
    data = metadata(sys.argv[2] if len(sys.argv) > 2 else None)
    packages = {p["id"]: p for p in data["packages"]}
    root = next(p for p in data["packages"] if p["name"] == wanted and p["source"] is None)
    checksums = locked()
    parts = [component(packages[i], checksums) for i in linked(data, root["id"]) if i != root["id"]]
    own = component(root, {}) | {"type": "application"}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": sorted(parts, key=lambda c: (c["name"], c["version"])),
    }
    print(json.dumps(document, indent=1))


main()
