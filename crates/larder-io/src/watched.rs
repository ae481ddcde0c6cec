//! Watches a process tree: reports which files its calls name, before each call is carried out.
//!
//! A filter of seccomp(2) passes every call that names a file to us; we read the name in the
//! caller's memory, report it, and let the kernel continue with the call. That needs no privilege,
//! follows threads, fork and vfork, and leaves ptrace(2) to debuggers. Whether the call succeeds is
//! not reported: the receiver inspects the file.
//!
//! What is not seen: calls of 32-bit programs, and names that a program passes to another process
//! that is not below it. io_uring is refused to the tree, so that programs fall back to calls. The
//! tree gets no additional privileges (`PR_SET_NO_NEW_PRIVS`), if this process has none: sudo(8)
//! does not work in it. The filter stays as long as a process of the tree runs, so [`run_watched`]
//! returns after the last one has ended.

#![allow(unsafe_code, reason = "rustix has no seccomp(2)")]

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::sync_channel;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// How a call touches a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Touch {
    /// It reads attributes or a link's target.
    Look,
    /// It opens it to read, or gives it another name.
    Read,
    /// It runs it.
    Execute,
    /// It may change the file, and what is in it may stay.
    Change,
    /// It empties it and may write it.
    Truncate,
    /// It replaces the file, or removes it.
    Replace,
    /// It makes a directory.
    MakeDir,
}

/// A call that names a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The name, absolute; with symbolic links and `..` as in the caller's argument.
    pub path: PathBuf,
    /// How it is touched.
    pub touch: Touch,
}

/// Where a call has its arguments.
#[derive(Clone, Copy)]
struct PathArg {
    /// Which argument is the directory that the name is relative to.
    dir: Option<usize>,
    name: usize,
}

const fn at(name: usize) -> PathArg {
    PathArg { dir: None, name }
}

const fn below(dir: usize, name: usize) -> PathArg {
    PathArg { dir: Some(dir), name }
}

/// The effect of a call on the file that it names.
#[derive(Clone, Copy)]
enum Says {
    Touch(Touch),
    /// The flags of open(2) are that argument.
    Open(usize),
    /// The flags of openat2(2) are the first word of the structure that argument points to.
    OpenHow(usize),
}

use Says::{Open, OpenHow};
use Touch::{Change, Execute, Look, MakeDir, Read, Replace, Truncate};

/// A name in a call.
type Named = (libc::c_long, PathArg, Says);

/// Every name in every call that is watched.
const CALLS: &[Named] = &[
    (libc::SYS_openat, below(0, 1), Open(2)),
    (libc::SYS_openat2, below(0, 1), OpenHow(2)),
    (libc::SYS_execve, at(0), Says::Touch(Execute)),
    (libc::SYS_execveat, below(0, 1), Says::Touch(Execute)),
    (libc::SYS_newfstatat, below(0, 1), Says::Touch(Look)),
    (libc::SYS_statx, below(0, 1), Says::Touch(Look)),
    (libc::SYS_faccessat, below(0, 1), Says::Touch(Look)),
    (libc::SYS_faccessat2, below(0, 1), Says::Touch(Look)),
    (libc::SYS_readlinkat, below(0, 1), Says::Touch(Look)),
    (libc::SYS_renameat2, below(0, 1), Says::Touch(Read)),
    (libc::SYS_renameat2, below(0, 1), Says::Touch(Replace)),
    (libc::SYS_renameat2, below(2, 3), Says::Touch(Replace)),
    (libc::SYS_renameat, below(0, 1), Says::Touch(Read)),
    (libc::SYS_renameat, below(0, 1), Says::Touch(Replace)),
    (libc::SYS_renameat, below(2, 3), Says::Touch(Replace)),
    (libc::SYS_linkat, below(0, 1), Says::Touch(Read)),
    (libc::SYS_linkat, below(2, 3), Says::Touch(Replace)),
    (libc::SYS_symlinkat, below(1, 2), Says::Touch(Replace)),
    (libc::SYS_unlinkat, below(0, 1), Says::Touch(Replace)),
    (libc::SYS_mkdirat, below(0, 1), Says::Touch(MakeDir)),
    (libc::SYS_truncate, at(0), Says::Touch(Change)),
    (libc::SYS_chdir, at(0), Says::Touch(Look)),
];

