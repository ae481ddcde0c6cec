"""A volume of `larder serve` on this machine, and what its server takes."""
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path


def run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


def memory_mb(pid, kind="VmRSS"):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(kind + ":")[1].split()[0]) / 1024


def cpu_s(pid):
    """CPU time of a process so far (proc(5): utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A volume and its server."""

    def __init__(self, larder, top, size="1G", more=()):
        self.larder, self.dir, self.size, self.more = larder, top / "volume", size, more
        self.metadata = self.dir / "meta"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = "127.0.0.1:%d" % free.getsockname()[1]
        self.start()

    def start(self):
        """Answers how long it takes until it takes calls."""
        begin = time.monotonic()
        self.process = subprocess.Popen([self.larder, "serve", self.dir, "--listen", self.address, "--size", self.size, *self.more],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        host, port = self.address.split(":")
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return time.monotonic() - begin
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit("larder serve has ended")
                time.sleep(0.002)

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait()

    def memory_mb(self):
        return memory_mb(self.process.pid)

    def peak_mb(self):
        return memory_mb(self.process.pid, "VmHWM")

    def cpu_s(self):
        return cpu_s(self.process.pid)

    def metadata_mb(self):
        files = [path for path in self.metadata.rglob("*") if path.is_file()]
        return sum(path.stat().st_blocks * 512 for path in files) / 2**20

    def mount(self, mountpoint):
        mountpoint.mkdir(exist_ok=True)
        run(self.larder, "mount", f"larder://{self.address}/", mountpoint, "--cache", "none", "-o", "plain")

    def unmount(self, mountpoint):
        subprocess.run([self.larder, "umount", "--lazy", mountpoint], check=False)

    def worker(self, mountpoint):
        """The process that serves a mount."""
        status = subprocess.run([self.larder, "status", mountpoint, "--json"], capture_output=True, text=True, check=True)
        return json.loads(status.stdout)["worker_pid"]

    def check(self):
        """Seconds, CPU seconds and most MB that a check of the volume takes, which nobody serves meanwhile. It must find nothing."""
        begin = time.monotonic()
        process = subprocess.Popen([self.larder, "volume", "check", "--engine", f"embedded:{self.metadata}"], stdin=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"larder volume check ends with {process.returncode}")
        return time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
