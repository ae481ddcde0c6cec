"""One process of the cases: makes the system calls that it reads from its input, one on a line, and answers each with
`ok VALUE` or `error ERRNO`.

Arguments: user, group, and further groups. A word `x*255` is so many letters. Open files and directories have names.
"""
import ctypes, errno, fcntl, mmap, os, re, stat, struct, sys, time

user, group, *groups = map(int, sys.argv[1:])
os.setgroups(groups)
os.setresgid(group, group, group)
os.setresuid(user, user, user)

FLAGS = {"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR, "creat": os.O_CREAT, "excl": os.O_EXCL,
         "trunc": os.O_TRUNC, "append": os.O_APPEND, "dir": os.O_DIRECTORY, "nofollow": os.O_NOFOLLOW,
         "nonblock": os.O_NONBLOCK, "path": os.O_PATH}
TYPES = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}
WHENCE = {"set": os.SEEK_SET, "cur": os.SEEK_CUR, "end": os.SEEK_END}
FLOCKS = {"r": fcntl.LOCK_SH, "w": fcntl.LOCK_EX, "u": fcntl.LOCK_UN}
# fcntl(2); Python does not name those of open file descriptions.
OFD_GETLK, OFD_SETLK, OFD_SETLKW = 36, 37, 38
# Errors that have two names have the one of POSIX.
NAMES = errno.errorcode | {errno.EDEADLK: "EDEADLK"}
# struct flock on 64 bits.
LOCK = "hhqqi4x"
NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2

libc = ctypes.CDLL(None, use_errno=True)
files = {}
maps = {}


def lock(command, name, kind, start, length, whence="set"):
    asked = struct.pack(LOCK, TYPES[kind], WHENCE[whence], int(start, 0), int(length, 0), 0)
    found, _, begin, length, pid = struct.unpack(LOCK, fcntl.fcntl(files[name], command, asked))
    if command not in (fcntl.F_GETLK, OFD_GETLK):
        return ""
    if found == fcntl.F_UNLCK:
        return "free"
    return f"{'r' if found == fcntl.F_RDLCK else 'w'},{begin},{length},pid:{pid}"


def field(of, name):
    if name == "mode":
        return f"{stat.S_IMODE(of.st_mode):o}"
    if name == "type":
        return {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo",
                stat.S_IFCHR: "char", stat.S_IFBLK: "block", stat.S_IFSOCK: "socket"}[stat.S_IFMT(of.st_mode)]
    return str(getattr(of, {"ctime": "st_ctime_ns", "mtime": "st_mtime_ns", "atime": "st_atime_ns"}.get(name, f"st_{name}")))


def utimensat(path, atime, mtime):
    """Seconds, seconds.nanoseconds, `now` or `omit`, which Python does not know."""
    def spec(text):
        if text in ("now", "omit"):
            return struct.pack("qq", 0, NOW if text == "now" else OMIT)
        seconds, _, fraction = text.partition(".")
        return struct.pack("qq", int(seconds), int(fraction.ljust(9, "0")))
    if libc.utimensat(-100, os.fsencode(path), spec(atime) + spec(mtime), 0) != 0:
        raise OSError(ctypes.get_errno(), path)


