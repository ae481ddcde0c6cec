//! Cases on rights.

use std::ffi::OsStr;

use bytes::Bytes;

use crate::{Access, Cred, Error, Handle, New, Removal, SetAttr, SetTime, Stability, Time};

use super::bench::{Bench, Outcome, holds, mode, refused, same, works};

/// Sticky directories and unusual servers give either error.
const NO: [Error; 2] = [Error::AccessDenied, Error::NotPermitted];

super::table! {
    a_stranger_may_not_read_or_write [Modes];
    a_stranger_may_not_change_names [Modes];
    a_stranger_may_not_search [Modes];
    a_stranger_may_not_list [Modes];
    a_stranger_may_not_set_attributes [Modes];
    a_stranger_may_not_take_a_file [Modes];
    access_agrees_with_what_happens [Modes];
    access_of_a_directory [Modes];
    access_answers_what_was_asked;
    the_owner_of_a_new_file [Modes];
    groups_count [Modes, Chown];
    set_gid_directories_pass_their_group_on [Modes, Chown];
    sticky_directories [Modes, Sticky];
    writing_clears_set_uid [Modes];
    a_read_only_file_is_written_by_its_owner;
    a_read_only_file_is_written_by_an_owner_without_privileges [Modes];
}

async fn write_as(bench: &Bench, cred: &Cred, file: &Handle) -> crate::Result<()> {
    let data = Bytes::from_static(b"w");
    bench.remote.write(cred, file, None, 0, data, Stability::FileSync).await.map(drop)
}

async fn a_stranger_may_not_read_or_write(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let other = &bench.other;
    bench.set(&file, mode(0o600)).await?;
    let read = || bench.remote.read(other, &file, None, 0, 9);
    refused("read", read().await, &NO)?;
    refused("write", write_as(&bench, other, &file).await, &NO)?;
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    refused("truncate", bench.remote.setattr(other, &file, cut, None).await, &NO)?;
    bench.set(&file, mode(0o604)).await?;
    works("read", read().await)?;
    refused("write", write_as(&bench, other, &file).await, &NO)?;
    bench.set(&file, mode(0o606)).await?;
    works("write", write_as(&bench, other, &file).await)
}

async fn a_stranger_may_not_change_names(bench: Bench) -> Outcome {
    bench.file("a", b"x").await?;
    let (remote, other, dir) = (&bench.remote, &bench.other, &bench.dir);
    let (a, b) = (OsStr::new("a"), OsStr::new("b"));
    refused("make", remote.make(other, dir, b, New::File, mode(0o644)).await, &NO)?;
    refused("mkdir", remote.make(other, dir, b, New::Directory, mode(0o755)).await, &NO)?;
    refused("remove", remote.remove(other, dir, a, Removal::File).await, &NO)?;
    refused("rename", remote.rename(other, (dir, a), (dir, b)).await, &NO)?;
    bench.stands_for(dir, "b", None).await?;
    holds("it is still there", bench.find(dir, "a").await?.is_some())
}

async fn a_stranger_may_not_search(bench: Bench) -> Outcome {
    let inner = bench.directory("d").await?;
    bench.make_in(&inner, "a", New::File).await?;
    bench.set(&inner, mode(0o704)).await?;
    let lookup = || bench.remote.lookup(&bench.other, &inner, OsStr::new("a"));
    refused("lookup", lookup().await, &NO)?;
    bench.set(&inner, mode(0o701)).await?;
    works("lookup", lookup().await).map(drop)
}

async fn a_stranger_may_not_list(bench: Bench) -> Outcome {
    let inner = bench.directory("d").await?;
    bench.set(&inner, mode(0o701)).await?;
    let list = || bench.remote.readdir(&bench.other, &inner, Default::default(), 4096);
    refused("readdir", list().await, &NO)?;
    bench.set(&inner, mode(0o705)).await?;
    works("readdir", list().await).map(drop)
}

