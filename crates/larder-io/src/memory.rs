//! What of this program is in memory.

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
