#!/usr/bin/env python3
"""Runs whet-fleet against an S3 service on this machine, and ends and restarts the service in between.

  fleet_s3_test.py WHET_FLEET MOTO_SERVER      whet-fleet must be built with `--features aws`

The service is moto's (PyPI: moto[server]). Nothing leaves this machine.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

BUILD = "0a0b0c"
PROFILE = (
    f"whet-profile 2\nruns 1\nsamples 100\nmodule {BUILD}\n"
    "function 0x10 7 counted entered 9 samples 90 size 0x4 none\n+0 +0 9\nend\n"
)


class Service:
    """moto's S3 on a free port. What it stores ends with it."""

    def __init__(self, program):
        self.program = program
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        command = [self.program, "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            try:
                request = urllib.request.Request(f"{self.url}/profiles", method="PUT")
                urllib.request.urlopen(request, timeout=5)
                return
            except OSError:
                time.sleep(0.1)
        sys.exit("the S3 service does not come up")

    def stop(self):
        self.process.terminate()
        self.process.wait()


def main():
    program, service = sys.argv[1], Service(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def run(host, *args, exit=0):
            options = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}
            options |= {"AWS_ENDPOINT": service.url, "AWS_ALLOW_HTTP": "true", "PATH": os.environ["PATH"]}
            command = [program, *args]
            if host:
                command += ["--config", folder / host / "config.toml"]
            began = time.monotonic()
            result = subprocess.run(command, env=options, capture_output=True, text=True)
            said = result.stdout + result.stderr
            if result.returncode != exit:
                sys.exit(f"{args}: exit code {result.returncode}, not {exit}: {said}")
            print(f"{time.monotonic() - began:5.1f} s  {host or '-':4} {' '.join(args[:1])}: {said.strip()[:110] or 'nothing to do'}")
            return said

        key = folder / "key"
        public = run(None, "keygen", str(key)).split('"')[1]
        for host in ("one", "two"):
            for part in ("spool/in", "spool/out", "state"):
                (folder / host / part).mkdir(parents=True)
            report = {"version": 1, "builds": [{"build": BUILD, "exe": "/x", "inbox": None}], "votes": []}
            (folder / host / "spool/out/host.json").write_text(json.dumps(report))
            (folder / host / "config.toml").write_text(
                f"store = 's3://profiles/whet'\nkeys = ['{public}']\nhost = '{host}'\n"
                f"spool = '{folder}/{host}/spool'\nstate = '{folder}/{host}/state'\n"
                "[options]\nmax_retries = '1'\nretry_timeout = '2s'\n"
            )
        (folder / f"one/spool/out/{BUILD}.profile").write_text(PROFILE)
        policy = folder / "policy.json"
        policy.write_text('{"version": 1, "serial": 1, "waves": [100], "step": 0}')
        inbox = folder / f"two/spool/in/{BUILD}.signed"
        service.start()
        try:
            run("one", "policy", "--set", str(policy), "--key", str(key))
            assert "contributed" in run("one", "sync")
            assert "is offered" in run("one", "merge", "--key", str(key))
            assert "accepted" in run("two", "sync")
            before = inbox.read_bytes()
            service.stop()
            run("two", "sync", exit=3)
            run("one", "merge", "--key", str(key), exit=3)
            assert inbox.read_bytes() == before, "an outage changes nothing"
            # The service comes back without its objects: the host keeps what it has, and gives again what it has.
            service.start()
            run("two", "sync")
            assert inbox.read_bytes() == before
            run("one", "policy", "--set", str(policy), "--key", str(key))
            assert "unchanged" in run("one", "merge", "--key", str(key), "--build", BUILD)
        finally:
            service.stop()
    print("ok")


main()
