//! The directory of files that were set aside (see [`crate::aside`]), and the names in it.

use larder_io::Disk;

use crate::FileNo;

/// Where they lie in the cache directory.
pub(crate) const ASIDE_DIR: &str = "set-aside";
/// At most this much of a path goes into a file's name: names on Linux have at most 255 bytes.
const PATH_BYTES_MAX: usize = 200;

/// How many files were set aside, and not removed since.
pub(crate) fn count(disk: &dyn Disk) -> u64 {
    // Mostly there is no such directory.
    disk.list(ASIDE_DIR).map_or(0, |names| names.len() as u64)
}

/// Names of the files that were set aside, and not removed since.
pub(crate) fn names(disk: &dyn Disk) -> Vec<String> {
    let mut names = disk.list(ASIDE_DIR).unwrap_or_default();
    names.sort_unstable();
    names
}

/// Whether a local file is one of those with these names.
pub(crate) fn is_among(names: &[String], no: FileNo, serial: u64) -> bool {
    name_among(names, no, serial).is_some()
}

/// The one of these names that a local file was given when it was set aside.
pub(crate) fn name_among(names: &[String], no: FileNo, serial: u64) -> Option<&String> {
    let start = name_of(no, serial, "");
    names.iter().find(|name| name.starts_with(&start))
}

/// The name of a file that is set aside: its numbers make it unique, the end of `path` tells people
/// which file it was.
pub(crate) fn name_of(no: FileNo, serial: u64, path: &str) -> String {
    let is_odd = |c: char| c == '/' || c.is_control();
    let mut path: String = path.chars().map(|c| if is_odd(c) { '_' } else { c }).collect();
    while path.len() > PATH_BYTES_MAX {
        path.remove(0);
    }
    format!("{:x}.{serial:x}_{path}", no.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_path_and_are_names() {
        assert_eq!(name_of(FileNo(0x7f), 1, "dir/a file.odt"), "7f.1_dir_a file.odt");
        assert_eq!(name_of(FileNo(0x7f), 1, "line\nfeed\0"), "7f.1_line_feed_");
        assert_eq!(name_of(FileNo(0x7f), 1, ""), "7f.1_");
        let long = name_of(FileNo(u64::MAX), u64::MAX, &"ä/".repeat(300));
        assert!(long.len() <= 255 && long.ends_with("_ä_"), "{long}");
    }
}
