//! Mountpoints as people type them.
//!
//! Nothing here touches a mount: a dead one would hang or fail. Paths are compared with the
//! kernel's list as text; the kernel lists them without symbolic links.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
pub(crate) use larder_fuse::KIND;
pub(crate) use larder_io::mountinfo::{Mount, mounted_at, mounts};

/// Type of the mounts by which an automounter learns that a process accesses the path (autofs(5),
/// systemd.automount(5)).
pub(crate) const AUTOFS: &str = "autofs";

/// The path under which the kernel knows a mountpoint, found without touching the mountpoint
/// itself.
///
/// A path that is in the list of mounts as typed is taken unchanged; otherwise its folder is
/// resolved, and the last name is kept.
///
/// # Errors
/// If its folder does not exist.
pub(crate) fn resolve(typed: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(typed).with_context(|| typed.display().to_string())?;
    let absolute: PathBuf = absolute.components().collect();
    if mounts()?.iter().any(|mount| mount.mountpoint == absolute) {
        return Ok(absolute);
    }
    match (absolute.parent(), absolute.components().next_back()) {
        (Some(folder), Some(Component::Normal(name))) => {
            let lacks = || format!("there is no {}: {}", absolute.display(), folder.display());
            Ok(folder.canonicalize().with_context(lacks)?.join(name))
        }
        _ => absolute.canonicalize().with_context(|| absolute.display().to_string()),
    }
}

/// Most symbolic links on the way to a path, as in the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Which of `mountpoints` a path is at or below: the innermost. Symbolic links are followed as far
/// as the path is outside of all of them; within one, the path is only compared.
///
/// # Errors
/// If the path is a cycle of symbolic links.
pub(crate) fn around(typed: &Path, mountpoints: &[PathBuf]) -> Result<Option<PathBuf>> {
    let mut path = std::path::absolute(typed).with_context(|| typed.display().to_string())?;
    for _ in 0..=LINKS_MAX {
        match walk(&path, mountpoints) {
            Walk::Link(target) => path = target,
            Walk::End(at) => {
                let around = mountpoints.iter().filter(|one| at.starts_with(one));
                return Ok(around.max_by_key(|one| one.as_os_str().len()).cloned());
            }
        }
    }
    bail!("{} goes round in symbolic links", typed.display())
}

/// How far a path can be followed.
enum Walk {
    /// To a symbolic link, with which it is this path.
    Link(PathBuf),
    /// To its end, or into a mount.
    End(PathBuf),
}

/// Follows an absolute path to the first symbolic link that is not in one of `mountpoints`.
fn walk(path: &Path, mountpoints: &[PathBuf]) -> Walk {
    let mut at = PathBuf::from("/");
    let mut parts = path.components();
    while let Some(part) = parts.next() {
        match part {
            Component::ParentDir => drop(at.pop()),
            Component::Normal(name) => at.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
        }
        if mountpoints.iter().any(|one| at.starts_with(one)) {
            continue;
        }
        if let Ok(target) = std::fs::read_link(&at) {
            at.pop();
            return Walk::Link(at.join(target).join(parts.as_path()));
        }
    }
    Walk::End(at)
}

/// A short name for a mountpoint, usable in file names: 16 hexadecimal digits (FNV-1a, 64 bits).
pub(crate) fn short_name(mountpoint: &Path) -> String {
    let hash =
        mountpoint.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3_u64)
        });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolving_follows_links_in_the_folder_only() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("real/mnt")).unwrap();
        std::os::unix::fs::symlink("real", top.join("link")).unwrap();
        assert_eq!(resolve(&top.join("link/mnt")).unwrap(), top.join("real/mnt"));
        assert_eq!(resolve(&top.join("real/mnt/")).unwrap(), top.join("real/mnt"));
        assert_eq!(resolve(&top.join("real/not-there")).unwrap(), top.join("real/not-there"));
        assert!(resolve(&top.join("not/there")).is_err());
    }

    #[test]
    fn a_path_is_in_the_innermost_mount() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("real")).unwrap();
        std::os::unix::fs::symlink("real", top.join("link")).unwrap();
        std::os::unix::fs::symlink("round", top.join("round")).unwrap();
        let known = [top.join("real/mnt"), top.join("real/mnt/in/side")];
        let found = |path: &str| around(&top.join(path), &known).unwrap();
        for (path, mount) in [
            ("real/mnt", Some(0)),
            ("real/mnt/sub/not-there", Some(0)),
            ("link/mnt/sub", Some(0)),
            ("real/mnt/in/side/x", Some(1)),
            ("real/mnt/in/side/../x", Some(0)),
            ("real/mnt/../other", None),
            ("real/mnt2", None),
        ] {
            assert_eq!(found(path), mount.map(|at: usize| known[at].clone()), "{path}");
        }
        assert!(around(&top.join("round/x"), &known).is_err());
    }

    #[test]
    fn short_names_differ() {
        assert_eq!(short_name(Path::new("/mnt")).len(), 16);
        assert_ne!(short_name(Path::new("/mnt")), short_name(Path::new("/mnt2")));
    }
}
