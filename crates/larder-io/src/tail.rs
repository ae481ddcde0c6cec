//! [`Tail`]: appends small pieces to a file without a system call for each.
//!
//! Room is allocated beyond the end of the file, and that part, the *window*, is mapped into
//! memory. A piece that is put there is in the page cache at once, so like bytes written by
//! write(2) it survives the process, and is no more durable. Where room or mapping is refused, or
//! there is no descriptor, pieces are written.
//!
//! Invariants:
//! - [`Tail::append`] returns an error if the piece may not be in the file, however the medium
//!   fails: a page that the kernel cannot give raises SIGBUS, and our handler puts memory of the
//!   process in the window's place, which `append` then notices. A SIGBUS anywhere else goes to the
//!   handler that was set before.
//! - Bytes of the file after the tail are zeros, or those of a piece that was being appended when
//!   the process died. Of a piece that was being put into the window then, the first byte is zero.
//!
//! Left out: reading, which is [`DiskFile`]'s.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};

use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::disk::DiskFile;
use crate::real::RealFile;

/// Bytes that are allocated at a time. A multiple of every page size (64 KiB at most).
const WINDOW_BYTES: usize = 256 << 10;

/// Windows in a process; further tails append by write(2).
const WINDOWS_MAX: usize = 64;

static ZEROS: [u8; WINDOW_BYTES] = [0; WINDOW_BYTES];

/// A file that is appended to.
#[derive(Debug)]
pub struct Tail {
    file: Arc<dyn DiskFile>,
    len: u64,
    window: Option<Window>,
    /// The file cannot be mapped, so mapping is not tried again.
    writes: bool,
    /// It is synced often, so windows are filled.
    fills: bool,
}

impl Tail {
    /// The tail of an empty file.
    pub fn new(file: Arc<dyn DiskFile>) -> Tail {
        let writes = file.as_fd().is_none();
        Tail { file, len: 0, window: None, writes, fills: false }
    }

    /// The tail of a memory file (`memfd_create(2)`), behind its first `len_bytes`.
    pub fn of_memory(memory: OwnedFd, len_bytes: u64) -> Tail {
        let file = Arc::new(RealFile::new(memory));
        Tail { file, len: len_bytes, window: None, writes: false, fills: false }
    }

    /// The file will be synced often: from now on zeros are written to each window as it is opened,
    /// and to the rest of the present one. Room that was only allocated becomes part of the file
    /// when its pages are written for the first time, which a file system records in its journal,
    /// and a sync waits for that; ext4 (`data=ordered`) then also waits for the new blocks of other
    /// files. With zeros in place one sync of each window does that, and the others write pages in
    /// place.
    pub fn expect_syncs(&mut self) {
        if !std::mem::replace(&mut self.fills, true) {
            self.fill_window();
        }
    }

    fn fill_window(&self) {
        let Some(window) = &self.window else { return };
        let end = window.start + WINDOW_BYTES as u64;
        let rest = usize::try_from(end.saturating_sub(self.len)).expect("a window is small");
        if let Err(error) = self.file.write_at(&ZEROS[..rest], self.len) {
            // It has its room.
            tracing::debug!(%error, "room for pieces is not filled");
        }
    }

    /// Where the next piece goes: the length of what is there.
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Appends a piece after all others. Not durable; it survives the process.
    ///
    /// # Errors
    /// Those of pwrite(2), or `EIO` if the medium cannot provide a page. Do not use the tail after
    /// an error.
    pub fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        if self.window.as_ref().is_none_or(|window| !window.has_room(self.len, piece.len())) {
            self.move_window();
        }
        let put = match &mut self.window {
            Some(window) if window.has_room(self.len, piece.len()) => window.put(self.len, piece),
            _ => self.file.write_at(piece, self.len),
        };
        put?;
        self.len += piece.len() as u64;
        Ok(())
    }

    /// Leaves so many bytes out, which read as zeros.
    pub fn skip(&mut self, len_bytes: u64) {
        self.len += len_bytes;
    }

    /// Returns the file, which may be longer than what was appended.
    pub fn into_file(self) -> Arc<dyn DiskFile> {
        self.file
    }

    /// Moves the window to where the next piece goes.
    fn move_window(&mut self) {
        self.window = None;
        if self.writes {
            return;
        }
        match Window::open(&*self.file, self.len) {
            Ok(window) => {
                self.window = Some(window);
                if self.fills {
                    self.fill_window();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a file is written piece by piece");
                self.writes = true;
            }
        }
    }
}

