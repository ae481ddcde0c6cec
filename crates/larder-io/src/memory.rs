//! Memory of this process, and of the processes that it starts.

use std::ffi::OsString;
use std::process::Command;

/// Variable with settings of the C library (glibc; `ld.so --list-tunables` names them).
const TUNABLES: &str = "GLIBC_TUNABLES";

/// CPUs that share a heap in a process that must keep little memory.
const CPUS_PER_HEAP: usize = 4;

/// Returns freed memory to the system. Otherwise the C library keeps it for reuse: a hundred
/// megabytes after a walk over a million files. Takes a few milliseconds; to be called after much
/// memory was freed.
#[allow(unsafe_code)]
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time from any thread; it takes a number and
    // touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes a process that is about to be started retain little of the memory that it frees, so that
/// [`give_back`] finds it in whole pages. Otherwise the C library keeps a few hundred freed pieces
/// for each thread, and a heap for each: after much was freed they are scattered over all the
/// memory that was used, and each retains a page. Settings in the environment have priority.
pub fn keep_little(command: &mut Command) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let heaps = cpus.div_ceil(CPUS_PER_HEAP);
    // Without lists of small pieces, too: each larger request, such as a caller's, would first put
    // all that was freed since the last one back among the free memory.
    let ours =
        format!("glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0:glibc.malloc.arena_max={heaps}");
    command.env(TUNABLES, joined(ours, std::env::var_os(TUNABLES)));
}

/// Joins two lists of settings; later settings override earlier ones.
fn joined(ours: String, theirs: Option<OsString>) -> OsString {
    let mut all = OsString::from(ours);
    if let Some(theirs) = theirs.filter(|theirs| !theirs.is_empty()) {
        all.push(":");
        all.push(theirs);
    }
    all
}

/// Has the kernel map all of this program and of its libraries, so that no first call of a function
/// waits for the disk: after that, their pages leave memory only if it is short. Reads what is not
/// in memory (larder: 12 MB at most), and counts as resident memory, shared with other processes of
/// the program. Does nothing where the kernel cannot (before Linux 5.14).
#[allow(unsafe_code)]
pub fn populate_program() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for (start, len) in maps.lines().filter_map(mapped_code) {
        // SAFETY: populating for reading changes no byte, also if something else is there by now.
        let populated = unsafe {
            let advice = rustix::mm::Advice::LinuxPopulateRead;
            rustix::mm::madvise(std::ptr::without_provenance_mut(start), len, advice)
        };
        if populated.is_err() {
            return;
        }
    }
}

/// Start and length of a mapping that is part of a program file and is not written to; see
/// proc_pid_maps(5).
fn mapped_code(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights, path) = (words.next()?, words.next()?, words.nth(3)?);
    if !matches!(rights, "r-xp" | "r--p") || !path.starts_with('/') {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let (start, end) =
        (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    Some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_environment_hold() {
        let joined = |theirs: &str| joined("a=1".to_owned(), Some(theirs.into()));
        assert_eq!(joined(""), "a=1");
        assert_eq!(joined("a=2"), "a=1:a=2");
    }

    #[test]
    fn code_and_constants_of_files_are_found() {
        let of = |rest| mapped_code(&format!("7f00001000-7f00003000 {rest}"));
        assert_eq!(of("r-xp 00001000 fe:00 42    /usr/bin/larder"), Some((0x7f_0000_1000, 0x2000)));
        assert_eq!(of("r--p 00000000 fe:00 42    /usr/bin/larder"), Some((0x7f_0000_1000, 0x2000)));
        for other in [
            "rw-p 00001000 fe:00 42 /usr/bin/larder",
            "rw-s 00000000 fe:00 42 /cache/log",
            "r-xp 00000000 00:00 0 [vdso]",
            "r--p 00000000 00:00 0",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn all_of_the_program_is_in_memory() {
        populate_program();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let program = std::env::current_exe().unwrap();
        let (mut size, mut resident, mut ours) = (0, 0, false);
        for line in smaps.lines() {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            match words[..] {
                ["Size:", kib, _] if ours => size += kib.parse::<u64>().unwrap(),
                ["Rss:", kib, _] if ours => resident += kib.parse::<u64>().unwrap(),
                [field, ..] if field.ends_with(':') => {}
                // The first fields of a mapping's line; an anonymous mapping has no path.
                [_, rights, .., path] => {
                    ours = rights.starts_with("r-") && path == program.to_str().unwrap();
                }
                _ => {}
            }
        }
        assert!(size > 0 && size == resident, "{resident} of {size} KiB");
    }
}
