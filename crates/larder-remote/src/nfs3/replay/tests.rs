//! The evidence alone; `nfs3::tests` loses real replies.

use super::*;
use larder_vfs::Device;

#[test]
fn only_an_object_that_was_just_made_by_us_is_ours() {
    let at = |milliseconds: u32| Time { sec: 1000, nsec: milliseconds * 1_000_000 };
    let attr = |uid, mtime, ctime| Attr {
        kind: Kind::Directory,
        mode: 0o755,
        nlink: 2,
        uid,
        gid: 0,
        device: Device::default(),
        size: 4096,
        used: 4096,
        fsid: 1,
        fileid: 2,
        atime: at(0),
        mtime,
        ctime,
        change: None,
        data_change: None,
        birth: None,
    };
    let cred = Cred::new(7, 7, &[]);
    let dir = |mtime| Some(attr(0, mtime, mtime));
    let check = |object: Attr, dir| is_fresh(&object, Kind::Directory, &cred, dir);

    assert!(check(attr(7, at(500), at(500)), dir(at(504))));
    assert!(!check(attr(8, at(500), at(500)), dir(at(500))), "somebody else's");
    assert!(!check(attr(7, at(500), at(500)), dir(at(900))), "the directory changed since");
    assert!(!check(attr(7, at(900), at(900)), dir(at(500))), "the object changed since");
    assert!(!check(attr(7, at(100), at(500)), dir(at(500))), "its attributes were set");
    assert!(!check(attr(7, at(500), at(500)), None), "nothing is known");
    assert!(!is_fresh(&attr(7, at(5), at(5)), Kind::File, &cred, dir(at(5))), "another kind");
}

#[test]
fn only_a_retransmitted_call_may_have_been_done_before() {
    assert!(may_be_done(nfsstat3::NFS3ERR_NOENT, 2));
    assert!(!may_be_done(nfsstat3::NFS3ERR_NOENT, 1));
    assert!(!may_be_done(nfsstat3::NFS3ERR_ACCES, 2));
}
