//! Cases on extended attributes. A server without them must say so.

use std::ffi::OsString;

use bytes::Bytes;

use crate::{Access, Change, Error, Handle, New, Result, SetXattr, XattrOnly};

use super::bench::{Bench, Outcome, mode, refused, same, works};

super::table! {
    extended_attributes_are_kept [Xattrs];
    extended_attributes_of_directories [Xattrs];
    an_absent_extended_attribute [Xattrs];
    extended_attributes_that_must_be_new_or_there [Xattrs];
    extended_attributes_are_removed [Xattrs];
    names_of_extended_attributes [Xattrs];
    large_extended_attributes [Xattrs];
    extended_attributes_stay_with_a_renamed_file [Xattrs];
    extended_attributes_need_rights [Xattrs, Modes];
    setting_an_extended_attribute_is_a_change [Xattrs, ChangeTime];
    without_extended_attributes_that_is_said;
}

fn put(name: &str, value: &[u8]) -> SetXattr {
    SetXattr { name: name.into(), value: Some(Bytes::copy_from_slice(value)), only: None }
}

impl Bench {
    async fn set_xattr(&self, file: &Handle, set: SetXattr) -> Result<Change> {
        self.remote.set_xattr(&self.owner, file, set).await
    }

    async fn has(&self, file: &Handle, name: &str, wanted: Option<&[u8]>) -> Outcome {
        let value = self.remote.xattr(&self.owner, file, name.as_ref()).await;
        same(&format!("value of {name}"), works("xattr", value)?.as_deref(), wanted)
    }

    async fn xattrs(&self, file: &Handle) -> Outcome<Vec<OsString>> {
        let mut names = works("xattrs", self.remote.xattrs(&self.owner, file).await)?;
        names.sort();
        Ok(names)
    }
}

async fn extended_attributes_are_kept(bench: Bench) -> Outcome {
    let file = bench.file("a", b"12345").await?;
    same("names", bench.xattrs(&file).await?.len(), 0)?;
    works("set", bench.set_xattr(&file, put("one", b"first")).await)?;
    works("set", bench.set_xattr(&file, put("two", &[0, 255, 10])).await)?;
    works("set", bench.set_xattr(&file, put("one", b"1")).await)?;
    bench.has(&file, "one", Some(b"1")).await?;
    bench.has(&file, "two", Some(&[0, 255, 10])).await?;
    same("names", bench.xattrs(&file).await?, vec!["one".into(), "two".into()])?;
    bench.reads(&file, 0, 99, b"12345", true).await
}

async fn extended_attributes_of_directories(bench: Bench) -> Outcome {
    let dir = bench.directory("a").await?;
    works("set", bench.set_xattr(&dir, put("of", b"a directory")).await)?;
    bench.has(&dir, "of", Some(b"a directory")).await?;
    same("names", bench.xattrs(&dir).await?, vec!["of".into()])?;
    same("entries", bench.list(&dir, 4096).await?.len(), 0)
}

async fn an_absent_extended_attribute(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    bench.has(&file, "none", None).await?;
    works("set", bench.set_xattr(&file, put("some", b"x")).await)?;
    bench.has(&file, "none", None).await
}

async fn extended_attributes_that_must_be_new_or_there(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    let only = |only, value| SetXattr { only: Some(only), ..put("x", value) };
    let absent = bench.set_xattr(&file, only(XattrOnly::Existing, b"1")).await;
    refused("replace", absent, &[Error::NoAttribute])?;
    bench.has(&file, "x", None).await?;
    works("create", bench.set_xattr(&file, only(XattrOnly::New, b"2")).await)?;
    refused("create", bench.set_xattr(&file, only(XattrOnly::New, b"3")).await, &[Error::Exists])?;
    bench.has(&file, "x", Some(b"2")).await?;
    works("replace", bench.set_xattr(&file, only(XattrOnly::Existing, b"4")).await)?;
    bench.has(&file, "x", Some(b"4")).await
}