async fn a_stranger_may_not_set_attributes(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    bench.set(&file, mode(0o666)).await?;
    let other = &bench.other;
    let chmod = bench.remote.setattr(other, &file, mode(0o777), None).await;
    refused("chmod", chmod, &NO)?;
    let time = Some(SetTime::To(Time { sec: 1, nsec: 0 }));
    let set = SetAttr { mtime: time, atime: time, ..SetAttr::default() };
    refused("set times", bench.remote.setattr(other, &file, set, None).await, &NO)?;
    // A user who may write may also have the time set to now (utimensat(2)).
    let now = Some(SetTime::ServerNow);
    let set = SetAttr { mtime: now, atime: now, ..SetAttr::default() };
    works("touch", bench.remote.setattr(other, &file, set, None).await)?;
    same("mode", bench.attr(&file).await?.mode, 0o666)
}

async fn a_stranger_may_not_take_a_file(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    bench.set(&file, mode(0o666)).await?;
    let other = &bench.other;
    let set = SetAttr { uid: Some(other.uid), ..SetAttr::default() };
    refused("chown", bench.remote.setattr(other, &file, set, None).await, &NO)?;
    let set = SetAttr { gid: Some(other.gid), ..SetAttr::default() };
    refused("chgrp", bench.remote.setattr(other, &file, set, None).await, &NO)
}

async fn access_agrees_with_what_happens(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    for bits in 0..8 {
        bench.set(&file, mode(0o600 | bits)).await?;
        let granted = bench.access(&bench.other, &file, Access::ALL).await?;
        let what = |right| format!("{right} with mode {bits:o}");
        // RFC 1813, 4.4: a user who may execute a file may also read it, whatever ACCESS says.
        if bits & 1 == 0 {
            let read = bench.remote.read(&bench.other, &file, None, 0, 1).await.is_ok();
            same(&what("read"), granted.contains(Access::READ), read)?;
        }
        let write = write_as(&bench, &bench.other, &file).await.is_ok();
        same(&what("write"), granted.contains(Access::MODIFY | Access::EXTEND), write)?;
        same(&what("execute"), granted.contains(Access::EXECUTE), bits & 1 != 0)?;
    }
    Ok(())
}

async fn access_of_a_directory(bench: Bench) -> Outcome {
    let inner = bench.directory("d").await?;
    for bits in [0o700, 0o705, 0o701, 0o704, 0o707] {
        bench.set(&inner, mode(bits)).await?;
        let granted = bench.access(&bench.other, &inner, Access::ALL).await?;
        let what = |right| format!("{right} with mode {bits:o}");
        same(&what("list"), granted.contains(Access::READ), bits & 4 != 0)?;
        same(&what("search"), granted.contains(Access::LOOKUP), bits & 1 != 0)?;
        let change = Access::MODIFY | Access::EXTEND;
        same(&what("change"), granted.contains(change), bits & 2 != 0)?;
    }
    Ok(())
}

async fn access_answers_what_was_asked(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    for wanted in [Access::READ, Access::MODIFY, Access::READ | Access::EXTEND] {
        let granted = bench.access(&bench.owner, &file, wanted).await?;
        same("rights of the owner", granted, wanted)?;
    }
    Ok(())
}

async fn the_owner_of_a_new_file(bench: Bench) -> Outcome {
    bench.set(&bench.dir, mode(0o777)).await?;
    let (other, dir) = (&bench.other, &bench.dir);
    for (name, new) in [("f", New::File), ("x", New::FileExclusive), ("d", New::Directory)] {
        let made = bench.remote.make(other, dir, name.as_ref(), new, mode(0o700)).await;
        let attr = works("make", made)?.found.attr;
        same("owner", (attr.uid, attr.gid), (other.uid, other.gid))?;
        same("mode", attr.mode, 0o700)?;
    }
    Ok(())
}

async fn groups_count(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let set = SetAttr { gid: Some(4321), mode: Some(0o640), ..SetAttr::default() };
    bench.set(&file, set).await?;
    let (uid, gid) = (bench.other.uid, bench.other.gid);
    for (member, allowed) in [
        (Cred::new(uid, gid, &[]), false),
        (Cred::new(uid, gid, &[1, 4320, 4322]), false),
        (Cred::new(uid, gid, &[1, 4321]), true),
        (Cred::new(uid, 4321, &[]), true),
    ] {
        let read = bench.remote.read(&member, &file, None, 0, 1).await;
        same(&format!("{member:?} may read"), read.is_ok(), allowed)?;
        let granted = bench.access(&member, &file, Access::READ).await?;
        same("access", granted == Access::READ, allowed)?;
    }
    Ok(())
}