/// A mapped part of a file.
struct Window {
    slot: &'static Slot,
    base: NonNull<u8>,
    start: u64,
}

// SAFETY: the mapping belongs to the window, whichever thread has it.
#[allow(unsafe_code)]
unsafe impl Send for Window {}
// SAFETY: what is mapped is touched with an exclusive reference only.
#[allow(unsafe_code)]
unsafe impl Sync for Window {}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("start", &self.start).finish_non_exhaustive()
    }
}

impl Window {
    /// Allocates room in the file from the page of `at` on, and maps it.
    #[allow(unsafe_code)]
    fn open(file: &dyn DiskFile, at: u64) -> io::Result<Window> {
        let fd = file.as_fd().ok_or(io::ErrorKind::Unsupported)?;
        let start = at - at % rustix::param::page_size() as u64;
        // Without allocated blocks, touching a page would fail when the disk is full.
        rustix::fs::fallocate(fd, FallocateFlags::empty(), start, WINDOW_BYTES as u64)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory of ours.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), WINDOW_BYTES, protection, flags, fd, start)
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        match Slot::take(base) {
            Some(slot) => Ok(Window { slot, base, start }),
            None => {
                unmap(base);
                Err(io::ErrorKind::OutOfMemory.into())
            }
        }
    }

    fn has_room(&self, at: u64, len: usize) -> bool {
        at + len as u64 <= self.start + WINDOW_BYTES as u64
    }

    #[allow(unsafe_code)]
    fn put(&mut self, at: u64, piece: &[u8]) -> io::Result<()> {
        assert!(
            at >= self.start && self.has_room(at, piece.len()),
            "a piece outside of the window"
        );
        let offset = usize::try_from(at - self.start).expect("a window is small");
        if let Some((first, rest)) = piece.split_first() {
            // SAFETY: the piece lies within the mapping, as asserted, which only `&mut self` can
            // access, so it does not overlap `piece`. Where the kernel cannot give a page, the
            // handler puts another one there before the access goes on. The next process sees the
            // first byte only behind the others: the store releases them.
            unsafe {
                let to = self.base.as_ptr().add(offset);
                to.add(1).copy_from_nonoverlapping(rest.as_ptr(), rest.len());
                AtomicU8::from_ptr(to).store(*first, Ordering::Release);
            }
        }
        let lost = self.slot.lost.load(Ordering::Acquire);
        if lost { Err(rustix::io::Errno::IO.into()) } else { Ok(()) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // First the slot: the kernel may give the address to another window as soon as it is free,
        // and the handler takes the first slot that has it.
        self.slot.base.store(0, Ordering::Release);
        unmap(self.base);
    }
}

#[allow(unsafe_code)]
fn unmap(base: NonNull<u8>) {
    // SAFETY: it is a mapping of ours, of this length, and there is no reference into it.
    let unmapped = unsafe { rustix::mm::munmap(base.as_ptr().cast(), WINDOW_BYTES) };
    debug_assert_eq!(unmapped, Ok(()));
}

/// A window, as the handler of SIGBUS sees it.
struct Slot {
    /// Its address; 0 if the slot is free.
    base: AtomicUsize,
    /// The handler has replaced it by memory of the process.
    lost: AtomicBool,
}

static SLOTS: [Slot; WINDOWS_MAX] =
    [const { Slot { base: AtomicUsize::new(0), lost: AtomicBool::new(false) } }; WINDOWS_MAX];

