//! Cases on names: making, finding, removing, renaming, linking.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use crate::{Device, Error, Kind, New, Removal, SetAttr};

use super::bench::{Bench, Outcome, holds, mode, refused, same, works};

super::table! {
    lookup_finds_what_was_made;
    lookup_of_an_absent_name_is_an_answer;
    lookup_of_dot_dot;
    lookup_in_a_file;
    names_of_every_shape;
    names_of_any_bytes [ByteNames];
    names_that_are_too_long;
    make_file_opens_an_existing_one;
    make_exclusive [ExclusiveCreate];
    make_directory_twice;
    make_over_another_kind;
    make_in_a_file;
    make_symlink [Symlinks];
    long_symlink [Symlinks, LongSymlinks];
    readlink_of_a_file;
    make_special [SpecialFiles];
    make_devices [Devices];
    remove_file;
    remove_directory;
    remove_wrong_kind;
    remove_absent;
    rename_within_a_directory;
    rename_across_directories;
    rename_over_a_file;
    rename_over_a_directory;
    rename_over_another_kind;
    rename_onto_itself;
    rename_absent;
    rename_below_itself [Cycles];
    rename_moves_dot_dot;
    link_counts [HardLinks];
    link_onto_a_name [HardLinks];
    link_a_directory [HardLinks];
    rename_onto_another_link [HardLinks];
    directory_link_counts [DirectoryLinks];
    stale_after_removal;
    stale_for_ever [HandlesOnce];
}

async fn lookup_finds_what_was_made(bench: Bench) -> Outcome {
    let made = bench.make("a", New::File).await?;
    let found = bench.find(&bench.dir, "a").await?.ok_or("not found")?;
    same("kind", found.attr.kind, Kind::File)?;
    same("number", found.attr.fileid, made.attr.fileid)?;
    same("attributes by the handle", bench.attr(&found.handle).await?.fileid, made.attr.fileid)
}

async fn lookup_of_an_absent_name_is_an_answer(bench: Bench) -> Outcome {
    bench.stands_for(&bench.dir, "none", None).await
}

async fn lookup_of_dot_dot(bench: Bench) -> Outcome {
    let inner = bench.directory("d").await?;
    let outer = bench.attr(&bench.dir).await?.fileid;
    bench.stands_for(&inner, "..", Some(outer)).await
}

async fn lookup_in_a_file(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    let found = bench.remote.lookup(&bench.owner, &file, OsStr::new("x")).await;
    refused("lookup in a file", found, &[Error::NotDirectory])
}

async fn names_of_every_shape(bench: Bench) -> Outcome {
    let longest = "n".repeat(bench.remote.limits().name_max as usize);
    for name in [" ", "a b", "...", "\u{e4}\u{1f980}", "a\\b", "%2F", "-rf", "new\nline", &longest]
    {
        let number = bench.make(name, New::File).await?.attr.fileid;
        bench.stands_for(&bench.dir, name, Some(number)).await?;
        works("remove", bench.remove(&bench.dir, name, Removal::File).await)?;
    }
    Ok(())
}

async fn names_of_any_bytes(bench: Bench) -> Outcome {
    let name = OsString::from_vec(vec![b'x', 0xff, 0x80, 0xc0, 1]);
    let (owner, dir) = (&bench.owner, &bench.dir);
    let made = bench.remote.make(owner, dir, &name, New::File, mode(0o644)).await;
    let number = works("make", made)?.found.attr.fileid;
    let found = bench.find(dir, &name).await?.map(|found| found.attr.fileid);
    same("number", found, Some(number))?;
    let listed = bench.list(dir, 4096).await?;
    same("listed", listed.into_iter().map(|entry| entry.name).collect(), vec![name])
}

async fn names_that_are_too_long(bench: Bench) -> Outcome {
    let name = "n".repeat(bench.remote.limits().name_max as usize + 1);
    let (owner, dir) = (&bench.owner, &bench.dir);
    let made = bench.remote.make(owner, dir, name.as_ref(), New::File, mode(0o644)).await;
    refused("make", made, &[Error::NameTooLong])?;
    let made = bench.remote.make(owner, dir, name.as_ref(), New::Directory, mode(0o755)).await;
    refused("make a directory", made, &[Error::NameTooLong])
}

