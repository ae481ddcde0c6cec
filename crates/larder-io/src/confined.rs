//! A process that sees what it is given, and nothing else: namespaces of its own (namespaces(7)).
//!
//! No privilege is needed where the kernel lets users make user namespaces; root does it in the
//! same way, and has no more power inside than its files give it. The steps, in this order, in a
//! process with one thread: [`leave`], then [`enter`] in a child, which is the first process of
//! its own process namespace: all others end with it.

#![allow(unsafe_code, reason = "rustix has neither mount_setattr(2) nor a safe unshare(2)")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::Signal;
use rustix::thread::{CapabilitySet, UnshareFlags};

/// Devices that every program may expect.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Something that is seen inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The path outside.
    pub from: PathBuf,
    /// Where, inside: absolute.
    pub to: PathBuf,
}

/// Leaves the namespaces of the machine, its network included, as the same user. The next child is
/// the first process of a process namespace.
///
/// # Errors
/// If the kernel does not let this user do so.
pub fn leave() -> io::Result<()> {
    let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let parts = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC;
    // SAFETY: descriptors stay shared, so none is closed while other code uses it.
    unsafe { rustix::thread::unshare_unsafe(parts) }?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{0} {0} 1", user.0))?;
    fs::write("/proc/self/gid_map", format!("{0} {0} 1", user.1))?;
    // Not before: a change of credentials may take it away (prctl(2)).
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The privilege to mount must survive an execve(2).
    let mut sets = rustix::thread::capabilities(None)?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)?;
    Ok(())
}

/// Makes `root` the root directory, with `binds` in it, which cannot be written, `/proc`, `/dev`
/// and an empty `/tmp`; then gives up all privileges. Everything that is written elsewhere is
/// written to `root`.
///
/// # Errors
/// If a path does not exist, or cannot be made inside.
pub fn enter(root: &Path, binds: &[Bind]) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    rustix::mount::mount_bind(root, root)?;
    for bind in binds {
        let to = below(root, &bind.to);
        show(&bind.from, &to).map_err(|error| named(&bind.from, &error))?;
        read_only(&to).map_err(|error| named(&bind.from, &error))?;
    }
    devices(root)?;
    let proc = root.join("proc");
    fs::create_dir_all(&proc)?;
    rustix::mount::mount("proc", &proc, "proc", MountFlags::empty(), None)?;
    let temporary = root.join("tmp");
    if !temporary.exists() {
        fs::create_dir(&temporary)?;
    }
    rustix::process::chdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    rustix::thread::clear_ambient_capability_set()?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// A path of the inside, seen from outside.
pub fn below(root: &Path, inside: &Path) -> PathBuf {
    root.join(inside.strip_prefix("/").unwrap_or(inside))
}

/// Shows a file or directory at a place, which is made for it. A symbolic link becomes the same
/// link.
fn show(from: &Path, to: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(from)?.file_type();
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(from)?, to);
    }
    match kind.is_dir() {
        true => fs::create_dir_all(to)?,
        false => drop(fs::File::create(to)?),
    }
    Ok(rustix::mount::mount_bind_recursive(from, to)?)
}

/// Makes everything that is mounted at or below a place read-only. A place that is not a mount
/// point stays as it is.
fn read_only(place: &Path) -> io::Result<()> {
    if fs::symlink_metadata(place)?.file_type().is_symlink() {
        return Ok(());
    }
    const READ_ONLY: u64 = 1;
    /// `struct mount_attr` of mount_setattr(2): flags to set, flags to clear, and two fields that
    /// are not used here.
    #[repr(C)]
    struct Change([u64; 4]);
    let change = Change([READ_ONLY, 0, 0, 0]);
    let place = CString::new(place.as_os_str().as_bytes())?;
    // SAFETY: path and structure live until the call returns, and the kernel only reads them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            place.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const change,
            size_of::<Change>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn devices(root: &Path) -> io::Result<()> {
    let dev = root.join("dev");
    fs::create_dir_all(dev.join("shm"))?;
    for device in DEVICES {
        let (from, to) = (Path::new("/dev").join(device), dev.join(device));
        if from.exists() {
            show(&from, &to)?;
        }
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        std::os::unix::fs::symlink(target, dev.join(name))?;
    }
    Ok(())
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