async fn extended_attributes_are_removed(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    let remove = SetXattr { value: None, only: Some(XattrOnly::Existing), ..put("x", b"") };
    refused("remove", bench.set_xattr(&file, remove.clone()).await, &[Error::NoAttribute])?;
    works("set", bench.set_xattr(&file, put("x", b"1")).await)?;
    works("set", bench.set_xattr(&file, put("y", b"2")).await)?;
    works("remove", bench.set_xattr(&file, remove).await)?;
    bench.has(&file, "x", None).await?;
    same("names", bench.xattrs(&file).await?, vec!["y".into()])
}

async fn names_of_extended_attributes(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    let long = "n".repeat(200);
    for name in ["a", "with space", "dots.in.it", "UPPER", &long] {
        works(name, bench.set_xattr(&file, put(name, name.as_bytes())).await)?;
        bench.has(&file, name, Some(name.as_bytes())).await?;
    }
    same("names", bench.xattrs(&file).await?.len(), 5)?;
    let longer = "n".repeat(251);
    let allowed = [Error::NameTooLong, Error::InvalidArgument];
    refused("251 bytes", bench.set_xattr(&file, put(&longer, b"")).await, &allowed)
}

async fn large_extended_attributes(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    for len in [1000, 3000] {
        let value: Vec<u8> = (0..len).map(|at| at as u8).collect();
        works("set", bench.set_xattr(&file, put("x", &value)).await)?;
        bench.has(&file, "x", Some(&value)).await?;
    }
    let allowed = [Error::TooLarge, Error::NoSpace, Error::InvalidArgument];
    let huge = vec![0; crate::XATTR_VALUE_BYTES_MAX + 1];
    refused("more than 64 KiB", bench.set_xattr(&file, put("x", &huge)).await, &allowed)
}

async fn extended_attributes_stay_with_a_renamed_file(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    works("set", bench.set_xattr(&file, put("x", b"1")).await)?;
    works("rename", bench.rename((&bench.dir, "a"), (&bench.dir, "b")).await)?;
    bench.has(&file, "x", Some(b"1")).await?;
    let other = bench.make("a", New::File).await?.handle;
    bench.has(&other, "x", None).await
}

async fn extended_attributes_need_rights(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    works("set", bench.set_xattr(&file, put("x", b"1")).await)?;
    let of = |cred: &crate::Cred, name: &'static str| {
        let (remote, cred, file) = (bench.remote.clone(), cred.clone(), file.clone());
        async move { remote.set_xattr(&cred, &file, put(name, b"2")).await }
    };
    let denied = [Error::AccessDenied, Error::NotPermitted];
    for (bits, reads, writes) in [(0o600, false, false), (0o604, true, false), (0o606, true, true)]
    {
        bench.set(&file, mode(bits)).await?;
        let read = bench.remote.xattr(&bench.other, &file, "x".as_ref()).await;
        match reads {
            true => drop(works("read", read)?),
            false => refused("read", read, &denied)?,
        }
        match writes {
            true => drop(works("write", of(&bench.other, "y").await)?),
            false => refused("write", of(&bench.other, "y").await, &denied)?,
        }
    }
    Ok(())
}

async fn setting_an_extended_attribute_is_a_change(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    let before = bench.attr(&file).await?;
    works("set", bench.set_xattr(&file, put("x", b"1")).await)?;
    let after = bench.attr(&file).await?;
    same("mtime", after.mtime, before.mtime)?;
    super::bench::holds("the time of the change moved", after.ctime >= before.ctime)
}

/// Whatever the server can do, its methods and its answers must agree.
async fn without_extended_attributes_that_is_said(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    let set = bench.set_xattr(&file, put("x", b"1")).await;
    match set {
        Err(Error::NotSupported) => {
            let read = bench.remote.xattr(&bench.owner, &file, "x".as_ref()).await;
            refused("read", read, &[Error::NotSupported])?;
            refused("list", bench.remote.xattrs(&bench.owner, &file).await, &[Error::NotSupported])
        }
        set => {
            works("set", set)?;
            let rights = bench.access(&bench.owner, &file, Access::READ).await?;
            same("rights", rights, Access::READ)
        }
    }
}