async fn make_file_opens_an_existing_one(bench: Bench) -> Outcome {
    let file = bench.file("a", b"content").await?;
    let number = bench.attr(&file).await?.fileid;
    let make = |set| bench.remote.make(&bench.owner, &bench.dir, OsStr::new("a"), New::File, set);
    let made = works("make without attributes", make(SetAttr::default()).await)?;
    same("number", made.found.attr.fileid, number)?;
    bench.reads(&file, 0, 100, b"content", true).await?;
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    let made = works("make with size 0", make(cut).await)?;
    same("number", made.found.attr.fileid, number)?;
    same("size", bench.attr(&file).await?.size, 0)
}

async fn make_exclusive(bench: Bench) -> Outcome {
    let file = bench.make("a", New::FileExclusive).await?;
    same("mode", file.attr.mode & 0o777, 0o644)?;
    bench.put(&file.handle, 0, b"x").await?;
    let (owner, dir) = (&bench.owner, &bench.dir);
    let again =
        bench.remote.make(owner, dir, OsStr::new("a"), New::FileExclusive, mode(0o600)).await;
    refused("a second time", again, &[Error::Exists])?;
    bench.reads(&file.handle, 0, 9, b"x", true).await
}

async fn make_directory_twice(bench: Bench) -> Outcome {
    bench.directory("d").await?;
    let (owner, dir) = (&bench.owner, &bench.dir);
    let again = bench.remote.make(owner, dir, OsStr::new("d"), New::Directory, mode(0o755)).await;
    refused("a second time", again, &[Error::Exists])
}

async fn make_over_another_kind(bench: Bench) -> Outcome {
    bench.directory("d").await?;
    bench.file("f", b"").await?;
    let (owner, dir) = (&bench.owner, &bench.dir);
    let file = bench.remote.make(owner, dir, OsStr::new("d"), New::File, SetAttr::default()).await;
    refused("file over directory", file, &[Error::Exists, Error::IsDirectory])?;
    let made = bench.remote.make(owner, dir, OsStr::new("f"), New::Directory, mode(0o755)).await;
    refused("directory over file", made, &[Error::Exists])
}

async fn make_in_a_file(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    let name = OsStr::new("x");
    let made = bench.remote.make(&bench.owner, &file, name, New::File, mode(0o644)).await;
    refused("make in a file", made, &[Error::NotDirectory])
}

async fn make_symlink(bench: Bench) -> Outcome {
    let target = "../no such/place";
    let made = bench.make("s", New::Symlink(target.into())).await?;
    same("kind", made.attr.kind, Kind::Symlink)?;
    same("size", made.attr.size, target.len() as u64)?;
    let (got, _) = works("readlink", bench.remote.readlink(&bench.owner, &made.handle).await)?;
    same("target", got, target.into())?;
    let (owner, dir) = (&bench.owner, &bench.dir);
    let new = New::Symlink("x".into());
    let again = bench.remote.make(owner, dir, OsStr::new("s"), new, SetAttr::default()).await;
    refused("a second time", again, &[Error::Exists])
}

async fn long_symlink(bench: Bench) -> Outcome {
    let target = "0123456789/".repeat(100);
    let made = bench.make("s", New::Symlink(target.clone().into())).await?;
    let (got, _) = works("readlink", bench.remote.readlink(&bench.owner, &made.handle).await)?;
    same("target", got, target.into())
}

async fn readlink_of_a_file(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let target = bench.remote.readlink(&bench.owner, &file).await;
    refused("readlink", target, &[Error::InvalidArgument])
}

async fn make_special(bench: Bench) -> Outcome {
    for (name, kind) in [("fifo", Kind::Fifo), ("socket", Kind::Socket)] {
        let made = bench.make(name, New::Node(kind, Device::default())).await?;
        same("kind", made.attr.kind, kind)?;
        let read = bench.remote.read(&bench.owner, &made.handle, None, 0, 1).await;
        holds("a special file is not read", read.is_err())?;
    }
    Ok(())
}

async fn make_devices(bench: Bench) -> Outcome {
    for (name, kind, major, minor) in
        [("char", Kind::CharDevice, 1, 3), ("block", Kind::BlockDevice, 259, 70_000)]
    {
        let device = Device { major, minor };
        let made = bench.make(name, New::Node(kind, device)).await?;
        same("kind", made.attr.kind, kind)?;
        same("device", made.attr.device, device)?;
    }
    Ok(())
}

