//! Who may do what: the server's judgement where we have it, mode bits where we do not.

use larder_vfs::{Access, Attr, Cred, Kind, OpenFlags};

/// What the mode bits alone allow, as an NFS server without access control lists judges (RFC 1813,
/// 3.3.4). `superuser` says whether user 0 is above them: not if the server squashes root.
pub(crate) fn by_mode(attr: &Attr, cred: &Cred, superuser: bool) -> Access {
    let directory = attr.kind == Kind::Directory;
    let write = if directory {
        Access::MODIFY | Access::EXTEND | Access::DELETE
    } else {
        Access::MODIFY | Access::EXTEND
    };
    let search = if directory { Access::LOOKUP } else { Access::EXECUTE };
    if cred.uid == 0 && superuser {
        let executable = directory || attr.mode & 0o111 != 0;
        return Access::READ | write | if executable { search } else { Access::NONE };
    }
    let shift = match () {
        () if cred.uid == attr.uid => 6,
        () if cred.in_group(attr.gid) => 3,
        () => 0,
    };
    let bits = attr.mode >> shift;
    [(0o4, Access::READ), (0o2, write), (0o1, search)]
        .into_iter()
        .filter(|(bit, _)| bits & bit != 0)
        .fold(Access::NONE, |all, (_, right)| all | right)
}

/// The rights that opening with `flags` takes. Execution takes one of two.
pub(crate) fn suffice(flags: &OpenFlags, granted: Access) -> bool {
    let read = !flags.read
        || granted.contains(Access::READ)
        || (flags.execute && granted.contains(Access::EXECUTE));
    let write = !(flags.write || flags.truncate)
        || granted.contains(Access::MODIFY)
        || (flags.append && granted.contains(Access::EXTEND));
    read && write
}

/// Whether everybody may search the directory, so that nobody needs to be asked about.
pub(crate) fn searchable_by_all(attr: &Attr) -> bool {
    attr.mode & 0o111 == 0o111
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_vfs::{Device, Time};

    fn file(mode: u32) -> Attr {
        Attr {
            kind: Kind::File,
            mode,
            nlink: 1,
            uid: 10,
            gid: 20,
            device: Device::default(),
            size: 0,
            used: 0,
            fsid: 0,
            fileid: 0,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
            change: None,
            birth: None,
        }
    }

    /// The first class that matches decides, even if it grants less than a later one.
    #[test]
    fn mode_bits_are_judged_as_posix_has_it() {
        let owner = Cred::new(10, 99, &[20]);
        let group = Cred::new(11, 99, &[20]);
        let other = Cred::new(11, 99, &[]);
        for (mode, cred, expected) in [
            (0o077, &owner, Access::NONE),
            (0o400, &owner, Access::READ),
            (0o707, &group, Access::NONE),
            (0o020, &group, Access::MODIFY | Access::EXTEND),
            (0o770, &other, Access::NONE),
            (0o001, &other, Access::EXECUTE),
        ] {
            assert_eq!(by_mode(&file(mode), cred, true), expected, "{mode:o} {cred:?}");
        }
    }

    #[test]
    fn root_is_above_the_bits_unless_squashed() {
        let root = Cred::root();
        assert!(by_mode(&file(0), &root, true).contains(Access::READ | Access::MODIFY));
        assert!(!by_mode(&file(0), &root, true).contains(Access::EXECUTE));
        assert_eq!(by_mode(&file(0o600), &root, false), Access::NONE);
    }

    #[test]
    fn opening_needs_what_it_asks_for() {
        let flags = |read, write, append, execute| OpenFlags {
            read,
            write,
            append,
            execute,
            ..OpenFlags::default()
        };
        let rw = Access::READ | Access::MODIFY | Access::EXTEND;
        for (flags, granted, expected) in [
            (flags(true, false, false, false), Access::READ, true),
            (flags(true, false, false, false), Access::EXECUTE, false),
            (flags(true, false, false, true), Access::EXECUTE, true),
            (flags(true, true, false, false), Access::READ, false),
            (flags(true, true, false, false), rw, true),
            (flags(false, true, true, false), Access::EXTEND, true),
            (flags(false, true, false, false), Access::EXTEND, false),
        ] {
            assert_eq!(suffice(&flags, granted), expected, "{flags:?} {granted:?}");
        }
    }
}