/// The same of calls that newer architectures do without.
#[cfg(target_arch = "x86_64")]
const OLDER: &[Named] = &[
    (libc::SYS_open, at(0), Open(1)),
    (libc::SYS_creat, at(0), Says::Touch(Truncate)),
    (libc::SYS_stat, at(0), Says::Touch(Look)),
    (libc::SYS_lstat, at(0), Says::Touch(Look)),
    (libc::SYS_access, at(0), Says::Touch(Look)),
    (libc::SYS_readlink, at(0), Says::Touch(Look)),
    (libc::SYS_rename, at(0), Says::Touch(Read)),
    (libc::SYS_rename, at(0), Says::Touch(Replace)),
    (libc::SYS_rename, at(1), Says::Touch(Replace)),
    (libc::SYS_link, at(0), Says::Touch(Read)),
    (libc::SYS_link, at(1), Says::Touch(Replace)),
    (libc::SYS_symlink, at(1), Says::Touch(Replace)),
    (libc::SYS_unlink, at(0), Says::Touch(Replace)),
    (libc::SYS_mkdir, at(0), Says::Touch(MakeDir)),
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[Named] = &[];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Runs a command to the end of its last process, and passes `on` the names in its calls: before
/// each call is carried out, which waits for that. Blocks.
///
/// # Errors
/// If the command cannot be started, or the kernel does not let it be watched.
pub fn run_watched(mut command: Command, mut on: impl FnMut(Sighting)) -> io::Result<ExitStatus> {
    let (tells, told) = sync_channel(1);
    // The filter belongs to one thread and what it starts.
    let starts = move || -> io::Result<ExitStatus> {
        if !rustix::process::geteuid().is_root() {
            rustix::thread::set_no_new_privs(true)?;
        }
        tells.send(filter()?).expect("the caller waits for it");
        command.spawn()?.wait()
    };
    let thread = std::thread::Builder::new().name("larder-watched".to_owned()).spawn(starts)?;
    let served = match told.recv() {
        Ok(listener) => serve(&listener, &mut on),
        Err(_) => Ok(()),
    };
    let ended =
        thread.join().expect("it starts and waits for a command, and nothing in that panics");
    served.and(ended)
}

/// Puts the filter on this thread.
fn filter() -> io::Result<OwnedFd> {
    let program = program();
    let wanted = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("a few calls"),
        filter: program.as_ptr().cast_mut(),
    };
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the kernel copies the program during the call, and both live until it returns.
    let listener = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const wanted)
    };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    let listener = i32::try_from(listener).expect("a descriptor");
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// The program that the kernel runs for each call: `struct seccomp_data` is number, architecture
/// and more.
fn program() -> Vec<libc::sock_filter> {
    const NUMBER: u32 = 0;
    const KIND: u32 = 4;
    let step = |code: u32, jt: u8, jf: u8, k: u32| {
        let code = u16::try_from(code).expect("codes of BPF are short");
        libc::sock_filter { code, jt, jf, k }
    };
    let load = |what| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, what);
    let answer = |what| step(libc::BPF_RET | libc::BPF_K, 0, 0, what);
    let unless = |value, skip| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, value);
    let refusal = libc::SECCOMP_RET_ERRNO | Errno::NOSYS.raw_os_error().cast_unsigned();
    let mut program = vec![
        load(KIND),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, ARCHITECTURE),
        answer(libc::SECCOMP_RET_ALLOW),
        load(NUMBER),
    ];
    let mut numbers: Vec<u32> = CALLS.iter().chain(OLDER).map(|call| number(call.0)).collect();
    numbers.dedup();
    for number in numbers {
        program.extend([unless(number, 1), answer(libc::SECCOMP_RET_USER_NOTIF)]);
    }
    program.extend([unless(number(libc::SYS_io_uring_setup), 1), answer(refusal)]);
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    program
}

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).expect("numbers of calls are small")
}

/// Reports calls until no process is left that could make one.
fn serve(listener: &OwnedFd, on: &mut impl FnMut(Sighting)) -> io::Result<()> {
    loop {
        let mut polled = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut polled, None) {
            Err(Errno::INTR) => continue,
            polled => _ = polled?,
        }
        let events = polled[0].revents();
        if events.contains(PollFlags::IN) {
            if let Some(call) = receive(listener)? {
                sightings(&call, on);
                go_on(listener, call.id)?;
            }
        } else if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            return Ok(());
        }
    }
}

/// The next call; `None` if its caller has died meanwhile.
fn receive(listener: &OwnedFd) -> io::Result<Option<libc::seccomp_notif>> {
    // SAFETY: a structure of integers, for which zeros are values, and which the kernel wants to be
    // zeros.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one such structure, and it lives until the call returns.
    let done =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) };
    outcome(done).map(|is_there| is_there.then_some(call))
}

/// Lets the kernel carry out a call.
fn go_on(listener: &OwnedFd, id: u64) -> io::Result<()> {
    const CONTINUE: u32 = 1;
    let answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags: CONTINUE };
    // SAFETY: the kernel reads one such structure, and it lives until the call returns.
    let done = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer)
    };
    outcome(done).map(|_| ())
}

/// Returns whether that was possible; not if the caller is gone.
fn outcome(done: libc::c_int) -> io::Result<bool> {
    match done {
        0.. => Ok(true),
        _ => match Errno::from_io_error(&io::Error::last_os_error()) {
            Some(Errno::NOENT | Errno::INTR) => Ok(false),
            _ => Err(io::Error::last_os_error()),
        },
    }
}