async fn remove_file(bench: Bench) -> Outcome {
    bench.file("a", b"x").await?;
    works("remove", bench.remove(&bench.dir, "a", Removal::File).await)?;
    bench.stands_for(&bench.dir, "a", None).await?;
    bench.file("a", b"").await?;
    Ok(())
}

async fn remove_directory(bench: Bench) -> Outcome {
    let inner = bench.directory("d").await?;
    bench.make_in(&inner, "a", New::File).await?;
    let full = bench.remove(&bench.dir, "d", Removal::Directory).await;
    refused("a full directory", full, &[Error::NotEmpty, Error::Exists])?;
    works("remove", bench.remove(&inner, "a", Removal::File).await)?;
    works("remove", bench.remove(&bench.dir, "d", Removal::Directory).await)?;
    bench.stands_for(&bench.dir, "d", None).await
}

async fn remove_wrong_kind(bench: Bench) -> Outcome {
    bench.directory("d").await?;
    bench.file("f", b"").await?;
    let removed = bench.remove(&bench.dir, "f", Removal::Directory).await;
    refused("file as directory", removed, &[Error::NotDirectory])?;
    let removed = bench.remove(&bench.dir, "d", Removal::File).await;
    refused("directory as file", removed, &[Error::IsDirectory, Error::NotPermitted])
}

async fn remove_absent(bench: Bench) -> Outcome {
    for what in [Removal::File, Removal::Directory] {
        refused("remove", bench.remove(&bench.dir, "none", what).await, &[Error::NotFound])?;
    }
    Ok(())
}

async fn rename_within_a_directory(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let number = bench.attr(&file).await?.fileid;
    works("rename", bench.rename((&bench.dir, "a"), (&bench.dir, "b")).await)?;
    bench.stands_for(&bench.dir, "a", None).await?;
    bench.stands_for(&bench.dir, "b", Some(number)).await?;
    bench.reads(&file, 0, 9, b"x", true).await
}

async fn rename_across_directories(bench: Bench) -> Outcome {
    let (from, to) = (bench.directory("from").await?, bench.directory("to").await?);
    let made = bench.make_in(&from, "a", New::File).await?;
    works("rename", bench.rename((&from, "a"), (&to, "b")).await)?;
    bench.stands_for(&from, "a", None).await?;
    bench.stands_for(&to, "b", Some(made.attr.fileid)).await?;
    same("the handle's number", bench.attr(&made.handle).await?.fileid, made.attr.fileid)
}

async fn rename_over_a_file(bench: Bench) -> Outcome {
    let file = bench.file("a", b"new").await?;
    let number = bench.attr(&file).await?.fileid;
    bench.file("b", b"old").await?;
    works("rename", bench.rename((&bench.dir, "a"), (&bench.dir, "b")).await)?;
    bench.stands_for(&bench.dir, "b", Some(number)).await?;
    same("names", bench.list(&bench.dir, 4096).await?.len(), 1)
}

async fn rename_over_a_directory(bench: Bench) -> Outcome {
    let moved = bench.attr(&bench.directory("a").await?).await?.fileid;
    let target = bench.directory("b").await?;
    bench.make_in(&target, "x", New::File).await?;
    let full = bench.rename((&bench.dir, "a"), (&bench.dir, "b")).await;
    refused("over a full directory", full, &[Error::NotEmpty, Error::Exists])?;
    works("remove", bench.remove(&target, "x", Removal::File).await)?;
    works("over an empty one", bench.rename((&bench.dir, "a"), (&bench.dir, "b")).await)?;
    bench.stands_for(&bench.dir, "b", Some(moved)).await
}

async fn rename_over_another_kind(bench: Bench) -> Outcome {
    bench.directory("d").await?;
    bench.file("f", b"").await?;
    let over = bench.rename((&bench.dir, "f"), (&bench.dir, "d")).await;
    refused("file over directory", over, &[Error::IsDirectory, Error::Exists])?;
    let over = bench.rename((&bench.dir, "d"), (&bench.dir, "f")).await;
    refused("directory over file", over, &[Error::NotDirectory, Error::Exists])
}

async fn rename_onto_itself(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let number = bench.attr(&file).await?.fileid;
    works("rename", bench.rename((&bench.dir, "a"), (&bench.dir, "a")).await)?;
    bench.stands_for(&bench.dir, "a", Some(number)).await
}