def child(*call):
    """Makes a call in a child process, which ends then."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, answer(call).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 4096).decode()
    os.close(read)
    os.waitpid(pid, 0)
    return said


def reset(directory):
    for name in list(maps):
        maps.pop(name).close()
    for name in list(files):
        os.close(files.pop(name))
    os.umask(0)
    os.chdir(directory)


def tick():
    """Returns when the clock that stamps files has moved on."""
    coarse = 5
    begin = time.clock_gettime_ns(coarse)
    while time.clock_gettime_ns(coarse) == begin:
        pass


def opened(name, path, flags, mode="0"):
    bits = 0
    for flag in flags.split(","):
        bits |= FLAGS[flag]
    files[name] = os.open(path, bits, int(mode, 8))


def mapped(name, file, length):
    maps[name] = mmap.mmap(files[file], int(length))


def poke(name, at, data):
    maps[name][int(at):int(at) + len(data)] = data.encode()


def access(path, rights):
    """access(2), which Python answers without a reason."""
    bits = sum({"r": 4, "w": 2, "x": 1, "f": 0}[one] for one in rights)
    if libc.access(os.fsencode(path), bits) != 0:
        raise OSError(ctypes.get_errno(), path)


CALLS = {
    "reset": reset,
    "tick": tick,
    "child": child,
    "open": opened,
    "create": lambda path, mode: os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, int(mode, 8))),
    "close": lambda name: os.close(files.pop(name)),
    "dup": lambda name, copy: files.update({copy: os.dup(files[name])}),
    "write": lambda name, data: os.write(files[name], data.encode()),
    "pwrite": lambda name, at, data: os.pwrite(files[name], data.encode(), int(at, 0)),
    "pread": lambda name, at, length: os.pread(files[name], int(length), int(at, 0)).decode(),
    "seek": lambda name, at, whence="set": os.lseek(files[name], int(at, 0), WHENCE[whence]),
    "fsync": lambda name: os.fsync(files[name]),
    "ftruncate": lambda name, size: os.ftruncate(files[name], int(size, 0)),
    "fchmod": lambda name, mode: os.fchmod(files[name], int(mode, 8)),
    "fstat": lambda name, what: field(os.fstat(files[name]), what),
    "stat": lambda path, what: field(os.stat(path), what),
    "lstat": lambda path, what: field(os.lstat(path), what),
    "access": access,
    "mkdir": lambda path, mode: os.mkdir(path, int(mode, 8)),
    "rmdir": os.rmdir,
    "unlink": os.unlink,
    "rename": os.rename,
    "link": lambda old, new: os.link(old, new, follow_symlinks=False),
    "symlink": os.symlink,
    "readlink": os.readlink,
    "mkfifo": lambda path, mode: os.mkfifo(path, int(mode, 8)),
    "mknod": lambda path, mode, major, minor:
        os.mknod(path, int(mode, 8) | stat.S_IFCHR, os.makedev(int(major), int(minor))),
    "chmod": lambda path, mode: os.chmod(path, int(mode, 8)),
    "chown": lambda path, uid, gid: os.chown(path, int(uid), int(gid)),
    "lchown": lambda path, uid, gid: os.lchown(path, int(uid), int(gid)),
    "truncate": lambda path, size: os.truncate(path, int(size, 0)),
    "utimensat": utimensat,
    "umask": lambda mask: os.umask(int(mask, 8)),
    "list": lambda path: ",".join(sorted(os.listdir(path))),
    "setlk": lambda *of: lock(fcntl.F_SETLK, *of),
    "setlkw": lambda *of: lock(fcntl.F_SETLKW, *of),
    "getlk": lambda *of: lock(fcntl.F_GETLK, *of),
    "ofd-setlk": lambda *of: lock(OFD_SETLK, *of),
    "ofd-setlkw": lambda *of: lock(OFD_SETLKW, *of),
    "ofd-getlk": lambda *of: lock(OFD_GETLK, *of),
    "flock": lambda name, kind: fcntl.flock(files[name], FLOCKS[kind] | fcntl.LOCK_NB),
    "flockw": lambda name, kind: fcntl.flock(files[name], FLOCKS[kind]),
    "mmap": mapped,
    "peek": lambda name, at, length: maps[name][int(at):int(at) + int(length)].decode(),
    "poke": poke,
}


def answer(call):
    try:
        value = CALLS[call[0]](*call[1:])
    except OSError as error:
        return "error " + NAMES[error.errno]
    return f"ok {'' if value is None else value}".rstrip()


for line in sys.stdin:
    words = [re.sub(r"(\S)\*(\d+)", lambda it: it[1] * int(it[2]), word) for word in line.split()]
    if words == ["exit"]:
        break
    print(answer(words), flush=True)
