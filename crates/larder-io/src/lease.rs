//! Exclusive use of a file for a moment: a write lease of the kernel (`F_SETLEASE` of fcntl(2)).
//!
//! The kernel grants one only while no other descriptor of the file is open, and no mapping of it
//! exists, in any process. While the lease is held, a process that opens or truncates the file
//! waits until it is released. So what is read of a file before and after a change under a lease
//! encloses that change and nothing else.
//!
//! `rustix` lacks these calls, so this module makes them.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Selects the signal that notifies the holder of a lease (fcntl(2)): missing from `libc`.
const F_SETSIG: libc::c_int = 10;

/// A lease, held until this is dropped. Hold it no longer than a system call takes: other
/// processes' opens wait for it.
#[derive(Debug)]
pub struct Alone<'fd> {
    fd: BorrowedFd<'fd>,
}

/// Whether the caller is the only one that has a file open.
#[derive(Debug)]
pub enum Company<'fd> {
    /// No other open file description exists, and no process can open the file as long as this is
    /// held.
    Alone(Alone<'fd>),
    /// The file is open elsewhere, perhaps in this process by another descriptor.
    Others,
    /// The file system has no leases, or this process may not take one.
    Unknown,
}

/// Asks for a lease on a file that `file` has open for reading and writing. Does not wait.
///
/// While the lease is held, a non-blocking open of the file (`O_NONBLOCK`), even by this process,
/// fails with `EWOULDBLOCK`.
pub fn alone(file: &impl AsFd) -> Company<'_> {
    let fd = file.as_fd();
    // The kernel signals the holder when another process waits. SIGIO would end the process; SIGURG
    // is ignored unless it is handled.
    if set(fd, F_SETSIG, libc::SIGURG).is_err() {
        return Company::Unknown;
    }
    match set(fd, libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(()) => Company::Alone(Alone { fd }),
        Err(Errno::AGAIN | Errno::BUSY | Errno::TXTBSY) => Company::Others,
        Err(_) => Company::Unknown,
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // This fails only if there is no lease, and then there is none to release.
        let _ = set(self.fd, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

fn set(fd: BorrowedFd<'_>, command: libc::c_int, value: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the descriptor is open as long as it is borrowed, and these commands take a number.
    let status = unsafe { libc::fcntl(fd.as_raw_fd(), command, value) };
    match status {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    fn open(path: &std::path::Path) -> File {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    #[test]
    fn an_open_elsewhere_prevents_the_lease_and_the_lease_keeps_opens_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = open(&path);
        for reader in [File::open(&path).unwrap(), open(&path)] {
            assert!(matches!(alone(&file), Company::Others));
            drop(reader);
        }
        let Company::Alone(held) = alone(&file) else { panic!("nobody else has it open") };
        let hasty = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        assert_eq!(hasty.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || File::open(path).map(drop)
        });
        drop(held);
        waiting.join().unwrap().unwrap();
        assert!(matches!(alone(&file), Company::Alone(_)));
    }

    /// A mapping outlives the descriptor that it was made by.
    #[test]
    fn a_mapping_is_company() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = open(&path);
        file.set_len(4096).unwrap();
        let other = open(&path);
        // SAFETY: a fresh mapping of one page, which no code accesses.
        let page = unsafe {
            let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, other.as_raw_fd());
            libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, fd, 0)
        };
        drop(other);
        assert!(matches!(alone(&file), Company::Others));
        // SAFETY: the mapping made above, once.
        unsafe { libc::munmap(page, 4096) };
        assert!(matches!(alone(&file), Company::Alone(_)));
    }
}
