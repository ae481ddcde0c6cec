//! Cases on listings.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use crate::{Cookie, Error, New, Removal};

use super::bench::{Bench, Outcome, holds, mode, refused, same, works};

super::table! {
    an_empty_directory;
    entries_name_their_files;
    a_listing_in_small_replies;
    a_thousand_names;
    from_any_position;
    removal_while_listing;
    addition_while_listing;
    listing_a_file;
}

async fn fill(bench: &Bench, names: usize) -> Outcome<BTreeSet<String>> {
    let mut made = BTreeSet::new();
    for number in 0..names {
        let name = format!("file {number:04}");
        bench.make(&name, New::File).await?;
        made.insert(name);
    }
    Ok(made)
}

fn name(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

async fn an_empty_directory(bench: Bench) -> Outcome {
    same("entries, without . and ..", bench.list(&bench.dir, 4096).await?.len(), 0)
}

async fn entries_name_their_files(bench: Bench) -> Outcome {
    bench.file("f", b"xyz").await?;
    bench.directory("d").await?;
    for entry in bench.list(&bench.dir, 4096).await? {
        let found = bench.find(&bench.dir, &entry.name).await?.ok_or("listed, but not there")?;
        same("number", entry.fileid, found.attr.fileid)?;
        if let Some(attr) = entry.attr {
            same("attributes", (attr.kind, attr.size, attr.mode), {
                let found = found.attr;
                (found.kind, found.size, found.mode)
            })?;
        }
        if let Some(handle) = entry.handle {
            same("by the handle", bench.attr(&handle).await?.fileid, entry.fileid)?;
        }
    }
    Ok(())
}

async fn each_name_once(bench: &Bench, wanted: &BTreeSet<String>, bytes_max: u32) -> Outcome {
    let listed = bench.list(&bench.dir, bytes_max).await?;
    same("entries", listed.len(), wanted.len())?;
    let names: BTreeSet<String> = listed.iter().map(|entry| name(&entry.name)).collect();
    same("names", &names, wanted)
}

async fn a_listing_in_small_replies(bench: Bench) -> Outcome {
    let wanted = fill(&bench, 40).await?;
    for bytes_max in [1, 512, 1000, 4096, 1 << 20] {
        each_name_once(&bench, &wanted, bytes_max).await?;
    }
    Ok(())
}

async fn a_thousand_names(bench: Bench) -> Outcome {
    let wanted = fill(&bench, 1000).await?;
    each_name_once(&bench, &wanted, 8192).await
}

async fn from_any_position(bench: Bench) -> Outcome {
    fill(&bench, 60).await?;
    let (owner, dir) = (&bench.owner, &bench.dir);
    let begin = bench.remote.readdir(owner, dir, Cookie::default(), 2048).await;
    let verifier = works("readdir", begin)?.verifier;
    let all = bench.list(dir, 2048).await?;
    for (index, entry) in all.iter().enumerate().step_by(7) {
        let cookie = Cookie { position: entry.position, verifier };
        let rest = works("readdir", bench.remote.readdir(owner, dir, cookie, 2048).await)?;
        let next = rest.entries.first().map(|entry| name(&entry.name));
        let wanted = all.get(index + 1).map(|entry| name(&entry.name));
        same(&format!("after entry {index}"), next, wanted)?;
    }
    Ok(())
}

async fn removal_while_listing(bench: Bench) -> Outcome {
    let mut wanted = fill(&bench, 60).await?;
    let (owner, dir) = (&bench.owner, &bench.dir);
    let mut cookie = Cookie::default();
    loop {
        let part = match bench.remote.readdir(owner, dir, cookie, 1024).await {
            // A server may say that the directory has changed: then the listing starts again.
            Err(Error::BadCookie) => {
                cookie = Cookie::default();
                continue;
            }
            other => works("readdir", other)?,
        };
        for entry in &part.entries {
            let name = name(&entry.name);
            holds(&format!("{name} is there, and comes once"), wanted.remove(&name))?;
            works("remove", bench.remove(dir, &name, Removal::File).await)?;
        }
        if part.eof {
            break;
        }
        let position = part.entries.last().map_or(cookie.position, |last| last.position);
        cookie = Cookie { position, verifier: part.verifier };
    }
    same("names that were never listed", wanted, BTreeSet::new())?;
    same("entries that are left", bench.list(dir, 4096).await?.len(), 0)
}

async fn addition_while_listing(bench: Bench) -> Outcome {
    let mut wanted = fill(&bench, 40).await?;
    let (owner, dir) = (&bench.owner, &bench.dir);
    let first = works("readdir", bench.remote.readdir(owner, dir, Cookie::default(), 1024).await)?;
    let made = bench.remote.make(owner, dir, OsStr::new("late"), New::File, mode(0o600)).await;
    works("make", made)?;
    // Names that existed before and stay must be listed; the new name may be.
    let mut cookie = Cookie {
        position: first.entries.last().map_or(0, |last| last.position),
        verifier: first.verifier,
    };
    let (mut part, mut eof) = (first.entries, first.eof);
    loop {
        for entry in &part {
            wanted.remove(&name(&entry.name));
        }
        if eof {
            return same("names that were never listed", wanted, BTreeSet::new());
        }
        let next = match bench.remote.readdir(owner, dir, cookie, 1024).await {
            Err(Error::BadCookie) => {
                works("readdir", bench.remote.readdir(owner, dir, Cookie::default(), 1024).await)?
            }
            other => works("readdir", other)?,
        };
        let position = next.entries.last().map_or(cookie.position, |last| last.position);
        cookie = Cookie { position, verifier: next.verifier };
        (part, eof) = (next.entries, next.eof);
    }
}

async fn listing_a_file(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    let listed = bench.remote.readdir(&bench.owner, &file, Cookie::default(), 4096).await;
    refused("readdir", listed, &[Error::NotDirectory, Error::InvalidArgument])
}