/// Reports the names in a call. A caller whose memory cannot be read names nothing: the kernel
/// cannot read it either, or the caller is gone.
fn sightings(call: &libc::seccomp_notif, on: &mut impl FnMut(Sighting)) {
    let Ok(memory) = File::open(format!("/proc/{}/mem", call.pid)) else { return };
    let argument = |at: usize| call.data.args[at];
    let ours = CALLS.iter().chain(OLDER);
    for (_, path, says) in ours.filter(|named| named.0 == libc::c_long::from(call.data.nr)) {
        let touch = match says {
            Says::Touch(touch) => *touch,
            Open(flags) => touch_of_open(argument(*flags)),
            OpenHow(how) => touch_of_open(word(&memory, argument(*how)).unwrap_or(0)),
        };
        let Some(name) = name(&memory, argument(path.name)) else { continue };
        let dir = path.dir.map(argument);
        if let Some(path) = absolute(call.pid, dir, name) {
            on(Sighting { path, touch });
        }
    }
}

/// The effect of open(2) with such flags.
fn touch_of_open(flags: u64) -> Touch {
    let has = |flag: i32| flags & u64::from(flag.cast_unsigned()) != 0;
    let writes = has(libc::O_WRONLY) || has(libc::O_RDWR);
    match () {
        () if has(libc::O_PATH) => Look,
        () if has(libc::O_TRUNC) => Truncate,
        () if writes || has(libc::O_CREAT) => Change,
        () => Read,
    }
}

/// The name at an address of a caller; `None` if there is none.
fn name(memory: &File, address: u64) -> Option<PathBuf> {
    const PAGE: u64 = 4096;
    const MAX: usize = 4096;
    let mut name = Vec::new();
    while name.len() < MAX {
        let from = address + name.len() as u64;
        let mut piece = vec![0; usize::try_from(PAGE - from % PAGE).expect("a page at most")];
        let len = memory.read_at(&mut piece, from).ok().filter(|len| *len > 0)?;
        match piece[..len].iter().position(|byte| *byte == 0) {
            Some(end) => {
                name.extend(&piece[..end]);
                return Some(PathBuf::from(OsString::from_vec(name)));
            }
            None => name.extend(&piece[..len]),
        }
    }
    None
}

fn word(memory: &File, address: u64) -> Option<u64> {
    let mut word = [0; 8];
    memory.read_exact_at(&mut word, address).ok()?;
    Some(u64::from_ne_bytes(word))
}

/// The absolute path of a name; `None` if it is empty, so that the call is about an open file.
fn absolute(pid: u32, dir: Option<u64>, name: PathBuf) -> Option<PathBuf> {
    if name.as_os_str().is_empty() {
        return None;
    }
    if name.is_absolute() {
        return Some(name);
    }
    // The kernel takes the lower half of the register.
    let dir = dir.map_or(libc::AT_FDCWD, |dir| dir as u32 as i32);
    let process = Path::new("/proc").join(pid.to_string());
    let dir = match dir {
        libc::AT_FDCWD => std::fs::read_link(process.join("cwd")),
        dir => std::fs::read_link(process.join("fd").join(dir.to_string())),
    };
    Some(dir.ok()?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files that a script touches below a directory.
    fn touched(script: &str) -> (Vec<(String, Touch)>, tempfile::TempDir, ExitStatus) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("in"), "bytes").unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).current_dir(dir.path());
        let mut seen = Vec::new();
        let ended = run_watched(command, |sighting| {
            if let Ok(below) = sighting.path.strip_prefix(dir.path()) {
                let below = below.to_str().unwrap().to_owned();
                // It is reported before it happens.
                if seen.is_empty() && below == "new" {
                    assert!(!sighting.path.exists());
                }
                seen.push((below, sighting.touch));
            }
        });
        (seen, dir, ended.unwrap())
    }

    #[test]
    fn files_of_a_pipeline_are_told_before_they_are_touched() {
        let (seen, dir, ended) =
            touched("cat < in | sed s/b/B/ > new; test -f absent; mkdir d; mv new d/moved; exit 3");
        assert_eq!(ended.code(), Some(3));
        assert_eq!(std::fs::read(dir.path().join("d/moved")).unwrap(), b"Bytes");
        for expected in [
            ("in", Read),
            ("new", Truncate),
            ("new", Replace),
            ("absent", Look),
            ("d", MakeDir),
            ("new", Read),
            ("d/moved", Replace),
        ] {
            assert!(
                seen.iter().any(|(path, touch)| (path.as_str(), *touch) == expected),
                "{expected:?}: {seen:?}"
            );
        }
    }

    /// The watch lasts as long as anything runs that was started.
    #[test]
    fn what_is_left_in_the_background_is_watched_to_its_end() {
        let (seen, dir, _) = touched("mkfifo f; (cat f > late) & (echo word > f) & exit 0");
        assert_eq!(std::fs::read(dir.path().join("late")).unwrap(), b"word\n");
        assert!(seen.contains(&("late".to_owned(), Truncate)), "{seen:?}");
    }

    #[test]
    fn a_command_that_is_not_there_is_an_error() {
        let missing = run_watched(Command::new("/nonexistent/program"), |_| ());
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