async fn set_gid_directories_pass_their_group_on(bench: Bench) -> Outcome {
    let inner = bench.directory("d").await?;
    bench.set(&inner, SetAttr { gid: Some(4321), ..SetAttr::default() }).await?;
    bench.set(&inner, mode(0o2777)).await?;
    let make = |name: &'static str, new| {
        let name = OsStr::new(name);
        bench.remote.make(&bench.other, &inner, name, new, mode(0o755))
    };
    let file = works("make", make("f", New::File).await)?.found.attr;
    same("group of a file", file.gid, 4321)?;
    let directory = works("make", make("d", New::Directory).await)?.found.attr;
    same("group of a directory", directory.gid, 4321)?;
    same("its set-gid bit", directory.mode & 0o2000, 0o2000)
}

async fn sticky_directories(bench: Bench) -> Outcome {
    let inner = bench.directory("d").await?;
    bench.set(&inner, mode(0o1777)).await?;
    bench.make_in(&inner, "owner's", New::File).await?;
    let (remote, other) = (&bench.remote, &bench.other);
    let (theirs, mine) = (OsStr::new("owner's"), OsStr::new("mine"));
    works("make", remote.make(other, &inner, mine, New::File, mode(0o644)).await)?;
    refused("remove", remote.remove(other, &inner, theirs, Removal::File).await, &NO)?;
    let renamed = remote.rename(other, (&inner, theirs), (&inner, OsStr::new("x"))).await;
    refused("rename", renamed, &NO)?;
    let renamed = remote.rename(other, (&inner, mine), (&inner, theirs)).await;
    refused("rename over it", renamed, &NO)?;
    works("remove their own", remote.remove(other, &inner, mine, Removal::File).await).map(drop)
}

async fn writing_clears_set_uid(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    bench.set(&file, mode(0o4777)).await?;
    works("write", write_as(&bench, &bench.other, &file).await)?;
    same("mode", bench.attr(&file).await?.mode & 0o7000, 0)
}

/// The caller opened the file before it became read-only. The server saw no open, so it lets the
/// owner write, as POSIX allows through an open file; the client checks opens.
async fn is_written_though_read_only(bench: &Bench, owner: &Cred, name: &str) -> Outcome {
    let name = OsStr::new(name);
    let made = bench.remote.make(owner, &bench.dir, name, New::FileExclusive, mode(0o444)).await;
    let made = works("make", made)?.found;
    same("mode of the new file", made.attr.mode & 0o222, 0)?;
    let (remote, file) = (&bench.remote, &made.handle);
    let write = |at, data, stability| {
        bench.remote.write(owner, file, None, at, Bytes::from_static(data), stability)
    };
    works("write", write(0, b"hello", Stability::FileSync).await)?;
    works("unstable write", write(5, b" world", Stability::Unstable).await)?;
    works("commit", remote.commit(owner, file, None, 0..0).await)?;
    works("a second commit", remote.commit(owner, file, None, 0..0).await)?;
    let cut = SetAttr { size: Some(7), ..SetAttr::default() };
    works("truncate", remote.setattr(owner, file, cut, None).await)?;
    same("mode", bench.attr(file).await?.mode & 0o222, 0)?;
    bench.reads(file, 0, 20, b"hello w", true).await
}

async fn a_read_only_file_is_written_by_its_owner(bench: Bench) -> Outcome {
    is_written_though_read_only(&bench, &bench.owner, "a").await
}

async fn a_read_only_file_is_written_by_an_owner_without_privileges(bench: Bench) -> Outcome {
    bench.set(&bench.dir, mode(0o777)).await?;
    is_written_though_read_only(&bench, &bench.other, "a").await
}