async fn rename_absent(bench: Bench) -> Outcome {
    let renamed = bench.rename((&bench.dir, "none"), (&bench.dir, "b")).await;
    refused("rename", renamed, &[Error::NotFound])
}

async fn rename_below_itself(bench: Bench) -> Outcome {
    let outer = bench.directory("outer").await?;
    let inner = bench.make_in(&outer, "inner", New::Directory).await?.handle;
    for target in [&outer, &inner] {
        let renamed = bench.rename((&bench.dir, "outer"), (target, "x")).await;
        refused("rename below itself", renamed, &[Error::InvalidArgument])?;
    }
    Ok(())
}

async fn rename_moves_dot_dot(bench: Bench) -> Outcome {
    let (moved, to) = (bench.directory("d").await?, bench.directory("to").await?);
    works("rename", bench.rename((&bench.dir, "d"), (&to, "d")).await)?;
    bench.stands_for(&moved, "..", Some(bench.attr(&to).await?.fileid)).await
}

async fn link_counts(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let name = OsStr::new("b");
    works("link", bench.remote.link(&bench.owner, &file, &bench.dir, name).await)?;
    let attr = bench.attr(&file).await?;
    same("links", attr.nlink, 2)?;
    bench.stands_for(&bench.dir, "b", Some(attr.fileid)).await?;
    works("remove", bench.remove(&bench.dir, "a", Removal::File).await)?;
    same("links", bench.attr(&file).await?.nlink, 1)?;
    bench.reads(&file, 0, 9, b"x", true).await
}

async fn link_onto_a_name(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    bench.file("b", b"").await?;
    let linked = bench.remote.link(&bench.owner, &file, &bench.dir, OsStr::new("b")).await;
    refused("link", linked, &[Error::Exists])
}

async fn link_a_directory(bench: Bench) -> Outcome {
    let inner = bench.directory("d").await?;
    let linked = bench.remote.link(&bench.owner, &inner, &bench.dir, OsStr::new("e")).await;
    let allowed = [Error::NotPermitted, Error::IsDirectory, Error::InvalidArgument];
    refused("link", linked, &allowed)
}

async fn rename_onto_another_link(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    let number = bench.attr(&file).await?.fileid;
    works("link", bench.remote.link(&bench.owner, &file, &bench.dir, OsStr::new("b")).await)?;
    works("rename", bench.rename((&bench.dir, "a"), (&bench.dir, "b")).await)?;
    // POSIX: nothing happens.
    bench.stands_for(&bench.dir, "a", Some(number)).await?;
    bench.stands_for(&bench.dir, "b", Some(number)).await
}

async fn directory_link_counts(bench: Bench) -> Outcome {
    same("empty", bench.attr(&bench.dir).await?.nlink, 2)?;
    bench.directory("d").await?;
    let to = bench.directory("to").await?;
    bench.file("f", b"").await?;
    same("two directories inside", bench.attr(&bench.dir).await?.nlink, 4)?;
    works("rename", bench.rename((&bench.dir, "d"), (&to, "d")).await)?;
    same("one moved away", bench.attr(&bench.dir).await?.nlink, 3)?;
    same("where it went", bench.attr(&to).await?.nlink, 3)?;
    works("remove", bench.remove(&to, "d", Removal::Directory).await)?;
    same("removed there", bench.attr(&to).await?.nlink, 2)
}

async fn stale_after_removal(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let inner = bench.directory("d").await?;
    works("remove", bench.remove(&bench.dir, "a", Removal::File).await)?;
    works("remove", bench.remove(&bench.dir, "d", Removal::Directory).await)?;
    let stale = [Error::Stale, Error::NotFound];
    refused("getattr", bench.remote.getattr(&bench.owner, &file).await, &stale)?;
    refused("read", bench.remote.read(&bench.owner, &file, None, 0, 1).await, &stale)?;
    let found = bench.remote.lookup(&bench.owner, &inner, OsStr::new("x")).await;
    refused("lookup", found, &stale)
}

async fn stale_for_ever(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    works("remove", bench.remove(&bench.dir, "a", Removal::File).await)?;
    bench.file("a", b"").await?;
    let stale = [Error::Stale, Error::NotFound];
    refused("the new file's name", bench.remote.getattr(&bench.owner, &file).await, &stale)
}