impl Slot {
    /// Takes a free slot, for a mapping that has not been touched yet.
    fn take(base: NonNull<u8>) -> Option<&'static Slot> {
        listen();
        let is_free = |slot: &&Slot| {
            let taken = slot.base.compare_exchange(
                0,
                base.as_ptr() as usize,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            taken.is_ok()
        };
        let slot = SLOTS.iter().find(is_free)?;
        slot.lost.store(false, Ordering::Release);
        Some(slot)
    }
}

/// The action for SIGBUS that was set before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler of SIGBUS, once.
#[allow(unsafe_code)]
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all zeros is a `sigaction` (no flags, an empty mask, the default action).
        let (mut ours, mut before) =
            unsafe { (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed()) };
        // SAFETY: it only writes `before`.
        unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) };
        // Set before the handler can run.
        let _ = BEFORE.set(before);
        ours.sa_sigaction = on_bus_error as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that `SA_SIGINFO` asks for, and does only what may
        // be done in a handler (signal-safety(7)): atomics, mmap(2), sigaction(2) and
        // raise(3).
        let taken = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) };
        debug_assert_eq!(taken, 0);
    });
}

/// The handler: the kernel cannot provide a page of a mapping.
#[allow(unsafe_code)]
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a valid `siginfo_t` with the address, where it is a fault.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let is_fault = code > 0;
    let is_in = |slot: &&Slot| {
        let base = slot.base.load(Ordering::Acquire);
        base != 0 && (base..base + WINDOW_BYTES).contains(&address)
    };
    if is_fault && let Some(slot) = SLOTS.iter().find(is_in) {
        let base = slot.base.load(Ordering::Acquire) as *mut libc::c_void;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: it replaces a mapping of ours as a whole. The thread that faulted is in
        // `Window::put` and holds the window, so it is not unmapped meanwhile.
        let mapped = unsafe { libc::mmap(base, WINDOW_BYTES, protection, flags, -1, 0) };
        if mapped == base {
            return slot.lost.store(true, Ordering::Release);
        }
    }
    let before = BEFORE.get().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: returns the signal to its previous handler; a fault is repeated then.
    unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    if !is_fault {
        // SAFETY: no memory is touched; it is delivered when we return.
        unsafe { libc::raise(signal) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Disk, Image, MemDisk, OpenMode, RealDisk, SimDisk};

    const FAILURES: usize = 2000;

    fn pieces() -> impl Iterator<Item = Vec<u8>> {
        // Some pieces cross the end of a page, some the end of a window, and one is longer than a
        // window.
        (1_u32..3000).map(|n| vec![n as u8; if n == 1500 { 300_000 } else { n as usize % 331 }])
    }

    fn check(disk: &dyn Disk) {
        let mut tail = Tail::new(disk.open("log", OpenMode::Create).unwrap());
        let mut expected = Vec::new();
        for piece in pieces() {
            tail.append(&piece).unwrap();
            expected.extend(piece);
        }
        assert_eq!(tail.len_bytes(), expected.len() as u64);
        // A second open file sees the bytes while they are being written.
        let other = disk.open("log", OpenMode::Existing).unwrap();
        let mut found = vec![1; usize::try_from(other.len().unwrap()).unwrap()];
        other.read_exact_at(&mut found, 0).unwrap();
        let (found, behind) = found.split_at(expected.len());
        assert!(found == expected && behind.iter().all(|byte| *byte == 0));
        assert_eq!(tail.into_file().len().unwrap(), other.len().unwrap());
    }

    #[test]
    fn what_is_appended_is_in_the_file_on_every_disk() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        check(&RealDisk::open(folder.path()).unwrap());
        check(&MemDisk::new());
        let disk = SimDisk::new();
        check(&disk);
        assert!(!disk.crash(Image::Written).files().is_empty());
    }

    /// As far as the file system says so: what was only allocated counts as a hole, once no page of
    /// it is in memory.
    #[test]
    fn windows_of_a_tail_that_is_synced_are_filled() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = RealDisk::open(folder.path()).unwrap();
        let window = WINDOW_BYTES as u64;
        let filled = |name: &str, fills: bool| {
            let file = disk.open(name, OpenMode::Create).unwrap();
            let mut tail = Tail::new(Arc::clone(&file));
            tail.append(b"one").unwrap();
            if fills {
                tail.expect_syncs();
            }
            tail.append(&vec![1; WINDOW_BYTES - 3]).unwrap();
            tail.append(b"two").unwrap();
            drop(tail);
            file.sync_data().unwrap();
            let fd = file.as_fd().unwrap();
            rustix::fs::fadvise(fd, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let mut found = vec![9; 2 * WINDOW_BYTES];
            let data = file.data_ranges(0..2 * window).unwrap();
            file.read_exact_at(&mut found, 0).unwrap();
            let expected = [&b"one"[..], &vec![1; WINDOW_BYTES - 3], b"two"].concat();
            assert!(found.starts_with(&expected));
            assert!(found[expected.len()..].iter().all(|byte| *byte == 0));
            data.iter().map(|range| range.end).max().unwrap()
        };
        assert!(filled("plain", false) < 2 * window);
        assert_eq!(filled("filled", true), 2 * window);
    }

    #[test]
    fn a_memory_file_is_continued_behind_what_is_there() {
        let memory = rustix::fs::memfd_create("tail", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&memory, b"before", 0).unwrap();
        let mut expected = b"before".to_vec();
        for piece in pieces() {
            // Each one by a process of its own, as it were.
            let at = expected.len() as u64;
            let mut tail = Tail::of_memory(memory.try_clone().unwrap(), at);
            tail.append(&piece).unwrap();
            expected.extend(piece);
            // Behind a gap, and in the same window, where that has room.
            tail.skip(8);
            tail.append(b"behind").unwrap();
            expected.extend([0; 8]);
            expected.extend(b"behind");
        }
        let mut found = vec![1; expected.len() + 1];
        let len = rustix::io::pread(&memory, &mut found, 0).unwrap();
        assert!(
            found[..expected.len()] == expected
                && (len == expected.len() || found.last() == Some(&0))
        );
    }

    /// The file is truncated through another descriptor, which stands for a medium that cannot
    /// provide a page.
    #[test]
    fn a_page_that_is_not_given_is_an_error() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = RealDisk::open(folder.path()).unwrap();
        let mut tail = Tail::new(disk.open("log", OpenMode::Create).unwrap());
        tail.append(b"there").unwrap();
        let mut whole = Tail::new(disk.open("other", OpenMode::Create).unwrap());
        whole.append(b"there").unwrap();
        disk.open("log", OpenMode::Existing).unwrap().set_len(0).unwrap();
        let failed = tail.append(b"gone").unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EIO));
        assert!(tail.append(b"gone").is_err());
        whole.append(b", too").unwrap();
        let mut found = [0; 10];
        whole.into_file().read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"there, too");
    }

    /// Other windows end meanwhile, so the kernel gives their addresses to new ones.
    #[test]
    fn a_page_that_is_not_given_is_an_error_while_other_windows_come_and_go() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = RealDisk::open(folder.path()).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for number in 0..3 {
                let (disk, is_done) = (&disk, &is_done);
                scope.spawn(move || {
                    let file = disk.open(&format!("other{number}"), OpenMode::Create).unwrap();
                    while !is_done.load(Ordering::Relaxed) {
                        Tail::new(file.clone()).append(b"there").unwrap();
                    }
                });
            }
            let mut reported = 0;
            let file = disk.open("log", OpenMode::Create).unwrap();
            for _ in 0..FAILURES {
                let mut tail = Tail::new(file.clone());
                tail.append(b"there").unwrap();
                file.set_len(0).unwrap();
                reported += usize::from(tail.append(b"gone").is_err());
            }
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(reported, FAILURES);
        });
    }
}
